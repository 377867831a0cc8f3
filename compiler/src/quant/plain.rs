//! Plain element types: one number, no shared scale.

use half::{bf16, f16};

use super::QuantError;
use super::scale::Clamps;
use estream_schemas::dtype::DType;

pub(super) fn decode_f64(bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    for (index, (bytes, out)) in bytes.as_chunks().0.iter().zip(out).enumerate() {
        let value = f64::from_le_bytes(*bytes);
        *out = value as f32;
        if out.is_infinite() && value.is_finite() {
            return Err(QuantError::Overflow {
                dtype: DType::F32,
                index,
            });
        }
    }
    Ok(())
}

pub(super) fn decode_f32(bytes: &[u8; 4], out: &mut [f32; 1]) {
    *out = [f32::from_le_bytes(*bytes)];
}

pub(super) fn decode_f16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    *out = [f16::from_le_bytes(*bytes).to_f32()];
}

pub(super) fn decode_bf16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    // A bf16 is the upper half of an f32. `bf16::to_f32` would set the quiet bit of
    // a signalling NaN; every bit is carried over here.
    *out = [f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16)];
}

/// E4M3 without infinities: sign, four bits of exponent (bias 7), three of mantissa; all ones
/// but the sign is NaN. Every number is one of f32.
pub(super) fn decode_f8_e4m3(bytes: &[u8; 1], out: &mut [f32; 1]) {
    const SUBNORMAL_STEP: f32 = 1.0 / 512.0;
    let [byte] = *bytes;
    let (exponent, mantissa) = (byte >> 3 & 0xf, byte & 7);
    let magnitude = match (exponent, mantissa) {
        (0, mantissa) => f32::from(mantissa) * SUBNORMAL_STEP,
        (15, 7) => f32::NAN,
        _ => f32::from_bits((u32::from(exponent) + 120) << 23 | u32::from(mantissa) << 20),
    };
    *out = [if byte >> 7 == 1 {
        -magnitude
    } else {
        magnitude
    }];
}

pub(super) fn encode_f16(value: f32, clamps: &mut Clamps) -> [u8; 2] {
    if value.is_finite() {
        clamps.stored(value).0
    } else {
        f16::from_f32(value).to_le_bytes()
    }
}

pub(super) fn encode_bf16(value: f32, clamps: &mut Clamps) -> [u8; 2] {
    let rounded = bf16::from_f32(value);
    let overflows = rounded.is_infinite() && value.is_finite();
    clamps.count += u64::from(overflows);
    // The largest finite number is the one just below infinity, of either sign.
    (rounded.to_bits() - u16::from(overflows)).to_le_bytes()
}
