//! What a command line asks of a model, and the answer.
//!
//! Both binaries run a prompt the same way; they differ in where its ids come from
//! and in what they can print beside an id.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::Serialize;

use crate::output::{LogSoftmax, top};
use crate::stream::TraceFile;
use crate::tensor_file::TensorFile;
use crate::{Model, Outcome, Positions, Request, RunError, Sink};

/// What to run and what to report.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens whose probabilities after the prompt are wanted.
    pub continuation: Option<Vec<u32>>,
    /// Report every position rather than the last.
    pub all_positions: bool,
    /// Most likely tokens to report at a position.
    pub top: usize,
    /// Where to write the logits of the reported positions.
    pub logits: Option<PathBuf>,
    /// Where to write the rows the head reads.
    pub hidden: Option<PathBuf>,
    /// Where to write what happened when, for ui.perfetto.dev.
    pub timeline: Option<PathBuf>,
    /// Tokens that go through the model together.
    pub chunk: Option<NonZeroUsize>,
    /// The device is hot.
    pub hot: bool,
}

/// What was asked for.
#[derive(Debug, Default, Serialize)]
pub struct Answer {
    /// One a reported position; empty if no likely tokens were asked for.
    pub positions: Vec<Position>,
    /// Probabilities of the continuation, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Continuation>,
}

/// The most likely tokens after a position, best first.
#[derive(Debug, Serialize)]
pub struct Position {
    /// Counted from 0.
    pub position: usize,
    /// The tokens.
    pub top: Vec<Token>,
}

/// A token and how likely it is.
#[derive(Debug, Serialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
}

/// Log-probabilities of given tokens, each after all before it.
#[derive(Debug, Default, Serialize)]
pub struct Continuation {
    /// The tokens.
    pub tokens: Vec<Token>,
    /// Of all of them together.
    pub total_logprob: f64,
}

impl Ask {
    /// Whether two results go to the same file, which a command line refuses.
    pub fn names_a_file_twice(
        logits: &Option<PathBuf>,
        hidden: &Option<PathBuf>,
        timeline: &Option<PathBuf>,
    ) -> bool {
        let same = |a: &Option<PathBuf>, b: &Option<PathBuf>| a.is_some() && a == b;
        same(logits, hidden) || same(logits, timeline) || same(hidden, timeline)
    }

    /// Everything that goes through the model: the prompt, then the continuation.
    pub fn tokens(&self) -> Vec<u32> {
        let continuation = self.continuation.iter().flatten();
        self.prompt.iter().chain(continuation).copied().collect()
    }

    /// Memory that is kept of the reported positions.
    pub fn kept_bytes(&self, vocab: usize) -> u64 {
        let (_, rows) = self.positions();
        let row_bytes = size_of::<Position>() + self.top.min(vocab) * size_of::<Token>();
        (rows as u64).saturating_mul(row_bytes as u64)
    }

    fn positions(&self) -> (Positions, usize) {
        let count = self.prompt.len();
        match (&self.continuation, self.all_positions) {
            (continuation, true) => (
                Positions::All,
                count + continuation.as_ref().map_or(0, Vec::len),
            ),
            (None, false) => (Positions::Last, 1),
            // What each token of the continuation is predicted from.
            (Some(continuation), false) => {
                let first = count.saturating_sub(1);
                let chosen = (first..first + continuation.len()).collect();
                (Positions::Some(chosen), continuation.len())
            }
        }
    }

    /// Runs the prompt. The files asked for are complete when this returns, or absent.
    ///
    /// # Errors
    /// As [`Model::prefill`]; a file that cannot be written is [`RunError::Sink`], whose
    /// message names it.
    pub fn run(&self, model: &mut Model) -> Result<(Answer, Outcome), RunError> {
        if self.prompt.is_empty() {
            return Err(RunError::EmptyPrompt);
        }
        let tokens = self.tokens();
        let (positions, rows) = self.positions();
        let create = |path: &Option<PathBuf>, name, cols| {
            let path = path.as_deref();
            path.map(|path| TensorFile::create(path, name, rows, cols))
                .transpose()
                .map_err(RunError::Sink)
        };
        let timeline = self.timeline.as_deref().map(TraceFile::create).transpose();
        let timeline = timeline.map_err(RunError::Sink)?;
        let mut collect = Collect {
            tokens: &tokens,
            scored_from: self.prompt.len(),
            top: self.top,
            answer: Answer {
                positions: Vec::new(),
                continuation: self.continuation.as_ref().map(|_| Continuation::default()),
            },
            logits: create(&self.logits, "logits", model.vocab())?,
            hidden: create(&self.hidden, "hidden", model.hidden_width())?,
        };
        let request = Request {
            positions,
            hidden: self.hidden.is_some(),
            chunk: self.chunk,
            hot: self.hot,
            kept_bytes: self.kept_bytes(model.vocab()),
        };
        let outcome = model.prefill(&tokens, &request, &mut collect)?;
        for file in [collect.logits, collect.hidden].into_iter().flatten() {
            file.finish().map_err(RunError::Sink)?;
        }
        if let Some(file) = timeline {
            file.finish(&outcome.events).map_err(RunError::Sink)?;
        }
        Ok((collect.answer, outcome))
    }
}

/// Takes rows of results apart as they come.
struct Collect<'a> {
    tokens: &'a [u32],
    /// Index of the first token of the continuation.
    scored_from: usize,
    top: usize,
    answer: Answer,
    logits: Option<TensorFile>,
    hidden: Option<TensorFile>,
}

impl Sink for Collect<'_> {
    fn logits(&mut self, position: usize, row: &[f32]) -> io::Result<()> {
        if let Some(file) = &mut self.logits {
            file.row(row)?;
        }
        let next = position + 1;
        let scored = self.answer.continuation.as_mut();
        let scored = scored.filter(|_| next >= self.scored_from);
        let scored = scored.zip(self.tokens.get(next).copied());
        if self.top == 0 && scored.is_none() {
            return Ok(());
        }
        let norm = LogSoftmax::of(row);
        let token = |id, logit| Token {
            id,
            logit,
            logprob: norm.log_prob(logit),
        };
        if let Some((continuation, id)) = scored {
            // The model has checked that every id is one of the vocabulary.
            let token = token(id, row[id as usize]);
            continuation.total_logprob += token.logprob;
            continuation.tokens.push(token);
        }
        if self.top > 0 {
            let best = top(row, self.top).into_iter();
            self.answer.positions.push(Position {
                position,
                top: best.map(|best| token(best.id, best.logit)).collect(),
            });
        }
        Ok(())
    }

    fn hidden(&mut self, _position: usize, row: &[f32]) -> io::Result<()> {
        self.hidden.as_mut().map_or(Ok(()), |file| file.row(row))
    }
}
