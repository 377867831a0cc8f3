//! A checkpoint as its files state it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use estream_schemas::dtype::DType;
use estream_schemas::manifest::SourceFormat;

use super::sniff::FileKind;
use super::source::{self, Source};
use super::{Config, IngestError, Notice, gguf, safetensors};

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
    /// What the source says of itself: `config.json`, or a GGUF source's key-value
    /// pairs as a GGUF file without tensors.
    pub metadata: Option<Carried>,
    /// What the user should know and need not act on.
    pub notices: Vec<Notice>,
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

impl WeightFile {
    /// Fills `out` with the bytes from `offset` on.
    pub(super) fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> Result<(), IngestError> {
        self.file
            .read_exact_at(out, offset)
            .map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => IngestError::Shrunk {
                    path: self.path.clone(),
                    opened_bytes: self.bytes,
                    end_bytes: offset.saturating_add(out.len() as u64),
                },
                _ => IngestError::Read {
                    path: self.path.clone(),
                    source,
                },
            })
    }
}

impl Checkpoint {
    /// Opens a Hugging Face directory, one of its weight files or its index, or a
    /// GGUF file or a directory of one, and reads its headers. Weights are read
    /// only to compare tensors that two files hold under one name.
    pub fn open(path: &Path) -> Result<Checkpoint, IngestError> {
        let kind = match source::stat(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Ok(Checkpoint {
                    path: path.to_owned(),
                    ..safetensors::open(path, None)?
                });
            }
            Ok(_) => Source::open(path)?.kind,
            Err(IngestError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(IngestError::NotFound {
                    path: path.to_owned(),
                });
            }
            Err(error) => return Err(error),
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let ends = |extension: &str| name.is_some_and(|name| name.ends_with(extension));
        if kind == FileKind::Gguf || ends(".gguf") {
            return Ok(gguf::open(path)?);
        }
        if ends(".safetensors") || ends(".index.json") {
            let dir = match path.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir,
                _ => Path::new("."),
            };
            return Ok(Checkpoint {
                path: path.to_owned(),
                ..safetensors::open(dir, name)?
            });
        }
        if matches!(kind, FileKind::Zip | FileKind::Pickle)
            || safetensors::PICKLE_EXTENSIONS.into_iter().any(ends)
        {
            return Err(IngestError::Pickle {
                path: path.to_owned(),
                files: name.map(str::to_owned).into_iter().collect(),
            });
        }
        Err(IngestError::WrongKind {
            path: path.to_owned(),
            found: kind,
        })
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&SourceTensor> {
        self.index(name).map(|index| &self.tensors[index])
    }

    /// Where in [`Checkpoint::tensors`] the tensor called `name` is.
    pub fn index(&self, name: &str) -> Option<usize> {
        let by_name = |tensor: &SourceTensor| tensor.name.as_str().cmp(name);
        self.tensors.binary_search_by(by_name).ok()
    }

    /// Fills `out` from `tensor`'s bytes, starting `offset` bytes into them.
    ///
    /// The file that was opened is read, also if its path has come to name
    /// another one since. One that has become shorter is an error.
    pub fn read(
        &self,
        tensor: &SourceTensor,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), IngestError> {
        let bytes = out.len() as u64;
        let end = offset.checked_add(bytes);
        let file = self.files.get(tensor.file);
        let start = tensor.offset.checked_add(offset);
        match (file, start) {
            (Some(file), Some(start)) if end.is_some_and(|end| end <= tensor.bytes) => {
                file.read_exact_at(start, out)
            }
            _ => Err(IngestError::OutOfTensor {
                tensor: tensor.name.clone(),
                offset,
                bytes,
            }),
        }
    }
}
