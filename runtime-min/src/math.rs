//! Elementary functions with one result everywhere.
//!
//! A platform's `exp` differs from another's in the last bit, and a bit is
//! enough to route a token elsewhere. So nothing here calls one: every function
//! is a fixed sequence of additions, multiplications, divisions and fused
//! multiply-adds, which IEEE 754 rounds the same way on every machine.
//! All are free of branches on their argument, so that loops over them become
//! vector code, and are inlined, so that they take on the caller's instructions.

mod half;
mod wide;

pub use half::{bf16_to_f32, e8m0_half_to_f32, f16_to_f32};
pub use wide::{exp64, ln64, sin_cos};

/// Adding and subtracting this rounds a small f32 to an integer, and leaves
/// that integer in the low bits in between.
const ROUND: f32 = 12_582_912.0;
/// What rounding ln 2 to f32 leaves over.
const LN_2_TAIL: f32 = -1.904_654_3e-9;
/// Below this the result is less than half the least f32.
const EXP_MIN: f32 = -104.0;
/// Above this the result is infinite.
const EXP_MAX: f32 = 89.0;

/// eˣ, to about 1e-7 of the result; 0 and infinity outside f32's range.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Comparisons written so that a NaN passes through both.
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_TAIL, n.mul_add(-std::f32::consts::LN_2, x));
    let mut p = 1.0 / 5040.0;
    p = r.mul_add(p, 1.0 / 720.0);
    p = r.mul_add(p, 1.0 / 120.0);
    p = r.mul_add(p, 1.0 / 24.0);
    p = r.mul_add(p, 1.0 / 6.0);
    p = r.mul_add(p, 0.5);
    p = r.mul_add(p, 1.0);
    p = r.mul_add(p, 1.0);
    // 2ⁿ in two factors, each a normal number although 2ⁿ may not be.
    let n = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .cast_signed();
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 2ⁿ for −126 ≤ n ≤ 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned())
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x · sigmoid(x), with one division.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_in_ten_million_over_its_whole_range() {
        let mut worst = 0.0f64;
        let mut x = -87.0f32;
        while x < 88.7 {
            let exact = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - exact) / exact).abs());
            x += 0.000_931;
        }
        assert!(worst < 1.2e-7, "{worst:e}");
    }

    #[test]
    fn exp_of_extremes_is_zero_infinite_or_nan() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(1e30), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        let least = f64::from(exp(-100.0));
        assert!((least - (-100.0f64).exp()).abs() <= f64::from(f32::from_bits(1)) / 2.0);
    }

    #[test]
    fn sigmoid_and_silu_match_their_definitions() {
        for i in -2000..2000 {
            let x = i as f32 * 0.05;
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!(
                (f64::from(sigmoid(x)) - exact).abs() <= 2e-7 * exact + 1e-38,
                "{x}"
            );
            let exact = f64::from(x) * exact;
            assert!(
                (f64::from(silu(x)) - exact).abs() <= 3e-7 * exact.abs() + 1e-36,
                "{x}"
            );
        }
    }
}
