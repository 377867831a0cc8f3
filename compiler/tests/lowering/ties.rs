//! C37: embeddings tied in five ways.

use estream_compiler::ingest::Notice;
use estream_compiler::lower::Lowered;
use estream_schemas::program::Op;
use serde_json::{Value, json};

use crate::toy::{Model, Text, assert_says, toy};

/// A toy that may be tied, as a key says in `config.json`.
fn tying() -> Text {
    toy()
        .with(
            "gguf = [\"output.weight\"]",
            "gguf = [\"output.weight\"]\ntied_to = \"embed\"\ntied_if = \"tied\"",
        )
        .and("[[key]]\nname = \"tied\"\nhf = \"tie_word_embeddings\"\nhf_default = false")
}

fn model(tied: Option<Value>, drop: &str) -> Model {
    let mut model = Model::toy(1, 1);
    if let Some(tied) = tied {
        model.set("tie_word_embeddings", tied);
    }
    model.tensors.remove(drop);
    model
}

/// The tables there are, and which of them the embedding reads.
fn tables(lowered: &Lowered) -> (Vec<&str>, &str) {
    let resident = lowered.resident.iter().map(|weight| weight.name.as_str());
    let tables = resident
        .filter(|name| ["embed", "head"].contains(name))
        .collect();
    match lowered.program.prologue.first() {
        Some(Op::Embed { weight, .. }) => (tables, weight),
        other => unreachable!("{other:?}"),
    }
}

fn fate(lowered: &Lowered, tensor: &str) -> Value {
    let entry = lowered.ledger.iter().find(|entry| entry.tensor == tensor);
    serde_json::to_value(&entry.unwrap().fate).unwrap()
}

#[test]
fn c37a_tied_without_a_head_the_table_is_the_head() {
    let lowered = model(Some(json!(true)), "head").write().lower(&tying());
    assert_eq!(tables(&lowered), (vec!["head"], "head"));
    assert_eq!(fate(&lowered, "embed"), json!({ "became": ["head"] }));
}

#[test]
fn c37b_tied_with_an_equal_head_is_stored_once_and_told() {
    let mut model = model(Some(json!(true)), "");
    let table = model.tensors["embed"].clone();
    model.put("head", table);
    let lowered = model.write().lower(&tying());
    assert_eq!(tables(&lowered), (vec!["head"], "head"));
    assert_eq!(fate(&lowered, "embed"), json!({ "alias_of": "head" }));
    assert!(
        lowered
            .notices
            .iter()
            .any(|notice| notice.to_string().contains("stored once"))
    );
    assert!(!lowered.notices.iter().any(Notice::is_refused_when_strict));
}

#[test]
fn c37c_not_tied_without_a_head_is_an_error() {
    for tied in [Some(json!(false)), None] {
        let problems = model(tied, "head").write().problems(&tying());
        assert_says(
            &problems,
            &[
                "one thing",
                "no head tensor, and the configuration does not tie it",
            ],
        );
    }
}

#[test]
fn c37d_tied_with_another_head_keeps_both_and_is_a_surprise() {
    let lowered = model(Some(json!(true)), "").write().lower(&tying());
    assert_eq!(tables(&lowered), (vec!["embed", "head"], "embed"));
    let surprise = lowered
        .notices
        .iter()
        .find(|notice| notice.is_refused_when_strict());
    assert_says(
        &surprise.unwrap().to_string(),
        &["\"embed\" and \"head\", but they differ"],
    );
}

#[test]
fn c37e_the_head_alone_is_the_table_whatever_is_said() {
    for tied in [Some(json!(false)), Some(json!(true)), None] {
        let lowered = model(tied, "embed").write().lower(&tying());
        assert_eq!(tables(&lowered), (vec!["head"], "head"));
    }
}

#[test]
fn untied_tables_are_two() {
    let lowered = model(None, "").write().lower(&tying());
    assert_eq!(tables(&lowered), (vec!["embed", "head"], "embed"));
}

#[test]
fn a_tie_that_is_neither_true_nor_false_is_an_error() {
    for drop in ["", "head"] {
        let problems = model(Some(json!("yes")), drop).write().problems(&tying());
        assert_says(
            &problems,
            &["config key \"tie_word_embeddings\" is \"yes\", not true or false"],
        );
    }
}

#[test]
fn a_gguf_file_ties_by_leaving_the_head_out() {
    let mut model = Model::gguf_toy();
    let lowered = model.write().lower(&tying());
    assert_eq!(tables(&lowered), (vec!["embed", "head"], "embed"));
    model.take("output.weight");
    let lowered = model.write().lower(&tying());
    assert_eq!(tables(&lowered), (vec!["head"], "head"));
    assert!(!lowered.notices.iter().any(Notice::is_refused_when_strict));
}
