//! Why there is no bundle: whose fault it is decides the type.

use std::io;
use std::path::PathBuf;

use estream_runtime::reader::ReadError;
use estream_schemas::exit::Exit;
use estream_schemas::layout::Layout;
use estream_schemas::valid::InvalidManifest;

/// A bundle that could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError<E: std::error::Error + 'static> {
    /// The weights could not be made.
    #[error(transparent)]
    Payload(E),
    /// The specification has no bundle.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The weights could not be written down.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl<E: std::error::Error + 'static> PackError<E> {
    /// The exit code a binary should end with; `payload` gives that of the payload's errors.
    pub fn exit(&self, payload: impl FnOnce(&E) -> Exit) -> Exit {
        match self {
            PackError::Payload(error) => payload(error),
            PackError::Plan(error) => error.exit(),
            PackError::Output(error) => error.exit(),
        }
    }
}

/// A specification that no bundle can meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A layout and a shape do not go together, or the size overflows.
    #[error(
        "{what}: {layout} cannot hold {rows} × {cols}; choose another type for it in the recipe"
    )]
    Shape {
        /// Which tensor.
        what: String,
        /// Its layout.
        layout: Layout,
        /// Its rows.
        rows: u64,
        /// Elements of a row.
        cols: u64,
    },
    /// Experts cannot be cut so.
    #[error(
        "layer {layer}: {shards} shards do not divide a feed-forward width of {ff} into multiples of 32; \
         choose a divisor of {}",
        ff / 32
    )]
    Shards {
        /// Layer of the program.
        layer: u64,
        /// Shards asked for.
        shards: u64,
        /// Feed-forward width.
        ff: u64,
    },
    /// A layer is stored in one part, whatever its size.
    #[error(
        "the experts of layer {layer} have {bytes} bytes, and a layer is not split over parts of {max_part_bytes}; \
         allow parts of at least {bytes}"
    )]
    PartTooSmall {
        /// Layer of the program.
        layer: u64,
        /// Bytes of its records.
        bytes: u64,
        /// Bytes a part may have.
        max_part_bytes: u64,
    },
    /// Sizes overflow 64 bits.
    #[error("{what}: its end overflows; no bundle is that large")]
    Overflow {
        /// What does not fit.
        what: String,
    },
    /// The manifest would be one that readers refuse.
    #[error(
        "no reader would accept this bundle: {}; the family's descriptor, or estream, is at \
         fault: `estream arch check` says more of the descriptor",
        at_fault(.0)
    )]
    Invalid(#[from] InvalidManifest),
}

/// What is wrong with a manifest that is being made: to compile it again would be no help.
fn at_fault(error: &InvalidManifest) -> String {
    match error {
        InvalidManifest::Invalid { at, why } => format!("its manifest is invalid at {at}: {why}"),
        other => other.to_string(),
    }
}

impl PlanError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            PlanError::Shards { .. } | PlanError::PartTooSmall { .. } => Exit::Usage,
            PlanError::Shape { .. } | PlanError::Overflow { .. } | PlanError::Invalid(_) => {
                Exit::Invalid
            }
        }
    }
}

/// An output that could not be made. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The target is one of the files the bundle is made from.
    #[error("{}: is the input {}; name another output", out.display(), input.display())]
    IsInput {
        /// The target.
        out: PathBuf,
        /// The input it is.
        input: PathBuf,
    },
    /// Something is there already.
    #[error("{}: exists; name another output, or replace the bundle with --force", out.display())]
    Exists {
        /// The target.
        out: PathBuf,
    },
    /// Something is there, and only bundles are ever replaced.
    #[error("{}: exists; move it away or name another output", out.display())]
    Taken {
        /// The target.
        out: PathBuf,
    },
    /// Something is there that is not ours to replace.
    #[error("{}: exists and is not a bundle ({why}); move it away or name another output", out.display())]
    NotABundle {
        /// The target.
        out: PathBuf,
        /// What makes it something else.
        why: String,
    },
    /// A bundle is there, and files beside it that would go with it.
    #[error(
        "{}: holds what is no part of the bundle: {}; move it away or name another output",
        out.display(),
        quoted(strays)
    )]
    Strays {
        /// The target.
        out: PathBuf,
        /// What its manifest does not name, as paths inside it.
        strays: Vec<PathBuf>,
    },
    /// The path names no file of a directory.
    #[error("{}: cannot be an output; name a new directory", out.display())]
    NoName {
        /// The target.
        out: PathBuf,
    },
    /// The file system is too small.
    #[error(
        "{}: the bundle needs {need_bytes} bytes and {free_bytes} are free; free some or write to another disk",
        path.display()
    )]
    NoSpace {
        /// A directory of the file system.
        path: PathBuf,
        /// Bytes of the bundle.
        need_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// The file system failed.
    #[error("{}: cannot {doing}: {source}; nothing was left at the output", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file to carry along is not a regular file, or changed while it was copied.
    #[error("{}: cannot be carried: {why}; replace it by a regular file that nothing writes to", path.display())]
    Carried {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A payload pushed more or fewer bytes than planned: a bug in it.
    #[error(
        "{what}: the payload has {found} bytes where {expected} are planned; this is a bug in estream, report it"
    )]
    PayloadSize {
        /// Which tensor.
        what: String,
        /// Bytes planned.
        expected: u64,
        /// Bytes pushed so far.
        found: u64,
    },
    /// The bundle could not be opened again, or is not what was written.
    #[error("the finished bundle cannot be read back: {0}; it was removed")]
    ReadBack(#[source] Box<ReadError>),
    /// The bundle was opened again, and its bytes are not what was written.
    #[error(
        "the finished bundle differs from what was written: {problem}; it was removed, check the disk"
    )]
    Corrupt {
        /// The first thing that is wrong.
        problem: String,
    },
    /// The progress callback said stop.
    #[error("cancelled; nothing was left at the output")]
    Cancelled,
}

impl OutputError {
    /// The exit code a binary should end with, unless it is ended by a signal.
    pub fn exit(&self) -> Exit {
        match self {
            OutputError::IsInput { .. }
            | OutputError::Exists { .. }
            | OutputError::Taken { .. }
            | OutputError::NotABundle { .. }
            | OutputError::Strays { .. }
            | OutputError::NoName { .. } => Exit::Usage,
            OutputError::NoSpace { .. } | OutputError::Io { .. } => Exit::Io,
            OutputError::Carried { .. } => Exit::Invalid,
            OutputError::PayloadSize { .. } => Exit::Internal,
            // A system that opens or reads no more files says nothing about their bytes.
            OutputError::ReadBack(error) if error.exit() == Exit::Io => Exit::Io,
            OutputError::ReadBack(_) | OutputError::Corrupt { .. } => Exit::Integrity,
            OutputError::Cancelled => Exit::No,
        }
    }

    pub(crate) fn io(
        path: impl Into<PathBuf>,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> OutputError {
        let path = path.into();
        move |source| OutputError::Io {
            path,
            doing,
            source,
        }
    }
}

/// The first few of `paths` as a list, quoted and escaped, and how many more there are.
fn quoted(paths: &[PathBuf]) -> String {
    const SHOWN: usize = 10;
    let mut list: Vec<String> = paths
        .iter()
        .take(SHOWN)
        .map(|path| format!("{path:?}"))
        .collect();
    if let Some(more) = paths.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        list.push(format!("and {more} more"));
    }
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_that_cannot_be_opened_again_is_not_called_corrupt() {
        let path = PathBuf::from("out/resident.bin");
        let too_many_files = ReadError::Io {
            path: path.clone(),
            doing: "open",
            source: io::Error::from_raw_os_error(24),
        };
        let shorter = ReadError::Size {
            path,
            found: 1,
            expected: 2,
        };
        let exit = |error| OutputError::ReadBack(Box::new(error)).exit();
        assert_eq!(exit(too_many_files), Exit::Io);
        assert_eq!(exit(shorter), Exit::Integrity);
    }
}
