//! One change to a valid manifest, and what is said about it.

use estream_schemas::canonical;
use estream_schemas::limits::{
    MAX_MANIFEST_BYTES, MAX_NAME_BYTES, MAX_PARTS, MAX_RESIDENT, MAX_TEXT_BYTES,
};
use estream_schemas::manifest::{Manifest, ResidentTensor};
use estream_schemas::valid::{Bundle, InvalidManifest};
use serde_json::{Value, json};

use crate::sample::{carried, digest, sample};

fn parse(manifest: &Value) -> Result<Bundle, InvalidManifest> {
    Bundle::parse(&serde_json::to_vec(manifest).unwrap())
}

#[test]
fn the_sample_is_valid_and_reads_the_same_from_its_canonical_text() {
    let bundle = parse(&sample()).unwrap();
    let text = canonical::to_vec(bundle.manifest()).unwrap();
    let again = Bundle::parse(&text).unwrap();
    assert_eq!(bundle.manifest(), again.manifest());
    assert_eq!(canonical::to_vec(again.manifest()).unwrap(), text);
}

/// Each case sets what its pointer leads to; `/-` at its end appends to a list, and a
/// null removes an element. Every message must hold every one of the pieces.
fn check(cases: &[(&str, Value, &[&str])]) {
    for (pointer, value, pieces) in cases {
        let mut manifest = sample();
        change(&mut manifest, pointer, value.clone());
        let message = match parse(&manifest) {
            Ok(_) => panic!("{pointer} = {value} is accepted"),
            Err(error) => error.to_string(),
        };
        for piece in *pieces {
            assert!(message.contains(piece), "{pointer} = {value}: {message}");
        }
    }
}

fn change(manifest: &mut Value, pointer: &str, value: Value) {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    match manifest.pointer_mut(parent).unwrap() {
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) if value.is_null() => drop(list.remove(last.parse().unwrap())),
        Value::Array(list) => list[last.parse::<usize>().unwrap()] = value,
        Value::Object(fields) => drop(fields.insert(last.to_owned(), value)),
        other => panic!("{parent} is {other}"),
    }
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
fn program_registers_and_places() {
    let embed = sample()["program"]["prologue"][0].clone();
    let head = sample()["program"]["epilogue"][0].clone();
    let add = json!({ "add": { "input": "y", "out": "x", "scale": "1" } });
    let expert_op = json!({ "experts": { "input": "y", "out": "x" } });
    check(&[
        ("/program/vocab", json!(0), &["at program", "vocab is 0"]),
        (
            "/program/vocab",
            json!(41),
            &["prologue, operator 0", "not [41, 64]"],
        ),
        (
            "/program/context",
            json!(0),
            &["at program", "context is 0"],
        ),
        (
            "/program/context",
            json!(1_u64 << 32),
            &["context is 4294967296"],
        ),
        (
            "/program/registers/0/name",
            json!("x y"),
            &["registers", "not a name"],
        ),
        (
            "/program/registers/1/name",
            json!("x"),
            &["registers", "\"x\" is stated twice"],
        ),
        (
            "/program/registers/0/width",
            json!(0),
            &["registers", "a width is 0"],
        ),
        (
            "/program/registers/0/width",
            json!(1_048_577),
            &["registers", "1048577"],
        ),
        (
            "/program/prologue",
            json!([]),
            &["prologue", "out of place"],
        ),
        (
            "/program/prologue/-",
            embed.clone(),
            &["prologue", "out of place"],
        ),
        (
            "/program/prologue",
            json!([add, embed]),
            &["prologue", "not first"],
        ),
        (
            "/program/prologue/-",
            head.clone(),
            &["prologue", "out of place"],
        ),
        (
            "/program/epilogue",
            json!([]),
            &["epilogue", "out of place"],
        ),
        (
            "/program/epilogue",
            json!([head, add]),
            &["epilogue", "not last"],
        ),
        (
            "/program/epilogue/-",
            expert_op.clone(),
            &["epilogue", "out of place"],
        ),
        (
            "/program/layers/2/-",
            expert_op.clone(),
            &["layer 2", "out of place"],
        ),
        (
            "/program/layers/0/-",
            expert_op,
            &["layer 0", "out of place"],
        ),
        (
            "/program/layers/0/9",
            Value::Null,
            &["layer 0", "out of place"],
        ),
        (
            "/program/layers/0/8",
            Value::Null,
            &["layer 0", "out of place"],
        ),
        ("/program/layers/0/-", embed, &["layer 0", "out of place"]),
        ("/program/layers/0/-", head, &["layer 0", "out of place"]),
        ("/program/layers", json!([]), &["layer 0"]),
        (
            "/program/layers",
            json!(vec![json!([]); 1025]),
            &["cannot be parsed", "1024 layers"],
        ),
        (
            "/program/layers/2",
            json!(vec![add.clone(); 129]),
            &["layer 2", "more than 128"],
        ),
        (
            "/program/registers",
            json!(
                (0..65)
                    .map(|i| json!({ "name": format!("r{i}"), "width": 1 }))
                    .collect::<Vec<_>>()
            ),
            &["more than 64 registers"],
        ),
    ]);
    let mut manifest = sample();
    manifest["program"]["layers"][0]
        .as_array_mut()
        .unwrap()
        .swap(8, 9);
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(
        error.contains("layer 0") && error.contains("out of place"),
        "{error}"
    );
}

#[test]
fn operands_of_operators() {
    let op =
        |index: usize, kind: &str, field: &str| format!("/program/layers/0/{index}/{kind}/{field}");
    let cases: &[(String, Value, &[&str])] = &[
        (
            op(0, "rms_norm", "input"),
            json!("nope"),
            &["layer 0, operator 0", "\"nope\"", "not stated"],
        ),
        (
            op(0, "rms_norm", "out"),
            json!("k"),
            &["operator 0", "width"],
        ),
        (
            op(0, "rms_norm", "weight"),
            json!("nope"),
            &["tensor \"nope\"", "not stated"],
        ),
        (
            op(0, "rms_norm", "weight"),
            json!("head_norm"),
            &["shape [16], not [64]"],
        ),
        (
            op(1, "linear", "out"),
            json!("y"),
            &["operator 1, linear", "in place"],
        ),
        (
            op(1, "linear", "weight"),
            json!("wk"),
            &["shape [32, 64], not [64, 64]"],
        ),
        (
            op(1, "linear", "bias"),
            json!("head_norm"),
            &["shape [16], not [64]"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(0),
            &["operator 4", "0 heads"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(3),
            &["operator 4", "3 heads"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(128),
            &["operator 4", "128 heads"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(2),
            &["shape [16], not [32]"],
        ),
        (
            op(4, "qk_norm", "over"),
            json!("full"),
            &["shape [16], not [64]"],
        ),
        (op(5, "rope", "heads"), json!(0), &["operator 5", "0 heads"]),
        (
            op(5, "rope", "dims"),
            json!(18),
            &["operator 5, rope", "18 of 16"],
        ),
        (
            op(5, "rope", "dims"),
            json!(15),
            &["operator 5, rope", "15 of 16"],
        ),
        (
            op(5, "rope", "dims"),
            json!(0),
            &["operator 5, rope", "0 of 16"],
        ),
        (
            op(5, "rope", "theta"),
            json!("0"),
            &["operator 5, rope", "theta is not above 0"],
        ),
        (
            op(0, "rms_norm", "eps"),
            json!("-0.00001"),
            &["operator 0, rms_norm", "eps is below 0"],
        ),
        (
            op(4, "qk_norm", "eps"),
            json!("-1"),
            &["operator 4, qk_norm", "eps is below 0"],
        ),
        (
            op(6, "attention", "heads"),
            json!(5),
            &["operator 6", "5 heads"],
        ),
        (
            op(6, "attention", "kv_heads"),
            json!(0),
            &["operator 6, attention", "over 0"],
        ),
        (
            op(6, "attention", "kv_heads"),
            json!(3),
            &["operator 6, attention", "over 3"],
        ),
        (
            op(6, "attention", "kv_heads"),
            json!(4),
            &["operator 6, k", "4 × 16"],
        ),
        (
            op(6, "attention", "v"),
            json!("q"),
            &["operator 6, q", "not 2 × 16"],
        ),
        (
            op(6, "attention", "out"),
            json!("k"),
            &["operator 6", "width"],
        ),
        (
            op(7, "add", "out"),
            json!("y"),
            &["operator 7, add", "in place"],
        ),
        (op(7, "add", "input"), json!("k"), &["operator 7", "width"]),
        (
            op(8, "router", "weight"),
            json!("wq"),
            &["operator 8", "not [4, 64]"],
        ),
        (
            op(8, "router", "selection_bias"),
            json!("bias"),
            &["operator 8", "not [4]"],
        ),
        (
            op(8, "router", "form/top_k"),
            json!(0),
            &["operator 8, router", "top_k is 0"],
        ),
        (
            op(8, "router", "form/top_k"),
            json!(5),
            &["operator 8, router", "top_k is 5"],
        ),
        (
            op(9, "experts", "out"),
            json!("y"),
            &["operator 9, experts", "in place"],
        ),
        (
            op(9, "experts", "input"),
            json!("k"),
            &["operator 9", "width"],
        ),
        (
            "/program/epilogue/0/lm_head/weight".into(),
            json!("wq"),
            &["epilogue, operator 0", "not [40, 64]"],
        ),
        (
            "/program/prologue/0/embed/out".into(),
            json!("k"),
            &["prologue, operator 0", "not [40, 32]"],
        ),
    ];
    for (pointer, value, pieces) in cases {
        check(&[(pointer, value.clone(), pieces)]);
    }
    // Both registers of another width than the experts.
    let mut manifest = sample();
    for (field, register) in [("input", "k"), ("out", "v")] {
        change(&mut manifest, &op(9, "experts", field), json!(register));
    }
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(
        error.contains("registers are 32 wide, experts 64"),
        "{error}"
    );
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
