//! Short floats to f32: exact, and without a branch.

/// The value of an IEEE binary16.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    // The mantissa moves up 13 places and the exponent's bias from 15 to 127;
    // infinities and NaN gain as much again, so that their exponent is all ones.
    let mut wide = (magnitude << 13) + (112 << 23);
    if magnitude >= 0x7c00 {
        wide += 112 << 23;
    }
    if magnitude < 0x0400 {
        // Zero or subnormal: a whole number of 2⁻²⁴.
        wide = (magnitude.cast_signed() as f32 * (1.0 / 16_777_216.0)).to_bits();
    }
    f32::from_bits(wide | sign)
}

/// The value of a bfloat16, the upper half of an f32.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// *Half* the power of two an E8M0 scale stands for, 2^(e − 128): MXFP4 elements
/// are tabulated as doubled integers, so that this is the factor they need.
#[inline(always)]
pub fn e8m0_half_to_f32(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 {
        0x0020_0000 << exponent
    } else {
        (exponent - 1) << 23
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Straight from the definition of binary16.
    fn slow_f16(bits: u16) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from(bits >> 10 & 0x1f);
        let mantissa = f64::from(bits & 0x3ff) / 1024.0;
        sign * match exponent {
            0 => mantissa * 2f64.powi(-14),
            31 if mantissa == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + mantissa) * 2f64.powi(exponent - 15),
        }
    }

    #[test]
    fn every_f16_is_exact() {
        for bits in 0..=u16::MAX {
            let (fast, slow) = (f64::from(f16_to_f32(bits)), slow_f16(bits));
            assert!(
                fast.to_bits() == slow.to_bits() || fast.is_nan() && slow.is_nan(),
                "{bits:#06x}: {fast} is not {slow}"
            );
        }
    }

    #[test]
    fn every_bf16_is_the_upper_half_of_an_f32() {
        assert_eq!(bf16_to_f32(0x3f80), 1.0);
        assert_eq!(bf16_to_f32(0xc2f7), -123.5);
        assert_eq!(bf16_to_f32(0x0001), f32::from_bits(0x0001_0000));
    }

    #[test]
    fn every_e8m0_is_half_its_power_of_two() {
        for e in 0..=u8::MAX {
            let exact = 2f64.powi(i32::from(e) - 128);
            assert_eq!(f64::from(e8m0_half_to_f32(e)), exact, "{e}");
        }
    }
}
