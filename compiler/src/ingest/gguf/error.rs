//! What can be wrong with a GGUF file.

use std::io;
use std::path::PathBuf;

use estream_schemas::dtype::DType;
use estream_schemas::exit::Exit;

use super::{MAX_ALIGNMENT, MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_SPLIT_PARTS, MIN_ALIGNMENT};
use crate::ingest::sniff::FileKind;

const DAMAGED: &str = "the file is damaged or its writer broken: download or convert it again";
const RENAME: &str = "give every part back the name its publisher gave it";

/// A GGUF file that cannot be used, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct GgufError {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: GgufFault,
}

impl GgufError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self.fault {
            GgufFault::Io(_) => Exit::Io,
            _ => Exit::Invalid,
        }
    }
}

/// What is wrong with a GGUF file. Names in messages are escaped: they come from the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufFault {
    /// The file system failed.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// A directory, a device, a pipe.
    #[error("not a regular file; name a .gguf file")]
    NotAFile,
    /// The magic is another.
    #[error("not a GGUF file but {}; {}", .0.what(), .0.advice())]
    NotGguf(FileKind),
    /// The version has its bytes swapped.
    #[error("a big-endian GGUF file; {}", FileKind::GgufBigEndian.advice())]
    BigEndian,
    /// A version that is not read.
    #[error("GGUF version {} is not read, 2 and 3 are; {}", .0, version_advice(*.0))]
    Version(u32),
    /// More of something than any model has.
    #[error("the header declares {count} {what}, at most {max} are read; {DAMAGED}")]
    TooMany {
        /// Of what, in the plural.
        what: &'static str,
        /// How many.
        count: u64,
        /// How many are read.
        max: u64,
    },
    /// The header goes on beyond [`MAX_HEADER_BYTES`].
    #[error("the header is larger than {MAX_HEADER_BYTES} bytes (all parts together); {DAMAGED}")]
    HeaderTooLarge,
    /// Something in the header is longer than the file.
    #[error(
        "{what} at byte {at} takes {need} bytes and {remain} remain; the file is damaged or only part of it was downloaded: download it again"
    )]
    Exhausted {
        /// What was to be read.
        what: &'static str,
        /// Where it starts.
        at: u64,
        /// How many bytes it takes at least.
        need: u64,
        /// How many the file still has.
        remain: u64,
    },
    /// A key or name is empty, too long or not UTF-8.
    #[error(
        "the {what} at byte {at} is {problem}, names have 1 to {MAX_NAME_BYTES} bytes of UTF-8; {DAMAGED}"
    )]
    Name {
        /// Key or tensor name.
        what: &'static str,
        /// Where it starts.
        at: u64,
        /// Empty, too long or not UTF-8.
        problem: &'static str,
    },
    /// A key occurs twice: readers disagree on which one counts.
    #[error("key {0:?} occurs twice; {DAMAGED}")]
    DuplicateKey(String),
    /// A tensor's name occurs twice.
    #[error("tensor {0:?} occurs twice; {DAMAGED}")]
    DuplicateTensor(String),
    /// A value's type does not exist.
    #[error("key {key:?} has value type {id}, types are 0 to 12; {DAMAGED}")]
    ValueType {
        /// Which key.
        key: String,
        /// Its type.
        id: u32,
    },
    /// An array of arrays.
    #[error("key {0:?} is an array of arrays, which no writer makes; {DAMAGED}")]
    NestedArray(String),
    /// A bool that is neither.
    #[error("key {key:?} holds a bool with the value {byte}; {DAMAGED}")]
    Bool {
        /// Which key.
        key: String,
        /// The byte.
        byte: u8,
    },
    /// `general.alignment` is no alignment.
    #[error(
        "general.alignment is {0}, it must be a u32 and a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}; {DAMAGED}"
    )]
    Alignment(String),
    /// A tensor has no dimension or more than four.
    #[error("tensor {tensor:?} has {count} dimensions, tensors have 1 to 4; {DAMAGED}")]
    DimensionCount {
        /// Which tensor.
        tensor: String,
        /// How many.
        count: u32,
    },
    /// A tensor has a dimension of zero.
    #[error("tensor {tensor:?} has the dimensions {dims:?}, none may be 0; {DAMAGED}")]
    ZeroDimension {
        /// Which tensor.
        tensor: String,
        /// Fastest first.
        dims: Vec<u64>,
    },
    /// A tensor's size is no u64.
    #[error(
        "tensor {tensor:?} with the dimensions {dims:?} has more bytes than can be counted; {DAMAGED}"
    )]
    TensorTooLarge {
        /// Which tensor.
        tensor: String,
        /// Fastest first.
        dims: Vec<u64>,
    },
    /// A row is not a whole number of blocks.
    #[error("tensor {tensor:?} has rows of {columns} elements, {dtype} has blocks of {}; {DAMAGED}", dtype.block_len())]
    PartialBlock {
        /// Which tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// Elements of a row.
        columns: u64,
    },
    /// ggml knew this element type once.
    #[error(
        "tensor {tensor:?} has element type {id}, which ggml has removed; quantise the original checkpoint again with a current llama.cpp"
    )]
    RemovedType {
        /// Which tensor.
        tensor: String,
        /// ggml's id.
        id: u32,
    },
    /// An element type nobody here has heard of.
    #[error(
        "tensor {tensor:?} has element type {id}, which this version does not know; use another quantisation of the model"
    )]
    UnknownType {
        /// Which tensor.
        tensor: String,
        /// ggml's id.
        id: u32,
    },
    /// A tensor starts between two multiples of the alignment.
    #[error(
        "tensor {tensor:?} starts at byte {offset} of the data, not a multiple of {alignment}; {DAMAGED}"
    )]
    Misaligned {
        /// Which tensor.
        tensor: String,
        /// From the start of the data.
        offset: u64,
        /// Of the file.
        alignment: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {tensor:?} starts before {previous:?} ends; {DAMAGED}")]
    Overlap {
        /// The later one.
        tensor: String,
        /// The earlier one.
        previous: String,
    },
    /// More than padding lies between two tensors, or before the first.
    #[error(
        "{gap_bytes} bytes before tensor {tensor:?} belong to no tensor, padding is at most {alignment}; {DAMAGED}"
    )]
    Gap {
        /// What comes after them.
        tensor: String,
        /// How many.
        gap_bytes: u64,
        /// Of the file.
        alignment: u64,
    },
    /// The data ends too early.
    #[error("expected {expected} bytes, have {have}, likely a partial download; download it again")]
    Truncated {
        /// Bytes the header asks for.
        expected: u64,
        /// Bytes of the file.
        have: u64,
    },
    /// The file goes on after the last tensor.
    #[error("{0} bytes follow the last tensor and belong to nothing; {DAMAGED}")]
    Trailing(u64),
    /// A pair that says which part of a set this is makes no sense.
    #[error("{key} is {found}, expected {expected}; {RENAME}, or download the set again")]
    Split {
        /// Which key.
        key: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A part of a set has a name from which its siblings cannot be told.
    #[error("one of {count} parts, but not named like NAME-00001-of-{count:05}.gguf; {RENAME}")]
    SplitName {
        /// Parts of the set.
        count: u64,
    },
    /// More parts than can be open at once.
    #[error(
        "one of {0} parts, at most {MAX_SPLIT_PARTS} are read; merge them with `llama-gguf-split --merge`"
    )]
    SplitCount(u64),
    /// Siblings are missing.
    #[error("{} of {count} parts missing: {}; download them into the same directory", missing.len(), some_of(missing))]
    MissingParts {
        /// Parts of the set.
        count: u64,
        /// Names of the missing ones.
        missing: Vec<String>,
    },
}

fn version_advice(version: u32) -> &'static str {
    if version == 1 {
        "version 1 was replaced in August 2023: convert the original checkpoint again"
    } else {
        "convert it again, or use a newer estream"
    }
}

/// The first names of a list that may have hundreds.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
