//! A directory of a few small files: whole or absent, as a bundle is.

use std::path::{Path, PathBuf};

use crate::OutputError;
use crate::target::{Target, sync_dir};
use crate::writer::Output;

/// Writes `files`, names and contents, to `out`, a directory that must not exist and is none of `inputs`.
/// Directories above it are made.
///
/// # Errors
/// If something is there, or the file system fails: then nothing is left of the output.
pub fn write_folder(
    out: &Path,
    inputs: &[PathBuf],
    files: &[(String, Vec<u8>)],
) -> Result<(), OutputError> {
    let target = Target::claim(out, inputs, false).map_err(taken)?;
    target.make_parent()?;
    let staging = target.stage()?;
    for (name, bytes) in files {
        let mut output = Output::create(staging.path().join(name))?;
        output.write(bytes)?;
        output.close()?;
    }
    sync_dir(staging.path())?;
    target.publish(staging).map_err(taken)?;
    Ok(())
}

/// A bundle that is there can be replaced by another one, and not by this.
fn taken(error: OutputError) -> OutputError {
    match error {
        OutputError::Exists { out } | OutputError::NotABundle { out, .. } => {
            OutputError::Taken { out }
        }
        other => other,
    }
}
