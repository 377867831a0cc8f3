//! Descriptors that are none, and all that is wrong with them at once.

use estream_compiler::arch::Family;

use crate::toy::{assert_says, toy};

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
            "9 things are wrong",
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
