//! Block codecs: floats to blocks of the quantised types and back.
//!
//! [`decode`] reads blocks as ggml does and [`encode`] writes the blocks that
//! ggml's reference quantisers write, bit for bit: a bundle made here from float
//! weights holds the numbers a GGUF made by `llama-quantize` holds. That forbids
//! fused multiply-adds and any reordering of a sum; everything below is plain
//! IEEE single precision, so hosts agree to the bit as well.
//!
//! ```
//! use estream_compiler::quant::{OnOverflow, decode, encode};
//! use estream_schemas::dtype::DType;
//!
//! let row = [0.25_f32; 32];
//! let mut block = [0; 18];
//! encode(DType::Q4_0, &row, &mut block, OnOverflow::Error)?;
//! let mut back = [0.0; 32];
//! decode(DType::Q4_0, &block, &mut back)?;
//! assert_eq!(back, row);
//! # Ok::<(), estream_compiler::quant::QuantError>(())
//! ```

mod blocks;
mod check;
mod error;
mod k_quants;
mod plain;
mod q6_k;
mod scale;

use estream_schemas::dtype::DType;

pub use check::check_scales;
pub use error::QuantError;
pub use scale::OnOverflow;

use scale::Clamps;

/// What an encoding had to change beyond rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Finite numbers held at the largest the type has: values of a plain type,
    /// stored scales and minima of a quantised one. Zero unless
    /// [`OnOverflow::Clamp`] was asked for.
    pub clamped_count: u64,
}

/// Reads blocks as floats, bit for bit as ggml's reference does.
///
/// `bytes` is a whole number of blocks of `dtype` and `out` as many values.
/// Scales that are not finite are decoded like any other: see [`check_scales`].
///
/// # Errors
///
/// [`QuantError::Length`], [`QuantError::Unsupported`], and
/// [`QuantError::Overflow`] for an f64 beyond the range of f32. `out` is then
/// partly written.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    same_blocks(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F64 => return plain::decode_f64(bytes, out),
        DType::F32 => each_block(bytes, out, plain::decode_f32),
        DType::F16 => each_block(bytes, out, plain::decode_f16),
        DType::BF16 => each_block(bytes, out, plain::decode_bf16),
        DType::F8_E4M3 => each_block(bytes, out, plain::decode_f8_e4m3),
        DType::Q4_0 => each_block(bytes, out, blocks::decode_q4_0),
        DType::Q4_1 => each_block(bytes, out, blocks::decode_q4_1),
        DType::Q5_0 => each_block(bytes, out, blocks::decode_q5_0),
        DType::Q5_1 => each_block(bytes, out, blocks::decode_q5_1),
        DType::Q8_0 => each_block(bytes, out, blocks::decode_q8_0),
        DType::IQ4_NL => each_block(bytes, out, blocks::decode_iq4_nl),
        DType::MXFP4 => each_block(bytes, out, blocks::decode_mxfp4),
        DType::Q2_K => each_block(bytes, out, k_quants::decode_q2_k),
        DType::Q3_K => each_block(bytes, out, k_quants::decode_q3_k),
        DType::Q4_K => each_block(bytes, out, k_quants::decode_q4_k),
        DType::Q5_K => each_block(bytes, out, k_quants::decode_q5_k),
        DType::Q6_K => each_block(bytes, out, q6_k::decode),
        _ => {
            return Err(QuantError::Unsupported {
                dtype,
                encoding: false,
            });
        }
    }
    Ok(())
}

/// Writes floats as blocks of F32, F16, BF16, Q4_0, Q4_1, Q8_0 or Q6_K.
///
/// Plain types round to nearest, ties to even, and carry infinities and NaN over as
/// they are; the quantised types refuse them. `values` is a whole number of blocks
/// and `out` exactly as many bytes.
///
/// # Errors
///
/// [`QuantError::Length`], [`QuantError::Unsupported`], [`QuantError::NotFinite`],
/// and with [`OnOverflow::Error`] also [`QuantError::Overflow`]. `out` is then
/// partly written.
pub fn encode(
    dtype: DType,
    values: &[f32],
    out: &mut [u8],
    on_overflow: OnOverflow,
) -> Result<Encoded, QuantError> {
    same_blocks(dtype, values.len(), out.len())?;
    let job = Encoder {
        dtype,
        on_overflow,
        values,
        out,
    };
    match dtype {
        DType::F32 => job.plain(|value, _| value.to_le_bytes()),
        DType::F16 => job.plain(plain::encode_f16),
        DType::BF16 => job.plain(plain::encode_bf16),
        DType::Q4_0 => job.quantised(blocks::encode_q4_0),
        DType::Q4_1 => job.quantised(blocks::encode_q4_1),
        DType::Q8_0 => job.quantised(blocks::encode_q8_0),
        DType::Q6_K => job.quantised(q6_k::encode),
        _ => Err(QuantError::Unsupported {
            dtype,
            encoding: true,
        }),
    }
}

/// Whether [`decode`] reads blocks of `dtype`.
pub fn can_decode(dtype: DType) -> bool {
    use DType::{F8_E4M3, F64, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_0, Q5_1, Q5_K};
    can_encode(dtype)
        || matches!(
            dtype,
            F64 | F8_E4M3 | IQ4_NL | MXFP4 | Q5_0 | Q5_1 | Q2_K | Q3_K | Q4_K | Q5_K
        )
}

/// Whether [`encode`] writes blocks of `dtype`.
pub fn can_encode(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, Q4_0, Q4_1, Q6_K, Q8_0};
    matches!(dtype, F32 | F16 | BF16 | Q4_0 | Q4_1 | Q8_0 | Q6_K)
}

/// Checks that both slices hold the same whole number of blocks.
fn same_blocks(dtype: DType, value_count: usize, byte_count: usize) -> Result<(), QuantError> {
    match dtype.row_bytes(value_count as u64) {
        Some(bytes) if bytes == byte_count as u64 => Ok(()),
        _ => Err(QuantError::Length {
            dtype,
            value_count,
            byte_count,
        }),
    }
}

/// Decodes block after block; the lengths are checked by then.
fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, values) = (bytes.as_chunks().0, out.as_chunks_mut().0);
    for (block, values) in blocks.iter().zip(values) {
        decode(block, values);
    }
}

/// One call of [`encode`], its lengths checked.
struct Encoder<'a> {
    dtype: DType,
    on_overflow: OnOverflow,
    values: &'a [f32],
    out: &'a mut [u8],
}

/// Values of a plain type between two looks at the overflow count.
const PLAIN_RUN: usize = 1024;

impl Encoder<'_> {
    fn plain<const BYTES: usize>(
        self,
        encode: impl Fn(f32, &mut Clamps) -> [u8; BYTES],
    ) -> Result<Encoded, QuantError> {
        let mut clamps = Clamps::default();
        let runs = self.out.as_chunks_mut().0.chunks_mut(PLAIN_RUN);
        for (run_index, (values, out)) in self.values.chunks(PLAIN_RUN).zip(runs).enumerate() {
            for (value, out) in values.iter().zip(out) {
                *out = encode(*value, &mut clamps);
            }
            if self.on_overflow == OnOverflow::Error && clamps.count > 0 {
                let overflows = |value: &f32| {
                    let mut own = Clamps::default();
                    encode(*value, &mut own);
                    own.count > 0
                };
                let index = values.iter().position(overflows).unwrap_or(0);
                return Err(self.overflow(run_index * PLAIN_RUN + index));
            }
        }
        Ok(clamps.into())
    }

    fn quantised<const BYTES: usize, const LEN: usize>(
        self,
        encode: impl Fn(&[f32; LEN], &mut Clamps) -> [u8; BYTES],
    ) -> Result<Encoded, QuantError> {
        let mut clamps = Clamps::default();
        let blocks = self.values.as_chunks::<LEN>().0;
        for (block_index, (block, out)) in blocks.iter().zip(self.out.as_chunks_mut().0).enumerate()
        {
            let first = block_index * LEN;
            if scale::any_not_finite(block) {
                let index = block.iter().position(|x| !x.is_finite()).unwrap_or(0);
                return Err(QuantError::NotFinite {
                    index: first + index,
                });
            }
            *out = encode(block, &mut clamps);
            if self.on_overflow == OnOverflow::Error && clamps.count > 0 {
                return Err(self.overflow(first));
            }
        }
        Ok(clamps.into())
    }

    fn overflow(&self, index: usize) -> QuantError {
        QuantError::Overflow {
            dtype: self.dtype,
            index,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(dtype: DType, values: &[f32]) -> Result<Vec<u8>, QuantError> {
        encoded_with(dtype, values, OnOverflow::Error).map(|(bytes, _)| bytes)
    }

    fn encoded_with(
        dtype: DType,
        values: &[f32],
        on_overflow: OnOverflow,
    ) -> Result<(Vec<u8>, u64), QuantError> {
        let byte_count = dtype.row_bytes(values.len() as u64).unwrap();
        let mut out = vec![0; usize::try_from(byte_count).unwrap()];
        let encoded = encode(dtype, values, &mut out, on_overflow)?;
        Ok((out, encoded.clamped_count))
    }

    fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
        let blocks = bytes.len() as u64 / dtype.block_bytes();
        let mut out = vec![0.0; usize::try_from(blocks * dtype.block_len()).unwrap()];
        decode(dtype, bytes, &mut out).unwrap();
        out
    }

    /// A row of 256 with `x` somewhere.
    fn row_with(x: f32) -> [f32; 256] {
        let mut row = [0.5; 256];
        row[70] = x;
        row
    }

    const QUANTISED: [DType; 4] = [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q6_K];

    #[test]
    fn c30_bf16_beyond_fp16_is_an_error_or_counted() {
        let wide = bf16_values(&[1e5, -1e5, 1.0]);
        let overflow = encoded(DType::F16, &wide);
        let (dtype, index) = (DType::F16, 0);
        assert_eq!(overflow, Err(QuantError::Overflow { dtype, index }));

        let (bytes, clamped) = encoded_with(DType::F16, &wide, OnOverflow::Clamp).unwrap();
        assert_eq!(decoded(DType::F16, &bytes), [65504.0, -65504.0, 1.0]);
        assert_eq!(clamped, 2);
    }

    /// What a checkpoint's bf16 numbers are in f32.
    fn bf16_values(values: &[f32]) -> Vec<f32> {
        decoded(DType::BF16, &encoded(DType::BF16, values).unwrap())
    }

    #[test]
    fn c30_subnormal_zero_and_nan_keep_their_meaning() {
        let values = bf16_values(&[1e-40, -0.0, f32::NAN, f32::INFINITY]);
        assert!(values[0] > 0.0 && values[0].is_subnormal());
        let halves = decoded(DType::F16, &encoded(DType::F16, &values).unwrap());
        for floats in [values, halves] {
            assert!(floats[0] >= 0.0 && floats[0] < 1e-39);
            assert_eq!(floats[1].to_bits(), (-0.0_f32).to_bits());
            assert!(floats[2].is_nan());
            assert_eq!(floats[3], f32::INFINITY);
        }
        // The smallest fp16 number is 2^-24; half of it is a tie and goes to even.
        let tiny = [2.0_f32.powi(-24), 2.0_f32.powi(-25), 3.0e-8];
        let halves = decoded(DType::F16, &encoded(DType::F16, &tiny).unwrap());
        assert_eq!(halves, [2.0_f32.powi(-24), 0.0, 2.0_f32.powi(-24)]);
    }

    #[test]
    fn c30_rounding_is_to_nearest_even_without_truncation_bias() {
        let above = f32::from_bits;
        // One and a half steps of bf16 above 1, and half a step: both ties.
        let ties = [above(0x3f81_8000), above(0x3f80_8000), above(0x3f80_8001)];
        let (up, down) = (above(0x3f82_0000), above(0x3f80_0000));
        assert_eq!(bf16_values(&ties), [up, down, above(0x3f81_0000)]);

        let ties = [1.0 + 3.0 / 2048.0, 1.0 + 1.0 / 2048.0, 65519.996];
        let halves = decoded(DType::F16, &encoded(DType::F16, &ties).unwrap());
        assert_eq!(halves, [1.0 + 4.0 / 2048.0, 1.0, 65504.0]);
        assert!(encoded(DType::F16, &[65520.0]).is_err());
    }

    #[test]
    fn c30_bf16_overflow_by_rounding_is_seen() {
        let error = encoded(DType::BF16, &[0.0, f32::MIN]);
        let (dtype, index) = (DType::BF16, 1);
        assert_eq!(error, Err(QuantError::Overflow { dtype, index }));
        let (bytes, clamped) = encoded_with(DType::BF16, &[f32::MIN], OnOverflow::Clamp).unwrap();
        assert_eq!((bytes.as_slice(), clamped), ([0x7f, 0xff].as_slice(), 1));
    }

    #[test]
    fn c30_no_scale_is_ever_infinite() {
        for dtype in QUANTISED {
            for large in [1e9, -1e9, 1e13, f32::MAX, f32::MIN] {
                let row = row_with(large);
                let error = encoded(dtype, &row);
                assert!(matches!(error, Err(QuantError::Overflow { .. })), "{dtype}");

                let (bytes, clamped) = encoded_with(dtype, &row, OnOverflow::Clamp).unwrap();
                assert!(clamped > 0, "{dtype}");
                check_scales(dtype, &bytes).unwrap();
                // The value is held at the largest the block reaches, with its sign: at
                // least that of fp16 itself, which is what a Q4_1 minimum can be.
                let held = decoded(dtype, &bytes)[70];
                assert!(held.abs() >= 65504.0 && held.is_finite(), "{dtype} {held}");
                assert_eq!(held > 0.0, large > 0.0, "{dtype} {large}");
            }
        }
    }

    #[test]
    fn c29_non_finite_values_are_refused_by_index() {
        for dtype in QUANTISED {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let refused = encoded(dtype, &row_with(bad));
                assert_eq!(refused, Err(QuantError::NotFinite { index: 70 }), "{dtype}");
            }
        }
    }

    #[test]
    fn levels_of_a_scale_too_small_to_invert_decode_to_zero() {
        // 1/d is infinite: ggml's C leaves the levels undefined.
        for dtype in QUANTISED {
            let row: [f32; 256] = std::array::from_fn(|i| f32::from_bits(i as u32 * 30));
            let bytes = encoded(dtype, &row).unwrap();
            assert!(decoded(dtype, &bytes).iter().all(|x| *x == 0.0), "{dtype}");
        }
    }

    #[test]
    fn a_block_of_zeros_stores_the_reference_bytes() {
        for zeros in [[0.0; 32], [-0.0; 32]] {
            let block = encoded(DType::Q4_0, &zeros).unwrap();
            // 0 / -8 is minus zero; level 8 is zero.
            assert_eq!(block[..2], [0x00, 0x80]);
            assert_eq!(block[2..], [0x88; 16]);
            assert_eq!(encoded(DType::Q8_0, &zeros).unwrap(), [0; 34]);
        }
        let block = encoded(DType::Q4_1, &[-0.0; 32]).unwrap();
        assert_eq!(block[..4], [0x00, 0x00, 0x00, 0x80]);
    }

    #[test]
    fn an_f64_beyond_f32_is_an_error() {
        let mut out = [0.0; 2];
        let bytes = [1e-50_f64.to_le_bytes(), 1e39_f64.to_le_bytes()].concat();
        let (dtype, index) = (DType::F32, 1);
        let error = decode(DType::F64, &bytes, &mut out);
        assert_eq!(error, Err(QuantError::Overflow { dtype, index }));
        let bytes = [0.1_f64.to_le_bytes(), f64::NEG_INFINITY.to_le_bytes()].concat();
        decode(DType::F64, &bytes, &mut out).unwrap();
        assert_eq!(out, [0.1, f32::NEG_INFINITY]);
    }

    #[test]
    fn lengths_that_disagree_and_types_without_a_codec_are_errors() {
        for dtype in DType::all() {
            let block_bytes = usize::try_from(dtype.block_bytes()).unwrap();
            let block_len = usize::try_from(dtype.block_len()).unwrap();
            let mut bytes = vec![0; 2 * block_bytes];
            let mut values = vec![0.0; block_len];
            let error = decode(dtype, &bytes, &mut values);
            assert!(matches!(error, Err(QuantError::Length { .. })), "{dtype}");
            let error = encode(dtype, &values, &mut bytes, OnOverflow::Error);
            assert!(matches!(error, Err(QuantError::Length { .. })), "{dtype}");
            if dtype.is_quantised() {
                let error = decode(dtype, &bytes[1..], &mut values);
                assert!(matches!(error, Err(QuantError::Length { .. })), "{dtype}");
            }
        }
        for dtype in [DType::I32, DType::IQ1_S, DType::F8_E5M2] {
            let error = decode(dtype, &[], &mut []).unwrap_err();
            let encoding = false;
            assert_eq!(error, QuantError::Unsupported { dtype, encoding });
        }
    }
}
