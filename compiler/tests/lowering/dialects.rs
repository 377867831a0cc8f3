//! Two dialects, one program.

use estream_compiler::compile::{CompileError, Compiled, Options};
use estream_compiler::lower::Lowered;
use estream_schemas::dtype::DType;
use estream_schemas::program::Op;
use serde_json::{Value, json};

use crate::toy::{HIDDEN, Model, Tensor, Text, assert_says, toy};

/// The weights and biases of layer `layer`'s linear operators.
fn linears(lowered: &Lowered, layer: usize) -> Vec<String> {
    let ops = lowered.program.layers[layer].iter();
    ops.filter_map(|op| match op {
        Op::Linear { weight, bias, .. } => Some(format!("{weight} + {bias:?}")),
        _ => None,
    })
    .collect()
}

/// A toy whose mixer is `conv` or `attn`, as a list says that each dialect has in its own words.
fn hybrid() -> Text {
    toy()
        .with(
            "name = \"mixer\"\nops = [{ op = \"linear\", input = \"h\", out = \"x\", weight = \"mix\" }]",
            r#"name = "mixer"
when = "kinds[layer] == 'conv'"
ops = [{ op = "linear", input = "h", out = "x", weight = "conv" }]
[[program.block]]
name = "mixer"
ops = [
    { op = "linear", input = "h", out = "x", weight = "mix" },
    { op = "rope", register = "x", heads = "kv_heads", dims = 2, theta = "theta", pairing = "half" },
]"#,
        )
        .and(
            r#"[[key]]
name = "kinds"
hf = "layer_types"
gguf = "attention.head_count_kv"
words.hf = { conv = "conv", full_attention = "attn" }
words.gguf = { "0" = "conv", "*" = "attn" }
[[key]]
name = "kv_heads"
hf = "kv_heads"
gguf = "attention.head_count_kv"
nonzero = true
[[key]]
name = "theta"
hf = ["rope_parameters.rope_theta", "rope_theta"]
gguf = "rope.inverse"
gguf_times = 10.0
hf_default = 1000000.0
gguf_default = 10000.0
[[tensor]]
role = "conv"
per = "layer"
shape = ["hidden", 3]
hf = [{ name = "{layer}.conv", stored = ["hidden", 1, 3] }]
gguf = ["blk.{layer}.shortconv.weight"]"#,
        )
}

/// Layer 0 is a convolution, layer 1 is not.
fn hybrid_in_hf() -> Model {
    let mut model = Model::toy(2, 2);
    model.take("0.mix");
    model.put("0.conv", Tensor::zeros(DType::F32, &[HIDDEN, 1, 3]));
    model.set("layer_types", json!(["conv", "full_attention"]));
    model.set("kv_heads", json!(8));
    model
}

fn hybrid_in_gguf() -> Model {
    let mut model = Model::gguf_toy();
    let first = model.tensors.clone();
    for (name, tensor) in first {
        if let Some(rest) = name.strip_prefix("blk.0.") {
            model.put(&format!("blk.1.{rest}"), tensor);
        }
    }
    model.take("blk.0.mix.weight");
    model.put(
        "blk.0.shortconv.weight",
        Tensor::zeros(DType::F32, &[HIDDEN, 3]),
    );
    model.set("toy.block_count", json!(2));
    model.set("toy.attention.head_count_kv", json!([0, 8]));
    model
}

fn theta(lowered: &Lowered) -> f32 {
    let thetas = lowered.program.layers[1].iter();
    let mut thetas = thetas.filter_map(|op| match op {
        Op::Rope { theta, .. } => Some(theta.get()),
        _ => None,
    });
    thetas.next().unwrap()
}

#[test]
fn a_list_says_what_a_layer_is_in_the_words_of_each_dialect() {
    let (mut hf, mut gguf) = (hybrid_in_hf(), hybrid_in_gguf());
    hf.set("rope_theta", json!(500_000.0));
    gguf.set("toy.rope.inverse", json!(50_000));
    let (hf, gguf) = (hf.write().lower(&hybrid()), gguf.write().lower(&hybrid()));
    assert_eq!(hf.program, gguf.program);
    assert_eq!(linears(&hf, 0), ["layers.0.conv + None"]);
    assert_eq!(linears(&hf, 1), ["layers.1.mix + None"]);
    let conv = hf.resident.iter().find(|weight| weight.role == "conv");
    assert_eq!(conv.unwrap().shape, [HIDDEN, 3]);
}

#[test]
fn a_default_may_differ_by_dialect() {
    let (hf, gguf) = (hybrid_in_hf().write(), hybrid_in_gguf().write());
    assert_eq!(theta(&hf.lower(&hybrid())), 1e6);
    assert_eq!(theta(&gguf.lower(&hybrid())), 1e4);
}

#[test]
fn old_and_new_spellings_of_a_configuration_give_one_program() {
    let (mut old, mut new) = (hybrid_in_hf(), hybrid_in_hf());
    old.set("rope_theta", json!(500_000.0));
    new.set("rope_parameters", json!({ "rope_theta": 500_000 }));
    let (old, new) = (old.write().lower(&hybrid()), new.write().lower(&hybrid()));
    assert_eq!(theta(&old), 5e5);
    assert_eq!(old.program, new.program);
    let mut notices = old.notices.iter().chain(&new.notices);
    assert!(!notices.any(|notice| notice.is_refused_when_strict()));
}

#[test]
fn a_value_without_a_word_and_a_list_of_two_values_are_named() {
    let mut hf = hybrid_in_hf();
    hf.set("layer_types", json!(["conv", "mamba"]));
    let problems = hf.write().problems(&hybrid());
    assert_says(
        &problems,
        &["config key \"layer_types\" is \"mamba\", which is none of conv, full_attention"],
    );
    let mut gguf = hybrid_in_gguf();
    gguf.set("toy.attention.head_count_kv", json!([4, 8]));
    let problems = gguf.write().problems(&hybrid());
    assert_says(
        &problems,
        &[
            "config key \"toy.attention.head_count_kv\" must be the same",
            "and is 4 and 8",
        ],
    );
}

#[test]
fn a_word_may_be_a_default() {
    let text = hybrid().with("words.hf =", "default = \"'attn'\"\nwords.hf =");
    let mut model = hybrid_in_hf();
    model.config.remove("layer_types");
    let conv = model.take("0.conv");
    model.put("0.mix", Tensor::zeros(DType::F32, &[HIDDEN, HIDDEN]));
    assert_eq!(
        linears(&model.write().lower(&text), 0),
        ["layers.0.mix + None"]
    );
    // A weight of a block that no layer has is not needed, and not taken either.
    model.put("0.conv", conv);
    assert_says(
        &model.write().problems(&text),
        &["one thing", "unmapped: \"0.conv\""],
    );
}

#[test]
fn an_optional_role_that_is_missing_takes_its_operand_along() {
    let optional = toy()
        .with("weight = \"mix\" }", "weight = \"mix\", bias = \"bias\" }")
        .and(
            "[[tensor]]\nrole = \"bias\"\nper = \"layer\"\noptional = true\nshape = [\"hidden\"]\n\
             hf = [\"{layer}.bias\"]",
        );
    let mut model = Model::toy(2, 1);
    model.put("1.bias", Tensor::zeros(DType::F32, &[HIDDEN]));
    let lowered = model.write().lower(&optional);
    assert_eq!(linears(&lowered, 0), ["layers.0.mix + None"]);
    assert_eq!(
        linears(&lowered, 1),
        ["layers.1.mix + Some(\"layers.1.bias\")"]
    );
    let required = optional.with("optional = true\n", "");
    assert_says(
        &model.write().problems(&required),
        &["missing: \"0.bias\" (bias)"],
    );
    // An operand that an operator cannot do without is never left out.
    let needed = optional.with(
        "weight = \"mix\", bias = \"bias\" }",
        "weight = \"mix\" }, { op = \"rms_norm\", input = \"x\", out = \"x\", weight = \"bias\", eps = 0.1 }",
    );
    assert_says(
        &model.write().problems(&needed),
        &["missing: \"0.bias\" (bias)"],
    );
}

#[test]
fn a_block_may_depend_on_what_a_layer_has() {
    let text = toy()
        .with(
            "name = \"mixer\"\n",
            "name = \"mixer\"\nwhen = \"has low\"\nops = [{ op = \"linear\", input = \"h\", out = \"x\", weight = \"low\" }]\n\
             [[program.block]]\nname = \"mixer\"\n",
        )
        .and("[[tensor]]\nrole = \"low\"\nper = \"layer\"\nshape = [\"hidden\", 1]\nhf = [\"{layer}.low\"]");
    let mut model = Model::toy(2, 1);
    model.take("1.mix");
    model.put("1.low", Tensor::zeros(DType::F32, &[HIDDEN, 1]));
    let lowered = model.write().lower(&text);
    assert_eq!(linears(&lowered, 0), ["layers.0.mix + None"]);
    assert_eq!(linears(&lowered, 1), ["layers.1.low + None"]);
}

#[test]
fn a_real_operand_may_be_a_product_of_keys() {
    let scale = |form: &str, divisor: Value| {
        let text = toy()
            .with(
                "weight = \"head\" }",
                &format!("weight = \"head\", scale = {form} }}"),
            )
            .and("[[key]]\nname = \"divisor\"\nhf = \"logits_scaling\"");
        let mut model = Model::toy(1, 1);
        model.set("logits_scaling", divisor);
        let lowered = model.write().lower(&text);
        match lowered.program.epilogue.last() {
            Some(Op::LmHead { scale, .. }) => scale.get(),
            other => unreachable!("{other:?}"),
        }
    };
    assert_eq!(scale("{ over = \"divisor\" }", json!(8)), 0.125);
    assert_eq!(scale("{ times = \"divisor\" }", json!(8)), 8.0);
    assert_eq!(
        scale("{ rsqrt = \"hidden\", times = \"divisor\" }", json!(8)),
        1.0
    );
    let text = toy()
        .with(
            "weight = \"head\" }",
            "weight = \"head\", scale = { over = \"divisor\" } }",
        )
        .and("[[key]]\nname = \"divisor\"\nhf = \"logits_scaling\"");
    let mut model = Model::toy(1, 1);
    model.set("logits_scaling", json!(0));
    assert_says(&model.write().problems(&text), &["one thing is wrong"]);
}

#[test]
fn a_key_must_be_neutral_where_the_descriptor_says_so() {
    let text = toy().with(
        "[hf]\n",
        "[hf]\nneutral = { window = [], groups = [1], act = [\"silu\"] }\n",
    );
    let mut model = Model::toy(1, 1);
    model.set("window", json!(null));
    model.set("groups", json!(1.0));
    model.set("act", json!("silu"));
    model.write().lower(&text);
    model.set("window", json!(4096));
    model.set("groups", json!(2));
    let problems = model.write().problems(&text);
    assert_says(
        &problems,
        &[
            "2 things are wrong",
            "\"window\" is 4096",
            "\"groups\" is 2, which the toy descriptor does not support (it must be absent or 1)",
        ],
    );
}

#[test]
fn a_key_that_nobody_knows_is_told_and_refused_if_strict() {
    let mut model = Model::toy(1, 1);
    model.set("router_jitter", json!(0.1));
    let written = model.write();
    let told: Vec<String> = written
        .lower(&toy())
        .notices
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_says(
        &told.join("\n"),
        &["config key \"router_jitter\" is unknown"],
    );
    let options = Options {
        recipe: "keep".to_owned(),
        strict: true,
        ..Options::default()
    };
    match Compiled::plan(&written.checkpoint, &toy().family(), &options) {
        Err(CompileError::Strict { notices, .. }) => {
            assert_says(&notices.join("\n"), &["router_jitter"]);
        }
        other => panic!("{other:?}"),
    }
}
