//! Why a bundle does not become a GGUF file.

use std::path::PathBuf;

use estream_compiler::arch::ArchError;
use estream_compiler::ingest::gguf::{GgufFault, WriteFault};
use estream_compiler::layout::LayoutError;
use estream_runtime::reader::ReadError;
use estream_schemas::exit::Exit;

/// Why a bundle does not become a GGUF file. Nothing is left of the output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The bundle cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The bundle is not what it was when it was made.
    #[error("{problem}; compile the bundle again")]
    Damaged {
        /// The first thing that is wrong.
        problem: String,
        /// What kind of thing it is.
        exit: Exit,
    },
    /// The descriptor in the bundle is not one.
    #[error("{}: the bundle's {source}", path.display())]
    Descriptor {
        /// The bundle.
        path: PathBuf,
        /// What is wrong.
        source: ArchError,
    },
    /// The bundle was made from safetensors.
    #[error("{}: was made from safetensors, whose tokenizer and names are not those of a GGUF file; only bundles made from GGUF can be unpacked so far", path.display())]
    NotFromGguf {
        /// The bundle.
        path: PathBuf,
    },
    /// The carried key-value pairs are not readable.
    #[error("{}: the key-value pairs carried from the source are damaged: {source}", path.display())]
    Metadata {
        /// The bundle.
        path: PathBuf,
        /// What is wrong.
        source: GgufFault,
    },
    /// A source tensor that cannot be put together again.
    #[error("{}: tensor {tensor:?} of the source cannot be restored: {why}; use the source file itself", path.display())]
    Tensor {
        /// The bundle.
        path: PathBuf,
        /// Its name in the source.
        tensor: String,
        /// What is in the way.
        why: String,
    },
    /// Blocks do not fit their tiles: a bug of ours.
    #[error("internal error: {0}")]
    Layout(#[from] LayoutError),
    /// Something is at the output already.
    #[error("{}: exists; name another output", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The output cannot be written.
    #[error("{}: cannot be written: {source}; nothing was left at the output", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// What went wrong.
        source: WriteFault,
    },
    /// The progress callback said stop.
    #[error("cancelled; nothing was left at the output")]
    Cancelled,
}

impl UnpackError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            UnpackError::Read(error) => error.exit(),
            UnpackError::Damaged { exit, .. } => *exit,
            UnpackError::Descriptor { .. } | UnpackError::Metadata { .. } => Exit::Invalid,
            UnpackError::NotFromGguf { .. } | UnpackError::Tensor { .. } => Exit::CannotRun,
            UnpackError::Layout(_) => Exit::Internal,
            UnpackError::Exists { .. } => Exit::Usage,
            UnpackError::Write { .. } => Exit::Io,
            UnpackError::Cancelled => Exit::No,
        }
    }
}
