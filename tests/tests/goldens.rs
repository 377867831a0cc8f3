//! What a bundle computes is what the reference implementation computed.
//!
//! A reference is a run of transformers in float32 over exactly the weights of the
//! source. A family or a type is added by a row of [`CASES`].

use std::sync::OnceLock;

use estream_tests::{Prompt, Tensors, Trace, compile, fixture, max_diff, model, prompts};

/// Checkpoints, and what the names begin with of the references for their very weights.
const CASES: &[(&str, &str)] = &[
    ("deepseek2", "deepseek2/"),
    ("gguf/deepseek2-bf16.gguf", "deepseek2/"),
    ("gguf/deepseek2-legacy-f32.gguf", "deepseek2/"),
    ("gguf/deepseek2-q8_0.gguf", "gguf/deepseek2-q8_0."),
    ("gguf/deepseek2-q4_0.gguf", "gguf/deepseek2-q4_0."),
    ("granitemoe", "granitemoe/"),
    ("gguf/granitemoe-bf16.gguf", "granitemoe/"),
    ("lfm2moe", "lfm2moe/"),
    ("gguf/lfm2moe-bf16.gguf", "lfm2moe/"),
    ("gguf/lfm2moe-q8_0.gguf", "gguf/lfm2moe-q8_0."),
    ("gguf/lfm2moe-q4_0.gguf", "gguf/lfm2moe-q4_0."),
    ("mixtral", "mixtral/"),
    ("gguf/mixtral-bf16.gguf", "mixtral/"),
    ("gguf/mixtral-q8_0.gguf", "gguf/mixtral-q8_0."),
    ("gguf/mixtral-q4_0.gguf", "gguf/mixtral-q4_0."),
    ("olmoe", "olmoe/"),
    ("gguf/olmoe-bf16.gguf", "olmoe/"),
    ("gguf/olmoe-q8_0.gguf", "gguf/olmoe-q8_0."),
    ("gguf/olmoe-q4_0.gguf", "gguf/olmoe-q4_0."),
    ("qwen2moe", "qwen2moe/"),
    ("qwen3moe", "qwen3moe/"),
    ("gguf/qwen3moe-bf16.gguf", "qwen3moe/"),
    ("gguf/qwen3moe-q8_0.gguf", "gguf/qwen3moe-q8_0."),
    ("gguf/qwen3moe-q4_0.gguf", "gguf/qwen3moe-q4_0."),
];

/// The most that a logit, or a number on the way to it, may be off.
const MAX_DIFF: f32 = 2e-3;
/// Where the last chosen expert's score leads by less, rounding decides.
const MIN_MARGIN: f32 = 1e-4;

/// A case that was run.
struct Ran {
    source: &'static str,
    golden: Tensors,
    passes: Vec<(Prompt, Trace)>,
}

fn ran() -> &'static [Ran] {
    static RAN: OnceLock<Vec<Ran>> = OnceLock::new();
    RAN.get_or_init(|| {
        let run = |(source, reference): &(&'static str, &str)| {
            let dir = tempfile::tempdir().unwrap();
            let bundle = dir.path().join("case.estream");
            compile(&fixture(source), &bundle, &["--recipe", "keep"]);
            let golden = Tensors::read(&fixture(&format!("{reference}golden.safetensors")));
            let mut model = model(&bundle);
            let passes = prompts(&golden).into_iter().map(|prompt| {
                let trace = Trace::of(&mut model, &prompt.ids);
                (prompt, trace)
            });
            Ran {
                source,
                passes: passes.collect(),
                golden,
            }
        };
        CASES.iter().map(run).collect()
    })
}

/// Calls `check` with every prompt of every case; it returns how much it compared, which
/// must be something in every case.
fn for_each(check: impl Fn(&Tensors, &Prompt, &Trace) -> Result<usize, String>) {
    for Ran {
        source,
        golden,
        passes,
    } in ran()
    {
        let mut compared = 0;
        for (prompt, trace) in passes {
            compared += check(golden, prompt, trace)
                .unwrap_or_else(|why| panic!("{source}, {}: {why}", prompt.name));
        }
        assert!(compared > 0, "{source}: nothing to compare");
    }
}

fn within(what: &str, got: &[f32], expected: &[f32]) -> Result<usize, String> {
    let difference = max_diff(got, expected);
    match difference <= MAX_DIFF {
        true => Ok(1),
        false => Err(format!("{what} is off by {difference:e}")),
    }
}

#[test]
fn logits_are_those_of_the_reference_at_every_position() {
    for_each(|golden, prompt, trace| {
        let expected = golden.floats(&format!("{}.logits", prompt.name));
        within("a logit", &trace.logits, expected)
    });
}

/// In the order they are computed, so that the first that is off is the culprit.
#[test]
fn every_operator_is_as_far_as_the_reference_states_it() {
    for_each(|golden, prompt, trace| {
        let mut compared = 0;
        let mut compare = |name: &str, got: &[f32]| -> Result<(), String> {
            if let Some(expected) = golden.get(&format!("{}.{name}", prompt.name)) {
                compared += within(name, got, expected)?;
            }
            Ok(())
        };
        compare("embed", &trace.embed)?;
        for (index, layer) in trace.layers.iter().enumerate() {
            let name = |part| format!("l{index}.{part}");
            let last = layer.out.len() / prompt.ids.len() * (prompt.ids.len() - 1);
            compare(&name("mixer"), &layer.mixer)?;
            if let Some(routes) = &layer.routes {
                compare(&name("router_logits"), &routes.logits)?;
            }
            compare(&name("ffn"), &layer.ffn)?;
            compare(&name("out"), &layer.out)?;
            compare(&name("out_last"), &layer.out[last..])?;
        }
        compare("final_norm", &trace.hidden)?;
        Ok(compared)
    });
}

#[test]
fn the_same_experts_are_chosen_with_the_same_weights_where_the_margin_decides() {
    for_each(|golden, prompt, trace| {
        let mut compared = 0;
        for (index, layer) in trace.layers.iter().enumerate() {
            let Some(routes) = &layer.routes else {
                continue;
            };
            let name = |part| format!("{}.l{index}.{part}", prompt.name);
            let experts = golden.ids(&name("experts"));
            let weights = golden.floats(&name("weights"));
            let margins = golden.floats(&name("margin"));
            let tokens = margins.len();
            if routes.experts.len() != experts.len() {
                return Err(format!("layer {index}: {} routes", routes.experts.len()));
            }
            let k = routes.top_k;
            for token in (0..tokens).filter(|token| margins[*token] > MIN_MARGIN) {
                let of = token * k..(token + 1) * k;
                let pairs = |experts: &[u32], weights: &[f32]| -> Vec<(u32, f32)> {
                    let pairs = experts.iter().copied().zip(weights.iter().copied());
                    let mut pairs: Vec<_> = pairs.collect();
                    pairs.sort_by_key(|(expert, _)| *expert);
                    pairs
                };
                let got = pairs(&routes.experts[of.clone()], &routes.weights[of.clone()]);
                let expected = pairs(&experts[of.clone()], &weights[of]);
                let same = got.iter().zip(&expected).all(|(got, expected)| {
                    got.0 == expected.0 && (got.1 - expected.1).abs() <= MAX_DIFF
                });
                if !same {
                    return Err(format!(
                        "layer {index}, token {token}: {got:?}, not {expected:?}"
                    ));
                }
                compared += 1;
            }
        }
        Ok(compared)
    });
}

/// Bounds that four bits a weight would meet could not tell one set of weights from another.
#[test]
fn quantised_weights_are_not_taken_for_those_they_were_made_from() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("q4_0.estream");
    compile(&fixture("olmoe"), &bundle, &["--recipe", "q4_0"]);
    let golden = Tensors::read(&fixture("olmoe/golden.safetensors"));
    let logits = Trace::of(&mut model(&bundle), &golden.ids("t33.tokens")).logits;
    let difference = max_diff(&logits, golden.floats("t33.logits"));
    assert!(difference > 10.0 * MAX_DIFF, "{difference:e}");
}
