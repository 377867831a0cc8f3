//! What can be wrong with a checkpoint.

use std::io;
use std::path::PathBuf;

use estream_schemas::exit::Exit;

/// A checkpoint that cannot be read, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// The file system failed.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// To be replaced.
    #[error("placeholder")]
    Placeholder,
}

impl IngestError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            IngestError::Read { .. } => Exit::Io,
            IngestError::Placeholder => Exit::Internal,
        }
    }
}
