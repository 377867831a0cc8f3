//! Why a bundle cannot be read.

use std::io;
use std::path::PathBuf;

use estream_schemas::digest::Digest;
use estream_schemas::exit::Exit;
use estream_schemas::manifest::MANIFEST_FILE;
use estream_schemas::valid::InvalidManifest;

/// A bundle that cannot be opened or read, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file system failed.
    #[error("{}: cannot {doing}: {source}; check the path, its permissions and the disk", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is nothing at the path that was named.
    #[error("{}: does not exist; check the path", path.display())]
    NotFound {
        /// What was named.
        path: PathBuf,
    },
    /// The directory holds no manifest, or the path is no directory.
    #[error("{}: not a bundle ({why}); name a directory with a {MANIFEST_FILE}", path.display())]
    NotABundle {
        /// What was named.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// The manifest is not one this version can use.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: InvalidManifest,
    },
    /// The manifest names a file that is not there.
    #[error("{}: missing, but the manifest names it; copy or compile the bundle again", path.display())]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// A symbolic link, a directory, a pipe or a device.
    #[error("{}: not a regular file, and a bundle holds nothing else; replace it by the file itself", path.display())]
    NotRegular {
        /// Which file.
        path: PathBuf,
    },
    /// The file is shorter or longer than the manifest says.
    #[error(
        "{}: has {found} bytes, the manifest says {expected}; copy or compile the bundle again",
        path.display()
    )]
    Size {
        /// Which file.
        path: PathBuf,
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// The file ended early: it shrank after it was opened.
    #[error(
        "{}: truncated: it ends within the {bytes} bytes at {offset}; let nothing write to a bundle in use",
        path.display()
    )]
    Truncated {
        /// Which file.
        path: PathBuf,
        /// Where the read started.
        offset: u64,
        /// Bytes that were wanted.
        bytes: u64,
    },
    /// The file system failed within a file.
    #[error(
        "{}: cannot read the {bytes} bytes at {offset}: {source}; check the disk",
        path.display()
    )]
    Failed {
        /// Which file.
        path: PathBuf,
        /// Where the read started.
        offset: u64,
        /// Bytes that were wanted.
        bytes: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The name leads to another file than the one that was opened.
    #[error("{}: replaced since it was opened; let nothing write to a bundle in use", path.display())]
    Replaced {
        /// Which file.
        path: PathBuf,
    },
    /// Bytes do not have the digest the manifest states.
    #[error(
        "{}: {what} has digest {found}, the manifest says {expected}; copy or compile the bundle again",
        path.display()
    )]
    Integrity {
        /// Which file.
        path: PathBuf,
        /// Which part of it.
        what: String,
        /// The manifest's digest.
        expected: Digest,
        /// The digest of what was read.
        found: Digest,
    },
    /// The caller asked for something the bundle does not have: a bug in the caller.
    #[error("{}: there is no {what}; this is a bug in estream, report it", path.display())]
    NoSuch {
        /// The bundle.
        path: PathBuf,
        /// What was asked for.
        what: String,
    },
}

impl ReadError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            ReadError::NotFound { .. } => Exit::Usage,
            ReadError::Io { .. } | ReadError::Failed { .. } => Exit::Io,
            ReadError::Manifest {
                source: InvalidManifest::Unsupported { .. },
                ..
            } => Exit::CannotRun,
            ReadError::NotABundle { .. }
            | ReadError::Manifest { .. }
            | ReadError::Missing { .. }
            | ReadError::NotRegular { .. }
            | ReadError::Size { .. }
            | ReadError::Truncated { .. }
            | ReadError::Replaced { .. } => Exit::Invalid,
            ReadError::Integrity { .. } => Exit::Integrity,
            ReadError::NoSuch { .. } => Exit::Internal,
        }
    }
}
