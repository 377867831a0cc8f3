//! Blocks of 32 elements: a scale, perhaps a minimum, then the levels.
//!
//! ```text
//! Q4_0    d:2          16 bytes   d × (q − 8)
//! Q4_1    d:2 m:2      16 bytes   d × q + m
//! Q5_0    d:2 h:4      16 bytes   d × (q − 16)
//! Q5_1    d:2 m:2 h:4  16 bytes   d × q + m
//! Q8_0    d:2          32 bytes   d × q
//! IQ4_NL  d:2          16 bytes   d × IQ4_NL_LEVELS[q]
//! MXFP4   e:1          16 bytes   2^(e − 128) × MXFP4_LEVELS[q]
//! ```
//!
//! In 16 bytes of nibbles, element j < 16 is the low nibble of byte j and element
//! j + 16 the high nibble of the same byte. Where levels have five bits, bit j of the
//! little-endian word h is the fifth of element j.

use super::scale::{Clamps, fp16, max_abs, reciprocal, reduce};

/// What the 16 levels of IQ4_NL stand for: finer about zero, where weights are dense.
const IQ4_NL_LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// What the 16 levels of MXFP4 stand for: twice the FP4 (E2M1) numbers, so that all are
/// integers; the scale is halved in turn. Level 8, minus zero, is plus zero as in ggml.
const MXFP4_LEVELS: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

/// Applies `value` to the 32 nibbles in the order of the elements.
fn each_nibble(nibbles: &[u8; 16], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in nibbles.iter().zip(low).zip(high) {
        *low = value(byte & 0x0f);
        *high = value(byte >> 4);
    }
}

/// Packs 32 levels below 16 into nibbles.
fn nibbles(levels: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| levels[j] | levels[j + 16] << 4)
}

/// The four-bit level a scaled value falls on: its integer part, held in 0..=15.
fn level(scaled: f32) -> u8 {
    (scaled as i32).clamp(0, 15).cast_unsigned() as u8
}

pub(super) fn decode_q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let [d0, d1, levels @ ..] = block;
    let d = fp16([*d0, *d1]);
    each_nibble(levels, out, |q| d * (f32::from(q) - 8.0));
}

pub(super) fn decode_q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let [d0, d1, m0, m1, levels @ ..] = block;
    let (d, m) = (fp16([*d0, *d1]), fp16([*m0, *m1]));
    each_nibble(levels, out, |q| d * f32::from(q) + m);
}

pub(super) fn decode_q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let [d0, d1, h0, h1, h2, h3, nibbles @ ..] = block;
    let d = fp16([*d0, *d1]);
    five_bits([*h0, *h1, *h2, *h3], nibbles, out, |q| d * (q - 16.0));
}

pub(super) fn decode_q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let [d0, d1, m0, m1, h0, h1, h2, h3, nibbles @ ..] = block;
    let (d, m) = (fp16([*d0, *d1]), fp16([*m0, *m1]));
    five_bits([*h0, *h1, *h2, *h3], nibbles, out, |q| d * q + m);
}

/// Applies `value` to the 32 levels of five bits, 0..=31, in the order of the elements.
fn five_bits(fifth: [u8; 4], nibbles: &[u8; 16], out: &mut [f32; 32], value: impl Fn(f32) -> f32) {
    each_nibble(nibbles, out, f32::from);
    let fifth = u32::from_le_bytes(fifth);
    for (j, out) in out.iter_mut().enumerate() {
        let sixteen = if fifth >> j & 1 == 1 { 16.0 } else { 0.0 };
        *out = value(*out + sixteen);
    }
}

pub(super) fn decode_q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let [d0, d1, levels @ ..] = block;
    let d = fp16([*d0, *d1]);
    for (out, q) in out.iter_mut().zip(levels) {
        *out = d * f32::from(q.cast_signed());
    }
}

pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let [d0, d1, levels @ ..] = block;
    let d = fp16([*d0, *d1]);
    each_nibble(levels, out, |q| d * IQ4_NL_LEVELS[usize::from(q)]);
}

pub(super) fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let [e, levels @ ..] = block;
    let d = half_e8m0(*e);
    each_nibble(levels, out, |q| d * MXFP4_LEVELS[usize::from(q)]);
}

/// Half of the power of two an E8M0 scale stands for: 2^(e − 128), where e = 0 and
/// e = 1 are subnormal in f32. 255, NaN by the standard, is read as ggml reads it.
fn half_e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => (u32::from(e) - 1) << 23,
    })
}

pub(super) fn encode_q4_0(values: &[f32; 32], clamps: &mut Clamps) -> [u8; 18] {
    let (stored, d) = clamps.stored(extreme(values) / -8.0);
    // The product is rounded before the sum: a fused pair gives other levels.
    let levels = reciprocal(d).map(|inverse| values.map(|x| level(x * inverse + 8.5)));
    join(&stored, &levels.map_or([0; 16], |levels| nibbles(&levels)))
}

pub(super) fn encode_q4_1(values: &[f32; 32], clamps: &mut Clamps) -> [u8; 20] {
    let (min, max) = range(values);
    let (stored_min, min) = clamps.stored(min);
    let (stored, d) = clamps.stored((max - min) / 15.0);
    let levels = reciprocal(d).map(|inverse| values.map(|x| level((x - min) * inverse + 0.5)));
    let [d0, d1] = stored;
    let [m0, m1] = stored_min;
    join(
        &[d0, d1, m0, m1],
        &levels.map_or([0; 16], |levels| nibbles(&levels)),
    )
}

pub(super) fn encode_q8_0(values: &[f32; 32], clamps: &mut Clamps) -> [u8; 34] {
    let (stored, d) = clamps.stored(max_abs(values) / 127.0);
    let levels = reciprocal(d).map(|inverse| values.map(|x| round_i8(x * inverse)));
    join(&stored, &levels.unwrap_or([0; 32]))
}

/// The nearest integer, ties away from zero, held in −127..=127, as a byte.
fn round_i8(x: f32) -> u8 {
    let whole = x as i32;
    // The difference is exact, so a tie is seen as one.
    let rest = x - whole as f32;
    let up = i32::from(rest >= 0.5) - i32::from(rest <= -0.5);
    (whole.saturating_add(up).clamp(-127, 127) as i8).cast_unsigned()
}

/// The value of largest magnitude with its sign; of two opposite ones the first. Plus
/// zero if all are zeros of either sign.
fn extreme(values: &[f32; 32]) -> f32 {
    let magnitude = max_abs(values);
    let (mut positive, mut negative) = (false, false);
    for x in values {
        positive |= *x == magnitude;
        negative |= *x == -magnitude;
    }
    match (positive, negative) {
        (true, true) if magnitude > 0.0 => {
            let of_magnitude = values.iter().find(|x| x.abs() == magnitude);
            of_magnitude.copied().unwrap_or(magnitude)
        }
        (false, true) => -magnitude,
        _ => magnitude,
    }
}

/// The smallest and the largest value. Where the smallest is zero it has the sign of
/// the first zero.
fn range(values: &[f32; 32]) -> (f32, f32) {
    let min = reduce(values, |a, b| if b < a { b } else { a });
    let max = reduce(values, |a, b| if b > a { b } else { a });
    let first_zero = values.iter().find(|x| **x == 0.0);
    match first_zero {
        Some(zero) if min == 0.0 => (*zero, if max == 0.0 { *zero } else { max }),
        _ => (min, max),
    }
}

/// Scales, then levels.
fn join<const S: usize, const L: usize, const BYTES: usize>(
    scales: &[u8; S],
    levels: &[u8; L],
) -> [u8; BYTES] {
    const { assert!(S + L == BYTES) }
    let mut block = [0; BYTES];
    block[..S].copy_from_slice(scales);
    block[S..].copy_from_slice(levels);
    block
}
