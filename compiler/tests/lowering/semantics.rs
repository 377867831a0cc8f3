//! What a router does, which types weights get, and which layers there are: what other
//! converters have lost on the way.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use estream_compiler::arch::Family;
use estream_compiler::compile::{Compiled, Options};
use estream_compiler::ingest::Checkpoint;
use estream_compiler::lower::lower;
use estream_schemas::dtype::DType;
use estream_schemas::program::{Op, Renormalise, RouterForm, ScoreWhen, Scoring};
use serde_json::{Value, json};

use crate::toy::{FF, HIDDEN, Model, Tensor, Text, assert_says, expert, toy};
use estream_schemas::manifest::Projection::{Down, Gate, Up};

/// The OLMoE fixture, with `key` of its configuration changed.
fn olmoe_with(key: &str, value: Value) -> (tempfile::TempDir, Checkpoint) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/olmoe");
    let dir = tempfile::tempdir().unwrap();
    let config = fs::read(source.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config[key] = value;
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let weights = "model.safetensors";
    symlink(source.join(weights), dir.path().join(weights)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

#[test]
fn c08_layers_that_are_stated_and_not_there_are_told_with_their_key() {
    let (_dir, checkpoint) = olmoe_with("num_nextn_predict_layers", json!(1));
    let family = Family::of(&checkpoint).unwrap();
    let error = lower(&checkpoint, &family).unwrap_err().to_string();
    assert_says(
        &error,
        &["one thing", "config key \"num_nextn_predict_layers\" is 1"],
    );
    let (_dir, checkpoint) = olmoe_with("num_hidden_layers", json!(4));
    let error = lower(&checkpoint, &family).unwrap_err().to_string();
    assert_says(
        &error,
        &["missing: \"model.layers.3.self_attn.q_proj.weight\""],
    );
}

#[test]
fn c20_one_tensor_an_expert_and_one_for_all_are_both_read_from_gguf() {
    let text = toy()
        .with(
            "[\"blk.{layer}.ffn_gate_exps.weight\"]",
            "[\"blk.{layer}.ffn_gate_exps.weight\", \"blk.{layer}.ffn_gate.{expert}.weight\"]",
        )
        .with(
            "[\"blk.{layer}.ffn_up_exps.weight\"]",
            "[\"blk.{layer}.ffn_up_exps.weight\", \"blk.{layer}.ffn_up.{expert}.weight\"]",
        )
        .with(
            "[\"blk.{layer}.ffn_down_exps.weight\"]",
            "[\"blk.{layer}.ffn_down_exps.weight\", \"blk.{layer}.ffn_down.{expert}.weight\"]",
        );
    let mut apart = Model::gguf_toy();
    let mut stacked = apart.clone();
    for (at, (role, shape)) in [
        ("gate", [FF, HIDDEN]),
        ("up", [FF, HIDDEN]),
        ("down", [HIDDEN, FF]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("blk.0.ffn_{role}_exps.weight");
        apart.take(&name);
        let values = crate::toy::count_from(5000 * at, 2 * FF * HIDDEN);
        let (first, second) = values.split_at(values.len() / 2);
        for (id, values) in [first, second].into_iter().enumerate() {
            let name = format!("blk.0.ffn_{role}.{id}.weight");
            apart.put(&name, Tensor::f32(&shape, values));
        }
        stacked.put(&name, Tensor::f32(&[2, shape[0], shape[1]], &values));
    }
    let (apart, stacked) = (apart.write(), stacked.write());
    let (apart, stacked) = (apart.keep(&text), stacked.keep(&text));
    for id in 0..2 {
        for projection in [Gate, Up, Down] {
            let found = expert(&apart, 0, id, projection);
            assert_eq!(found, expert(&stacked, 0, id, projection));
            assert!(found.iter().any(|value| *value != 0.0));
        }
    }
}

fn planned<'a>(checkpoint: &'a Checkpoint, rules: &str) -> Result<Compiled<'a>, String> {
    let family = Family::of(checkpoint).unwrap();
    let options = Options {
        recipe: "q4_0".to_owned(),
        recipe_text: (!rules.is_empty()).then(|| format!("name = \"test\"\nabout = \"\"\n{rules}")),
        ..Options::default()
    };
    Compiled::plan(checkpoint, &family, &options).map_err(|error| error.to_string())
}

fn rule(what: &str, dtype: &str) -> String {
    format!("[[rule]]\n{what}\ntype = \"{dtype}\"\n")
}

/// The type of resident weight `name`.
fn dtype(compiled: &Compiled<'_>, name: &str) -> DType {
    let mut weights = compiled.resident.iter();
    let weight = weights.find(|weight| weight.name == name).unwrap();
    weight.layout.dtype()
}

#[test]
fn c22_c23_every_routed_expert_has_the_type_of_the_recipe_or_the_build_is_refused() {
    let (_dir, checkpoint) = olmoe_with("num_nextn_predict_layers", json!(0));
    let compiled = planned(&checkpoint, "").unwrap();
    assert_eq!(compiled.experts.len(), 3);
    for layer in &compiled.experts {
        let dtypes = layer.layouts.map(|layout| layout.dtype());
        assert_eq!((layer.experts, dtypes), (16, [DType::Q4_0; 3]));
    }
    // No list of exceptions is silent: a weight without a rule is an error.
    let why = planned(&checkpoint, &rule("role = \"a*\"", "q4_0")).unwrap_err();
    assert_says(
        &why,
        &["layers.2.expert_down", "no rule of the recipe is for it"],
    );
}

#[test]
fn c24_what_is_small_and_sensitive_is_not_quantised() {
    let (_dir, checkpoint) = olmoe_with("num_nextn_predict_layers", json!(0));
    let compiled = planned(&checkpoint, "").unwrap();
    for name in ["layers.0.router", "layers.2.attn_q_norm", "final_norm"] {
        assert_eq!(dtype(&compiled, name), DType::F32, "{name}");
    }
    let q4_0 = estream_compiler::recipe::Recipe::built_in("q4_0").unwrap();
    for (role, expected) in [
        ("router_bias", DType::F32),
        ("router_shared", DType::F32),
        ("attn_kv_b", DType::F16),
        ("attn_k_b", DType::F16),
        ("attn_v_b", DType::F16),
    ] {
        let choice = q4_0.choose("any", role, role);
        assert_eq!(
            choice,
            Some(estream_compiler::recipe::Choice::As(expected)),
            "{role}"
        );
    }
}

#[test]
fn c25_a_rule_for_one_tensor_goes_before_a_rule_for_all() {
    let (_dir, checkpoint) = olmoe_with("num_nextn_predict_layers", json!(0));
    let rules = [
        rule("tensor = \"layers.1.router\"", "f16"),
        rule("role = \"router\"", "f32"),
        rule("tensor = \"layers.1.expert_down\"", "q8_0"),
        rule("role = \"*norm\"", "f32"),
        rule("role = \"*\"", "q4_0"),
    ];
    let compiled = planned(&checkpoint, &rules.concat()).unwrap();
    let routers = [0, 1, 2].map(|layer| dtype(&compiled, &format!("layers.{layer}.router")));
    assert_eq!(routers, [DType::F32, DType::F16, DType::F32]);
    let downs: Vec<DType> = compiled
        .experts
        .iter()
        .map(|layer| layer.layouts[2].dtype())
        .collect();
    assert_eq!(downs, [DType::Q4_0, DType::Q8_0, DType::Q4_0]);
}

/// A router as DeepSeek-V3 has it, without groups.
fn sigmoid() -> Text {
    toy()
        .with(
            "scoring = \"softmax\", score = \"before_top_k\", top_k = 1, renormalise = \"none\"",
            "selection_bias = \"router_bias\", scoring = \"sigmoid\", score = \"before_top_k\", top_k = 1, \
             renormalise = { key = \"renormalise\", yes = \"sum\", no = \"none\" }, scale = \"scale\"",
        )
        .with("[hf]\n", "[hf]\nneutral = { n_group = [1] }\n")
        .and(
            "[[key]]\nname = \"renormalise\"\nhf = \"norm_topk_prob\"\ndefault = true\n\
             [[key]]\nname = \"scale\"\nhf = \"routed_scaling_factor\"\ndefault = 1.0\n\
             [[tensor]]\nrole = \"router_bias\"\nper = \"layer\"\nshape = [\"experts\"]\nhf = [\"{layer}.bias\"]\n",
        )
}

#[test]
fn c38_everything_a_router_does_is_in_the_program() {
    let mut model = Model::toy(1, 4);
    model.put("0.bias", Tensor::zeros(DType::F32, &[4]));
    model.set("routed_scaling_factor", json!(2.5));
    model.set("n_group", json!(1));
    let form = |model: &Model| -> RouterForm {
        let lowered = model.write().lower(&sigmoid());
        let mut ops = lowered.program.layers[0].iter();
        let form = ops.find_map(|op| match op {
            Op::Router {
                selection_bias,
                form,
                ..
            } => {
                assert_eq!(selection_bias.as_deref(), Some("layers.0.router_bias"));
                Some(form.clone())
            }
            _ => None,
        });
        form.unwrap()
    };
    let stated = form(&model);
    assert_eq!(
        (stated.scoring, stated.score),
        (Scoring::Sigmoid, ScoreWhen::BeforeTopK)
    );
    assert_eq!((stated.top_k, stated.scale.get()), (1, 2.5));
    // What the configuration does not state is what the family's models do.
    assert_eq!(stated.renormalise, Renormalise::Sum);
    model.set("norm_topk_prob", json!(false));
    assert_eq!(form(&model).renormalise, Renormalise::None);
    // What is not computed is refused by its key, and a bias that is stated nowhere is missing.
    model.set("n_group", json!(2));
    assert_says(
        &model.write().problems(&sigmoid()),
        &["one thing", "config key \"n_group\" is 2"],
    );
    model.set("n_group", json!(1));
    model.take("0.bias");
    assert_says(
        &model.write().problems(&sigmoid()),
        &["one thing", "missing: \"0.bias\" (router_bias)"],
    );
}
