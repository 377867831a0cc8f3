//! The OLMoE fixture in both formats.

use std::path::{Path, PathBuf};

use estream_compiler::arch::Family;
use estream_compiler::ingest::Checkpoint;
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
    let (hf, gguf) = (lowered("olmoe"), lowered("gguf/olmoe-bf16.gguf"));
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

#[test]
fn the_experts_of_both_formats_are_the_same_bytes() {
    let open = |name: &str| Checkpoint::open(&fixture(name)).unwrap();
    let (hf, gguf) = (open("olmoe"), open("gguf/olmoe-bf16.gguf"));
    let family = Family::of(&hf).unwrap();
    let (of_hf, of_gguf) = (lower(&hf, &family).unwrap(), lower(&gguf, &family).unwrap());
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (a, b) in of_hf.experts.iter().zip(&of_gguf.experts) {
        let all = |layer: &estream_compiler::lower::ExpertWeights| {
            [layer.gate.clone(), layer.up.clone(), layer.down.clone()].concat()
        };
        for (a, b) in all(a).iter().zip(&all(b)) {
            a.read_rows(&hf, 0, a.rows, &mut left).unwrap();
            b.read_rows(&gguf, 0, b.rows, &mut right).unwrap();
            assert!(left == right && !left.is_empty());
        }
    }
}
