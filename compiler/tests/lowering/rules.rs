//! What a descriptor says beside keys and weights: where keys are, which of them must
//! agree, and what may be left.

use std::path::Path;

use estream_compiler::arch::Family;
use estream_compiler::compile::Compiled;
use estream_compiler::compile::Options;
use estream_compiler::ingest::{Checkpoint, Config, Notice};
use estream_compiler::lower::lower;
use estream_schemas::dtype::DType;
use estream_schemas::manifest::SourceFormat;
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

/// The configuration of the DeepSeek-V2 fixture with another value for `key`.
fn deepseek2_says(key: &str, value: &Value) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/deepseek2");
    let mut checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint
        .config
        .values
        .insert(key.to_owned(), value.clone());
    let family = Family::of(&checkpoint).unwrap();
    match lower(&checkpoint, &family) {
        Ok(lowered) => {
            let mut notices = lowered.notices.iter();
            assert!(!notices.any(Notice::is_refused_when_strict), "{value}");
            String::new()
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_scaling_of_rope_is_none_or_says_how_and_how_much() {
    assert_eq!(deepseek2_says("rope_scaling", &Value::Null), "");
    let complete = json!({ "type": "yarn", "factor": 40.0 });
    assert_eq!(deepseek2_says("rope_scaling", &complete), "");
    for (value, says) in [
        (json!({ "type": "yarn" }), "needs \"rope_scaling.factor\""),
        (
            json!({ "type": "yarn", "factor": null }),
            "needs \"rope_scaling.factor\"",
        ),
        (
            json!({ "factor": 40.0 }),
            "needs \"rope_scaling.type\" or \"rope_scaling.rope_type\"",
        ),
        (
            json!({ "type": "linear", "factor": 4.0 }),
            "config key \"rope_scaling.type\" is \"linear\"",
        ),
        (json!({}), "\"rope_scaling\" is stated, and needs"),
        (json!("linear"), "is \"linear\", not an object or null"),
        (json!([1]), "is [1], not an object or null"),
        (json!(5), "is 5, not an object or null"),
        (json!(true), "is true, not an object or null"),
    ] {
        assert_says(&deepseek2_says("rope_scaling", &value), &[says]);
    }
    let parameters = json!({ "rope_type": "yarn", "rope_theta": 10000.0 });
    assert_says(
        &deepseek2_says("rope_parameters", &parameters),
        &["\"rope_parameters.rope_type\" is \"yarn\", and needs \"rope_parameters.factor\""],
    );
}

#[test]
fn a_stretch_that_would_shrink_is_refused_by_name() {
    let with = |key: &str, value: f64| {
        let mut scaling = json!({
            "type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096
        });
        scaling[key] = json!(value);
        deepseek2_says("rope_scaling", &scaling)
    };
    assert_eq!(with("factor", 40.0), "");
    assert_eq!(with("beta_slow", 32.0), "");
    for (key, value, says) in [
        ("factor", 0.5, "\"rope_scaling.factor\") is 0.5, below 1"),
        ("beta_slow", 33.0, "is 32, below beta_slow, which is 33"),
        ("mscale", -0.5, "\"rope_scaling.mscale\") is -0.5, below 0"),
        (
            "mscale_all_dim",
            -0.5,
            "\"rope_scaling.mscale_all_dim\") is -0.5, below 0",
        ),
    ] {
        assert_says(&with(key, value), &[says]);
    }
}

#[test]
fn what_has_members_is_an_object_in_every_family() {
    for family in Family::built_in().unwrap() {
        let family_name = &family.descriptor.family;
        let config = |value: Value| Config {
            format: SourceFormat::Safetensors,
            values: [("rope_parameters".to_owned(), value)]
                .into_iter()
                .collect(),
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/olmoe");
        let mut checkpoint = Checkpoint::open(&path).unwrap();
        checkpoint.config = config(json!("x"));
        assert_says(
            &family.audit(&checkpoint).0.join("\n"),
            &["\"rope_parameters\" is \"x\", not an object or null"],
        );
        checkpoint.config = config(Value::Null);
        let nothing = (Vec::new(), Vec::new());
        assert_eq!(family.audit(&checkpoint), nothing, "{family_name}");
    }
}
