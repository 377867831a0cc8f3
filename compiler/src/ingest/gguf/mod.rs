//! GGUF files, version 2 and 3, little-endian: a reader and a small writer.
//!
//! # The format
//!
//! ```text
//! offset  bytes
//!      0  4      magic "GGUF"
//!      4  4      version (u32); 2 and 3 are the same bytes on a little-endian machine
//!      8  8      number of tensors (u64)
//!     16  8      number of pairs (u64)
//!     24         pairs, one after the other, not aligned:
//!                  8 + n  key: length (u64), then UTF-8
//!                  4      value type (u32)
//!                  …      value: 1, 2, 4 or 8 bytes of a number, 1 of a bool,
//!                         8 + n of a string, or for an array
//!                         4 element type, 8 length, then the elements
//!                tensor infos, one after the other, not aligned:
//!                  8 + n  name: length (u64), then UTF-8
//!                  4      number of dimensions (u32), 1 to 4
//!                  8 each dimensions (u64), fastest first
//!                  4      element type (u32, ggml's id)
//!                  8      offset from the start of the data (u64), aligned
//!                zeros up to the alignment: `general.alignment`, or 32
//!                data: each tensor's bytes, zeros up to the alignment in between
//! ```
//!
//! The header says nowhere how long it is: one has to walk it. [`Gguf`] walks it
//! once, checks every count, length and extent against the bytes that remain, and
//! keeps the header as one buffer into which keys, strings and arrays are ranges.
//! A vocabulary of a quarter of a million tokens is therefore never taken apart
//! unless somebody iterates over it.
//!
//! # Why an own reader
//!
//! Five crates were tried on 39 files. `gguf` 0.1.2 cannot read BF16 and takes type
//! ids 16 to 19 for others; `gguf-rs` has eight type sizes wrong; `ggus` crashes on
//! malformed input; `candle-core` brings 155 packages, panics on an alignment of
//! zero and knows no MXFP4; `gguf-rs-lib` never crashed, but refuses version 2 and
//! every key with a hyphen, and copies payloads. What is needed here is small: a
//! walk over the header that trusts no number, within bounded memory, and no copy.
//! `gguf-rs-lib` has become the oracle that a test compares this reader with.
//!
//! # Split files
//!
//! `NAME-00001-of-0000N.gguf` is one part of N. Any part opens the whole set, and
//! [`open`] names the parts that are missing. The pairs are those of the first part.

mod error;
mod extents;
mod head;
mod header;
mod open;
mod split;
mod value;
mod writer;

pub use error::{GgufError, GgufFault};
pub use header::{Gguf, TensorInfo};
pub(super) use open::config_values;
pub use open::open;
pub use value::{Array, ArrayIter, Value, ValueType};
pub use writer::{GgufBuilder, GgufWriter, WriteFault};

/// The first bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The version the writer writes.
pub const VERSION: u32 = 3;
/// The alignment of tensors where the file states none.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// The key that states another.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// Bytes of a header, or of all headers of a split set. A vocabulary of 262,144 tokens
/// with half a million merges needs about 15 MiB. While a file is opened, much of the
/// header exists twice for a moment: as this buffer, and as its larger successor or
/// the names made from it. With the tables bounded below that stays under 64 MiB.
pub const MAX_HEADER_BYTES: usize = 24 << 20;
/// Pairs of a file.
pub const MAX_PAIRS: u64 = 1 << 16;
/// Tensors of a file, or of a split set.
pub const MAX_TENSORS: u64 = 1 << 16;
/// Parts of a split set: every one is held open.
pub const MAX_SPLIT_PARTS: u64 = 1 << 9;
/// Bytes of a key or of a tensor's name.
pub const MAX_NAME_BYTES: u64 = 256;
/// The alignments accepted: a power of two from here …
pub const MIN_ALIGNMENT: u64 = 8;
/// … to here. A larger one would pad every tensor by that much.
pub const MAX_ALIGNMENT: u64 = 1 << 20;

const _: () = assert!(MAX_NAME_BYTES as usize == estream_schemas::limits::MAX_NAME_BYTES);

/// The alignment that `value` of [`ALIGNMENT_KEY`] states, if it is one.
fn alignment_of(value: &Value<'_>) -> Option<u64> {
    match *value {
        Value::U32(alignment) => Some(u64::from(alignment)).filter(|alignment| {
            alignment.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(alignment)
        }),
        _ => None,
    }
}
