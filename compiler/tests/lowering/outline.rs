//! What a configuration promises is what a checkpoint has.

use std::collections::BTreeMap;
use std::path::Path;

use estream_compiler::arch::Family;
use estream_compiler::ingest::Checkpoint;
use estream_compiler::lower::outline;
use serde_json::json;

use crate::toy::{HIDDEN, Model, Text, assert_says, toy};

#[test]
fn the_outline_of_a_fixture_is_its_tensors() {
    let families = Family::built_in().unwrap();
    for family in families {
        let name = &family.descriptor.family;
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let checkpoint = Checkpoint::open(&dir.join(name)).unwrap();
        let tensors = checkpoint.tensors.iter();
        let tensors: BTreeMap<_, _> = tensors
            .map(|tensor| (tensor.name.clone(), tensor.shape.clone()))
            .collect();
        let outline = outline(&family, &checkpoint.config).unwrap().into_iter();
        let outline: BTreeMap<_, _> = outline.map(|(name, tensor)| (name, tensor.shape)).collect();
        assert!(outline == tensors, "{name}: {outline:?}, not {tensors:?}");
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
