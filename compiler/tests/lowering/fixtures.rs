//! The OLMoE fixture in both formats.

use std::fs::File;
use std::path::{Path, PathBuf};

use estream_compiler::arch::Family;
use estream_compiler::ingest::gguf::{Gguf, GgufBuilder};
use estream_compiler::ingest::{Checkpoint, SourceTensor};
use estream_compiler::lower::{Lowered, lower};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name)
}

fn lowered(name: &str) -> Lowered {
    let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
    let family = Family::of(&checkpoint).unwrap();
    lower(&checkpoint, &family).unwrap()
}

#[test]
fn safetensors_and_gguf_lower_to_equal_programs() {
    let (hf, gguf) = (lowered("olmoe"), lowered("gguf/olmoe-q4_0.gguf"));
    assert_eq!(hf.program, gguf.program);
    assert_eq!(hf.model, gguf.model);
    let resident = |lowered: &Lowered| -> Vec<(String, Vec<u64>)> {
        let weights = lowered.resident.iter();
        weights
            .map(|weight| (weight.name.clone(), weight.shape.clone()))
            .collect()
    };
    assert_eq!(resident(&hf), resident(&gguf));
    assert_eq!((hf.experts.len(), hf.experts[0].gate.len()), (3, 16));
}

/// Two readers of one such file once found 13 and 18 tensors in it.
#[test]
fn llama_cpp_9893_experts_without_their_metadata_are_refused_by_key() {
    let source = Checkpoint::open(&fixture("gguf/olmoe-q4_0.gguf")).unwrap();
    let header = Gguf::open(&source.files[0].path).unwrap();
    let mut builder = GgufBuilder::new();
    for (key, value) in header.pairs().filter(|(key, _)| !key.contains("expert")) {
        builder.pair(key, value).unwrap();
    }
    for tensor in &source.tensors {
        let SourceTensor {
            name, dtype, shape, ..
        } = tensor;
        builder.tensor(name, *dtype, shape).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("no-experts.gguf");
    let mut writer = builder.begin(File::create(&path).unwrap()).unwrap();
    for tensor in &source.tensors {
        let mut bytes = vec![0; usize::try_from(tensor.bytes).unwrap()];
        source.read(tensor, 0, &mut bytes).unwrap();
        writer.write_tensor_data(&bytes).unwrap();
    }
    drop(writer.finish().unwrap());

    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.tensors.len(), source.tensors.len());
    let family = Family::of(&checkpoint).unwrap();
    let error = lower(&checkpoint, &family).unwrap_err().to_string();
    let says = "config key \"olmoe.expert_count\" is not stated";
    assert!(error.contains(says), "{error}");
}
