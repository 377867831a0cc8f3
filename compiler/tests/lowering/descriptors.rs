//! Descriptors that are none, and all that is wrong with them at once.

use estream_compiler::arch::Family;
use estream_compiler::compile::{Compiled, Options};
use estream_schemas::exit::Exit;
use serde_json::json;

use crate::toy::{Model, assert_says, toy};

#[test]
fn every_built_in_descriptor_parses() {
    let families = Family::built_in().unwrap();
    assert!(
        families
            .iter()
            .any(|family| family.descriptor.family == "olmoe")
    );
}

#[test]
fn everything_that_names_nothing_is_told_at_once() {
    let error = toy()
        .with("experts = \"experts\"", "experts = \"expert_count\"")
        .with("x = \"hidden\"", "x = \"width\"")
        .with(
            "input = \"h\", out = \"x\", weight = \"mix\"",
            "input = \"h\", out = \"y\", weight = \"mixer\"",
        )
        .with(
            "rows_of = \"embed\"",
            "rows_of = \"embedding\"\ndefault = \"later + 1\"",
        )
        .with("name = \"ffn\"", "name = \"ffn\"\nwhen = \"layer < dense\"")
        .with(
            "renormalise = \"none\"",
            "renormalise = { key = \"norm\", yes = \"sum\", no = \"none\" }",
        )
        .and("[[key]]\nname = \"later\"")
        .error();
    assert_says(
        &error,
        &[
            "toy.toml",
            "10 things are wrong",
            "experts: there is no key \"expert_count\"",
            "register \"x\": there is no key \"width\"",
            "block \"mixer\": there is no register \"y\"",
            "block \"mixer\": there is no role \"mixer\"",
            "key \"vocab\": there is no role \"embedding\"",
            "key \"vocab\": there is no key \"later\"",
            "block \"ffn\": there is no key \"dense\"",
            "block \"ffn\": there is no key \"norm\"",
            "role \"mix\": no operator names it",
        ],
    );
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (old, new, says) in [
        (
            "role = \"mix\"",
            "role = \"head\"",
            "role \"head\": is there twice",
        ),
        (
            "name = \"vocab\"",
            "name = \"hidden\"",
            "key \"hidden\": is there twice",
        ),
        (
            "name = \"vocab\"",
            "name = \"layer\"",
            "key \"layer\": cannot be named",
        ),
        (
            "shape = [\"vocab\", \"hidden\"]",
            "shape = [1, \"vocab\", \"hidden\"]",
            "one or two dimensions",
        ),
        (
            "shape = [\"vocab\", \"hidden\"]",
            "shape = [\"vocab[layer]\", 1]",
            "needs a layer",
        ),
        (
            "hf = [\"{layer}.mix\"]",
            "hf = [\"mix\"]",
            "{layer} stands in names of what layers have",
        ),
        (
            "hf = [\"{layer}.mix\"]",
            "hf = [\"{layer}.{expert}\"]",
            "{expert} stands in names",
        ),
        (
            "hf = [\"head\"]",
            "hf = [\"head\"]\ntied_to = \"mix\"",
            "tied_to \"mix\" is no other role",
        ),
        (
            "hf = [\"head\"]",
            "hf = [\"head\"]\ntied_if = \"ff\"",
            "tied_if without tied_to",
        ),
        (
            "shape = [\"hidden\", \"ff\"]",
            "shape = [\"ff\", \"hidden\"]",
            "must be [ff, hidden]",
        ),
        (
            "role = \"mix\"\nper = \"layer\"",
            "role = \"mix\"\nper = \"expert\"",
            "the roles of an expert are",
        ),
        (
            "weight = \"embed\" }",
            "weight = \"router\" }",
            "\"router\" belongs to a layer",
        ),
        (
            "weight = \"mix\" }",
            "weight = \"expert_up\" }",
            "\"expert_up\" is not named so",
        ),
        (
            "name = \"ffn\"",
            "name = \"mixer\"",
            "one that is for all layers stands before another",
        ),
        (
            "context = 16",
            "context = \"ff[layer]\"",
            "context: \"ff[layer]\" needs a layer",
        ),
        (
            "weight = \"head\" }",
            "weight = \"head\", scale = { times = \"unit\" } }",
            "there is no key \"unit\"",
        ),
        (
            "weight = \"head\" }",
            "weight = \"head\", scale = { root = \"ff\" } }",
            "descriptor toy.toml",
        ),
        (
            "weight = \"head\" }",
            "weight = \"head\", scale = { yarn_mscale = { factor = \"ff\", mscale = \"m\" } } }",
            "there is no key \"m\"",
        ),
        (
            "name = \"ffn\"\nops = [",
            "name = \"ffn\"\nops = [{ op = \"mla\", q = \"h\", latent = \"h\", k_pe = \"h\", \
             out = \"x\", heads = 1, kv_b = \"mix\", k_b = \"mix\", scale = 1 },",
            "mla has kv_b, or k_b and v_b",
        ),
        (
            "name = \"ffn\"\nops = [",
            "name = \"ffn\"\nops = [{ op = \"rope\", register = \"h\", heads = 1, dims = 2, theta = 1, \
             pairing = \"half\", yarn = { factor = \"ff\", original_context = 1, \
             beta_fast = \"ff\", beta_slow = \"slow\" } },",
            "there is no key \"slow\"",
        ),
        (
            "role = \"mix\"",
            "role = \"mix\"\nwhen = \"all\"",
            "unknown field `when`",
        ),
        (
            "name = \"vocab\"",
            "name = \"vocab\"\ndefault = \"(1)\"",
            "neither a number nor a key",
        ),
    ] {
        let error = toy().with(old, new).error();
        assert_says(&error, &[says]);
    }
}

const EXPERTS: &str = "{ op = \"experts\", input = \"x\", out = \"h\" },";

#[test]
fn operators_that_have_no_place_are_told_with_their_block() {
    let doubled = |op: &str| {
        let text = toy();
        let line = text.line(op);
        text.with(&line, &format!("{line}\n{line}")).error()
    };
    assert_says(
        &doubled("op = \"router\""),
        &["block \"ffn\": operator router is there 2 times"],
    );
    assert_says(
        &doubled("op = \"experts\""),
        &["block \"ffn\": operator experts is there 2 times"],
    );
    let head = "{ op = \"lm_head\", input = \"h\", weight = \"head\" }";
    let error = toy().with(head, &format!("{head}, {head}")).error();
    assert_says(&error, &["epilogue: operator lm_head is there 2 times"]);
    let error = toy()
        .with(
            EXPERTS,
            &format!("{EXPERTS}{}", format!("{head},").repeat(130)),
        )
        .error();
    assert_says(
        &error,
        &[
            "block \"ffn\": has 132 operators, and 128 is the most",
            "block \"ffn\": operator lm_head has no place here",
        ],
    );
    let embed = "{ op = \"embed\", out = \"h\", weight = \"embed\" }";
    let error = toy().with(&format!("[{embed}]"), "[]").error();
    assert_says(&error, &["prologue: operator embed is not the first"]);
}

#[test]
fn a_register_that_no_operator_can_have_written_is_told() {
    let linear = "{ op = \"linear\", input = \"h\", out = \"x\", weight = \"mix\" }";
    let says = "block \"ffn\": operator 0 (router) reads register \"x\", which nothing has written";
    let error = toy().with(linear, "").error();
    assert_says(&error, &[says]);
    assert_eq!(error.matches("nothing has written").count(), 1, "{error}");
    // A block that some layers have may come after one that wrote it; the checkpoint decides.
    let sometimes = toy()
        .with(
            "name = \"mixer\"",
            "name = \"mixer\"\nwhen = \"kinds[layer] == 'mix'\"",
        )
        .and("[[key]]\nname = \"kinds\"\nhf = \"kinds\"\n");
    let with = |kinds: [&str; 2]| {
        let mut model = Model::toy(2, 2);
        model.set("kinds", json!(kinds));
        for (layer, kind) in kinds.iter().enumerate().filter(|(_, kind)| **kind != "mix") {
            assert_eq!(*kind, "none");
            model.take(&format!("{layer}.mix"));
        }
        model.write()
    };
    with(["mix", "none"]).lower(&sometimes);
    let written = with(["none", "mix"]);
    let error = Compiled::plan(
        &written.checkpoint,
        &sometimes.family(),
        &Options::default(),
    );
    let error = error.unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    assert_says(
        &error.to_string(),
        &[
            "descriptor toy",
            "one thing",
            "\"layers.0\": operator 0 (router) reads register \"x\"",
        ],
    );
}

#[test]
fn a_router_has_experts_and_one_layer_one_router() {
    let apart = toy().with(
        EXPERTS,
        "]\n[[program.block]]\nname = \"more\"\nwhen = \"layer < many\"\nops = [\n\
         { op = \"experts\", input = \"x\", out = \"h\" },",
    );
    let apart = apart.and("[[key]]\nname = \"many\"\nhf = \"many\"\n");
    let mut model = Model::toy(2, 2);
    model.set("many", json!(2));
    model.write().lower(&apart);
    model.set("many", json!(1));
    for expert in 0..2 {
        for name in ["w1", "w2", "w3"] {
            model.take(&format!("1.{expert}.{name}"));
        }
    }
    assert_says(
        &model.write().problems(&apart),
        &[
            "descriptor toy",
            "\"layers.1\": operator router is there without experts",
        ],
    );
}

#[test]
fn what_a_descriptor_says_is_bounded_in_messages() {
    let family = |name: &str| {
        toy()
            .with("family = \"toy\"", &format!("family = \"{name}\""))
            .error()
    };
    for name in ["", "a b", "a\\nb", "a\\u001b[31mb", "../x", &"a".repeat(65)] {
        let error = family(name);
        assert_says(&error, &["is not 1 to 64 letters"]);
        assert!(!error.contains('\u{1b}'), "{error}");
    }
    let long = "+1".repeat(200_000);
    let key = format!("[[key]]\nname = \"long\"\ndefault = \"hidden {long} (\"\n");
    for error in [family(&"a".repeat(100_000)), toy().and(&key).error()] {
        assert!(error.chars().count() < 2000, "{}", error.len());
    }
}
