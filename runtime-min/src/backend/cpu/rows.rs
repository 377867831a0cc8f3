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
                let mut levels = [0; BLOCK];
                Block::read(dtype, block, &mut levels[..out.len()]).decode(out);
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
struct Block<'a> {
    levels: &'a [u8],
    /// The level that stands for 0.
    zero: f32,
    scales: [f32; GROUPS],
    mins: [f32; GROUPS],
}

impl<'a> Block<'a> {
    fn decode(&self, out: &mut [f32]) {
        let levels = self.levels.as_chunks::<GROUP>().0;
        for (group, out) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            let (scale, min) = (self.scales[group], self.mins[group]);
            decode_group(&levels[group], self.zero, scale, min, out);
        }
    }

    /// The block in `b`; a comment names its fields in their order. `levels` has a zero
    /// for every element of it.
    fn read(dtype: DType, b: &[u8], levels: &'a mut [u8]) -> Block<'a> {
        let zero = &mut 0.0;
        let scales = &mut [0.0; GROUPS];
        let mins = &mut [0.0; GROUPS];
        match dtype {
            // d, perhaps m, perhaps the fifth bits of the levels, their nibbles.
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
                *scales = [f16_at(b, 0); GROUPS];
                let (head, nibbles) = b.split_at(b.len() - 16);
                add_bits::<16, 4, 0>(levels, nibbles);
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
                add_bits::<16, 4, 0>(levels, &b[2..]);
                *zero = look_up(levels, &IQ4_NL);
            }
            // e, nibbles.
            DType::MXFP4 => {
                *scales = [e8m0_half_to_f32(b[0]); GROUPS];
                add_bits::<16, 4, 0>(levels, &b[1..]);
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
                add_bits::<32, 2, 0>(levels, &b[16..80]);
                *scales = from_codes(d, |group| b[group] & 15, 0.0);
                *mins = from_codes(m, |group| b[group] >> 4, 0.0);
            }
            // High bit and two low bits of the levels, four low and two high bits of the
            // scales, d.
            DType::Q3_K => {
                let mut codes = [0; GROUPS];
                add_bits::<8, 4, 0>(&mut codes, &b[96..104]);
                add_bits::<4, 2, 4>(&mut codes, &b[104..108]);
                *scales = from_codes(f16_at(b, 108), |group| codes[group], 32.0);
                add_bits::<32, 2, 0>(levels, &b[32..96]);
                add_bits::<32, 1, 2>(levels, &b[..32]);
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
                add_bits::<32, 4, 0>(levels, nibbles);
                add_bits::<32, 1, 4>(levels, fifth);
            }
            // Low four and high two bits of the levels, scales, d.
            _ => {
                let mut codes = [0; GROUPS];
                let zero_scale = signed(&mut codes, &b[192..208]);
                *scales = from_codes(f16_at(b, 208), |group| codes[group], zero_scale);
                add_bits::<64, 4, 0>(levels, &b[..128]);
                add_bits::<32, 2, 4>(levels, &b[128..192]);
                *zero = 32.0;
            }
        }
        Block {
            levels,
            zero: *zero,
            scales: *scales,
            mins: *mins,
        }
    }
}

/// A function of its own, because beside the loop over groups the compiler would make
/// vectors across groups.
#[inline(never)]
fn decode_group(levels: &[u8; GROUP], zero: f32, scale: f32, min: f32, out: &mut [f32; GROUP]) {
    for (x, level) in out.iter_mut().zip(levels) {
        *x = scale * (f32::from(*level) - zero) - min;
    }
}

/// Adds `WIDTH` bits to each level, from bit `AT` of it. Of every `RUN` bytes the lowest
/// bits belong to `RUN` levels, the next to the `RUN` levels after those, and so on.
fn add_bits<const RUN: usize, const WIDTH: usize, const AT: usize>(
    levels: &mut [u8],
    bytes: &[u8],
) {
    let mut runs = levels.as_chunks_mut::<RUN>().0.iter_mut();
    for bytes in bytes.as_chunks::<RUN>().0 {
        for (i, levels) in runs.by_ref().take(8 / WIDTH).enumerate() {
            for (level, byte) in levels.iter_mut().zip(bytes) {
                *level |= (byte >> (WIDTH * i) & ((1 << WIDTH) - 1)) << AT;
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
