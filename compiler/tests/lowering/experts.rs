//! Routed experts in every way a checkpoint stores them.

use estream_compiler::compile::{Compiled, Options};
use estream_schemas::dtype::DType;
use estream_schemas::manifest::Projection::{self, Down, Gate, Up};
use serde_json::json;

use crate::toy::{FF, HIDDEN, Model, Tensor, Text, assert_says, expert, toy};

const H: usize = HIDDEN as usize;
const F: usize = FF as usize;

/// Every region of every expert.
fn regions(model: &Model, text: &Text) -> Vec<Vec<f32>> {
    let written = model.write();
    let compiled = written.keep(text);
    let mut regions = Vec::new();
    for (layer, experts) in compiled.experts.iter().enumerate() {
        for id in 0..experts.experts {
            regions.extend(
                [Gate, Up, Down].map(|projection| expert(&compiled, layer, id, projection)),
            );
        }
    }
    regions
}

/// The toy with gate and up in one tensor, each of which has this more to say.
fn fused(gate: &str, up: &str) -> Text {
    let encoding = |more: &str| format!(r#"hf = [{{ name = "{{layer}}.gate_up"{more} }}]"#);
    toy()
        .with(r#"hf = ["{layer}.{expert}.w1"]"#, &encoding(gate))
        .with(r#"hf = ["{layer}.{expert}.w3"]"#, &encoding(up))
        .with(
            r#"hf = ["{layer}.{expert}.w2"]"#,
            r#"hf = ["{layer}.down"]"#,
        )
}

/// `model` with the experts of every layer stacked, and gate and up made one by `fuse`.
fn stack(
    model: &Model,
    layers: u64,
    experts: u64,
    fuse: impl Fn(&[u8], &[u8]) -> (Vec<u64>, Vec<u8>),
) -> Model {
    let mut model = model.clone();
    for layer in 0..layers {
        let (mut down, mut gate_up, mut shape) = (Vec::new(), Vec::new(), Vec::new());
        for id in 0..experts {
            let mut take = |name: &str| model.take(&format!("{layer}.{id}.{name}")).bytes;
            let (gate, up) = (take("w1"), take("w3"));
            down.extend(take("w2"));
            let (matrix, bytes) = fuse(&gate, &up);
            gate_up.extend(bytes);
            shape = [vec![experts], matrix].concat();
        }
        let tensor = |shape: &[u64], bytes| Tensor {
            dtype: DType::F32,
            shape: shape.to_vec(),
            bytes,
        };
        model.put(&format!("{layer}.gate_up"), tensor(&shape, gate_up));
        model.put(
            &format!("{layer}.down"),
            tensor(&[experts, HIDDEN, FF], down),
        );
    }
    model
}

#[test]
fn c02_one_model_saved_in_four_ways_gives_the_same_experts() {
    let model = Model::toy(2, 3);
    let single = regions(&model, &toy());
    assert_eq!(single.len(), 2 * 3 * 3);

    let gate_first = stack(&model, 2, 3, |gate, up| {
        (vec![2 * FF, HIDDEN], [gate, up].concat())
    });
    let text = fused(
        r#", stored = ["2 * ff", "hidden"]"#,
        r#", stored = ["2 * ff", "hidden"], first_row = "ff""#,
    );
    assert_eq!(regions(&gate_first, &text), single);
    // A descriptor that has them the other way round gives other experts: shapes do not tell.
    let swapped = fused(
        r#", stored = ["2 * ff", "hidden"], first_row = "ff""#,
        r#", stored = ["2 * ff", "hidden"]"#,
    );
    assert_ne!(regions(&gate_first, &swapped), single);

    let rows_in_turn = stack(&model, 2, 3, |gate, up| {
        let rows = gate.chunks(4 * H).zip(up.chunks(4 * H));
        (
            vec![2 * FF, HIDDEN],
            rows.flat_map(|(gate, up)| [gate, up].concat()).collect(),
        )
    });
    let text = fused(
        r#", stored = ["2 * ff", "hidden"], row_step = 2"#,
        r#", stored = ["2 * ff", "hidden"], row_step = 2, first_row = 1"#,
    );
    assert_eq!(regions(&rows_in_turn, &text), single);

    let transposed = stack(&model, 2, 3, |gate, up| {
        let both = [gate, up].concat();
        let at = (0..H).flat_map(|col| (0..2 * F).map(move |row| 4 * (row * H + col)));
        (
            vec![HIDDEN, 2 * FF],
            at.flat_map(|at| both[at..at + 4].to_vec()).collect(),
        )
    });
    let text = fused(
        r#", stored = ["hidden", "2 * ff"], transposed = true"#,
        r#", stored = ["hidden", "2 * ff"], transposed = true, first_row = "ff""#,
    );
    assert_eq!(regions(&transposed, &text), single);
}

#[test]
fn c03_a_square_fused_tensor_is_read_as_the_descriptor_says() {
    // 2 · ff = hidden, so the shape is the same either way; one element is 1.
    let (row, col) = (F + 5, 7);
    let mut model = stack(&Model::toy(1, 1), 1, 1, |gate, up| {
        (vec![2 * FF, HIDDEN], [gate, up].concat())
    });
    let mut probe = vec![0.0; H * H];
    probe[row * H + col] = 1.0;
    model.put("0.gate_up", Tensor::f32(&[1, HIDDEN, HIDDEN], &probe));
    let ones = |text: &Text| -> Vec<(Projection, usize)> {
        let written = model.write();
        let compiled = written.keep(text);
        let find = |projection| {
            let values = expert(&compiled, 0, 0, projection);
            let at = values.iter().position(|value| *value == 1.0)?;
            Some((projection, at))
        };
        [Gate, Up].into_iter().filter_map(find).collect()
    };
    let straight = fused(
        r#", stored = ["2 * ff", "hidden"]"#,
        r#", stored = ["2 * ff", "hidden"], first_row = "ff""#,
    );
    assert_eq!(ones(&straight), [(Up, 5 * H + col)]);
    let turned = fused(
        r#", stored = ["hidden", "2 * ff"], transposed = true"#,
        r#", stored = ["hidden", "2 * ff"], transposed = true, first_row = "ff""#,
    );
    assert_eq!(ones(&turned), [(Gate, col * H + row)]);
}

#[test]
fn c05_c06_experts_and_layers_keep_their_numbers() {
    // Names sort as 0, 1, 10, 11, 2; and there are more layers than experts once.
    for (layers, experts) in [(1, 12), (12, 2), (6, 4)] {
        let mut model = Model::toy(layers, experts);
        let number = |layer: u64, id: u64| (100 * layer + id) as f32;
        for layer in 0..layers {
            for id in 0..experts {
                let tensor = Tensor::f32(&[FF, HIDDEN], &vec![number(layer, id); F * H]);
                model.put(&format!("{layer}.{id}.w1"), tensor);
            }
        }
        let written = model.write();
        let compiled = written.keep(&toy());
        for layer in 0..layers {
            for id in 0..experts {
                let gate = expert(&compiled, usize::try_from(layer).unwrap(), id, Gate);
                assert_eq!(
                    gate,
                    vec![number(layer, id); F * H],
                    "layer {layer} expert {id}"
                );
            }
        }
    }
}

#[test]
fn c19_w1_is_gate_w2_is_down_w3_is_up() {
    let mut model = Model::toy(1, 1);
    model.put("0.0.w1", Tensor::f32(&[FF, HIDDEN], &vec![1.0; F * H]));
    model.put("0.0.w2", Tensor::f32(&[HIDDEN, FF], &vec![2.0; F * H]));
    model.put("0.0.w3", Tensor::f32(&[FF, HIDDEN], &vec![3.0; F * H]));
    let written = model.write();
    let compiled = written.keep(&toy());
    for (projection, value) in [(Gate, 1.0), (Down, 2.0), (Up, 3.0)] {
        assert_eq!(expert(&compiled, 0, 0, projection), vec![value; F * H]);
    }
}

#[test]
fn c21_layers_may_differ_in_their_number_of_experts() {
    let mut model = Model::toy(2, 4);
    for name in ["w1", "w2", "w3"] {
        model.take(&format!("1.3.{name}"));
    }
    model.put("1.router", Tensor::zeros(DType::F32, &[3, HIDDEN]));
    model.set("experts", json!([4, 3]));
    let text = toy()
        .with(r#"experts = "experts""#, r#"experts = "experts[layer]""#)
        .with(
            r#"shape = ["experts", "hidden"]"#,
            r#"shape = ["experts[layer]", "hidden"]"#,
        );
    let written = model.write();
    let counts: Vec<u64> = written
        .keep(&text)
        .experts
        .iter()
        .map(|layer| layer.experts)
        .collect();
    assert_eq!(counts, [4, 3]);
    // The same descriptor reads a model with one number for all layers.
    assert_eq!(
        Model::toy(2, 2).write().lower(&text).experts[1].gate.len(),
        2
    );
    model.put("1.router", Tensor::zeros(DType::F32, &[4, HIDDEN]));
    assert_says(
        &model.write().problems(&text),
        &["\"1.router\" is [4, 64], router must be [3, 64]"],
    );
}

#[test]
fn c21_the_routers_of_a_pruned_model_say_how_many_experts_there_are() {
    let text = toy()
        .with(
            "gguf = \"expert_count\"",
            "gguf = \"expert_count\"\nrows_of = \"router\"",
        )
        .with(r#"experts = "experts""#, r#"experts = "experts[layer]""#)
        .with(
            r#"shape = ["experts", "hidden"]"#,
            r#"shape = ["experts[layer]", "hidden"]"#,
        );
    let mut model = Model::toy(3, 4);
    for layer in [1, 2] {
        for name in ["w1", "w2", "w3"] {
            model.take(&format!("{layer}.3.{name}"));
        }
        let router = Tensor::zeros(DType::F32, &[3, HIDDEN]);
        model.put(&format!("{layer}.router"), router);
    }
    let written = model.write();
    let compiled = written.keep(&text);
    let counts: Vec<u64> = compiled.experts.iter().map(|layer| layer.experts).collect();
    assert_eq!(counts, [4, 3, 3]);
    let told: Vec<String> = compiled.notices.iter().map(ToString::to_string).collect();
    assert_says(
        &told.join("\n"),
        &[
            "config key \"experts\" is 4, but router has 3 rows in layer 1, and others in 1 more layers",
        ],
    );
    let strict = Options {
        recipe: "keep".to_owned(),
        strict: true,
        ..Options::default()
    };
    let error = Compiled::plan(&written.checkpoint, &text.family(), &strict).unwrap_err();
    assert_says(&error.to_string(), &["router has 3 rows"]);
    // Each layer's choice is bounded by its own number of experts.
    assert_says(
        &model.write().problems(&text.with("top_k = 1", "top_k = 4")),
        &["one thing", "top_k is 4, outside 1 to 3"],
    );
    // Nothing is told where the numbers agree, and nothing is guessed where none is stated.
    let equal = Model::toy(3, 4).write().lower(&text).notices;
    assert!(!equal.iter().any(|notice| notice.is_refused_when_strict()));
    model.config.remove("experts");
    assert_says(
        &model.write().problems(&text),
        &["config key \"experts\" is not stated"],
    );
}

#[test]
fn c27_an_expert_of_another_type_is_refused_by_name() {
    let mut model = Model::toy(1, 3);
    model.put("0.1.w3", Tensor::zeros(DType::BF16, &[FF, HIDDEN]));
    let written = model.write();
    let options = Options {
        recipe: "keep".to_owned(),
        ..Options::default()
    };
    let error = Compiled::plan(&written.checkpoint, &toy().family(), &options).unwrap_err();
    assert_says(
        &error.to_string(),
        &["layers.0.expert_up: \"0.0.w3\" is f32, but \"0.1.w3\" is bf16"],
    );
}
