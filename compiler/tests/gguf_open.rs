//! What a GGUF file becomes as a checkpoint: shapes, configuration, split sets, large files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use estream_compiler::ingest::gguf::{Gguf, GgufBuilder, Value, ValueType, WriteFault, open};
use estream_compiler::ingest::{CarriedContent, Checkpoint};
use estream_schemas::dtype::DType;
use tempfile::TempDir;

fn write(path: &Path, header: GgufBuilder, data: &[&[u8]]) {
    let mut writer = header.begin(File::create(path).unwrap()).unwrap();
    for tensor in data {
        writer.write_tensor_data(tensor).unwrap();
    }
    writer.finish().unwrap();
}

fn metadata(checkpoint: &Checkpoint) -> Gguf {
    match &checkpoint.metadata.as_ref().unwrap().content {
        CarriedContent::Bytes(bytes) => Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap(),
        CarriedContent::File(path) => panic!("carried as {}", path.display()),
    }
}

/// A set of `count` parts, each with the tensor `t.INDEX`; the first has the pairs.
fn split_set(count: u16) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..count)
        .map(|index| {
            let path = dir
                .path()
                .join(format!("m-q4-{:05}-of-{count:05}.gguf", index + 1));
            part(&path, index, count, &format!("t.{index}"), i32::from(count));
            path
        })
        .collect();
    (dir, paths)
}

fn part(path: &Path, index: u16, count: u16, tensor: &str, tensors: i32) {
    let mut header = GgufBuilder::new();
    if index == 0 {
        let name = Value::String(b"olmoe");
        header.pair("general.architecture", name).unwrap();
    }
    header.pair("split.no", Value::U16(index)).unwrap();
    header.pair("split.count", Value::U16(count)).unwrap();
    let total = Value::I32(tensors);
    header.pair("split.tensors.count", total).unwrap();
    header.tensor(tensor, DType::F32, &[1]).unwrap();
    write(path, header, &[&f32::from(index).to_le_bytes()]);
}

#[test]
fn a_shape_is_the_dimensions_reversed_and_tensors_are_sorted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut header = GgufBuilder::new();
    header.tensor("b", DType::Q4_0, &[3, 2, 64]).unwrap();
    header.tensor("a", DType::F32, &[2]).unwrap();
    write(&path, header, &[&[1; 3 * 2 * 36], &[2; 8]]);
    let checkpoint = open(&path).unwrap();
    let names: Vec<&str> = checkpoint.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let stacked = checkpoint.tensor("b").unwrap();
    assert_eq!(stacked.shape, [3, 2, 64]);
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.tensors().next().unwrap().dims, [64, 2, 3]);
    let mut bytes = [0; 4];
    let read = checkpoint.read(checkpoint.tensor("a").unwrap(), 4, &mut bytes);
    read.unwrap();
    assert_eq!(bytes, [2; 4]);
}

#[test]
fn configuration_is_scalars_and_short_arrays_outside_the_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut header = GgufBuilder::new();
    header.pair("a.eps", Value::F32(1e-5)).unwrap();
    header.pair("a.count", Value::U64(u64::MAX)).unwrap();
    header.pair("a.nan", Value::F64(f64::NAN)).unwrap();
    header.pair("a.bytes", Value::String(b"\xff")).unwrap();
    header
        .pair("general.license", Value::String(b"mit"))
        .unwrap();
    let document = "x".repeat(5000);
    let template = Value::String(document.as_bytes());
    header.pair("tokenizer.chat_template", template).unwrap();
    let heads = [0i32, 8, 0, -1].map(Value::I32);
    header.array("a.heads", ValueType::I32, heads).unwrap();
    let long = vec![Value::U8(1); 1025];
    header.array("a.long", ValueType::U8, long).unwrap();
    let tokens = [Value::String(b"<s>")];
    let key = "tokenizer.ggml.tokens";
    header.array(key, ValueType::String, tokens).unwrap();
    write(&path, header, &[]);

    let checkpoint = open(&path).unwrap();
    let keys: Vec<&String> = checkpoint.config.values.keys().collect();
    assert_eq!(
        keys,
        [
            "a.bytes",
            "a.count",
            "a.eps",
            "a.heads",
            "a.nan",
            "general.license"
        ]
    );
    let value = |key| checkpoint.config.get(key).unwrap();
    // The f32 as it is, not the decimal someone meant.
    assert_eq!(value("a.eps").as_f64(), Some(f64::from(1e-5f32)));
    assert_eq!(value("a.count").as_u64(), Some(u64::MAX));
    assert_eq!(*value("a.heads"), serde_json::json!([0, 8, 0, -1]));
    assert_eq!(checkpoint.license.as_deref(), Some("mit"));
    // Not left out, since nothing stated is not the same; and no number, so any use is refused.
    assert_eq!(value("a.nan").as_str(), Some("NaN"));
    assert_eq!(value("a.bytes").as_str(), Some("\u{fffd}"));
    assert!(checkpoint.notices.is_empty());
    let carried = metadata(&checkpoint);
    assert_eq!(carried.pair_count(), 9);
    let tokens = carried.kv(key).unwrap().as_array().unwrap();
    assert_eq!(tokens.iter().next().unwrap().as_str(), Some("<s>"));
}

#[test]
fn another_alignment_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut header = GgufBuilder::new();
    let alignment = Value::U32(4096);
    header.pair("general.alignment", alignment).unwrap();
    header.tensor("a", DType::I8, &[3]).unwrap();
    header.tensor("b", DType::I8, &[3]).unwrap();
    write(&path, header, &[b"abc", b"def"]);
    let checkpoint = open(&path).unwrap();
    let offsets: Vec<u64> = checkpoint.tensors.iter().map(|t| t.offset).collect();
    assert_eq!(offsets, [4096, 8192]);
    assert_eq!(metadata(&checkpoint).alignment(), 4096);
}

#[test]
fn padding_after_the_last_tensor_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut header = GgufBuilder::new();
    header.tensor("a", DType::I8, &[3]).unwrap();
    write(&path, header, &[b"abc"]);
    let end = open(&path).unwrap().tensors[0].offset + 3;
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(end).unwrap();
    assert_eq!(open(&path).unwrap().tensors.len(), 1);
    file.set_len(end - 1).unwrap();
    assert!(open(&path).is_err());
}

#[test]
fn c52_any_part_opens_the_set() {
    let (_dir, paths) = split_set(3);
    for path in &paths {
        let checkpoint = open(path).unwrap();
        assert_eq!(checkpoint.files.len(), 3);
        for (index, tensor) in checkpoint.tensors.iter().enumerate() {
            assert_eq!(
                (tensor.name.as_str(), tensor.file),
                (&*format!("t.{index}"), index)
            );
            let mut bytes = [0; 4];
            checkpoint.read(tensor, 0, &mut bytes).unwrap();
            assert_eq!(f32::from_le_bytes(bytes), index as f32);
        }
        assert!(checkpoint.config.get("general.architecture").is_some());
        // The metadata stands for the whole set: it must not ask for siblings.
        let carried = metadata(&checkpoint);
        assert_eq!(carried.pair_count(), 1);
        assert_eq!(carried.kv("split.count"), None);
    }
}

#[test]
fn c52_missing_parts_are_named_all_of_them() {
    let (_dir, paths) = split_set(4);
    fs::remove_file(&paths[0]).unwrap();
    fs::remove_file(&paths[3]).unwrap();
    let message = open(&paths[1]).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "2 of 4 parts missing: m-q4-00001-of-00004.gguf, m-q4-00004-of-00004.gguf; \
             download them into the same directory"
        ),
        "{message}"
    );
}

#[test]
fn c52_a_part_that_was_renamed_is_refused() {
    let (dir, paths) = split_set(2);
    let renamed = dir.path().join("model.gguf");
    fs::copy(&paths[0], &renamed).unwrap();
    let message = open(&renamed).unwrap_err().to_string();
    assert!(
        message.contains("one of 2 parts, but not named like"),
        "{message}"
    );

    // The second part under the name of the first, and the other way round.
    fs::copy(&paths[1], &paths[0]).unwrap();
    let message = open(&paths[0]).unwrap_err().to_string();
    assert!(message.contains("split.no is 1, expected 0"), "{message}");
}

#[test]
fn c52_parts_must_agree_on_their_tensors() {
    let (_dir, paths) = split_set(2);
    part(&paths[1], 1, 2, "t.0", 2);
    let message = open(&paths[0]).unwrap_err().to_string();
    assert!(message.contains("tensor \"t.0\" occurs twice"), "{message}");

    part(&paths[0], 0, 2, "t.0", 3);
    part(&paths[1], 1, 2, "t.1", 3);
    let message = open(&paths[0]).unwrap_err().to_string();
    assert!(
        message.contains("split.tensors.count is 3, expected the 2 tensors the parts have"),
        "{message}"
    );

    part(&paths[1], 1, 3, "t.1", 2);
    let message = open(&paths[0]).unwrap_err().to_string();
    assert!(
        message.contains("split.count is 3, expected 2"),
        "{message}"
    );
}

#[test]
fn c52_a_merged_file_needs_no_siblings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-00002.gguf");
    part(&path, 0, 0, "t.0", 1);
    let checkpoint = open(&path).unwrap();
    assert_eq!(checkpoint.files.len(), 1);
    assert_eq!(checkpoint.notices.len(), 1, "{:?}", checkpoint.notices);
}

#[test]
fn c67_a_tensor_beyond_4_gib_is_read_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let large = 5u64 << 30;
    let mut header = GgufBuilder::new();
    header.tensor("a", DType::I8, &[5, 1 << 30]).unwrap();
    header.tensor("b", DType::F32, &[1]).unwrap();
    // The header alone; the data is a hole, but for its last four bytes.
    let file = File::create(&path).unwrap();
    drop(header.begin(&file).unwrap());
    let start = file.metadata().unwrap().len();
    file.write_all_at(&7f32.to_le_bytes(), start + large)
        .unwrap();

    let checkpoint = open(&path).unwrap();
    let tensor = checkpoint.tensor("b").unwrap();
    assert_eq!(tensor.offset, start + large);
    let mut bytes = [0; 4];
    checkpoint.read(tensor, 0, &mut bytes).unwrap();
    assert_eq!(f32::from_le_bytes(bytes), 7.0);
    assert_eq!(checkpoint.tensor("a").unwrap().bytes, large);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut header = GgufBuilder::new();
    header.pair("k", Value::U8(1)).unwrap();
    let refused = [
        header.pair("k", Value::U8(1)),
        header.pair("", Value::U8(1)),
        header.pair("general.alignment", Value::U32(48)),
        header.array("m", ValueType::U8, [Value::U16(1)]),
        header.array("n", ValueType::Array, []),
        header.tensor("t", DType::F32, &[]),
        header.tensor("t", DType::F32, &[1; 5]),
        header.tensor("t", DType::F32, &[0]),
        header.tensor("t", DType::Q4_0, &[48]),
        header.tensor("t", DType::F32, &[1 << 32, 1 << 32]),
        header.tensor("t", DType::F8_E4M3, &[1]),
        header.tensor(&"t".repeat(257), DType::F32, &[1]),
    ];
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
    let bytes = header.begin(Vec::new()).unwrap().finish().unwrap();
    let read = Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap();
    assert_eq!((read.pair_count(), read.tensors().len()), (1, 0));
}

#[test]
fn the_writer_wants_each_tensor_whole() {
    let writer = || {
        let mut header = GgufBuilder::new();
        header.tensor("a", DType::I8, &[3]).unwrap();
        header.tensor("b", DType::I8, &[3]).unwrap();
        header.begin(Vec::new()).unwrap()
    };
    let mut early = writer();
    early.write_tensor_data(b"ab").unwrap();
    let error = early.write_tensor_data(b"cd").unwrap_err();
    assert!(matches!(error, WriteFault::Data { tensor, expected: 1, got: 2 } if tensor == "a"));
    let mut short = writer();
    short.write_tensor_data(b"abc").unwrap();
    let error = short.finish().unwrap_err();
    assert!(matches!(error, WriteFault::Data { tensor, expected: 3, .. } if tensor == "b"));
    let mut long = writer();
    long.write_tensor_data(b"abc").unwrap();
    long.write_tensor_data(b"def").unwrap();
    assert!(long.write_tensor_data(b"g").is_err());
}
