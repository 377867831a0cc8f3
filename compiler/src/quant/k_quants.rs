//! K-quants of two to five bits, decoded only: blocks of 256 elements whose group
//! scales are quantised in turn. (Q6_K, which is encoded as well, has its own file.)
//!
//! ```text
//! Q2_K  scales:16 levels:64 d:2 m:2                  16 groups   d·s × q − m·t
//! Q3_K  high:32 levels:64 scales:12 d:2              16 groups   d·(s − 32) × (q − 4)
//! Q4_K  d:2 m:2 scales:12 levels:128                  8 groups   d·s × q − m·t
//! Q5_K  d:2 m:2 scales:12 high:32 levels:128          8 groups   d·s × q − m·t
//! ```
//!
//! Levels are stored in eight runs of 32 elements. Runs share bytes: the four runs of a
//! half-block are the four bit pairs of the same 32 bytes, or two neighbouring runs the
//! two nibbles. The highest bit, where it is apart, is bit r of byte i of `high` for
//! element i of run r.

use super::scale::fp16;

const LEN: usize = 256;
const RUN_LEN: usize = 32;

/// Calls `value(run, i)` for element i of each run, in the order of the elements.
fn each_element(out: &mut [f32; LEN], value: impl Fn(usize, usize) -> f32) {
    for (run, out) in out.as_chunks_mut::<RUN_LEN>().0.iter_mut().enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            *out = value(run, i);
        }
    }
}

/// The group of 16 an element is in.
fn group_of_16(run: usize, i: usize) -> usize {
    2 * run + i / 16
}

/// The two bits of element i of a run.
fn pair(levels: &[u8; 64], run: usize, i: usize) -> u8 {
    levels[run / 4 * RUN_LEN + i] >> (2 * (run % 4)) & 3
}

/// The nibble of element i of a run.
fn nibble(levels: &[u8; 128], run: usize, i: usize) -> u8 {
    levels[run / 2 * RUN_LEN + i] >> (4 * (run % 2)) & 0x0f
}

/// The bit stored apart for element i of a run.
fn high_bit(high: &[u8; 32], run: usize, i: usize) -> u8 {
    high[i] >> run & 1
}

pub(super) fn decode_q2_k(block: &[u8; 84], out: &mut [f32; LEN]) {
    let (groups, rest) = split::<16>(block);
    let (levels, rest) = split::<64>(rest);
    let (d, m) = two_fp16(rest);
    let scales = groups.map(|byte| d * f32::from(byte & 0x0f));
    let mins = groups.map(|byte| m * f32::from(byte >> 4));
    each_element(out, |run, i| {
        let group = group_of_16(run, i);
        scales[group] * f32::from(pair(levels, run, i)) - mins[group]
    });
}

pub(super) fn decode_q3_k(block: &[u8; 110], out: &mut [f32; LEN]) {
    let (high, rest) = split::<32>(block);
    let (levels, rest) = split::<64>(rest);
    let (packed, rest) = split::<12>(rest);
    let (d, _) = split::<2>(rest);
    let d = fp16(*d);
    // Four low bits of the sixteen scales, then their two high bits, four to a byte.
    let scales: [f32; 16] = std::array::from_fn(|group| {
        let low = packed[group % 8] >> (4 * (group / 8)) & 0x0f;
        let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        d * (f32::from(low | high << 4) - 32.0)
    });
    each_element(out, |run, i| {
        let level = pair(levels, run, i) | high_bit(high, run, i) << 2;
        scales[group_of_16(run, i)] * (f32::from(level) - 4.0)
    });
}

pub(super) fn decode_q4_k(block: &[u8; 144], out: &mut [f32; LEN]) {
    let (scales, mins, rest) = scales_and_mins(block);
    let (levels, _) = split::<128>(rest);
    each_element(out, |run, i| {
        scales[run] * f32::from(nibble(levels, run, i)) - mins[run]
    });
}

pub(super) fn decode_q5_k(block: &[u8; 176], out: &mut [f32; LEN]) {
    let (scales, mins, rest) = scales_and_mins(block);
    let (high, rest) = split::<32>(rest);
    let (levels, _) = split::<128>(rest);
    each_element(out, |run, i| {
        let level = nibble(levels, run, i) | high_bit(high, run, i) << 4;
        scales[run] * f32::from(level) - mins[run]
    });
}

/// The head of a Q4_K or Q5_K block: eight scales and eight minima of six bits, times the
/// block's own, and the bytes that follow.
///
/// Six bits of the first four scales and of the first four minima are the low bits of
/// bytes 0..4 and 4..8; their top two bits are the top two of the others, whose low
/// nibbles are those of bytes 8..12.
fn scales_and_mins(block: &[u8]) -> ([f32; 8], [f32; 8], &[u8]) {
    let (d_and_m, rest) = split::<4>(block);
    let (packed, rest) = split::<12>(rest);
    let (d, m) = two_fp16(d_and_m);
    let six_bits = |at: usize, shift: usize, run: usize| match run {
        0..4 => packed[at + run] & 0x3f,
        _ => (packed[run + 4] >> shift & 0x0f) | (packed[at + run - 4] >> 2 & 0x30),
    };
    let scales = std::array::from_fn(|run| d * f32::from(six_bits(0, 0, run)));
    let mins = std::array::from_fn(|run| m * f32::from(six_bits(4, 4, run)));
    (scales, mins, rest)
}

/// Cuts a field off the front of a block. Blocks are arrays of their fields' total
/// length, so there is always enough.
fn split<const N: usize>(bytes: &[u8]) -> (&[u8; N], &[u8]) {
    bytes
        .split_first_chunk()
        .expect("a block is as long as its fields")
}

/// The two fp16 numbers a slice starts with.
fn two_fp16(bytes: &[u8]) -> (f32, f32) {
    let ([d0, d1, m0, m1], _) = split::<4>(bytes);
    (fp16([*d0, *d1]), fp16([*m0, *m1]))
}
