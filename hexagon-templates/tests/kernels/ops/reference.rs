//! docs/hexagon-numerics.md in Rust: what operators have in common.

use half::f16;

use crate::contract::{exp, products};

pub(crate) fn half(x: f32) -> f16 {
    f16::from_f32(x)
}

pub(crate) fn halves(x: &[f32]) -> Vec<f16> {
    x.iter().copied().map(half).collect()
}

/// A sum in 32: number i is added to sum i mod 32, and those in halves.
pub(crate) fn sum_in_32(numbers: impl Iterator<Item = f32>) -> f32 {
    let mut sums = [0.0f32; 32];
    for (i, x) in numbers.enumerate() {
        sums[i % 32] += x;
    }
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// One query over the keys that it sees: `keys` and `values` are a row a position.
pub(crate) fn attend(
    query: &[f32],
    scale: f32,
    keys: &[Vec<f16>],
    values: &[Vec<f32>],
) -> Vec<f32> {
    let query: Vec<f32> = query.iter().map(|q| half(q * scale).to_f32()).collect();
    let score = |key: &Vec<f16>| {
        let terms = query.iter().zip(key).map(|(q, k)| q * k.to_f32());
        half(terms.fold(0.0f32, |sum, term| sum + term)).to_f32()
    };
    let scores: Vec<f32> = keys.iter().map(score).collect();
    let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = scores.iter().map(|score| exp(score - greatest)).collect();
    let inverse = 1.0 / sum_in_32(powers.iter().copied());
    let weights: Vec<f16> = powers.iter().map(|power| half(power * inverse)).collect();
    let sums = products(&weights, values);
    sums.into_iter().map(f16::to_f32).collect()
}

/// Rows of FP16, widened again.
pub(crate) fn rounded(rows: &[f32], width: usize) -> Vec<Vec<f32>> {
    let row = |row: &[f32]| row.iter().map(|x| half(*x).to_f32()).collect();
    rows.chunks_exact(width).map(row).collect()
}
