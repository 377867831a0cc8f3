//! A checkpoint as its files state it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use estream_schemas::dtype::DType;
use estream_schemas::manifest::SourceFormat;

use super::{Config, IngestError};

/// A source checkpoint: its tensors by name, its configuration, and the files to
/// carry along. Every tensor's extent lies within its file and agrees with its
/// shape and type.
#[derive(Debug)]
pub struct Checkpoint {
    /// Which kind of files these are.
    pub format: SourceFormat,
    /// What the user named: a directory or a file.
    pub path: PathBuf,
    /// Weight files, in name order.
    pub files: Vec<WeightFile>,
    /// Tensors, ascending by name, names unique.
    pub tensors: Vec<SourceTensor>,
    /// `config.json`, or the GGUF key-value pairs.
    pub config: Config,
    /// Tokenizer files to carry verbatim.
    pub tokenizer: Vec<Carried>,
    /// Licence files to carry verbatim.
    pub license_files: Vec<Carried>,
    /// Licence identifier the source declares.
    pub license: Option<String>,
    /// A GGUF source's header and key-value pairs as a GGUF file without tensors.
    pub metadata: Option<Carried>,
    /// What the user should know and need not act on.
    pub notices: Vec<String>,
}

/// An open weight file.
#[derive(Debug)]
pub struct WeightFile {
    /// Name without directories.
    pub name: String,
    /// Where it was opened.
    pub path: PathBuf,
    /// Size when it was opened.
    pub bytes: u64,
    /// Open for reading.
    pub file: File,
}

/// A tensor of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Name in the source.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape, slowest dimension first (GGUF's dimensions reversed).
    pub shape: Vec<u64>,
    /// Index into [`Checkpoint::files`].
    pub file: usize,
    /// Where its bytes start in the file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
}

/// A file to carry into the bundle.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Name without directories.
    pub name: String,
    /// Its bytes, or where to copy them from.
    pub content: CarriedContent,
}

/// Where the bytes of a [`Carried`] file come from.
#[derive(Clone, Debug)]
pub enum CarriedContent {
    /// In memory.
    Bytes(Vec<u8>),
    /// In a regular file.
    File(PathBuf),
}

impl Checkpoint {
    /// Opens a Hugging Face directory, one of its files, or a GGUF file, and reads its headers.
    pub fn open(path: &Path) -> Result<Checkpoint, IngestError> {
        let _ = path;
        Err(IngestError::Placeholder)
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&SourceTensor> {
        self.tensors
            .binary_search_by(|tensor| tensor.name.as_str().cmp(name))
            .ok()
            .map(|index| &self.tensors[index])
    }

    /// Fills `out` from `tensor`'s bytes, starting `offset` bytes into them.
    pub fn read(
        &self,
        tensor: &SourceTensor,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), IngestError> {
        let file = &self.files[tensor.file];
        let end = offset.checked_add(out.len() as u64);
        debug_assert!(end.is_some_and(|end| end <= tensor.bytes));
        file.file
            .read_exact_at(out, tensor.offset + offset)
            .map_err(|source| IngestError::Read {
                path: file.path.clone(),
                source,
            })
    }
}
