//! What a descriptor says beside keys and weights: where keys are, which of them must
//! agree, and what may be left.

use estream_compiler::arch::Family;
use estream_compiler::compile::Compiled;
use estream_compiler::compile::Options;
use estream_schemas::dtype::DType;
use serde_json::{Value, json};

use crate::toy::{Model, Tensor, Text, assert_says, toy};

/// The toy as one part of a larger model.
fn inner() -> Text {
    toy().with(
        "[hf]\n",
        "[hf]\nroot = [\"text_config\"]\nneutral = { window = [] }\n",
    )
}

/// The toy whose configuration is an object of another.
fn outer() -> Model {
    let mut model = Model::toy(2, 2);
    let config = std::mem::take(&mut model.config);
    model.set("model_type", json!("picture_toy"));
    model.set("text_config", Value::Object(config));
    model
}

#[test]
fn a_configuration_inside_another_is_read_as_if_it_were_alone() {
    let alone = Model::toy(2, 2).write().lower(&inner());
    let lowered = outer().write().lower(&inner());
    assert_eq!(lowered.program, alone.program);
    let mut notices = lowered.notices.iter();
    assert!(!notices.any(|notice| notice.is_refused_when_strict()));
    // What it states counts before what stands outside; a null states nothing.
    let mut model = outer();
    model.set("layers", json!(7));
    model.config["text_config"]["ff"] = json!(null);
    model.set("ff", json!(32));
    assert_eq!(model.write().lower(&inner()).program, alone.program);
    assert_says(
        &outer().write().problems(&toy()),
        &["config key \"layers\" is not stated"],
    );
}

#[test]
fn a_family_is_recognised_by_the_part_it_is_for() {
    let mut model = outer();
    model.config["text_config"]["model_type"] = json!("olmoe");
    let family = Family::of(&model.write().checkpoint).unwrap();
    assert_eq!(family.descriptor.family, "olmoe");
    model.config["text_config"]["model_type"] = json!("toy");
    let error = Family::of(&model.write().checkpoint).unwrap_err();
    assert_says(&error.to_string(), &["model_type \"picture_toy\""]);
}

#[test]
fn a_root_is_audited_like_the_rest() {
    let mut model = outer();
    model.config["text_config"]["window"] = json!(8);
    model.config["text_config"]["jitter"] = json!(0.1);
    assert_says(
        &model.write().problems(&inner()),
        &["one thing", "config key \"text_config.window\" is 8"],
    );
    model.config["text_config"]["window"] = json!(null);
    model.set("window", json!(9));
    assert_says(
        &model.write().problems(&inner()),
        &["one thing", "config key \"window\" is 9"],
    );
    model.config.remove("window");
    model.set("vision_config", json!({ "layers": 3 }));
    let options = Options {
        recipe: "keep".to_owned(),
        strict: true,
        ..Options::default()
    };
    let written = model.write();
    let error = Compiled::plan(&written.checkpoint, &inner().family(), &options).unwrap_err();
    assert_says(
        &error.to_string(),
        &["2 things", "\"text_config.jitter\"", "\"vision_config\""],
    );
}

/// The toy with two scales that must be one.
fn two_scales() -> Text {
    toy().and(
        "[[key]]\nname = \"mscale\"\nhf = \"rope.mscale\"\n[[key]]\nname = \"mscale_all\"\n\
         hf = \"rope.mscale_all_dim\"\n[[equal]]\nkeys = [\"mscale\", \"mscale_all\"]\n",
    )
}

#[test]
fn keys_that_must_be_equal_are_named_with_their_values() {
    let mut model = Model::toy(1, 1);
    for equal in [
        json!({}),
        json!({ "mscale": 0.5 }),
        json!({ "mscale": 1, "mscale_all_dim": 1.0 }),
    ] {
        model.set("rope", equal);
        model.write().lower(&two_scales());
    }
    model.set("rope", json!({ "mscale": 0.5, "mscale_all_dim": 0.75 }));
    assert_says(
        &model.write().problems(&two_scales()),
        &[
            "one thing",
            "config key \"rope.mscale\" is 0.5 and config key \"rope.mscale_all_dim\" is 0.75",
            "only if they are equal",
        ],
    );
    let error = two_scales().with("\"mscale_all\"]", "\"other\"]").error();
    assert_says(&error, &["equal: there is no key \"other\""]);
}

#[test]
fn tensors_of_other_parts_are_dropped_by_their_beginning() {
    let text = toy().and("[[drop]]\nname = \"vision_tower.*\"\nreason = \"no pictures\"\n");
    let mut model = Model::toy(1, 1);
    let names = ["vision_tower.0.weight", "vision_tower.post.norm"];
    for name in names {
        model.put(name, Tensor::zeros(DType::F16, &[3]));
    }
    let lowered = model.write().lower(&text);
    let dropped = lowered.ledger.iter().filter(|entry| {
        names.contains(&entry.tensor.as_str())
            && serde_json::to_value(&entry.fate).unwrap() == json!({ "dropped": "no pictures" })
    });
    assert_eq!(dropped.count(), 2);
    model.put("vision", Tensor::zeros(DType::F16, &[3]));
    assert_says(&model.write().problems(&text), &["unmapped: \"vision\""]);
    let error = text.with("vision_tower.*", "*.*.*").error();
    assert_says(&error, &["drop \"*.*.*\": more than 2 `*`"]);
}
