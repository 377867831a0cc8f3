//! The same in f64, for tables that are made once and rounded to f32.

/// Adding and subtracting this rounds a small f64 to an integer.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// π/2 as the sum of three f64: what the first leaves over, and the second.
const HALF_PI: [f64; 3] = [
    std::f64::consts::FRAC_PI_2,
    6.123_233_995_736_766e-17,
    -1.497_384_904_859_169_8e-33,
];
/// ln 2 as the sum of two f64.
const LN_2: [f64; 2] = [std::f64::consts::LN_2, 2.319_046_813_846_299_6e-17];

/// Σ 1/i! · xⁱ, from the highest power down.
const EXP: [f64; 15] = {
    let mut c = [1.0; 15];
    let mut i = 1;
    while i < 15 {
        c[14 - i] = c[15 - i] / i as f64;
        i += 1;
    }
    c
};
/// artanh x / x in powers of x², doubled.
const ARTANH: [f64; 14] = {
    let mut c = [0.0; 14];
    let mut i = 0;
    while i < 14 {
        c[13 - i] = 2.0 / (2 * i + 1) as f64;
        i += 1;
    }
    c
};
/// cos x in powers of x².
const COS: [f64; 10] = alternating(0.0);
/// sin x / x in powers of x².
const SIN: [f64; 10] = alternating(1.0);

/// (−1)ⁱ / (2i + first)!, from the highest power down.
const fn alternating(first: f64) -> [f64; 10] {
    let mut c = [1.0; 10];
    let mut i = 1;
    while i < 10 {
        let n = 2.0 * i as f64 + first;
        c[9 - i] = -c[10 - i] / (n * (n - 1.0));
        i += 1;
    }
    c
}

/// A polynomial's value, coefficients from the highest power down.
fn polynomial(x: f64, coefficients: &[f64]) -> f64 {
    let mut sum = 0.0f64;
    for c in coefficients {
        sum = sum.mul_add(x, *c);
    }
    sum
}

/// eˣ for |x| < 700, to a few units in the last place.
pub fn exp64(x: f64) -> f64 {
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2[1], n.mul_add(-LN_2[0], x));
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    polynomial(r, &EXP) * f64::from_bits(exponent.wrapping_add(1023) << 52)
}

/// ln x for a positive normal x, to a few units in the last place.
pub fn ln64(x: f64) -> f64 {
    // x = m · 2ⁿ with m between √½ and √2, where 2·artanh((m − 1)/(m + 1)) converges fast.
    let bits = x.to_bits();
    let mut n = (bits >> 52) as f64 - 1023.0;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        n += 1.0;
    }
    let s = (m - 1.0) / (m + 1.0);
    let ln_m = s * polynomial(s * s, &ARTANH);
    n.mul_add(LN_2[0], n.mul_add(LN_2[1], ln_m))
}

/// sin x and cos x for |x| < 2³⁰, to about 1e-16.
pub fn sin_cos(x: f64) -> (f64, f64) {
    let shifted = x.mul_add(std::f64::consts::FRAC_2_PI, ROUND);
    let n = shifted - ROUND;
    let mut r = x;
    for part in HALF_PI {
        r = n.mul_add(-part, r);
    }
    let square = r * r;
    let (sin, cos) = (r * polynomial(square, &SIN), polynomial(square, &COS));
    match shifted.to_bits() & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_and_logarithm_agree_with_the_standard_library() {
        for i in -6000..6000 {
            let x = f64::from(i) * 0.1003;
            assert!((exp64(x) / x.exp() - 1.0).abs() < 1e-14, "{x}");
        }
        for i in 1..20_000 {
            let x = f64::from(i) * 503.7 * 2f64.powi(i % 40 - 20);
            assert!(
                (ln64(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0),
                "{x}"
            );
        }
        assert_eq!(ln64(1.0), 0.0);
        assert_eq!(exp64(0.0), 1.0);
    }

    #[test]
    fn sines_agree_with_the_standard_library_at_every_position_a_model_reaches() {
        for i in 0..300_000u32 {
            for x in [f64::from(i) * 0.777, f64::from(i), f64::from(i) * 3.5] {
                let (sin, cos) = sin_cos(x);
                assert!((sin - x.sin()).abs() < 4e-16, "sin {x}");
                assert!((cos - x.cos()).abs() < 4e-16, "cos {x}");
                let (minus, same) = sin_cos(-x);
                assert_eq!((minus, same), (-sin, cos));
            }
        }
    }
}
