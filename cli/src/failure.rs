//! What went wrong, and the exit code it has.

use std::convert::Infallible;
use std::io;

use anyhow::Error;
use estream_compiler::compile::CompileError;
use estream_compiler::ingest::IngestError;
use estream_compiler::ingest::imatrix::ImatrixError;
use estream_packer::{OutputError, PackError, PlanError, RelayoutError, UnpackError};
use estream_runtime::reader::ReadError;
use estream_runtime::{NoBackend, RunError};
use estream_schemas::exit::Exit;

/// An error on its way out of the process.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What the process exits with.
    pub(crate) exit: Exit,
    /// What stderr says; nothing, if the answer on stdout says it all.
    pub(crate) error: Option<Error>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: impl Into<Error>) -> Failure {
        Failure {
            exit,
            error: Some(error.into()),
        }
    }

    /// The user asked for something that cannot be meant.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, Error::msg(message.into()))
    }

    /// The machine failed.
    pub(crate) fn io(error: io::Error) -> Failure {
        Failure::new(Exit::Io, error)
    }

    /// The answer on stdout says it all.
    pub(crate) fn silent(exit: Exit) -> Failure {
        Failure { exit, error: None }
    }
}

macro_rules! failure_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::new(error.exit(), error)
            }
        }
    )*};
}

failure_from!(
    IngestError,
    ImatrixError,
    CompileError,
    ReadError,
    PlanError,
    OutputError,
    RelayoutError,
    UnpackError,
    RunError,
    NoBackend
);

impl From<PackError<Infallible>> for Failure {
    fn from(error: PackError<Infallible>) -> Failure {
        Failure::new(error.exit(|never| match *never {}), error)
    }
}

impl From<PackError<CompileError>> for Failure {
    fn from(error: PackError<CompileError>) -> Failure {
        Failure::new(error.exit(CompileError::exit), error)
    }
}

impl From<PackError<RelayoutError>> for Failure {
    fn from(error: PackError<RelayoutError>) -> Failure {
        Failure::new(error.exit(RelayoutError::exit), error)
    }
}
