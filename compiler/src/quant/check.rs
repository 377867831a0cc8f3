//! The scan of what is about to be written: no infinity and no NaN leaves the compiler.

use estream_schemas::dtype::DType;

use super::{QuantError, same_blocks};

/// The least E8M0 scale that makes the largest level, 12 · 2^(e − 128), infinite in f32.
const MXFP4_NOT_FINITE: u8 = 253;

/// Looks for stored scales, minima and plain elements that are infinite or not a number.
///
/// One such scale makes a whole block, and with it every output of the model, not a
/// number. In MXFP4 those are the E8M0 bytes 253 and more: with 255, NaN by its standard,
/// also those whose largest level is beyond f32. Levels are not read: any bits of them
/// are valid.
///
/// # Errors
///
/// [`QuantError::ScaleNotFinite`] with the first such block, or
/// [`QuantError::NotFinite`] for a plain type; [`QuantError::Length`] if `bytes` is not
/// a whole number of blocks; [`QuantError::Unsupported`] for a type whose scales are
/// not known here.
pub fn check_scales(dtype: DType, bytes: &[u8]) -> Result<(), QuantError> {
    let block_count = bytes.len() as u64 / dtype.block_bytes();
    let value_count = usize::try_from(block_count.saturating_mul(dtype.block_len()));
    same_blocks(dtype, value_count.unwrap_or(usize::MAX), bytes.len())?;
    let found = match dtype {
        DType::F64 => first(bytes, |x| !f64::from_le_bytes(*x).is_finite()),
        DType::F32 => first(bytes, |x| !f32::from_le_bytes(*x).is_finite()),
        DType::F16 => first(bytes, |x| not_finite_fp16(*x)),
        DType::BF16 => first(bytes, |x| not_finite(*x, 0x7f80)),
        DType::Q4_0 | DType::IQ4_NL => first::<18>(bytes, |block| fp16_at(block, &[0])),
        DType::Q8_0 => first::<34>(bytes, |block| fp16_at(block, &[0])),
        DType::Q5_0 => first::<22>(bytes, |block| fp16_at(block, &[0])),
        DType::Q4_1 => first::<20>(bytes, |block| fp16_at(block, &[0, 2])),
        DType::Q5_1 => first::<24>(bytes, |block| fp16_at(block, &[0, 2])),
        DType::Q2_K => first::<84>(bytes, |block| fp16_at(block, &[80, 82])),
        DType::Q3_K => first::<110>(bytes, |block| fp16_at(block, &[108])),
        DType::Q4_K => first::<144>(bytes, |block| fp16_at(block, &[0, 2])),
        DType::Q5_K => first::<176>(bytes, |block| fp16_at(block, &[0, 2])),
        DType::Q6_K => first::<210>(bytes, |block| fp16_at(block, &[208])),
        DType::MXFP4 => first::<17>(bytes, |block| block[0] >= MXFP4_NOT_FINITE),
        _ => {
            return Err(QuantError::Unsupported {
                dtype,
                encoding: false,
            });
        }
    };
    match found {
        None => Ok(()),
        Some(block_index) if dtype.is_quantised() => {
            Err(QuantError::ScaleNotFinite { dtype, block_index })
        }
        Some(index) => Err(QuantError::NotFinite { index }),
    }
}

/// The first block that `is_bad`.
fn first<const BYTES: usize>(bytes: &[u8], is_bad: impl Fn(&[u8; BYTES]) -> bool) -> Option<usize> {
    bytes.as_chunks().0.iter().position(is_bad)
}

/// Whether one of the fp16 numbers at `offsets`, which lie in the block, is not finite.
fn fp16_at<const BYTES: usize>(block: &[u8; BYTES], offsets: &[usize]) -> bool {
    offsets
        .iter()
        .any(|at| not_finite_fp16([block[*at], block[*at + 1]]))
}

fn not_finite_fp16(bytes: [u8; 2]) -> bool {
    not_finite(bytes, 0x7c00)
}

/// Whether the exponent bits under `exponent` are all ones.
fn not_finite(bytes: [u8; 2], exponent: u16) -> bool {
    u16::from_le_bytes(bytes) & exponent == exponent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::decode;

    /// Three blocks of which the one in the middle has `bad` at `at`.
    fn blocks(dtype: DType, at: usize, bad: &[u8]) -> Vec<u8> {
        let block_bytes = usize::try_from(dtype.block_bytes()).unwrap();
        let mut bytes = vec![0; 3 * block_bytes];
        bytes[block_bytes + at..][..bad.len()].copy_from_slice(bad);
        bytes
    }

    #[test]
    fn c29_a_scale_that_is_not_finite_is_found_in_its_block() {
        let places: [(DType, &[usize]); 11] = [
            (DType::Q4_0, &[0]),
            (DType::Q4_1, &[0, 2]),
            (DType::Q5_0, &[0]),
            (DType::Q5_1, &[0, 2]),
            (DType::Q8_0, &[0]),
            (DType::IQ4_NL, &[0]),
            (DType::Q2_K, &[80, 82]),
            (DType::Q3_K, &[108]),
            (DType::Q4_K, &[0, 2]),
            (DType::Q5_K, &[0, 2]),
            (DType::Q6_K, &[208]),
        ];
        for (dtype, offsets) in places {
            for at in offsets {
                let block_index = 1;
                let expected = QuantError::ScaleNotFinite { dtype, block_index };
                for bad in [0x7c00_u16, 0xfc00, 0x7e00, 0x7c01] {
                    let bytes = blocks(dtype, *at, &bad.to_le_bytes());
                    assert_eq!(check_scales(dtype, &bytes), Err(expected.clone()));
                }
                let largest = blocks(dtype, *at, &0xfbff_u16.to_le_bytes());
                assert_eq!(check_scales(dtype, &largest), Ok(()));
            }
        }
    }

    #[test]
    fn c29_an_e8m0_scale_that_can_be_infinite_is_found_and_levels_may_be_anything() {
        let (dtype, block_index) = (DType::MXFP4, 1);
        for e in 0..=255_u8 {
            let mut largest = [0x77; 17];
            largest[0] = e;
            let mut values = [0.0; 32];
            decode(dtype, &largest, &mut values).unwrap();
            let expected = match e < 255 && values[0].is_finite() {
                true => Ok(()),
                false => Err(QuantError::ScaleNotFinite { dtype, block_index }),
            };
            assert_eq!(
                check_scales(dtype, &blocks(dtype, 0, &[e])),
                expected,
                "{e}"
            );
        }
        assert_eq!(check_scales(dtype, &blocks(dtype, 1, &[0xff; 16])), Ok(()));
        let levels = blocks(DType::Q4_0, 2, &[0xff; 16]);
        assert_eq!(check_scales(DType::Q4_0, &levels), Ok(()));
    }

    #[test]
    fn c29_plain_elements_are_scanned_too() {
        let bad: [(DType, &[u8]); 4] = [
            (DType::F64, &f64::NAN.to_le_bytes()),
            (DType::F32, &f32::INFINITY.to_le_bytes()),
            (DType::F16, &[0x00, 0xfc]),
            (DType::BF16, &[0x80, 0x7f]),
        ];
        for (dtype, bad) in bad {
            let error = check_scales(dtype, &blocks(dtype, 0, bad));
            assert_eq!(error, Err(QuantError::NotFinite { index: 1 }), "{dtype}");
            assert_eq!(check_scales(dtype, &blocks(dtype, 0, &[])), Ok(()));
        }
    }

    #[test]
    fn bytes_that_are_not_whole_blocks_are_an_error() {
        let error = check_scales(DType::Q4_0, &[0; 35]);
        assert!(matches!(error, Err(QuantError::Length { .. })));
        let error = check_scales(DType::I8, &[0; 4]);
        assert!(matches!(error, Err(QuantError::Unsupported { .. })));
    }
}
