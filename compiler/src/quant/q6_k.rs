//! Q6_K: blocks of 256 elements in 16 groups of 16, six bits an element.
//!
//! ```text
//! 0    128  low four bits of the levels
//! 128   64  high two bits of the levels
//! 192   16  scale of each group, signed
//! 208    2  d, fp16
//! ```
//!
//! An element is d × group scale × (q − 32). Levels are stored in runs of 32, and four
//! runs share bytes: of the runs r of one half of the block, the low bits of r and r + 2
//! are the nibbles of the same byte, and the high bits of all four lie in one byte.
//!
//! The encoder searches, for each group, the scale of least weighted error as ggml does
//! (`llama-quantize` without an importance matrix). It handles the 16 groups as 16
//! lanes: each lane sums in the order of its elements, so the result is the same to
//! the bit, and the compiler can use vectors.

use std::array::from_fn;

use super::scale::{Clamps, fp16, max_abs};

const LEN: usize = 256;
const GROUPS: usize = 16;
const GROUP_LEN: usize = LEN / GROUPS;
const RUN_LEN: usize = 32;
const BYTES: usize = 210;
const HIGH_AT: usize = 128;
const SCALES_AT: usize = 192;
const D_AT: usize = 208;

/// Groups and blocks of smaller magnitude are stored as zeros.
const ZERO_BELOW: f32 = 1e-15;

/// Values beyond this need a d beyond fp16 whatever their neighbours are (it is about
/// the value / 4096), and cubes of values far beyond it leave f32.
const FAR_BEYOND: f32 = 1e10;

/// The largest magnitude that d × −128 × −32 reaches.
const LARGEST: f32 = 65504.0 * 128.0 * 32.0;

/// One number a group.
type Lanes = [f32; GROUPS];

/// Where run `run` (0..8) of the levels is: the offset of its low nibbles and their
/// shift, the offset of its high bits and their shift.
fn places(run: usize) -> (usize, usize, usize, usize) {
    let (half, r) = (run / 4, run % 4);
    let low = half * 64 + (r % 2) * RUN_LEN;
    let high = HIGH_AT + half * RUN_LEN;
    (low, 4 * (r / 2), high, 2 * r)
}

pub(super) fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = fp16([block[D_AT], block[D_AT + 1]]);
    for (run, out) in out.as_chunks_mut::<RUN_LEN>().0.iter_mut().enumerate() {
        let (low, low_shift, high, high_shift) = places(run);
        for (i, out) in out.iter_mut().enumerate() {
            let group = (run * RUN_LEN + i) / GROUP_LEN;
            let scale = d * f32::from(block[SCALES_AT + group].cast_signed());
            let low = (block[low + i] >> low_shift) & 0x0f;
            let high = (block[high + i] >> high_shift) & 0x03;
            *out = scale * (f32::from(low | high << 4) - 32.0);
        }
    }
}

pub(super) fn encode(values: &[f32; LEN], clamps: &mut Clamps) -> [u8; BYTES] {
    if max_abs(values) > FAR_BEYOND {
        clamps.count += 1;
        let held = values.map(|x| x.clamp(-LARGEST, LARGEST));
        // The count is one a block, whichever of its numbers had to be held.
        return encode_held(&held, &mut Clamps::default());
    }
    encode_held(values, clamps)
}

fn encode_held(values: &[f32; LEN], clamps: &mut Clamps) -> [u8; BYTES] {
    let columns: [Lanes; GROUP_LEN] = from_fn(|i| from_fn(|g| values[g * GROUP_LEN + i]));
    let search = search(&columns);

    let largest = first_of_largest_magnitude(&search.scales);
    if largest.abs() < ZERO_BELOW {
        return [0; BYTES];
    }
    let to_steps = -128.0 / largest;
    let (d_bytes, _) = clamps.stored(1.0 / to_steps);
    let d = fp16(d_bytes);

    let mut block = [0; BYTES];
    let mut levels = [0; LEN];
    for (group, levels) in levels.as_chunks_mut::<GROUP_LEN>().0.iter_mut().enumerate() {
        let steps = nearest(to_steps * search.scales[group]).clamp(-128.0, 127.0) as i8;
        block[SCALES_AT + group] = steps.cast_unsigned();
        let scale = d * f32::from(steps);
        // A scale that vanished leaves the levels of the search, as ggml does, though
        // they decode to zero.
        *levels = from_fn(|i| {
            let x = columns[i][group];
            if scale != 0.0 {
                biased(x / scale)
            } else if search.zero[group] {
                0
            } else {
                biased(search.inverses[group] * x)
            }
        });
    }
    pack(&levels, &mut block);
    block[D_AT..].copy_from_slice(&d_bytes);
    block
}

/// What the search found for each group.
struct Search {
    /// Scale of least error; 0 for a group of zeros.
    scales: Lanes,
    /// What values are multiplied with to get that scale's levels.
    inverses: Lanes,
    /// Groups stored as zeros.
    zero: [bool; GROUPS],
}

/// For each group, tries 19 ranges about the largest magnitude and keeps the scale whose
/// error, weighted with the squares of the values, is least.
fn search(columns: &[Lanes; GROUP_LEN]) -> Search {
    let mut extreme = [0.0_f32; GROUPS];
    for column in columns {
        for (extreme, x) in extreme.iter_mut().zip(column) {
            *extreme = if x.abs() > extreme.abs() {
                *x
            } else {
                *extreme
            };
        }
    }
    let zero = extreme.map(|x| x.abs() < ZERO_BELOW);
    // Any other number does where the outcome is not used; 1 keeps it finite.
    let extreme: Lanes = from_fn(|g| if zero[g] { 1.0 } else { extreme[g] });

    let mut inverses = extreme.map(|x| -32.0 / x);
    let (products, squares) = moments(columns, &inverses);
    let mut scales: Lanes = from_fn(|g| match squares[g] {
        0.0 => 0.0,
        squares => products[g] / squares,
    });
    let mut best: Lanes = from_fn(|g| scales[g] * products[g]);
    for step in (-9_i8..=9).filter(|step| *step != 0) {
        let tried = extreme.map(|x| -(32.0 + 0.1 * f32::from(step)) / x);
        let (products, squares) = moments(columns, &tried);
        for g in 0..GROUPS {
            if squares[g] > 0.0 && products[g] * products[g] > best[g] * squares[g] {
                inverses[g] = tried[g];
                scales[g] = products[g] / squares[g];
                best[g] = scales[g] * products[g];
            }
        }
    }
    for (scale, zero) in scales.iter_mut().zip(zero) {
        *scale = if zero { 0.0 } else { *scale };
    }
    Search {
        scales,
        inverses,
        zero,
    }
}

/// Σ w·x·l and Σ w·l·l with w = x², for the levels l that `inverses` give.
fn moments(columns: &[Lanes; GROUP_LEN], inverses: &Lanes) -> (Lanes, Lanes) {
    let (mut products, mut squares) = ([0.0; GROUPS], [0.0; GROUPS]);
    for column in columns {
        for g in 0..GROUPS {
            let x = column[g];
            let l = nearest(inverses[g] * x).clamp(-32.0, 31.0);
            let w = x * x;
            products[g] += w * x * l;
            squares[g] += w * l * l;
        }
    }
    (products, squares)
}

/// The nearest integer, ties to even, for magnitudes below 2²²: adding 1.5 × 2²³ leaves
/// no room for a fraction.
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// A scaled value as the level stored for it, 0..=63.
fn biased(scaled: f32) -> u8 {
    ((nearest(scaled).clamp(-32.0, 31.0) + 32.0) as i8).cast_unsigned()
}

/// The number of largest magnitude, the first of equals; 0 if there is none.
fn first_of_largest_magnitude(numbers: &Lanes) -> f32 {
    let larger = |best: f32, x: &f32| if x.abs() > best.abs() { *x } else { best };
    numbers.iter().fold(0.0, larger)
}

fn pack(levels: &[u8; LEN], block: &mut [u8; BYTES]) {
    for (run, levels) in levels.as_chunks::<RUN_LEN>().0.iter().enumerate() {
        let (low, low_shift, high, high_shift) = places(run);
        for (i, level) in levels.iter().enumerate() {
            block[low + i] |= (level & 0x0f) << low_shift;
            block[high + i] |= (level >> 4) << high_shift;
        }
    }
}
