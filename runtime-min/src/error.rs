//! Why a bundle cannot be run.

use std::io;
use std::path::PathBuf;

use estream_schemas::exit::Exit;
use estream_schemas::layout::Layout;
use estream_schemas::plan::NoConfig;

use crate::backend::BackendError;
use crate::ops::Place;
use crate::reader::ReadError;

/// A program that cannot be loaded or run, and what to do about it.
///
/// An error ends one request; the [`Model`](crate::Model) stays usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The bundle cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The backend cannot read a weight.
    #[error(
        "{}: {what} is in {layout}, which the {backend} backend does not read; \
         compile the bundle with another type for it",
        path.display()
    )]
    Layout {
        /// The bundle.
        path: PathBuf,
        /// Which weight.
        what: String,
        /// Its layout.
        layout: Layout,
        /// The backend.
        backend: &'static str,
    },
    /// The program has an operator that this version does not run.
    #[error("{}: {place}, operator {op}: {why}; this version of estream does not run it", path.display())]
    Operator {
        /// The bundle.
        path: PathBuf,
        /// Where in the program.
        place: Place,
        /// Index of the operator there.
        op: usize,
        /// What is not supported.
        why: &'static str,
    },
    /// Memory for this is not to be had.
    #[error(
        "cannot get {bytes} bytes of memory for {what}; free memory, or ask for less: fewer banks (-B), smaller groups (-G), a shorter prompt"
    )]
    Memory {
        /// What it was for.
        what: &'static str,
        /// How much was asked for.
        bytes: u64,
    },
    /// The system refused a thread.
    #[error("cannot start {threads} threads: {source}; ask for fewer")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There are no tokens.
    #[error("the prompt is empty; give at least one token id")]
    EmptyPrompt,
    /// A token id that the vocabulary does not have.
    #[error(
        "token {position} of the prompt is {id}, but the vocabulary has {vocab} ids; \
         use the tokenizer in the bundle"
    )]
    UnknownToken {
        /// Index in the prompt.
        position: usize,
        /// What is there.
        id: u32,
        /// Ids there are.
        vocab: u64,
    },
    /// More tokens than the model has positions for.
    #[error(
        "the prompt has {tokens} tokens, but the model was made for {context} positions; shorten it"
    )]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the model.
        context: u64,
    },
    /// Results were asked for where there is no token.
    #[error("there is no position {position} in a prompt of {tokens} tokens; count from 0")]
    NoSuchPosition {
        /// What was asked for.
        position: usize,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// A router's score is infinite or not a number.
    #[error(
        "layer {layer}: the router's score of expert {expert} for token {token} is not finite; \
         the weights are invalid, compile from a sound checkpoint"
    )]
    RouterNotFinite {
        /// The layer.
        layer: usize,
        /// Position of the token.
        token: usize,
        /// Whose score.
        expert: usize,
    },
    /// A logit is infinite or not a number.
    #[error(
        "the logits at position {position} are not finite; \
         the weights are invalid, compile from a sound checkpoint"
    )]
    LogitsNotFinite {
        /// Which position.
        position: usize,
    },
    /// Whoever takes the results refused them, and says what and why.
    #[error(transparent)]
    Sink(io::Error),
    /// A way of streaming that cannot be.
    #[error("{0}; choose another")]
    Stream(NoConfig),
    /// Records are to stay in memory, and a schedule cannot leave them out.
    #[error(
        "records can stay in memory where they are chosen one by one, and {schedule} does not choose so; \
         use --schedule compact or ahead, or no --pin"
    )]
    Pins {
        /// Name of the schedule.
        schedule: &'static str,
    },
    /// All that a budget leaves is to be filled, and there is none.
    #[error(
        "--pin max fills what a budget leaves, and there is none; add --budget, or name a number"
    )]
    PinsWithoutBudget,
    /// Some rows of a plan keep experts in memory and others stream them, or hot devices do as others do not.
    #[error(
        "a plan keeps all experts in memory for some prompts or devices and streams them for others, \
         which takes the memory of both; make all its rows resident, hot or not, or none"
    )]
    PartlyResident,
    /// A plan that cannot be followed.
    #[error("{}: {why}; make a plan for this bundle", path.display())]
    Plan {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A measurement that cannot be made.
    #[error("nothing can be measured so: {0}")]
    Measure(String),
    /// The caller wanted no more of it.
    #[error("the request was cancelled")]
    Cancelled,
    /// The request needs more memory than it may have.
    #[error(
        "the request can take {ceiling} bytes ({terms}), more than the budget of {budget}; \
         the least that would do is {ceiling}{}: \
         raise --budget, or stream in less room, with fewer --threads or in pieces (--chunk)",
        one_record(*least, *ceiling, *chunk)
    )]
    Budget {
        /// What it would be with an arena of one record.
        least: u64,
        /// Tokens that go through the model together, if the prompt is cut: by the plan, maybe.
        chunk: Option<usize>,
        /// What it can take.
        ceiling: u64,
        /// What it may.
        budget: u64,
        /// What makes it up.
        terms: String,
    },
    /// A bank of the arena is larger than the device lets a buffer be.
    #[error(
        "a bank of {group} records needs a buffer of {group} · {region_bytes} + 16384 = {needed} bytes for one \
         projection, more than the {limit} that the profile allows; {hint}"
    )]
    Buffer {
        /// G.
        group: usize,
        /// The largest region of a record.
        region_bytes: u64,
        /// What a buffer would take.
        needed: u64,
        /// What one may take.
        limit: u64,
        /// The smallest change that would do.
        hint: String,
    },
    /// A mistake of the program that calls.
    #[error("{0}; this is a bug in estream, report it")]
    Internal(&'static str),
    /// Operands that a checked bundle cannot have.
    #[error("{place}: {source}; this is a bug in estream, report it")]
    Backend {
        /// Where in the program.
        place: Place,
        /// What the backend said.
        #[source]
        source: BackendError,
    },
}

impl RunError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            RunError::Read(error) => error.exit(),
            RunError::EmptyPrompt
            | RunError::UnknownToken { .. }
            | RunError::TooLong { .. }
            | RunError::NoSuchPosition { .. }
            | RunError::Stream(_)
            | RunError::Pins { .. }
            | RunError::PinsWithoutBudget
            | RunError::PartlyResident
            | RunError::Measure(_)
            | RunError::Cancelled => Exit::Usage,
            RunError::Layout { .. }
            | RunError::Operator { .. }
            | RunError::Memory { .. }
            | RunError::Budget { .. }
            | RunError::Buffer { .. }
            | RunError::Threads { .. } => Exit::CannotRun,
            RunError::RouterNotFinite { .. }
            | RunError::LogitsNotFinite { .. }
            | RunError::Plan { .. } => Exit::Invalid,
            RunError::Sink(error) => match error.kind() {
                io::ErrorKind::AlreadyExists | io::ErrorKind::InvalidFilename => Exit::Usage,
                _ => Exit::Io,
            },
            RunError::Backend { .. } | RunError::Internal(_) => Exit::Internal,
        }
    }

    /// What `source` means at `place`, whose first row is at position `first`.
    pub(crate) fn backend(place: Place, first: usize, source: BackendError) -> RunError {
        match (place, source) {
            (Place::Layer(layer), BackendError::NotFinite { token, expert }) => {
                RunError::RouterNotFinite {
                    layer,
                    token: first + token,
                    expert,
                }
            }
            (place, source) => RunError::Backend { place, source },
        }
    }
}

/// What to ask for to stream with room for one record, and what that takes, if it is less.
fn one_record(least: u64, ceiling: u64, chunk: Option<usize>) -> String {
    let chunk = chunk.map_or(String::new(), |tokens| format!(" --chunk {tokens}"));
    match least < ceiling {
        true => format!(
            ", and with room for one record (--schedule ahead -G 1 -Q 1 -B 1 --pin 0{chunk}, no --plan) {least}"
        ),
        false => String::new(),
    }
}

/// A size from a bundle as an index; a size beyond the address space is memory
/// that is not to be had.
pub(crate) fn index(what: &'static str, size: u64) -> Result<usize, RunError> {
    usize::try_from(size).map_err(|_| RunError::Memory { what, bytes: size })
}

/// `len` zeros, or an error instead of an abort.
pub(crate) fn zeros<T: Clone + Default>(
    what: &'static str,
    len: usize,
) -> Result<Vec<T>, RunError> {
    let mut out = Vec::new();
    resize(what, &mut out, len)?;
    Ok(out)
}

/// Makes `out` of `len` elements, of which new ones are zero.
pub(crate) fn resize<T: Clone + Default>(
    what: &'static str,
    out: &mut Vec<T>,
    len: usize,
) -> Result<(), RunError> {
    let more = len.saturating_sub(out.len());
    out.try_reserve_exact(more).map_err(|_| RunError::Memory {
        what,
        bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
    })?;
    out.resize(len, T::default());
    Ok(())
}
