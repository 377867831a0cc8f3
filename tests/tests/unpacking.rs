//! What came from GGUF goes back to GGUF, block for block.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use estream_compiler::ingest::gguf::{Gguf, GgufBuilder, Value};
use estream_tests::{Finished, compile, estream, files, finish, fixture};

fn unpack(bundle: &Path, gguf: &Path) -> Finished {
    let mut command = estream();
    finish(command.arg("unpack").arg(bundle).arg("--gguf").arg(gguf))
}

/// A file taken apart: every pair as its bytes, every tensor as its type, dimensions and blocks.
#[derive(PartialEq)]
struct Parts {
    pairs: BTreeMap<String, Vec<u8>>,
    tensors: BTreeMap<String, (String, Vec<u64>, Vec<u8>)>,
}

fn parts(path: &Path) -> Parts {
    let bytes = fs::read(path).unwrap();
    let gguf = Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap();
    let size = |n: u64| usize::try_from(n).unwrap();
    let tensors = gguf.tensors().map(|tensor| {
        let start = size(gguf.data_start() + tensor.offset);
        let blocks = bytes[start..][..size(tensor.bytes)].to_vec();
        let about = (tensor.dtype.to_string(), tensor.dims.to_vec(), blocks);
        (tensor.name.to_owned(), about)
    });
    let pairs = gguf.pairs().map(|(key, _)| {
        let value = gguf.kv_bytes(key).unwrap().to_vec();
        (key.to_owned(), value)
    });
    Parts {
        pairs: pairs.collect(),
        tensors: tensors.collect(),
    }
}

#[track_caller]
fn assert_same(expected: &Path, got: &Path) {
    let (expected, got) = (parts(expected), parts(got));
    assert_eq!(expected.pairs, got.pairs);
    assert!(!expected.tensors.is_empty());
    let names = |parts: &Parts| parts.tensors.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&got));
    for (name, tensor) in &expected.tensors {
        assert!(*tensor == got.tensors[name], "{name} differs");
    }
}

#[test]
fn every_block_comes_back_through_any_arrangement() {
    let dir = tempfile::tempdir().unwrap();
    let sources = [
        ("olmoe-q4_0", "2"),
        ("olmoe-q8_0", "2"),
        ("olmoe-bf16", "2"),
        // Rows of q and k are in another order in a bundle.
        ("mixtral-q4_0", "5"),
    ];
    for (source, shards) in sources {
        let arrangements: [&[&str]; 3] = [&[], &["--shards", shards], &["--layout", "pair"]];
        let gguf = fixture(&format!("gguf/{source}.gguf"));
        for (index, arrangement) in arrangements.iter().enumerate() {
            let bundle = dir.path().join(format!("{source}-{index}.estream"));
            compile(
                &gguf,
                &bundle,
                &[arrangement, &["--recipe", "keep"][..]].concat(),
            );
            let out = bundle.with_extension("gguf");
            unpack(&bundle, &out).success();
            assert_same(&gguf, &out);
        }
    }
}

#[test]
fn another_nibble_order_and_back_is_the_same_bundle_and_the_same_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = fixture("gguf/olmoe-q4_0.gguf");
    for shards in ["1", "2"] {
        let path = |name: &str| dir.path().join(format!("{name}-{shards}"));
        let (direct, pair, back) = (path("direct"), path("pair"), path("back"));
        compile(&gguf, &direct, &["--shards", shards]);
        for (from, to, layout) in [(&direct, &pair, "pair"), (&pair, &back, "direct")] {
            let mut command = estream();
            command.arg("relayout").arg(from).arg("-o").arg(to);
            finish(command.args(["--layout", layout])).success();
        }
        assert!(files(&direct) == files(&back));
        let changed = |name: &str| files(&direct)[name] != files(&pair)[name];
        assert!(changed("experts-00001.bin") && changed("resident.bin"));
        let out = path("out.gguf");
        unpack(&pair, &out).success();
        assert_same(&gguf, &out);
    }
}

#[test]
fn an_output_that_exists_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.estream");
    compile(&fixture("gguf/olmoe-q4_0.gguf"), &bundle, &[]);
    let out = dir.path().join("mine.gguf");
    fs::write(&out, "mine").unwrap();
    let refused = unpack(&bundle, &out);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("mine.gguf"), "{}", refused.stderr);
    assert_eq!(fs::read(&out).unwrap(), b"mine");
}

/// Feed-forward width of the narrow model: one tile and a half.
const NARROW_FF: u64 = 48;

/// The bf16 fixture with experts cut to [`NARROW_FF`].
fn narrow(out: &Path) {
    let bytes = fs::read(fixture("gguf/olmoe-bf16.gguf")).unwrap();
    let gguf = Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap();
    let size = |n: u64| usize::try_from(n).unwrap();
    let mut builder = GgufBuilder::new();
    for (key, value) in gguf.pairs() {
        match value {
            _ if key == "olmoe.feed_forward_length" => {
                builder.pair(key, Value::U32(48)).unwrap();
            }
            Value::Array(array) => {
                let values: Vec<Value<'_>> = array.iter().collect();
                builder.array(key, array.element(), values).unwrap();
            }
            value => builder.pair(key, value).unwrap(),
        }
    }
    let mut data = Vec::new();
    for tensor in gguf.tensors() {
        let mut dims = tensor.dims.to_vec();
        let start = size(gguf.data_start() + tensor.offset);
        let all = &bytes[start..][..size(tensor.bytes)];
        // The dimension to cut is the fastest of down and the next of gate and up.
        let cut = match tensor.name.contains("_exps") {
            true => Some(usize::from(!tensor.name.contains("ffn_down"))),
            false => None,
        };
        let kept = match cut {
            None => all.to_vec(),
            Some(axis) => {
                let below: u64 = dims[..axis].iter().product::<u64>() * 2;
                let (from, to) = (size(dims[axis] * below), size(NARROW_FF * below));
                dims[axis] = NARROW_FF;
                let pieces = all.chunks_exact(from).map(|piece| &piece[..to]);
                pieces.collect::<Vec<_>>().concat()
            }
        };
        dims.reverse();
        builder.tensor(tensor.name, tensor.dtype, &dims).unwrap();
        data.push(kept);
    }
    let mut writer = builder.begin(Vec::new()).unwrap();
    for bytes in data {
        writer.write_tensor_data(&bytes).unwrap();
    }
    fs::write(out, writer.finish().unwrap()).unwrap();
}

#[test]
fn a_tensor_whose_rows_were_padded_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let [source, bundle, out] = ["n.gguf", "n.estream", "out.gguf"].map(|n| dir.path().join(n));
    narrow(&source);
    let mut command = estream();
    command.arg("compile").arg(&source).arg("-o").arg(&bundle);
    let refused = finish(&mut command);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("48 mod 32 = 16"),
        "{}",
        refused.stderr
    );

    compile(&source, &bundle, &["--recipe", "keep", "--pad-k"]);
    let refused = unpack(&bundle, &out);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    for part in ["ffn_down_exps", "padded", "--pad-k"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    assert!(!out.exists());
}
