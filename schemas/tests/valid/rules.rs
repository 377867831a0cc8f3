//! Rules of everything but the program.

use estream_schemas::canonical;
use estream_schemas::limits::{
    MAX_MANIFEST_BYTES, MAX_NAME_BYTES, MAX_PARTS, MAX_RESIDENT, MAX_TEXT_BYTES,
};
use estream_schemas::manifest::{Manifest, ResidentTensor};
use estream_schemas::valid::{Bundle, InvalidManifest};
use serde_json::{Value, json};

use crate::cases::{change, check, parse};
use crate::sample::{carried, digest, sample};

#[test]
fn the_sample_is_valid_and_reads_the_same_from_its_canonical_text() {
    let bundle = parse(&sample()).unwrap();
    let text = canonical::to_vec(bundle.manifest()).unwrap();
    let again = Bundle::parse(&text).unwrap();
    assert_eq!(bundle.manifest(), again.manifest());
    assert_eq!(canonical::to_vec(again.manifest()).unwrap(), text);
}

#[test]
fn formats_and_versions() {
    check(&[
        (
            "/format",
            json!("estream-plan"),
            &["format is \"estream-plan\""],
        ),
        ("/version", json!(2), &["version 2", "newer estream"]),
        ("/version", json!(0), &["version 0"]),
        ("/kernel_abi", json!(2), &["kernel ABI 2"]),
        ("/version", json!(-1), &["cannot be parsed"]),
        ("/extra", json!(1), &["unknown field `extra`"]),
        ("/resident/tensors/0/extra", json!(1), &["unknown field"]),
        (
            "/program/prologue/0/embed/extra",
            json!(1),
            &["unknown field"],
        ),
        (
            "/program/prologue/0",
            json!({ "convolve": {} }),
            &["unknown variant"],
        ),
        (
            "/resident/tensors/0/layout",
            json!("f16.t64"),
            &["unknown layout"],
        ),
        ("/resident/tensors/0/digest", json!("00"), &["not a digest"]),
        (
            "/program/prologue/0/embed/scale",
            json!("inf"),
            &["not a finite"],
        ),
        (
            "/program/prologue/0/embed/scale",
            json!(1.0),
            &["cannot be parsed"],
        ),
        ("/model/parameters", json!(0.5), &["cannot be parsed"]),
    ]);
    let unsupported = |pointer| {
        let mut manifest = sample();
        change(&mut manifest, pointer, json!(7));
        matches!(parse(&manifest), Err(InvalidManifest::Unsupported { .. }))
    };
    assert!(unsupported("/version") && unsupported("/kernel_abi"));
}

#[test]
fn resident_tensors() {
    let embed = "resident tensor \"embed\"";
    check(&[
        (
            "/resident/tensors/0/name",
            json!(""),
            &["resident tensor 0", "not a name"],
        ),
        (
            "/resident/tensors/0/name",
            json!("a/b"),
            &["resident tensor 0", "\"a/b\""],
        ),
        (
            "/resident/tensors/0/name",
            json!("a\u{1b}[m"),
            &["\\u{1b}[m"],
        ),
        (
            "/resident/tensors/0/name",
            json!("a".repeat(257)),
            &["257 bytes"],
        ),
        (
            "/resident/tensors/1/name",
            json!("embed"),
            &[embed, "stated twice"],
        ),
        (
            "/resident/tensors/0/shape",
            json!([]),
            &[embed, "dimensions"],
        ),
        (
            "/resident/tensors/0/shape",
            json!([40, 8, 8]),
            &[embed, "dimensions"],
        ),
        (
            "/resident/tensors/0/shape",
            json!([0, 64]),
            &[embed, "is 0, outside"],
        ),
        (
            "/resident/tensors/0/shape",
            json!([40, 16_777_217]),
            &[embed, "16777217"],
        ),
        (
            "/resident/tensors/0/shape",
            json!([40, 96]),
            &[embed, "takes 12288"],
        ),
        (
            "/resident/tensors/0/offset",
            json!(1),
            &[embed, "starts at 1"],
        ),
        (
            "/resident/tensors/1/offset",
            json!(0),
            &["\"norm\"", "not at 16384"],
        ),
        (
            "/resident/tensors/1/offset",
            json!(32768),
            &["\"norm\"", "not at 16384"],
        ),
        (
            "/resident/tensors/0/bytes",
            json!(8191),
            &[embed, "takes 8192 bytes, not 8191"],
        ),
        (
            "/resident/tensors/0/bytes",
            json!(u64::MAX),
            &[embed, "not 18446744073709551615"],
        ),
        (
            "/resident/tensors/0/layout",
            json!("q4_k.rows"),
            &[embed, "cannot hold rows of 64"],
        ),
        (
            "/resident/bytes",
            json!(8 * 16384 - 1),
            &["at resident", "its tensors 131072"],
        ),
        ("/resident/bytes", json!(u64::MAX), &["at resident"]),
        (
            "/resident/tensors/7",
            Value::Null,
            &["at resident", "131072"],
        ),
    ]);
}

#[test]
fn expert_layers_and_parts() {
    let (zero, one) = ("experts of layer 0", "experts of layer 1");
    check(&[
        (
            "/experts/slot_bytes",
            json!(49153),
            &["slot_bytes is 49153"],
        ),
        ("/experts/slot_bytes", json!(0), &["slot_bytes is 0"]),
        (
            "/experts/parts/0/file",
            json!("experts-00002.bin"),
            &["part 0 is called"],
        ),
        (
            "/experts/parts/0/file",
            json!("../x"),
            &["part 0 is called \"../x\""],
        ),
        (
            "/experts/parts/0/bytes",
            json!(1),
            &["part 0", "has 1 bytes"],
        ),
        (
            "/experts/parts/1/bytes",
            json!(u64::MAX),
            &["part 1", "its records 393216"],
        ),
        (
            "/experts/parts/1",
            Value::Null,
            &["part 1", "does not exist"],
        ),
        (
            "/experts/parts/-",
            json!({ "file": "experts-00003.bin", "bytes": 0 }),
            &["3 parts, of which 2"],
        ),
        (
            "/experts/layers/1",
            Value::Null,
            &["at experts", "2 parts, of which 1"],
        ),
        (
            "/experts/layers/1/layer",
            json!(0),
            &[zero, "do not ascend"],
        ),
        (
            "/experts/layers/1/layer",
            json!(2),
            &["layer 1", "out of place"],
        ),
        (
            "/experts/layers/1/layer",
            json!(3),
            &["layer 1", "out of place"],
        ),
        (
            "/experts/layers/1/layer",
            json!(1024),
            &["experts of layer 1024", "more than 1024"],
        ),
        (
            "/experts/layers/0/part",
            json!(1),
            &[zero, "in part 1, not 0"],
        ),
        (
            "/experts/layers/1/part",
            json!(0),
            &[one, "starts at 0, not at 196608"],
        ),
        (
            "/experts/layers/1/part",
            json!(2),
            &[one, "in part 2, not 1"],
        ),
        ("/experts/layers/1/part", json!(u64::MAX), &[one, "not 1"]),
        (
            "/experts/layers/0/offset",
            json!(16384),
            &[zero, "starts at 16384"],
        ),
        (
            "/experts/layers/0/record_bytes",
            json!(65536),
            &[zero, "their regions 49152"],
        ),
        (
            "/experts/layers/0/experts",
            json!(0),
            &[zero, "number of experts is 0"],
        ),
        (
            "/experts/layers/0/experts",
            json!(4097),
            &[zero, "number of experts is 4097"],
        ),
        (
            "/experts/layers/0/experts",
            json!(5),
            &[zero, "4 digests for 5 records"],
        ),
        (
            "/experts/layers/0/shards",
            json!(0),
            &[zero, "number of shards is 0"],
        ),
        (
            "/experts/layers/0/shards",
            json!(257),
            &[zero, "number of shards is 257"],
        ),
        (
            "/experts/layers/0/shards",
            json!(2),
            &[zero, "4 digests for 8 records"],
        ),
        (
            "/experts/layers/0/order",
            json!([0, 1, 2]),
            &[zero, "not a permutation"],
        ),
        (
            "/experts/layers/0/order",
            json!([0, 1, 2, 2]),
            &[zero, "not a permutation"],
        ),
        (
            "/experts/layers/0/order",
            json!([0, 1, 2, 4]),
            &[zero, "not a permutation"],
        ),
        (
            "/experts/layers/0/order",
            json!([0, 1, 2, 3, 4]),
            &[zero, "not a permutation"],
        ),
        (
            "/experts/layers/0/gate/rows",
            json!(0),
            &[zero, "ff / shards is 0"],
        ),
        (
            "/experts/layers/0/gate/cols",
            json!(u64::MAX),
            &[zero, "hidden is"],
        ),
        (
            "/experts/layers/0/gate/rows",
            json!(64),
            &[zero, "disagree"],
        ),
        ("/experts/layers/0/up/cols", json!(32), &[zero, "disagree"]),
        (
            "/experts/layers/0/down/rows",
            json!(32),
            &[zero, "disagree"],
        ),
        (
            "/experts/layers/0/gate/offset",
            json!(16384),
            &[zero, "gate", "starts at"],
        ),
        (
            "/experts/layers/0/up/offset",
            json!(0),
            &[zero, "up", "starts at 0"],
        ),
        (
            "/experts/layers/0/down/offset",
            json!(49152),
            &[zero, "down", "not at 32768"],
        ),
        (
            "/experts/layers/0/up/bytes",
            json!(1151),
            &[zero, "up", "takes 1152"],
        ),
        (
            "/experts/layers/0/up/layout",
            json!("q4_k.rows"),
            &[zero, "up", "cannot hold"],
        ),
        (
            "/experts/layers/0/up/layout",
            json!("mxfp4.t32.pair"),
            &[zero, "takes 1088"],
        ),
        (
            "/experts/layers/0/digests/-",
            json!(digest()),
            &[zero, "5 digests for 4"],
        ),
    ]);
}

#[test]
fn a_shard_is_whole_tiles_of_the_width() {
    let mut manifest = sample();
    let layer = "/experts/layers/1";
    for (region, what) in [("gate", "rows"), ("up", "rows"), ("down", "cols")] {
        change(
            &mut manifest,
            &format!("{layer}/{region}/{what}"),
            json!(16),
        );
    }
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(
        error.contains("ff of 16 is not a multiple of 32"),
        "{error}"
    );
}

#[test]
fn sizes_that_overflow() {
    // 2^24 × 2^24 f64 in 4096 · 256 records is more than 2^64 bytes.
    let mut manifest = sample();
    let big = 1_u64 << 24;
    let bytes = big * big * 8;
    for (index, region) in ["gate", "up", "down"].into_iter().enumerate() {
        let stated = json!({
            "layout": "f64.rows", "rows": big, "cols": big, "offset": index as u64 * bytes,
            "bytes": bytes,
        });
        change(
            &mut manifest,
            &format!("/experts/layers/0/{region}"),
            stated,
        );
    }
    for (field, value) in [
        ("experts", json!(4096)),
        ("shards", json!(256)),
        ("order", json!((0..4096).collect::<Vec<_>>())),
        ("record_bytes", json!(3 * bytes)),
        ("digests", json!(vec![digest(); 200_000])),
    ] {
        change(&mut manifest, &format!("/experts/layers/0/{field}"), value);
    }
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(error.contains("200000 digests for 1048576"), "{error}");

    let typed = serde_json::from_value(manifest);
    let mut typed: Manifest = typed.unwrap();
    let layer = &mut typed.experts.layers[0];
    layer.digests = vec![layer.digests[0]; 1 << 20];
    let error = Bundle::check(typed).unwrap_err().to_string();
    assert!(
        error.contains("experts of layer 0: its end overflows"),
        "{error}"
    );
}

#[test]
fn carried_files() {
    let at = "at carried files";
    check(&[
        (
            "/tokenizer/0/file",
            json!("tokenizer.json"),
            &[at, "outside tokenizer/"],
        ),
        (
            "/tokenizer/0/file",
            json!("tokenizer/"),
            &[at, "not a name"],
        ),
        ("/tokenizer/0/file", json!("tokenizer/.."), &[at, "dot"]),
        (
            "/tokenizer/0/file",
            json!("tokenizer/a/b"),
            &[at, "\"a/b\""],
        ),
        (
            "/tokenizer/0/file",
            json!("tokenizer//etc/passwd"),
            &[at, "not a name"],
        ),
        (
            "/tokenizer/-",
            carried("tokenizer/tokenizer.json"),
            &[at, "stated twice"],
        ),
        ("/license/files/0/file", json!(".."), &[at, "dot"]),
        ("/license/files/0/file", json!("."), &[at, "dot"]),
        ("/license/files/0/file", json!(".hidden"), &[at, "dot"]),
        ("/license/files/0/file", json!("LICENSE."), &[at, "dot"]),
        (
            "/license/files/0/file",
            json!("/etc/passwd"),
            &[at, "not a name"],
        ),
        ("/license/files/0/file", json!("a/b"), &[at, "not a name"]),
        ("/license/files/0/file", json!("C:\\x"), &[at, "not a name"]),
        (
            "/license/files/0/file",
            json!("a\u{0}"),
            &[at, "not a name"],
        ),
        (
            "/license/files/0/file",
            json!("manifest.json"),
            &[at, "not a carried file's"],
        ),
        (
            "/license/files/0/file",
            json!("resident.bin"),
            &[at, "not a carried file's"],
        ),
        (
            "/license/files/0/file",
            json!("experts-00002.bin"),
            &[at, "not a carried file's"],
        ),
        (
            "/license/files/0/file",
            json!("plans"),
            &[at, "not a carried file's"],
        ),
        (
            "/source/metadata/file",
            json!("tokenizer"),
            &[at, "not a carried file's"],
        ),
        (
            "/source/metadata/file",
            json!("LICENSE"),
            &[at, "stated twice"],
        ),
    ]);
    let mut manifest = sample();
    for index in 0..62 {
        change(
            &mut manifest,
            "/tokenizer/-",
            carried(&format!("tokenizer/{index}")),
        );
    }
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(error.contains("carried files: more than 64"), "{error}");
}

#[test]
fn the_ledger_names_every_weight_once() {
    let became = |names: &[&str]| json!({ "became": names });
    let alias = |other: &str| json!({ "alias_of": other });
    let scales = |other: &str| json!({ "scales_of": other });
    let a = "at ledger entry \"a\"";
    let b = "at ledger entry \"b\"";
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    check(&[
        ("/ledger", json!([]), &["at the ledger", "became \"embed\""]),
        ("/ledger/0", Value::Null, &[b, "equals \"a\""]),
        (
            "/ledger/5",
            Value::Null,
            &["no tensor of the source became \"norm\""],
        ),
        (
            "/ledger/12",
            Value::Null,
            &["became \"layers.1.expert_gate.0\""],
        ),
        (
            "/ledger/17",
            Value::Null,
            &["became \"layers.1.expert_down.3\""],
        ),
        ("/ledger/1/tensor", json!("a"), &[a, "stated twice"]),
        (
            "/ledger/1/tensor",
            json!(""),
            &["ledger entry 1", "0 bytes"],
        ),
        (
            "/ledger/1/tensor",
            json!(long),
            &["ledger entry 1", "257 bytes"],
        ),
        ("/ledger/0/shape", json!([]), &[a, "shape [] is no weight"]),
        (
            "/ledger/1/shape",
            json!([0, 1]),
            &[b, "[0, 1] is no weight"],
        ),
        (
            "/ledger/2/shape",
            json!([1, 1, 1, 1, 1]),
            &["5 dimensions, more than 4"],
        ),
        (
            "/ledger/2/shape",
            json!([1u64 << 32, 1u64 << 32]),
            &["overflows"],
        ),
        ("/ledger/0/fate", became(&[]), &[a, "became nothing"]),
        (
            "/ledger/0/fate",
            became(&["embed", "embed"]),
            &[a, "\"embed\" is claimed twice"],
        ),
        (
            "/ledger/0/fate",
            became(&["wq"]),
            &["\"d\"", "\"wq\" is claimed twice"],
        ),
        (
            "/ledger/0/fate",
            became(&["embed", "other"]),
            &[a, "holds no \"other\""],
        ),
        (
            "/ledger/0/fate",
            json!({ "dropped": "" }),
            &[b, "equals \"a\""],
        ),
        ("/ledger/1/fate", alias("b"), &[b, "equals \"b\""]),
        ("/ledger/1/fate", alias("c"), &[b, "equals \"c\""]),
        (
            "/ledger/1/fate",
            alias("nothing"),
            &[b, "equals \"nothing\""],
        ),
        ("/ledger/1/fate", scales("b"), &[b, "scales \"b\""]),
        ("/ledger/1/fate", scales("c"), &[b, "scales \"c\""]),
    ]);
    for lost in [
        "layers.2.expert_gate",
        "layers.0.expert_gate.4",
        "layers.0.expert_gate.00",
        "layers.00.expert_gate",
        "layers.0.expert_side",
        "layers.0.expert_gate.",
        "layers.0.expert_gate.0.0",
        "layers.+0.expert_gate",
        "layers.0",
        "experts.0.expert_gate",
        "",
    ] {
        let message = format!("holds no {lost:?}");
        check(&[("/ledger/4/fate", became(&[lost]), &["\"e\"", &message])]);
    }
    for twice in ["layers.0.expert_gate.2", "layers.1.expert_down"] {
        let message = format!("\"{twice}");
        check(&[(
            "/ledger/4/fate/became/-",
            json!(twice),
            &["at ledger", &message],
        )]);
    }
}

#[test]
fn a_source_of_safetensors_may_have_tensors_of_eight_dimensions() {
    let mut manifest = sample();
    change(&mut manifest, "/source/format", json!("safetensors"));
    change(
        &mut manifest,
        "/ledger/2/shape",
        json!([1, 1, 1, 1, 1, 1, 0, 1]),
    );
    parse(&manifest).unwrap();
    change(
        &mut manifest,
        "/ledger/2/shape",
        json!([1, 1, 1, 1, 1, 1, 1, 1, 1]),
    );
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(error.contains("9 dimensions, more than 8"), "{error}");
}

#[test]
fn texts_that_are_no_manifest() {
    let large = vec![b' '; usize::try_from(MAX_MANIFEST_BYTES).unwrap() + 1];
    let error = Bundle::parse(&large).unwrap_err();
    assert!(matches!(error, InvalidManifest::TooLarge { .. }), "{error}");
    for text in ["", "{}", "[]", "null", "{\"format\":", "\u{0}"] {
        let error = Bundle::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(error, InvalidManifest::Json(_)), "{text}: {error}");
    }
    // The last of two equal keys does not win.
    let sample = sample().to_string();
    let twice = sample.replacen('{', "{\"version\":1,", 1);
    let error = Bundle::parse(twice.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("duplicate field"), "{error}");
    let twice = sample.replacen("\"kernel_abi\"", "\"tokenizer\":[],\"kernel_abi\"", 1);
    let error = Bundle::parse(twice.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("duplicate field"), "{error}");
    let deep = format!("{{\"x\":{}", "[".repeat(100_000));
    assert!(Bundle::parse(deep.as_bytes()).is_err());
    check(&[
        (
            "/descriptor/text",
            json!("x".repeat(MAX_TEXT_BYTES)),
            &["a string of more than"],
        ),
        (
            "/recipe/rules",
            json!(vec![""; 1 << 19]),
            &["values, more than"],
        ),
    ]);
}

#[test]
fn lists_that_are_too_long_or_overflow_together() {
    let typed = || -> Manifest { serde_json::from_value(sample()).unwrap() };
    let refused = |manifest| Bundle::check(manifest).unwrap_err().to_string();

    let mut manifest = typed();
    let tensor = manifest.resident.tensors[0].clone();
    manifest.resident.tensors = vec![tensor.clone(); MAX_RESIDENT + 1];
    let error = refused(manifest);
    assert!(
        error.contains("at resident: more than 65536 tensors"),
        "{error}"
    );

    let mut manifest = typed();
    let bytes = 8 << 48;
    manifest.resident.tensors = (0..8192)
        .map(|index: u64| ResidentTensor {
            name: format!("t{index}"),
            layout: "f64.rows".parse().unwrap(),
            shape: vec![1 << 24, 1 << 24],
            offset: index * bytes,
            bytes,
            ..tensor.clone()
        })
        .collect();
    let error = refused(manifest);
    assert!(
        error.contains("tensor \"t8191\": its end overflows"),
        "{error}"
    );

    let mut manifest = typed();
    manifest.experts.parts = vec![manifest.experts.parts[0].clone(); MAX_PARTS + 1];
    let error = refused(manifest);
    assert!(
        error.contains("at experts: more than 4096 parts"),
        "{error}"
    );

    let mut manifest = typed();
    manifest.experts.layers = vec![manifest.experts.layers[0].clone(); 1025];
    let error = refused(manifest);
    assert!(
        error.contains("at experts: more than 1024 layers"),
        "{error}"
    );
}
