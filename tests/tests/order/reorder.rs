//! Routes are recorded, decide where experts are stored, and change nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use estream_compiler::ingest::gguf::{GgufBuilder, Value as GgufValue};
use estream_schemas::dtype::DType;
use estream_tests::{
    Tensors, Trace, assert_valid, compile, files, fixture, manifest, max_diff, model, prompts,
};
use serde_json::{Value, json};

use crate::desk::{Desk, MIN_MARGIN};

/// What the reference chose: tokens that went to each expert, where its margins are clear.
fn counts(golden: &Tensors, prompt: &str, layer: usize, experts: usize) -> Option<Vec<u64>> {
    let margins = golden.floats(&format!("{prompt}.l{layer}.margin"));
    if margins.iter().any(|margin| *margin <= MIN_MARGIN) {
        return None;
    }
    let mut counts = vec![0; experts];
    for expert in golden.ids(&format!("{prompt}.l{layer}.experts")) {
        counts[expert as usize] += 1;
    }
    Some(counts)
}

#[test]
fn recorded_routes_are_those_of_the_reference() {
    let desk = Desk::new();
    let routes = desk.routes();
    assert_valid("routes", &routes);
    let mut compared = 0;
    for (at, prompt) in prompts(&desk.golden).iter().enumerate() {
        let recorded = &routes["prompts"][at];
        assert_eq!(recorded["name"], json!(prompt.name));
        assert_eq!(recorded["tokens"], json!(prompt.ids.len()));
        for layer in 0..3 {
            let rows: Vec<u64> = serde_json::from_value(recorded["rows"][layer].clone()).unwrap();
            assert_eq!(rows.iter().sum::<u64>(), 4 * prompt.ids.len() as u64);
            if let Some(expected) = counts(&desk.golden, &prompt.name, layer, 16) {
                assert_eq!(rows, expected, "{} {layer}", prompt.name);
                compared += 1;
            }
        }
    }
    assert!(compared >= 3, "{compared} layers have clear margins");
    for layer in 0..3 {
        // Of 4 experts a token has, 6 pairs.
        let pairs: Vec<u64> =
            serde_json::from_value(routes["layers"][layer]["pairs"].clone()).unwrap();
        assert_eq!(pairs.len(), 120);
        assert_eq!(pairs.iter().sum::<u64>(), 6 * (5 + 33 + 130));
    }
}

#[test]
fn a_text_is_cut_into_prompts_and_routes_do_not_depend_on_how_it_is_run() {
    let desk = Desk::new();
    fs::write(
        desk.at("text"),
        "In the beginning God created the heaven and the earth.",
    )
    .unwrap();
    let record = |name: &str, flags: &str| {
        let line = format!("--json routes a.estream --text-file text --window 8 -o {name} {flags}");
        let report = desk.estream(&line).success().json();
        let routes = fs::read(desk.at(name)).unwrap();
        assert_eq!(report["bytes"], json!(routes.len()));
        routes
    };
    let whole = record("b.json", "");
    let pieces = record(
        "c.json",
        "--chunk 3 --threads 1 --schedule early -G 2 -Q 1 -B 2",
    );
    assert!(whole == pieces);
    let routes: Value = serde_json::from_slice(&whole).unwrap();
    let prompts = routes["prompts"].as_array().unwrap();
    assert!(prompts.len() > 1);
    let (last, others) = prompts.split_last().unwrap();
    assert!(others.iter().all(|prompt| prompt["tokens"] == json!(8)));
    assert!(last["tokens"].as_u64().unwrap() <= 8);
    assert_eq!(others[0]["name"], json!("text 0"));
}

/// Digests of a layer's records, in the order of their experts.
fn by_expert(manifest: &Value, layer: usize) -> BTreeMap<u64, String> {
    let layer = &manifest["experts"]["layers"][layer];
    let order: Vec<u64> = serde_json::from_value(layer["order"].clone()).unwrap();
    let digests: Vec<String> = serde_json::from_value(layer["digests"].clone()).unwrap();
    order.into_iter().zip(digests).collect()
}

fn order(manifest: &Value, layer: usize) -> Vec<u64> {
    serde_json::from_value(manifest["experts"]["layers"][layer]["order"].clone()).unwrap()
}

#[test]
fn another_order_moves_records_and_changes_no_answer() {
    let desk = Desk::new();
    for by in ["frequency", "coactivation"] {
        let out = format!("{by}.estream");
        let line = format!(
            "--json reorder a.estream --routes routes.json --order-by {by} --order-group 4 -o {out}"
        );
        let report = desk.estream(&line).success().json();
        assert!(report["moved"].as_u64().unwrap() > 16, "{report}");
        desk.estream(&format!("verify {out}")).success();
        let (before, after) = (manifest(&desk.at("a.estream")), manifest(&desk.at(&out)));
        for layer in 0..3 {
            assert_ne!(order(&before, layer), order(&after, layer));
            assert_eq!(by_expert(&before, layer), by_expert(&after, layer));
        }
        let (mut a, mut b) = (model(&desk.at("a.estream")), model(&desk.at(&out)));
        for prompt in prompts(&desk.golden) {
            let (a, b) = (
                Trace::of(&mut a, &prompt.ids),
                Trace::of(&mut b, &prompt.ids),
            );
            let difference = max_diff(&a.logits, &b.logits);
            assert!(difference <= 1e-4, "{by}, {}: {difference:e}", prompt.name);
            for (layer, (a, b)) in a.layers.iter().zip(&b.layers).enumerate() {
                let (a, b) = (a.routes.as_ref().unwrap(), b.routes.as_ref().unwrap());
                let name = format!("{}.l{layer}.margin", prompt.name);
                let margins = desk.golden.floats(&name);
                let pairs = a.experts.chunks(a.top_k).zip(b.experts.chunks(b.top_k));
                for ((a, b), margin) in pairs.zip(margins) {
                    assert!(a == b || *margin <= MIN_MARGIN, "{name}: {a:?}, {b:?}");
                }
            }
        }
    }
}

#[test]
fn compiling_in_an_order_is_compiling_and_reordering() {
    let desk = Desk::new();
    let routes = desk.at("routes.json");
    let flags = ["--recipe", "keep", "--order", routes.to_str().unwrap()];
    compile(&fixture("olmoe"), &desk.at("compiled.estream"), &flags);
    desk.estream("reorder a.estream --routes routes.json -o moved.estream")
        .success();
    let [compiled, moved] = ["compiled", "moved"].map(|name| desk.at(&format!("{name}.estream")));
    assert!(files(&compiled) == files(&moved));
    // What was recorded with one bundle holds for the other, and leads back.
    desk.estream("reorder moved.estream --routes routes.json --order-by id -o back.estream")
        .success();
    assert!(files(&desk.at("back.estream")) == files(&desk.at("a.estream")));
}

/// The most frequent expert of every layer is the first, whatever the file says of the bundle.
#[test]
fn the_order_is_the_one_that_the_routes_ask_for() {
    let desk = Desk::new();
    let mut routes = desk.routes();
    for rows in routes["prompts"][0]["rows"].as_array_mut().unwrap() {
        let none = vec![0; 16];
        *rows = json!(none);
        rows[11] = json!(5);
        rows[4] = json!(3);
    }
    let prompts = routes["prompts"].as_array_mut().unwrap();
    prompts.truncate(1);
    fs::write(desk.at("mine.json"), routes.to_string()).unwrap();
    desk.estream("reorder a.estream --routes mine.json -o b.estream")
        .success();
    let order = order(&manifest(&desk.at("b.estream")), 1);
    assert_eq!(order[..5], [11, 4, 0, 1, 2]);
}

#[test]
fn what_cannot_be_meant_is_refused_and_leaves_nothing() {
    let desk = Desk::new();
    compile(&fixture("mixtral"), &desk.at("mixtral.estream"), &[]);
    fs::write(desk.at("broken.json"), "{\"format\":\"estream-routes\"}").unwrap();
    fs::write(desk.at("there.json"), "mine").unwrap();
    fs::write(desk.at("ids"), "1 2 3").unwrap();
    for (line, code, says) in [
        (
            "reorder mixtral.estream --routes routes.json -o out",
            2,
            "routes of another model",
        ),
        (
            "reorder a.estream --routes broken.json -o out",
            4,
            "missing field",
        ),
        (
            "reorder a.estream --routes gone.json -o out",
            2,
            "gone.json",
        ),
        (
            "reorder a.estream --routes routes.json -o a.estream --force",
            2,
            "a.estream",
        ),
        (
            "reorder a.estream --routes routes.json -o out --order-group 0",
            2,
            "--order-group",
        ),
        ("routes a.estream -o out.json", 2, "--text-file"),
        (
            "routes a.estream --ids-file ids -o there.json",
            2,
            "name another file",
        ),
        (
            "routes a.estream --ids-file ids --window 1 -o out.json",
            2,
            "at least 2",
        ),
        ("routes a.estream --ids-file gone -o out.json", 2, "gone"),
        ("routes a.estream --imatrix ids -o out.json", 4, "GGUF"),
        (
            "routes a.estream --ids-file ids --imatrix ids -o out.json",
            2,
            "--imatrix",
        ),
        (
            "compile a.estream -o out --order-by frequency",
            2,
            "without --order",
        ),
    ] {
        let before: Vec<String> = files(desk.dir.path()).into_keys().collect();
        let finished = desk.estream(line);
        assert_eq!(finished.code, code, "{line}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(says),
            "{line}: {}",
            finished.stderr
        );
        let after: Vec<String> = files(desk.dir.path()).into_keys().collect();
        assert_eq!(before, after, "{line}");
    }
    assert_eq!(fs::read(desk.at("there.json")).unwrap(), b"mine");
}

/// A file as `llama-imatrix` writes them, of 3 layers of 16 experts: those with higher numbers are used more.
fn imatrix(path: &Path, layers: u64) {
    let mut header = GgufBuilder::new();
    header
        .pair("general.type", GgufValue::String(b"imatrix"))
        .unwrap();
    let stacks = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
    let names = (0..layers).flat_map(|layer| stacks.map(|stack| format!("blk.{layer}.{stack}")));
    let names: Vec<String> = names.collect();
    for name in &names {
        let name = format!("{name}.weight.counts");
        header.tensor(&name, DType::F32, &[16, 1]).unwrap();
    }
    let mut writer = header.begin(Vec::new()).unwrap();
    for _ in names {
        let counts = (0..16).flat_map(|expert: u8| (8.0 * f32::from(expert)).to_le_bytes());
        writer
            .write_tensor_data(&counts.collect::<Vec<u8>>())
            .unwrap();
    }
    fs::write(path, writer.finish().unwrap()).unwrap();
}

#[test]
fn counts_of_an_importance_matrix_are_routes_without_pairs() {
    let desk = Desk::new();
    imatrix(&desk.at("imatrix.gguf"), 3);
    let line = "--json routes a.estream --imatrix imatrix.gguf -o counted.json";
    let report = desk.estream(line).success().json();
    // 8 · (0 + … + 15) routes, 4 a token.
    assert_eq!(report["tokens"], json!(240));
    let routes: Value =
        serde_json::from_slice(&fs::read(desk.at("counted.json")).unwrap()).unwrap();
    assert_valid("routes", &routes);
    assert!(routes["layers"][0].get("pairs").is_none());
    desk.estream("reorder a.estream --routes counted.json -o b.estream")
        .success();
    let expected: Vec<u64> = (0..16).rev().collect();
    assert_eq!(order(&manifest(&desk.at("b.estream")), 2), expected);

    imatrix(&desk.at("short.gguf"), 2);
    let refused = desk.estream("routes a.estream --imatrix short.gguf -o out.json");
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    assert!(refused.stderr.contains("layers 2"), "{}", refused.stderr);
}

#[test]
fn routes_of_another_bundle_are_told_of_and_those_of_this_one_are_not() {
    let desk = Desk::new();
    let reorder = |bundle: &str, out: &str| {
        let line = format!("reorder {bundle} --routes routes.json -o {out}");
        desk.estream(&line).success().stderr
    };
    let routed = desk.routes()["bundle"].as_str().unwrap().to_owned();
    let told = reorder("a.estream", "b.estream");
    assert!(!told.contains(&routed), "{told}");
    // The same weights in another order have another identity.
    let told = reorder("b.estream", "c.estream");
    assert!(told.contains("note: routes.json: "), "{told}");
    assert!(told.contains(&routed), "{told}");
    let source = fixture("olmoe").display().to_string();
    let line = format!("compile {source} --order routes.json -o d.estream");
    let told = desk.estream(&line).success().stderr;
    assert!(told.contains("note: routes.json: "), "{told}");
    assert!(told.contains(&routed), "{told}");
}
