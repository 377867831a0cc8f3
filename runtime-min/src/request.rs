//! What a caller asks of a model, and who hears of the results.

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use estream_schemas::plan::{PlanRow, StreamConfig};

use crate::backend::Routes;
use crate::error::RunError;
use crate::memory::Memory;
use crate::ops::Place;
use crate::stream::{Event, LayerShape};

/// Positions whose logits (and hidden states) are computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// The last one.
    #[default]
    Last,
    /// Every one, ascending.
    All,
    /// These, in this order, counted from 0.
    Some(Vec<usize>),
}

/// What to compute for a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Where.
    pub positions: Positions,
    /// Whether [`Sink::hidden`] is called too.
    pub hidden: bool,
    /// Tokens that go through the model together; all of them if `None`. Results do not
    /// depend on it. Fewer take less memory, and each chunk goes through the experts again.
    pub chunk: Option<NonZeroUsize>,
    /// Memory that the sink takes until the request ends, for the ceiling.
    pub kept_bytes: u64,
    /// The device is hot: experts are streamed as the plan says for that, if it says so. Results do not
    /// depend on it.
    pub hot: bool,
}

/// Which column of its plan a request follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// The device is not hot, or experts do not stream.
    #[default]
    Cold,
    /// It is hot, and the plan has a column for that.
    Hot,
    /// It is hot, and there is no column for that; so the request does as if it were not.
    NoHot,
}

impl Column {
    pub(crate) fn of(row: Option<&PlanRow>, is_hot: bool) -> Column {
        match row.filter(|_| is_hot).map(|row| row.hot) {
            None => Column::Cold,
            Some(Some(_)) => Column::Hot,
            Some(None) => Column::NoHot,
        }
    }

    /// Why experts are streamed so: what [`Chosen::why`](crate::Chosen::why) says, with the column.
    pub fn why(self, chosen: &str) -> String {
        let column = match self {
            Column::Cold => "",
            Column::Hot => ", hot",
            Column::NoHot => ", no hot column",
        };
        format!("{chosen}{column}")
    }
}

/// Whether `ids` can be a prompt of a program with this `vocab` and `context`.
///
/// [`Model::prefill`](crate::Model::prefill) checks too; a program that loads a model for one
/// prompt learns here, before it reads gigabytes, that it need not.
///
/// # Errors
/// [`RunError::EmptyPrompt`], [`RunError::TooLong`] or [`RunError::UnknownToken`].
pub fn check_prompt(ids: &[u32], vocab: u64, context: u64) -> Result<(), RunError> {
    let tokens = ids.len();
    if tokens == 0 {
        return Err(RunError::EmptyPrompt);
    }
    if tokens as u64 > context {
        return Err(RunError::TooLong { tokens, context });
    }
    match ids.iter().position(|id| u64::from(*id) >= vocab) {
        Some(position) => Err(RunError::UnknownToken {
            position,
            id: ids[position],
            vocab,
        }),
        None => Ok(()),
    }
}

/// Takes results as they are computed, one row a chosen position, chunk after chunk and within
/// one in the order of [`Positions`]. An error ends the request.
pub trait Sink {
    /// The logits at `position`, one a token of the vocabulary; all are finite.
    ///
    /// # Errors
    /// Whatever the caller wants to end the request with, see [`RunError::Sink`](crate::RunError).
    fn logits(&mut self, position: usize, row: &[f32]) -> io::Result<()>;

    /// The input of the head at `position`, before [`Sink::logits`] of the same position.
    ///
    /// # Errors
    /// As [`Sink::logits`].
    fn hidden(&mut self, _position: usize, _row: &[f32]) -> io::Result<()> {
        Ok(())
    }
}

/// Watches a pass; for comparing it with a reference and for recording routes.
pub trait Observer {
    /// Operator `op` of `place` has written `register`: `rows` holds all tokens of the
    /// chunk, row-major.
    /// Called before the epilogue only, whose rows are the sink's.
    fn after_op(&mut self, _place: Place, _op: usize, _register: &str, _rows: &[f32]) {}

    /// The router of `layer` has chosen.
    fn routes(&mut self, _layer: usize, _routes: &Routes) {}
}

/// Nobody watches.
impl Observer for () {}

/// What a finished request took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Rows the sink got.
    pub rows: usize,
    /// Pieces the prompt went through the model in.
    pub chunks: usize,
    /// Expert records that had routes and were run.
    pub records_run: u64,
    /// Those of them that stay in memory while others stream.
    pub records_pinned: u64,
    /// Expert records without routes.
    pub records_skipped: u64,
    /// The most memory it could take, by term.
    pub memory: Memory,
    /// How experts were streamed, if they were.
    pub stream: Option<StreamConfig>,
    /// Which column of the plan that is.
    pub column: Column,
    /// The layers that have experts.
    pub layers: Vec<LayerShape>,
    /// What happened when.
    pub events: Vec<Event>,
    /// From the checked prompt to the last row.
    pub elapsed: Duration,
}
