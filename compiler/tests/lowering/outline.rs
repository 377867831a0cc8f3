//! What a configuration promises is what a checkpoint has.

use std::collections::BTreeMap;
use std::path::Path;

use estream_compiler::arch::Family;
use estream_compiler::ingest::Checkpoint;
use estream_compiler::lower::{lower, outline};
use estream_schemas::dtype::DType;
use serde_json::json;

use crate::toy::{HIDDEN, Model, Tensor, Text, assert_says, toy};

fn fixture(family: &Family) -> Checkpoint {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    Checkpoint::open(&fixtures.join(&family.descriptor.family)).unwrap()
}

#[test]
fn the_outline_of_a_fixture_is_its_tensors() {
    for family in Family::built_in().unwrap() {
        let name = &family.descriptor.family;
        let checkpoint = fixture(&family);
        let tensors = checkpoint.tensors.iter();
        let tensors: BTreeMap<_, _> = tensors
            .map(|tensor| (tensor.name.clone(), tensor.shape.clone()))
            .collect();
        let outline = outline(&family, &checkpoint.config).unwrap().into_iter();
        let outline: BTreeMap<_, _> = outline.map(|(name, tensor)| (name, tensor.shape)).collect();
        assert!(outline == tensors, "{name}: {outline:?}, not {tensors:?}");
    }
}

/// What a family can have and its fixture has not: a key, and the tensors that it gives
/// and takes.
#[test]
fn another_configuration_has_other_tensors_and_lowers() {
    let query = |part: &str| format!("model.layers.1.self_attn.{part}.weight");
    let bias = "model.layers.3.feed_forward.expert_bias".to_owned();
    for (name, key, value, given, taken) in [
        (
            "deepseek2",
            "q_lora_rank",
            json!(48),
            Some(query("q_a_proj")),
            Some(query("q_proj")),
        ),
        ("lfm2moe", "use_expert_bias", json!(false), None, Some(bias)),
        (
            "lfm2moe",
            "tie_embedding",
            json!(false),
            Some("lm_head.weight".to_owned()),
            None,
        ),
    ] {
        let mut families = Family::built_in().unwrap().into_iter();
        let family = families
            .find(|family| family.descriptor.family == name)
            .unwrap();
        let mut config = fixture(&family).config;
        let before = outline(&family, &config).unwrap();
        config.values.insert(key.to_owned(), value);
        let after = outline(&family, &config).unwrap();
        let is_in = |name: &Option<String>| {
            let name = name.as_ref();
            name.map(|name| (before.contains_key(name), after.contains_key(name)))
        };
        assert!(is_in(&given).is_none_or(|is| is == (false, true)), "{key}");
        assert!(is_in(&taken).is_none_or(|is| is == (true, false)), "{key}");
        let tensors = after.into_iter();
        let model = Model {
            config: config.values,
            tensors: tensors
                .map(|(name, tensor)| (name, Tensor::zeros(DType::BF16, &tensor.shape)))
                .collect(),
        };
        lower(&model.write().checkpoint, &family).unwrap();
    }
}

/// A toy whose configuration states everything, also a rank, and a mixer that may be of it.
fn stated() -> Text {
    toy()
        .with("name = \"vocab\"\n", "name = \"vocab\"\ndefault = 96\n")
        .with(
            "name = \"mixer\"\n",
            "name = \"mixer\"\nwhen = \"has low\"\nops = [{ op = \"linear\", input = \"h\", out = \"x\", weight = \"low\" }]\n\
             [[program.block]]\nname = \"mixer\"\n",
        )
        .and("[[key]]\nname = \"rank\"\nhf = \"rank\"")
        .and("[[tensor]]\nrole = \"low\"\nper = \"layer\"\nshape = [\"hidden\", \"rank\"]\nhf = [\"{layer}.low\"]")
}

#[test]
fn a_role_is_there_if_its_sizes_are_stated() {
    let outline = |model: &Model| {
        let config = model.write().checkpoint.config.clone();
        outline(&stated().family(), &config).unwrap()
    };
    let mut model = Model::toy(1, 1);
    let without = outline(&model);
    assert!(without.contains_key("0.mix") && !without.contains_key("0.low"));
    model.set("rank", json!(8));
    let with = outline(&model);
    assert!(!with.contains_key("0.mix"));
    assert_eq!(
        (&*with["0.low"].role, &with["0.low"].shape),
        ("low", &vec![HIDDEN, 8])
    );
}

#[test]
fn all_that_a_configuration_leaves_open_is_told_at_once() {
    let mut model = Model::toy(1, 1);
    model.config.remove("hidden");
    model.config.remove("ff");
    let config = model.write().checkpoint.config.clone();
    let problems = outline(&stated().family(), &config).unwrap_err();
    assert_says(&problems.join("\n"), &["\"hidden\"", "\"ff\""]);
}
