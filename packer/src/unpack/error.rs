//! Why a bundle does not become a GGUF file.

use std::path::PathBuf;

use estream_compiler::arch::ArchError;
use estream_compiler::ingest::IngestError;
use estream_compiler::ingest::gguf::WriteFault;
use estream_compiler::layout::LayoutError;
use estream_compiler::quant::QuantError;
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
    /// The bundle does not carry what its source said of itself.
    #[error("{}: carries no configuration of its source; compile it again", path.display())]
    NoMetadata {
        /// The bundle.
        path: PathBuf,
    },
    /// What GGUF cannot say of the model.
    #[error("{}: has no GGUF file, because {}; use the source itself", path.display(), problems.join(", and because "))]
    Unsayable {
        /// The bundle.
        path: PathBuf,
        /// What is in the way.
        problems: Vec<String>,
    },
    /// The carried configuration is not readable.
    #[error("the configuration carried from the source is damaged: {0}")]
    Metadata(#[from] IngestError),
    /// The carried configuration does not say what the descriptor wants of it.
    #[error("{}: the configuration carried from the source does not fit the descriptor: {}", path.display(), problems.join("; "))]
    Keys {
        /// The bundle.
        path: PathBuf,
        /// One line each.
        problems: Vec<String>,
    },
    /// A tensor that cannot be put together.
    #[error("{}: tensor {tensor:?} cannot be written: {why}; use the source itself", path.display())]
    Tensor {
        /// The bundle.
        path: PathBuf,
        /// Its name in the file.
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
    /// Numbers that are not what their type says: a bug of ours.
    #[error("internal error: {0}")]
    Widen(#[from] QuantError),
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
            UnpackError::Descriptor { .. }
            | UnpackError::Metadata(_)
            | UnpackError::Keys { .. } => Exit::Invalid,
            UnpackError::NoMetadata { .. }
            | UnpackError::Unsayable { .. }
            | UnpackError::Tensor { .. } => Exit::CannotRun,
            UnpackError::Layout(_) | UnpackError::Widen(_) => Exit::Internal,
            UnpackError::Exists { .. } => Exit::Usage,
            UnpackError::Write { .. } => Exit::Io,
            UnpackError::Cancelled => Exit::No,
        }
    }
}
