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
        DType::Q4_0 => each_block(bytes, out, blocks::decode_q4_0),
        DType::Q4_1 => each_block(bytes, out, blocks::decode_q4_1),
        DType::Q8_0 => each_block(bytes, out, blocks::decode_q8_0),
        DType::IQ4_NL => each_block(bytes, out, blocks::decode_iq4_nl),
        DType::MXFP4 => each_block(bytes, out, blocks::decode_mxfp4),
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
    can_encode(dtype) || matches!(dtype, DType::F64 | DType::IQ4_NL | DType::MXFP4)
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
