//! The block codecs give ggml's numbers, bit for bit.

use std::path::PathBuf;

use estream_compiler::quant::{OnOverflow, decode, encode};
use estream_schemas::dtype::DType;
use safetensors::{Dtype, SafeTensors};

const DECODED: [DType; 12] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::IQ4_NL,
    DType::MXFP4,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

fn vectors(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/blocks");
    std::fs::read(folder.join(name)).unwrap()
}

fn bytes<'a>(file: &SafeTensors<'a>, name: &str) -> &'a [u8] {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::U8, "{name}");
    assert!(!tensor.data().is_empty(), "{name}");
    tensor.data()
}

fn floats(file: &SafeTensors, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
    let values = tensor.data().as_chunks().0.iter();
    values.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[track_caller]
fn check_encode(file: &SafeTensors, dtype: DType) {
    let values = floats(file, &format!("{dtype}.values"));
    let expected = bytes(file, &format!("{dtype}.encoded"));
    let mut made = vec![0; expected.len()];
    let encoded = encode(dtype, &values, &mut made, OnOverflow::Error).unwrap();
    assert_eq!(encoded.clamped_count, 0);
    let block_bytes = dtype.block_bytes() as usize;
    let pairs = made.chunks(block_bytes).zip(expected.chunks(block_bytes));
    for (block_index, (made, expected)) in pairs.enumerate() {
        assert_eq!(made, expected, "{dtype} block {block_index}");
    }
}

#[test]
fn encodes_as_the_reference_quantisers_do() {
    let file = vectors("blocks.safetensors");
    let file = SafeTensors::deserialize(&file).unwrap();
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0] {
        check_encode(&file, dtype);
    }
}

#[test]
fn encodes_q6_k_as_the_reference_quantiser_does() {
    let file = vectors("q6_k_encode.safetensors");
    check_encode(&SafeTensors::deserialize(&file).unwrap(), DType::Q6_K);
}

#[test]
fn decodes_every_block_as_the_reference_does() {
    let file = vectors("blocks.safetensors");
    let file = SafeTensors::deserialize(&file).unwrap();
    for dtype in DECODED {
        let expected = floats(&file, &format!("{dtype}.decoded"));
        let blocks = bytes(&file, &format!("{dtype}.blocks"));
        let mut made = vec![f32::NAN; expected.len()];
        decode(dtype, blocks, &mut made).unwrap();
        for (index, (made, expected)) in made.iter().zip(&expected).enumerate() {
            let same = made.to_bits() == expected.to_bits();
            assert!(same, "{dtype} value {index}: {made} for {expected}");
        }
    }
}

/// The vectors would not notice a fused multiply-add if none of them depended on it.
#[test]
fn the_q4_0_vectors_tell_fused_from_unfused() {
    let file = vectors("blocks.safetensors");
    let file = SafeTensors::deserialize(&file).unwrap();
    let values = floats(&file, "q4_0.values");
    let blocks = bytes(&file, "q4_0.encoded").as_chunks::<18>().0;
    let rows = values.as_chunks::<32>().0;

    // Blocks of which an encoder that scales like this would get a level wrong.
    let wrong = |scaled: fn(f32, f32) -> f32| {
        let is_wrong = |(row, block): &(&[f32; 32], &[u8; 18])| {
            let larger = |best: f32, x: &f32| if x.abs() > best.abs() { *x } else { best };
            let d = row.iter().fold(0.0, larger) / -8.0;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            let levels = row.map(|x| scaled(x, inverse).min(15.0).floor());
            let (low, high) = levels.split_at(16);
            let bytes = block[2..].iter().zip(low).zip(high);
            bytes.into_iter().any(|((byte, low), high)| {
                *low != f32::from(byte & 0x0f) || *high != f32::from(byte >> 4)
            })
        };
        rows.iter().zip(blocks).filter(is_wrong).count()
    };
    assert_eq!(wrong(|x, inverse| x * inverse + 8.5), 0);
    assert!(wrong(|x, inverse| x.mul_add(inverse, 8.5)) >= 16);
}
