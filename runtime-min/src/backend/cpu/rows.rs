//! Rows as GGUF stores them to f32, exactly as ggml defines each type.
//!
//! A block of any quantised type is levels, and for each 16 of them a scale and a minimum:
//! an element is `scale · (level − zero) − min`, two roundings at most. Where ggml has no
//! minimum, zero is taken away, and where it adds one, minus that: both change no bit.

use estream_schemas::dtype::DType;

use super::decode::{IQ4_NL, MXFP4, f16_at};
use super::matrix::Matrix;
use crate::math::{bf16_to_f32, e8m0_half_to_f32, f16_to_f32};

/// Elements of the longest block.
const BLOCK: usize = 256;
/// Elements that share a scale.
const GROUP: usize = 16;
const GROUPS: usize = BLOCK / GROUP;

/// The level that stands for 0 where levels are signed bytes with their sign flipped.
const SIGNED: f32 = 128.0;

/// Whether [`piece`] reads rows of `dtype`.
pub(super) fn reads(dtype: DType) -> bool {
    use DType::{
        BF16, F16, F32, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    matches!(
        dtype,
        F32 | F16
            | BF16
            | Q4_0
            | Q4_1
            | Q5_0
            | Q5_1
            | Q8_0
            | IQ4_NL
            | MXFP4
            | Q2_K
            | Q3_K
            | Q4_K
            | Q5_K
            | Q6_K
    )
}

/// Elements `first..first + out.len()` of row `row`; both ends are whole blocks. It is
/// no kernel: wider vectors gain nothing here.
pub(super) fn piece(matrix: &Matrix<'_>, row: usize, first: usize, out: &mut [f32]) {
    let dtype = matrix.layout().dtype();
    let (len, bytes) = (dtype.block_len() as usize, dtype.block_bytes() as usize);
    let stored = &matrix.row_bytes(row)[first / len * bytes..];
    match dtype {
        DType::F32 => plain(stored, out, f32::from_le_bytes),
        DType::F16 => plain(stored, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        DType::BF16 => plain(stored, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        _ => {
            for (block, out) in stored.chunks_exact(bytes).zip(out.chunks_exact_mut(len)) {
                Block::read(dtype, block, out.len()).decode(out);
            }
        }
    }
}

fn plain<const BYTES: usize>(stored: &[u8], out: &mut [f32], value: impl Fn([u8; BYTES]) -> f32) {
    for (x, bytes) in out.iter_mut().zip(stored.as_chunks().0) {
        *x = value(*bytes);
    }
}

/// A block taken apart.
struct Block {
    levels: [u8; BLOCK],
    /// The level that stands for 0.
    zero: f32,
    scales: [f32; GROUPS],
    mins: [f32; GROUPS],
}

impl Block {
    fn decode(&self, out: &mut [f32]) {
        let levels = self.levels.as_chunks::<GROUP>().0;
        let groups = levels.iter().zip(&self.scales).zip(&self.mins);
        for (((levels, scale), min), out) in groups.zip(out.as_chunks_mut::<GROUP>().0) {
            for (x, level) in out.iter_mut().zip(levels) {
                *x = scale * (f32::from(*level) - self.zero) - min;
            }
        }
    }

    /// The block of `len` elements in `b`. A comment names its fields in their order.
    fn read(dtype: DType, b: &[u8], len: usize) -> Block {
        let mut block = Block {
            levels: [0; BLOCK],
            zero: 0.0,
            scales: [0.0; GROUPS],
            mins: [0.0; GROUPS],
        };
        let Block {
            levels,
            zero,
            scales,
            mins,
        } = &mut block;
        let levels = &mut levels[..len];
        match dtype {
            // d, perhaps m, perhaps the fifth bits of the levels, their nibbles.
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
                *scales = [f16_at(b, 0); GROUPS];
                let (head, nibbles) = b.split_at(b.len() - 16);
                add_bits(levels, nibbles, (16, 4, 0));
                let fifth = match dtype {
                    DType::Q4_0 | DType::Q5_0 => &head[2..],
                    _ => {
                        *mins = [-f16_at(head, 2); GROUPS];
                        &head[4..]
                    }
                };
                for (i, level) in levels[..8 * fifth.len()].iter_mut().enumerate() {
                    *level |= (fifth[i / 8] >> (i % 8) & 1) << 4;
                }
                *zero = match dtype {
                    DType::Q4_0 => 8.0,
                    DType::Q5_0 => 16.0,
                    _ => 0.0,
                };
            }
            // d, nibbles.
            DType::IQ4_NL => {
                *scales = [f16_at(b, 0); GROUPS];
                add_bits(levels, &b[2..], (16, 4, 0));
                *zero = look_up(levels, &IQ4_NL);
            }
            // e, nibbles.
            DType::MXFP4 => {
                *scales = [e8m0_half_to_f32(b[0]); GROUPS];
                add_bits(levels, &b[1..], (16, 4, 0));
                *zero = look_up(levels, &MXFP4);
            }
            // d, levels.
            DType::Q8_0 => {
                *scales = [f16_at(b, 0); GROUPS];
                *zero = signed(levels, &b[2..]);
            }
            // A scale and a minimum a group, two bits a level, d, m.
            DType::Q2_K => {
                let (d, m) = (f16_at(b, 80), f16_at(b, 82));
                add_bits(levels, &b[16..80], (32, 2, 0));
                *scales = from_codes(d, |group| b[group] & 15, 0.0);
                *mins = from_codes(m, |group| b[group] >> 4, 0.0);
            }
            // High bit and two low bits of the levels, four low and two high bits of the
            // scales, d.
            DType::Q3_K => {
                let mut codes = [0; GROUPS];
                add_bits(&mut codes, &b[96..104], (8, 4, 0));
                add_bits(&mut codes, &b[104..108], (4, 2, 4));
                *scales = from_codes(f16_at(b, 108), |group| codes[group], 32.0);
                add_bits(levels, &b[32..96], (32, 2, 0));
                add_bits(levels, &b[..32], (32, 1, 2));
                *zero = 4.0;
            }
            // d, m, scales and minima of two groups each, perhaps the fifth bits of the
            // levels, their nibbles.
            DType::Q4_K | DType::Q5_K => {
                let (fifth, nibbles) = b[16..].split_at(b.len() - 144);
                let code = |i: usize| match i % 8 {
                    // Six bits of the first four scales, or of the first four minima.
                    0..4 => b[4 + i / 8 * 4 + i % 8] & 63,
                    // Four of the others, whose upper two are left over above.
                    _ => b[8 + i % 8] >> (i / 8 * 4) & 15 | b[i / 8 * 4 + i % 8] >> 6 << 4,
                };
                *scales = from_codes(f16_at(b, 0), |group| code(group / 2), 0.0);
                *mins = from_codes(f16_at(b, 2), |group| code(8 + group / 2), 0.0);
                add_bits(levels, nibbles, (32, 4, 0));
                add_bits(levels, fifth, (32, 1, 4));
            }
            // Low four and high two bits of the levels, scales, d.
            _ => {
                let mut codes = [0; GROUPS];
                let zero_scale = signed(&mut codes, &b[192..208]);
                *scales = from_codes(f16_at(b, 208), |group| codes[group], zero_scale);
                add_bits(levels, &b[..128], (64, 4, 0));
                add_bits(levels, &b[128..192], (32, 2, 4));
                *zero = 32.0;
            }
        }
        block
    }
}

/// Adds `width` bits to each level, from bit `at` of it. Of every `run` bytes the lowest
/// bits belong to `run` levels, the next to the `run` levels after those, and so on.
fn add_bits(levels: &mut [u8], bytes: &[u8], (run, width, at): (usize, usize, usize)) {
    let runs = levels.chunks_exact_mut(run * 8 / width);
    for (levels, bytes) in runs.zip(bytes.chunks_exact(run)) {
        for (i, levels) in levels.chunks_exact_mut(run).enumerate() {
            for (level, byte) in levels.iter_mut().zip(bytes) {
                *level |= (byte >> (width * i) & ((1 << width) - 1)) << at;
            }
        }
    }
}

/// Codes to the numbers of a table, as signed levels; the level that stands for 0.
fn look_up(levels: &mut [u8], table: &[i8; 16]) -> f32 {
    for level in &mut *levels {
        *level = table[usize::from(*level & 15)].cast_unsigned() ^ 0x80;
    }
    SIGNED
}

/// Signed bytes as levels; the level that stands for 0.
fn signed(levels: &mut [u8], bytes: &[u8]) -> f32 {
    for (level, byte) in levels.iter_mut().zip(bytes) {
        *level = byte ^ 0x80;
    }
    SIGNED
}

/// Scales or minima of a K-quant: the block's own times a code for each group.
fn from_codes(d: f32, code: impl Fn(usize) -> u8, zero: f32) -> [f32; GROUPS] {
    let mut out = [0.0; GROUPS];
    for (group, x) in out.iter_mut().enumerate() {
        *x = d * (f32::from(code(group)) - zero);
    }
    out
}

#[cfg(test)]
mod tests {
    use estream_schemas::layout::Layout;

    use super::super::testing::Vectors;
    use super::*;

    #[test]
    fn blocks_are_worth_the_bits_that_ggml_decodes() {
        let quantised = DType::all().filter(|dtype| dtype.is_quantised() && reads(*dtype));
        let mut types = 0;
        for dtype in quantised {
            let vectors = Vectors::of(dtype);
            let layout: Layout = format!("{dtype}.rows").parse().unwrap();
            let cols = vectors.values.len();
            let matrix = Matrix::new(layout, 1, cols, &vectors.blocks).unwrap();
            let mut row = vec![f32::NAN; cols];
            matrix.row(0, &mut row);
            for (i, (got, value)) in row.iter().zip(&vectors.values).enumerate() {
                assert_eq!(got.to_bits(), value.to_bits(), "element {i} of {dtype}");
            }
            types += 1;
        }
        assert_eq!(types, 12);
    }
}
