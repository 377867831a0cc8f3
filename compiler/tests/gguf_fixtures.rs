//! Real files, as llama.cpp's converter wrote them: read as other readers read
//! them, and written again without a difference.

use std::fs;
use std::path::{Path, PathBuf};

use estream_compiler::ingest::CarriedContent;
use estream_compiler::ingest::gguf::{Gguf, GgufBuilder, open};
use gguf_rs_lib::reader::open_gguf_file;
use serde_json::Value as Json;

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/gguf");
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "gguf"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 3, "{paths:?}");
    paths
}

#[test]
fn names_shapes_types_and_offsets_are_those_of_another_reader() {
    for path in fixtures() {
        let ours = Gguf::open(&path).unwrap();
        let theirs = open_gguf_file(&path).unwrap();
        assert_eq!(ours.data_start(), theirs.tensor_data_offset());
        assert_eq!(ours.alignment(), theirs.tensor_alignment());
        assert_eq!(ours.tensors().len(), theirs.tensor_count());
        for (ours, theirs) in ours.tensors().zip(theirs.tensor_infos()) {
            assert_eq!(ours.name, theirs.name());
            assert_eq!(ours.dims, theirs.shape().dims());
            assert_eq!(ours.dtype.ggml_id(), Some(theirs.tensor_type() as u32));
            assert_eq!(ours.offset, theirs.data_offset());
            assert_eq!(ours.bytes, theirs.expected_data_size());
        }
    }
}

/// The listing beside each fixture was made with gguf-py, which wrote arrays as text.
#[test]
fn pairs_and_types_are_those_gguf_py_lists() {
    let listed = |path: &PathBuf| path.with_extension("meta.json").exists();
    let paths: Vec<PathBuf> = fixtures().into_iter().filter(listed).collect();
    assert!(paths.len() >= 3, "{paths:?}");
    for path in paths {
        let listing = fs::read(path.with_extension("meta.json")).unwrap();
        let listing: Json = serde_json::from_slice(&listing).unwrap();
        let checkpoint = open(&path).unwrap();
        let mut compared = 0;
        for (key, theirs) in listing["kv"].as_object().unwrap() {
            if let Some(ours) = checkpoint.config.get(key)
                && !ours.is_array()
            {
                assert_eq!(ours, theirs, "{key}");
                compared += 1;
            }
        }
        assert!(compared > 15, "{compared}");
        let types = listing["types"].as_object().unwrap();
        assert_eq!(types.len(), checkpoint.tensors.len());
        for (name, theirs) in types {
            let ours = checkpoint.tensor(name).unwrap().dtype.name();
            assert_eq!(
                Some(ours.to_uppercase().as_str()),
                theirs.as_str(),
                "{name}"
            );
        }
    }
}

#[test]
fn a_file_written_again_has_the_same_bytes() {
    for path in fixtures() {
        let bytes = fs::read(&path).unwrap();
        let gguf = Gguf::open(&path).unwrap();
        let mut header = GgufBuilder::new();
        header.pairs_of(&gguf).unwrap();
        for tensor in gguf.tensors() {
            let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
            header.tensor(tensor.name, tensor.dtype, &shape).unwrap();
        }
        let mut writer = header.begin(Vec::new()).unwrap();
        for tensor in gguf.tensors() {
            let start = usize::try_from(gguf.data_start() + tensor.offset).unwrap();
            let data = &bytes[start..start + usize::try_from(tensor.bytes).unwrap()];
            for piece in data.chunks(1000) {
                writer.write_tensor_data(piece).unwrap();
            }
        }
        assert!(writer.finish().unwrap() == bytes, "{}", path.display());
    }
}

#[test]
fn the_carried_metadata_has_every_pair_and_no_tensor() {
    for path in fixtures() {
        let gguf = Gguf::open(&path).unwrap();
        let checkpoint = open(&path).unwrap();
        let CarriedContent::Bytes(metadata) = checkpoint.metadata.unwrap().content else {
            panic!("carried as a file");
        };
        let carried = Gguf::read(metadata.as_slice(), metadata.len() as u64).unwrap();
        assert_eq!(carried.tensors().len(), 0);
        assert_eq!(carried.pair_count(), gguf.pair_count());
        for (key, value) in gguf.pairs() {
            assert_eq!(carried.kv(key), Some(value));
            assert_eq!(carried.kv_bytes(key), gguf.kv_bytes(key));
        }

        // The writer makes the same file of the same pairs.
        let mut header = GgufBuilder::new();
        header.pairs_of(&gguf).unwrap();
        let written = header.begin(Vec::new()).unwrap().finish().unwrap();
        assert_eq!(written, metadata);
    }
}

#[test]
fn version_2_is_read_as_version_3_is() {
    // On a little-endian machine the version is the only difference: version 2
    // brought 64-bit counts, version 3 only the possibility of big-endian files.
    for path in fixtures() {
        let mut bytes = fs::read(&path).unwrap();
        let third = Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap();
        bytes[4..8].copy_from_slice(&2u32.to_le_bytes());
        let second = Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap();
        assert_eq!((third.version(), second.version()), (3, 2));
        assert!(third.tensors().eq(second.tensors()));
        assert!(third.pairs().eq(second.pairs()));
    }
}
