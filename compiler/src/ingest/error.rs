//! What can be wrong with a checkpoint.

use std::fmt;
use std::io;
use std::path::PathBuf;

use estream_schemas::dtype::DType;
use estream_schemas::exit::Exit;

use super::gguf::GgufError;
use super::sniff::FileKind;

/// A checkpoint that cannot be read, and what to do about it.
///
/// Names that come from files are printed escaped, so that a file cannot write
/// to the terminal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// Nothing is at the path that the user named.
    #[error("{}: no such file or directory; name a checkpoint directory or a .gguf file", path.display())]
    NotFound {
        /// What was named.
        path: PathBuf,
    },
    /// The file system failed.
    #[error("{}: cannot read: {source}; check the file and its permissions", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file lost bytes after it was opened.
    #[error("{}: had {opened_bytes} bytes when opened and now ends before byte {end_bytes}; leave the checkpoint alone while it is read, and start again", path.display())]
    Shrunk {
        /// Which file.
        path: PathBuf,
        /// Its size when it was opened.
        opened_bytes: u64,
        /// Where the read should have ended.
        end_bytes: u64,
    },
    /// A caller asked for bytes that no tensor of this checkpoint has.
    #[error(
        "{tensor:?}: {bytes} bytes from {offset} on are not all within it; this is a bug, please report it"
    )]
    OutOfTensor {
        /// The tensor asked for.
        tensor: String,
        /// First byte, counted within the tensor.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// A directory, a pipe, a device or a socket where a file belongs.
    #[error("{}: is {kind}, not a regular file; put the file itself here, or a link to it", path.display())]
    NotRegular {
        /// What was to be opened.
        path: PathBuf,
        /// A noun phrase for what it is.
        kind: &'static str,
    },
    /// A symbolic link whose target is absent, as an interrupted download leaves.
    #[error("{}: is a link to a file that is not there; download it again", path.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
    },
    /// The file's content is not what its name or place says.
    #[error("{}: is {found}; {}", path.display(), found.advice())]
    WrongKind {
        /// Which file.
        path: PathBuf,
        /// What its first bytes say.
        found: FileKind,
    },
    /// Pickled weights, and no others.
    #[error("{}: the weights are pickled ({}); a pickle can run code and is never read: convert with model.save_pretrained(DIR, safe_serialization=True), or download the safetensors files", path.display(), FirstOf::names(files, files.len()))]
    Pickle {
        /// The file or directory that was named.
        path: PathBuf,
        /// The pickles.
        files: Vec<String>,
    },
    /// What a compiler has made, where what it is made of belongs.
    #[error("{}: is a bundle already; inspect or run it as it is, or name the checkpoint it was compiled from", path.display())]
    Bundle {
        /// The directory.
        path: PathBuf,
    },
    /// A directory without any weights.
    #[error("{}: has neither safetensors nor GGUF weights; name the directory that holds config.json and model.safetensors or its shards", path.display())]
    NoWeights {
        /// The directory.
        path: PathBuf,
    },
    /// More than one set of weights, and nothing that says which.
    #[error("{}: has several sets of weights ({}); keep one in the directory, or name one .gguf file", path.display(), FirstOf::names(files, files.len()))]
    Ambiguous {
        /// The directory.
        path: PathBuf,
        /// What competes.
        files: Vec<String>,
    },
    /// Shards without the index that says which belong together.
    #[error("{}: has weight files ({}) but no index that lists them; download model.safetensors.index.json too", path.display(), FirstOf::names(files, files.len()))]
    MissingIndex {
        /// The directory.
        path: PathBuf,
        /// The shards.
        files: Vec<String>,
    },
    /// The user named a file that the directory's set of weights does not use.
    #[error("{}: does not belong to the checkpoint in its directory, which {chosen:?} defines; name the directory, or move the file to one of its own", path.display())]
    NotInSet {
        /// What was named.
        path: PathBuf,
        /// The index or the single weight file.
        chosen: String,
    },
    /// No `config.json`.
    #[error("{}: has no config.json; download it from where the weights come from", path.display())]
    MissingConfig {
        /// The directory.
        path: PathBuf,
    },
    /// Files of the index that are absent, all of them.
    #[error("{}: {} of {total} weight files are missing: {}; download them", path.display(), missing.len(), FirstOf::items(missing, missing.len()))]
    MissingShards {
        /// The index.
        path: PathBuf,
        /// Distinct files the index lists.
        total: usize,
        /// The absent ones, by name.
        missing: Vec<MissingShard>,
    },
    /// Tensors that the index lists and no weight file has where it says.
    #[error("{}: lists {count} tensors that are not where it says: {}; download the index and the weights of one revision", path.display(), FirstOf::items(tensors, *count))]
    AbsentTensors {
        /// The index.
        path: PathBuf,
        /// How many there are.
        count: usize,
        /// The first of them.
        tensors: Vec<AbsentTensor>,
    },
    /// An index names something that is not a plain file name.
    #[error("{}: weight file {name:?} is not a plain file name; files of a checkpoint lie beside their index: do not use this one", path.display())]
    UnsafeName {
        /// The index.
        path: PathBuf,
        /// What it says.
        name: String,
    },
    /// More than a documented limit.
    #[error("{}: {what} takes {bytes} bytes, the limit is {max_bytes}; download the file again, or split the checkpoint into more files", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// A noun phrase for what is too large.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        max_bytes: u64,
    },
    /// More of something than a documented limit.
    #[error("{}: more than {max} {what}, which is the limit; such a checkpoint is not supported", path.display())]
    TooMany {
        /// Which file.
        path: PathBuf,
        /// A plural noun.
        what: &'static str,
        /// The most that is read.
        max: u64,
    },
    /// The file ends early.
    #[error("{}: expected {expected_bytes} bytes, have {bytes}, likely a partial download; download it again", path.display())]
    Truncated {
        /// Which file.
        path: PathBuf,
        /// The size that its header asks for, or the least it can be.
        expected_bytes: u64,
        /// The size it has.
        bytes: u64,
    },
    /// The file goes on after its last tensor.
    #[error("{}: expected {expected_bytes} bytes, have {bytes}: what follows the last tensor belongs to none; download it again", path.display())]
    TrailingBytes {
        /// Which file.
        path: PathBuf,
        /// The size that its header asks for.
        expected_bytes: u64,
        /// The size it has.
        bytes: u64,
    },
    /// Text that is not the JSON it should be.
    #[error("{}: line {line}, column {column}: {reason}; download it again", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// Counted from one; in a weight file, lines of its header.
        line: usize,
        /// Counted from one.
        column: usize,
        /// What is wrong, escaped and short.
        reason: String,
    },
    /// A key that an object has twice: readers disagree on which one counts.
    #[error("{}: key {key:?} appears twice; download it again", path.display())]
    DuplicateKey {
        /// Which file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A header followed by something other than spaces.
    #[error("{}: the header is padded with something other than spaces; download it again", path.display())]
    HeaderPadding {
        /// Which file.
        path: PathBuf,
    },
    /// One tensor's entry is wrong.
    #[error("{}: tensor {tensor:?} {fault}", path.display())]
    Tensor {
        /// Which file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        fault: TensorFault,
    },
    /// A GGUF file that cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Two weight files hold different tensors of one name.
    #[error("tensor {tensor:?} is in {} and, with other content, in {}; download the weights of one revision", first.display(), second.display())]
    Conflict {
        /// The tensor's name.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

impl IngestError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            IngestError::Gguf(error) => error.exit(),
            IngestError::NotFound { .. } | IngestError::NotInSet { .. } => Exit::Usage,
            IngestError::Read { .. } | IngestError::Shrunk { .. } => Exit::Io,
            IngestError::OutOfTensor { .. } => Exit::Internal,
            _ => Exit::Invalid,
        }
    }
}

/// What can be wrong with one entry of a safetensors header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFault {
    /// An element type without a reader.
    #[error("has element type {0:?}, which is not supported; use a checkpoint in another type")]
    UnknownDType(String),
    /// A name that no bundle could record.
    #[error("has a name of {bytes} bytes, the limit is {max_bytes}; rename it")]
    LongName {
        /// Its length.
        bytes: usize,
        /// The most that is read.
        max_bytes: usize,
    },
    /// An entry without one of its three fields.
    #[error("has no {0:?}; download the file again")]
    MissingField(&'static str),
    /// More dimensions than any weight has.
    #[error("has more than {0} dimensions; such a tensor is not supported")]
    TooManyDims(usize),
    /// A dimension of zero: the tensor's range would be free to lie anywhere.
    #[error("has shape {0:?}, so no elements; remove it from the checkpoint")]
    NoElements(Vec<u64>),
    /// A size that does not fit 64 bits.
    #[error("has shape {0:?}, whose size overflows; do not use this file")]
    SizeOverflow(Vec<u64>),
    /// Range and shape disagree.
    #[error(
        "is {dtype} of shape {shape:?}, {shape_bytes} bytes, but spans bytes {begin} to {end}; download the file again"
    )]
    RangeMismatch {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Vec<u64>,
        /// Bytes that these ask for.
        shape_bytes: u64,
        /// First byte, counted after the header.
        begin: u64,
        /// The byte after the last one.
        end: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "begins at byte {begin}, inside {other:?}, which ends at {other_end}; do not use this file"
    )]
    Overlap {
        /// Where it begins, counted after the header.
        begin: u64,
        /// The tensor before it.
        other: String,
        /// Where that one ends.
        other_end: u64,
    },
    /// Bytes before it that belong to no tensor.
    #[error(
        "begins at byte {begin}, but the tensor before it ends at {expected}: the bytes between belong to none; do not use this file"
    )]
    Gap {
        /// Where it begins, counted after the header.
        begin: u64,
        /// Where it should begin.
        expected: u64,
    },
}

/// A weight file that an index lists and that is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingShard {
    /// File name.
    pub name: String,
    /// How many tensors the index places in it.
    pub tensor_count: usize,
}

impl fmt::Display for MissingShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.tensor_count == 1 { "" } else { "s" };
        write!(f, "{:?} ({} tensor{plural})", self.name, self.tensor_count)
    }
}

/// A tensor that an index lists and that is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentTensor {
    /// Tensor name.
    pub name: String,
    /// The file that should hold it.
    pub file: String,
}

impl fmt::Display for AbsentTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {:?}", self.name, self.file)
    }
}

/// The first items of a list, separated by commas, and how many more there are.
pub(super) struct FirstOf<'a, T> {
    items: &'a [T],
    count: usize,
    show: fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl<'a, T: fmt::Display> FirstOf<'a, T> {
    /// `items` out of `count`.
    fn items(items: &'a [T], count: usize) -> Self {
        let show = fmt::Display::fmt;
        FirstOf { items, count, show }
    }
}

impl<'a> FirstOf<'a, String> {
    /// `names` out of `count`, escaped.
    pub(super) fn names(names: &'a [String], count: usize) -> Self {
        const SHOWN: usize = 16;
        FirstOf {
            items: names.get(..SHOWN).unwrap_or(names),
            count,
            show: fmt::Debug::fmt,
        }
    }
}

impl<T> fmt::Display for FirstOf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.items.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            (self.show)(item, f)?;
        }
        match self.count.saturating_sub(self.items.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
