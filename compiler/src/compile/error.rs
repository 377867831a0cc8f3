//! Why a checkpoint cannot be compiled.

use std::io;
use std::path::PathBuf;

use estream_schemas::exit::Exit;

use crate::arch::ArchError;
use crate::ingest::IngestError;
use crate::layout::LayoutError;
use crate::lower::LowerError;
use crate::problem::problem_list;
use crate::quant::QuantError;
use crate::recipe::RecipeError;

/// Why a checkpoint cannot be compiled as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The source cannot be read.
    #[error(transparent)]
    Ingest(#[from] IngestError),
    /// No family, or a descriptor that is not one.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// The source is not what its family's descriptor says.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The recipe cannot be used.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// Weights that cannot have the types or the cut that were asked for.
    #[error("{}: recipe {recipe} cannot be followed: {}", path.display(), problem_list(problems))]
    Types {
        /// The checkpoint.
        path: PathBuf,
        /// The recipe.
        recipe: String,
        /// One line each.
        problems: Vec<String>,
    },
    /// Something the user should know, and asked to be told as an error.
    #[error("{}: refused by --strict: {}", path.display(), problem_list(notices))]
    Strict {
        /// The checkpoint.
        path: PathBuf,
        /// One line each.
        notices: Vec<String>,
    },
    /// A value that its new type cannot hold.
    #[error("{}: {tensor:?}, {}: {source}", path.display(), place(position))]
    Value {
        /// The checkpoint.
        path: PathBuf,
        /// The source tensor.
        tensor: String,
        /// Where it is in that tensor, an index for each dimension, the slowest first.
        position: Vec<u64>,
        /// What is wrong with it.
        source: QuantError,
    },
    /// A layout that does not fit: a bug of ours.
    #[error("internal error: {0}")]
    Layout(#[from] LayoutError),
    /// Whoever took the bytes failed.
    #[error("cannot write weights: {0}")]
    Sink(#[from] io::Error),
}

impl CompileError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            CompileError::Ingest(error) | CompileError::Lower(LowerError::Ingest(error)) => {
                error.exit()
            }
            CompileError::Arch(ArchError::Descriptor { .. } | ArchError::OtherFamily { .. })
            | CompileError::Lower(LowerError::Descriptor { .. })
            | CompileError::Recipe(_)
            | CompileError::Types { .. } => Exit::Usage,
            CompileError::Arch(ArchError::UnknownFamily { .. })
            | CompileError::Lower(LowerError::Problems { .. })
            | CompileError::Strict { .. }
            | CompileError::Value { .. } => Exit::Invalid,
            CompileError::Layout(_) => Exit::Internal,
            CompileError::Sink(_) => Exit::Io,
        }
    }
}

/// A position in a tensor, in words; counted from 0.
fn place(position: &[u64]) -> String {
    match position {
        [] => "its only element".to_owned(),
        [element] => format!("element {element}"),
        [row, column] => format!("row {row}, column {column}"),
        [outer @ .., row, column] => format!("matrix {outer:?}, row {row}, column {column}"),
    }
}
