//! GGUF v2 and v3.

use std::path::Path;

use super::sniff::FileKind;
use super::{Checkpoint, IngestError};

/// Opens the GGUF file at `path`.
pub(super) fn open(path: &Path) -> Result<Checkpoint, IngestError> {
    Err(IngestError::WrongKind {
        path: path.to_owned(),
        found: FileKind::Gguf,
    })
}
