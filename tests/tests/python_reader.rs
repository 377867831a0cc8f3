//! A reader written from `docs/format.md` alone finds the source's numbers in bundles.

use std::fs;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use estream_compiler::ingest::gguf::{Gguf, GgufBuilder};
use estream_compiler::ingest::{Checkpoint, SourceTensor};
use estream_compiler::quant::{OnOverflow, decode, encode};
use estream_schemas::dtype::DType;
use estream_tests::{Finished, compile, finish, fixture};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Asks `tests/python/read_bundle.py` about a bundle; `input` is its standard input.
fn python(bundle: &Path, words: &[&str], input: &str) -> Finished {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/read_bundle.py");
    let stdin = tempfile::tempfile().expect("a temporary file");
    (&stdin).write_all(input.as_bytes()).expect("input");
    (&stdin).rewind().expect("input");
    let mut command = Command::new("python3");
    command.arg("-B").arg(script).arg(bundle).args(words);
    let version = Command::new("python3").arg("--version").output();
    assert!(
        version.is_ok_and(|version| version.status.success()),
        "python3 is missing; install it with scripts/setup"
    );
    finish(command.stdin(stdin))
}

/// Rows as the script prints them.
fn rows(printed: &[u8]) -> Vec<Vec<f32>> {
    let text = std::str::from_utf8(printed).expect("text");
    let number = |word: &str| word.parse::<f64>().expect("a number") as f32;
    let row = |line: &str| line.split(' ').map(number).collect();
    text.lines().map(row).collect()
}

/// What a tensor of the source became: a question for the script, and the answer.
struct Expected {
    question: String,
    values: Vec<f32>,
    cols: usize,
}

/// All weights of a bundle, as the source has them. A source tensor holds what the
/// ledger says, of type `target` unless that is none.
fn expected(
    source: &Path,
    manifest: &Value,
    target: fn(role: &str) -> Option<DType>,
) -> Vec<Expected> {
    let checkpoint = Checkpoint::open(source).expect("a checkpoint");
    let ledger = manifest["ledger"].as_array().expect("a ledger");
    assert_eq!(ledger.len(), checkpoint.tensors.len());
    let mut all = Vec::new();
    for entry in ledger {
        let name = entry["tensor"].as_str().expect("a name");
        let tensor = checkpoint.tensor(name).expect("a tensor of the source");
        let became = entry["fate"]["became"].as_array().expect("a fate");
        assert_eq!(became.len(), 1, "{name}");
        let weight = became[0].as_str().expect("a name");
        let mut values = values_of(&checkpoint, tensor);
        if let Some(dtype) = target(weight.split('.').nth(2).unwrap_or(weight)) {
            values = through(dtype, &values);
        }
        let cols = usize::try_from(*tensor.shape.last().expect("a dimension")).unwrap();
        let ask = |question: String, values: &[f32]| Expected {
            question,
            values: values.to_vec(),
            cols,
        };
        let parts: Vec<&str> = weight.split('.').collect();
        match (parts.as_slice(), expert_projection(weight)) {
            (["layers", layer, _, expert], Some(projection)) => {
                let question = format!("expert {layer} {expert} {projection} all");
                all.push(ask(question, &values));
            }
            // All experts in one tensor, slowest first.
            (["layers", layer, _], Some(projection)) => {
                let count = usize::try_from(tensor.shape[0]).unwrap();
                let each = values.chunks(values.len() / count);
                all.extend(each.enumerate().map(|(expert, values)| {
                    ask(format!("expert {layer} {expert} {projection} all"), values)
                }));
            }
            _ => all.push(ask(format!("resident {weight} all"), &values)),
        }
    }
    all
}

fn expert_projection(weight: &str) -> Option<&str> {
    weight.split('.').nth(2)?.strip_prefix("expert_")
}

fn values_of(checkpoint: &Checkpoint, tensor: &SourceTensor) -> Vec<f32> {
    let mut bytes = vec![0; usize::try_from(tensor.bytes).unwrap()];
    checkpoint.read(tensor, 0, &mut bytes).expect("its bytes");
    let count = tensor.shape.iter().product::<u64>();
    decoded(tensor.dtype, &bytes, usize::try_from(count).unwrap())
}

fn decoded(dtype: DType, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    decode(dtype, bytes, &mut values).expect("blocks");
    values
}

fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
    let bytes = dtype.matrix_bytes(1, values.len() as u64).expect("blocks");
    let mut out = vec![0; usize::try_from(bytes).unwrap()];
    encode(dtype, values, &mut out, OnOverflow::Error).expect("encodable values");
    out
}

/// `values` after a round trip through `dtype`.
fn through(dtype: DType, values: &[f32]) -> Vec<f32> {
    decoded(dtype, &encoded(dtype, values), values.len())
}

/// Every row the script prints is the source's, bit for bit.
#[track_caller]
fn check(source: &Path, flags: &[&str], target: fn(&str) -> Option<DType>) -> Vec<String> {
    let dir = TempDir::new().expect("a directory");
    let bundle = dir.path().join("m.estream");
    compile(source, &bundle, flags);
    let manifest = fs::read(bundle.join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let expected = expected(source, &manifest, target);
    let questions: Vec<&str> = expected.iter().map(|e| e.question.as_str()).collect();
    let answer = python(&bundle, &["batch"], &questions.join("\n")).success();
    let mut printed = rows(&answer.stdout).into_iter();
    for Expected {
        question,
        values,
        cols,
    } in &expected
    {
        for (index, row) in values.chunks(*cols).enumerate() {
            let read = printed.next().expect("a row for each of the source's");
            assert_eq!(bits(&read), bits(row), "{flags:?}: {question}: row {index}");
        }
    }
    assert_eq!(printed.count(), 0, "rows the source does not have");
    let list = python(&bundle, &["list"], "").success().stdout;
    let list = String::from_utf8(list).expect("text");
    // Nothing in the bundle went unasked for.
    assert_eq!(list.lines().count(), expected.len());
    let layouts = list
        .lines()
        .map(|line| line.split(' ').nth(1).expect("a layout").to_owned());
    layouts.collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Each number of shards with each order of nibbles.
const VARIANTS: [[&str; 4]; 4] = [
    ["--shards", "1", "--layout", "direct"],
    ["--shards", "1", "--layout", "pair"],
    ["--shards", "2", "--layout", "direct"],
    ["--shards", "2", "--layout", "pair"],
];

#[test]
fn a_kept_checkpoint_reads_as_its_source() {
    for variant in VARIANTS {
        let flags = [&["--recipe", "keep"], &variant[..]].concat();
        check(&fixture("olmoe"), &flags, |_| None);
    }
}

#[test]
fn a_quantised_checkpoint_reads_as_its_quantised_source() {
    for variant in VARIANTS {
        let flags = [&["--recipe", "q4_0"], &variant[..]].concat();
        let layouts = check(&fixture("olmoe"), &flags, |role| {
            Some(match role {
                "head" => DType::Q8_0,
                "router" => DType::F32,
                norm if norm.ends_with("norm") => DType::F32,
                _ => DType::Q4_0,
            })
        });
        assert!(layouts.contains(&format!("q4_0.t32.{}", variant[3])));
    }
}

#[test]
fn a_gguf_file_reads_as_its_blocks() {
    for variant in VARIANTS {
        let flags = [&["--recipe", "keep"], &variant[..]].concat();
        check(&fixture("gguf/olmoe-q4_0.gguf"), &flags, |_| None);
    }
}

/// Blocks of `dtype` that ggml reads as finite numbers, as many as asked for.
fn blocks(dtype: DType, count: usize) -> Vec<u8> {
    if !dtype.is_quantised() {
        let block_len = 32_u16;
        let values: Vec<f32> = (0..block_len).map(|i| f32::from(i) - 7.5).collect();
        let per_block = encoded(dtype, &values[..1]).len();
        let ramp = encoded(dtype, &values);
        return ramp.into_iter().cycle().take(count * per_block).collect();
    }
    let file = fs::read(fixture("blocks/blocks.safetensors")).expect("vectors");
    let file = SafeTensors::deserialize(&file).expect("vectors");
    let vectors = file.tensor(&format!("{dtype}.blocks")).expect("a vector");
    let block_bytes = usize::try_from(dtype.block_bytes()).unwrap();
    // The scales of MXFP4 that are beyond a float are among the vectors.
    let finite = |block: &&[u8]| dtype != DType::MXFP4 || block[0] < 253;
    let blocks = vectors.data().chunks_exact(block_bytes).filter(finite);
    let blocks: Vec<&[u8]> = blocks.collect();
    blocks
        .into_iter()
        .cycle()
        .take(count)
        .flatten()
        .copied()
        .collect()
}

/// The GGUF fixture with every type that has a tile.
fn gguf_of_many_types(dir: &Path) -> PathBuf {
    let model = Gguf::open(&fixture("gguf/olmoe-bf16.gguf")).expect("a GGUF file");
    let types = [
        DType::Q4_1,
        DType::IQ4_NL,
        DType::MXFP4,
        DType::F16,
        DType::Q8_0,
        DType::F32,
        DType::BF16,
    ];
    let mut header = GgufBuilder::new();
    header.pairs_of(&model).expect("pairs");
    let mut payload = Vec::new();
    for (index, tensor) in model.tensors().enumerate() {
        let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
        let dtype = if shape.len() == 1 {
            DType::F32
        } else {
            types[index % types.len()]
        };
        header.tensor(tensor.name, dtype, &shape).expect("a tensor");
        let count = shape.iter().product::<u64>() / dtype.block_len();
        payload.push(blocks(dtype, usize::try_from(count).unwrap()));
    }
    let mut writer = header.begin(Vec::new()).expect("a header");
    for bytes in &payload {
        writer.write_tensor_data(bytes).expect("its bytes");
    }
    let path = dir.join("many.gguf");
    fs::write(&path, writer.finish().expect("a file")).expect("a file");
    path
}

#[test]
fn every_type_with_a_tile_reads_as_its_blocks() {
    let dir = TempDir::new().expect("a directory");
    let source = gguf_of_many_types(dir.path());
    for variant in VARIANTS {
        let flags = [&["--recipe", "keep"], &variant[..]].concat();
        let layouts = check(&source, &flags, |_| None);
        let order = variant[3];
        for dtype in ["q4_1", "iq4_nl", "mxfp4"] {
            assert!(layouts.contains(&format!("{dtype}.t32.{order}")), "{dtype}");
        }
        for dtype in ["f16", "q8_0", "f32", "bf16"] {
            assert!(layouts.contains(&format!("{dtype}.t32")), "{dtype}");
        }
    }
}

/// A bundle of resident tensors alone, each the vectors of its type in rows.
fn bundle_of_rows(dir: &Path, dtypes: &[DType]) -> PathBuf {
    let mut manifest = keep_manifest(dir);
    let (mut payload, mut tensors) = (Vec::new(), Vec::new());
    for dtype in dtypes {
        let cols = dtype.block_len().max(32);
        let bytes = blocks(
            *dtype,
            8 * usize::try_from(cols / dtype.block_len()).unwrap(),
        );
        tensors.push(json!({
            "name": dtype.name(),
            "layout": format!("{dtype}.rows"),
            "shape": [8, cols],
            "offset": payload.len(),
            "bytes": bytes.len(),
            "digest": "0".repeat(64),
        }));
        payload.extend(bytes);
        payload.resize(payload.len().next_multiple_of(16_384), 0);
    }
    manifest["resident"] = json!({ "bytes": payload.len(), "tensors": tensors });
    manifest["experts"] = json!({ "slot_bytes": 0, "parts": [], "layers": [] });
    let bundle = dir.join("m.estream");
    fs::write(bundle.join("resident.bin"), payload).expect("a file");
    write_manifest(&bundle, &manifest);
    bundle
}

/// Compiles `m.estream` in `dir` from the fixture, and parses its manifest.
fn keep_manifest(dir: &Path) -> Value {
    let bundle = dir.join("m.estream");
    compile(
        &fixture("olmoe"),
        &bundle,
        &["--recipe", "keep", "--shards", "2"],
    );
    let text = fs::read(bundle.join("manifest.json")).expect("a manifest");
    serde_json::from_slice(&text).expect("JSON")
}

fn write_manifest(bundle: &Path, manifest: &Value) {
    let text = serde_json::to_vec_pretty(manifest).expect("JSON");
    fs::write(bundle.join("manifest.json"), text).expect("a manifest");
}

#[test]
fn rows_of_every_type_read_as_their_blocks() {
    let dtypes = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q8_0,
        DType::IQ4_NL,
        DType::MXFP4,
        DType::Q6_K,
    ];
    let dir = TempDir::new().expect("a directory");
    let bundle = bundle_of_rows(dir.path(), &dtypes);
    for dtype in dtypes {
        let cols = usize::try_from(dtype.block_len().max(32)).unwrap();
        let block_len = usize::try_from(dtype.block_len()).unwrap();
        let values = decoded(dtype, &blocks(dtype, 8 * cols / block_len), 8 * cols);
        let read = python(&bundle, &["resident", dtype.name(), "all"], "").success();
        let read = rows(&read.stdout).concat();
        assert_eq!(bits(&read), bits(&values), "{dtype}");
    }
}

#[test]
fn a_checksum_follows_the_numbers_and_not_where_they_lie() {
    let dir = TempDir::new().expect("a directory");
    let sums = VARIANTS.map(|variant| {
        let bundle = dir
            .path()
            .join(format!("{}-{}.estream", variant[1], variant[3]));
        let flags = [&["--recipe", "q4_0"], &variant[..]].concat();
        compile(&fixture("olmoe"), &bundle, &flags);
        python(&bundle, &["checksum"], "").success().stdout
    });
    assert!(!sums[0].is_empty());
    assert!(sums.iter().all(|sum| *sum == sums[0]));
    let kept = dir.path().join("kept.estream");
    compile(&fixture("olmoe"), &kept, &["--recipe", "keep"]);
    assert_ne!(python(&kept, &["checksum"], "").success().stdout, sums[0]);
}

#[test]
fn what_the_page_forbids_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let manifest = keep_manifest(dir.path());
    let bundle = dir.path().join("m.estream");
    let changes = [
        ("/format", json!("zip"), "unknown format"),
        ("/version", json!(2), "unknown version"),
        ("/kernel_abi", json!(0), "unknown kernel_abi"),
        (
            "/resident/tensors/1/offset",
            json!(16_385),
            "not where its neighbour ends",
        ),
        (
            "/resident/tensors/1/offset",
            json!(0),
            "not where its neighbour ends",
        ),
        ("/resident/tensors/1/name", json!("../embed"), "malformed"),
        ("/resident/tensors/1/name", json!("embed"), "stated twice"),
        ("/resident/tensors/1/bytes", json!(1), "wrong size"),
        (
            "/resident/tensors/1/shape/0",
            json!(u64::MAX),
            "a dimension of",
        ),
        (
            "/resident/tensors/0/layout",
            json!("bf16.t32.pair"),
            "unknown",
        ),
        ("/resident/bytes", json!(16_384), "is not 16384 bytes"),
        (
            "/experts/parts/0/file",
            json!("experts-00002.bin"),
            "experts-00002.bin",
        ),
        ("/experts/parts/0/bytes", json!(0), "is not 0 bytes"),
        ("/experts/layers/0/order/0", json!(99), "no permutation"),
        ("/experts/layers/0/shards", json!(1), "digests"),
        ("/experts/layers/1/offset", json!(0), "offset"),
        ("/experts/layers/1/layer", json!(0), "out of order"),
        ("/experts/layers/0/part", json!(1), "part 1"),
        ("/experts/layers/0/up/offset", json!(0), "a region's offset"),
        ("/experts/layers/0/up/rows", json!(64), "up"),
        ("/experts/layers/0/down/cols", json!(64), "down"),
        (
            "/experts/layers/0/record_bytes",
            json!(16_384),
            "record_bytes",
        ),
        ("/experts/slot_bytes", json!(16_384), "slot_bytes"),
        ("/tokenizer/0/file", json!("tokenizer/../x"), "file name"),
        (
            "/license/files",
            json!([{ "file": "plans", "bytes": 0, "digest": "0".repeat(64) }]),
            "file name",
        ),
        ("/model/family", json!(1.5), "not an integer"),
    ];
    for (pointer, value, message) in changes {
        let mut changed = manifest.clone();
        *changed.pointer_mut(pointer).expect("a member") = value;
        write_manifest(&bundle, &changed);
        let refused = python(&bundle, &["list"], "");
        assert_eq!(refused.code, 1, "{pointer}: {}", refused.stderr);
        let expected =
            refused.stderr.starts_with("read_bundle: ") && refused.stderr.contains(message);
        assert!(expected, "{pointer}: {}", refused.stderr);
    }
    write_manifest(&bundle, &manifest);
    python(&bundle, &["list"], "").success();
}
