//! Values of a configuration that no reader of a bundle would take.

use serde_json::{Value, json};

use crate::toy::{Model, Text, assert_says, toy};

/// The toy with a rope, a norm, a context and a number of choices that a configuration states.
fn stating() -> Text {
    let key = |name: &str, hf: &str| format!("[[key]]\nname = \"{name}\"\nhf = \"{hf}\"\n");
    let keys = [
        key("eps", "rms_norm_eps"),
        key("theta", "rope_theta"),
        key("context", "max_position_embeddings"),
        key("top_k", "num_experts_per_tok"),
        "[[tensor]]\nrole = \"norm\"\nper = \"model\"\nshape = [\"hidden\"]\nhf = [\"norm\"]\n\
         gguf = [\"norm.weight\"]\n"
            .to_owned(),
    ];
    toy()
        .and(&keys.concat())
        .with("context = 16", "context = \"context\"")
        .with("top_k = 1", "top_k = \"top_k\"")
        .with(
            "epilogue = [",
            "epilogue = [\n\
             { op = \"rms_norm\", input = \"h\", out = \"x\", weight = \"norm\", eps = \"eps\" },\n\
             { op = \"qk_norm\", register = \"x\", weight = \"norm\", eps = \"eps\", heads = 2, over = \"full\" },\n\
             { op = \"rope\", register = \"x\", heads = 2, dims = 2, theta = \"theta\", pairing = \"half\" },\n",
        )
}

/// A checkpoint of [`stating`] whose configuration has `value` for `key`.
fn stated(key: &str, value: Value) -> Model {
    let mut model = Model::toy(1, 4);
    let mut norm = model.tensors["0.mix"].clone();
    norm.shape = vec![64];
    norm.bytes.truncate(4 * 64);
    model.put("norm", norm);
    model.set("rms_norm_eps", json!(1e-5));
    model.set("rope_theta", json!(10000));
    model.set("max_position_embeddings", json!(128));
    model.set("num_experts_per_tok", json!(2));
    model.set(key, value);
    model
}

#[test]
fn a_value_out_of_bounds_is_told_with_the_key_that_states_it() {
    let cases = [
        ("rms_norm_eps", json!(-1e-5), "eps", "-0.00001, below 0"),
        ("rms_norm_eps", json!(1e300), "a number", "beyond f32"),
        ("rope_theta", json!(0), "theta", "0, not above 0"),
        ("rope_theta", json!(-1e4), "theta", "-10000, not above 0"),
        ("rope_theta", json!(1e-60), "theta", "0, not above 0"),
        (
            "num_experts_per_tok",
            json!(5),
            "top_k",
            "5, outside 1 to 4",
        ),
        (
            "num_experts_per_tok",
            json!(0),
            "top_k",
            "0, outside 1 to 4",
        ),
        (
            "max_position_embeddings",
            json!(1_u64 << 32),
            "context",
            "4294967296, outside 1 to 4294967295",
        ),
    ];
    for (key, value, what, range) in cases {
        let problems = stated(key, value).write().problems(&stating());
        let start = format!("{what} (from config key {key:?}) is ");
        assert_says(&problems, &["one thing is wrong", &start, range]);
    }
}

#[test]
fn a_value_at_a_bound_is_taken() {
    for (key, value) in [
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!(1)),
        ("num_experts_per_tok", json!(4)),
        ("max_position_embeddings", json!(u32::MAX)),
    ] {
        stated(key, value).write().lower(&stating());
    }
}

#[test]
fn a_value_of_another_kind_is_told_with_the_key_that_states_it() {
    for (key, wanted) in [
        ("rms_norm_eps", "not a number"),
        ("num_experts_per_tok", "not a whole number"),
    ] {
        let problems = stated(key, json!("x")).write().problems(&stating());
        let says = format!("config key {key:?} is \"x\", {wanted}");
        assert_says(&problems, &["one thing is wrong", &says]);
    }
    let mut silent = stated("rope_theta", json!(1));
    silent.config.remove("rope_theta");
    let problems = silent.write().problems(&stating());
    assert_says(&problems, &["config key \"rope_theta\" is not stated"]);
}

#[test]
fn a_list_has_one_element_a_layer() {
    let text = toy()
        .and("[[key]]\nname = \"kinds\"\nhf = \"layer_types\"\n")
        .with(
            "name = \"mixer\"",
            "name = \"mixer\"\nwhen = \"kinds[layer] == 'mix'\"",
        );
    let with = |count: usize| {
        let mut model = Model::toy(3, 2);
        model.set("layer_types", json!(vec!["mix"; count]));
        model.write()
    };
    with(3).lower(&text);
    for count in [0, 2, 4] {
        let says =
            format!("config key \"layer_types\" has {count} elements, and the model has 3 layers");
        assert_says(&with(count).problems(&text), &[&says]);
    }
}
