//! What a command line asks of a model, and the answer in numbers.
//!
//! Both binaries run a prompt the same way; they differ in where its ids come from
//! and in what they can print beside an id.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use estream_schemas::plan::StreamConfig;
use serde::Serialize;

use crate::output::{LogSoftmax, top};
use crate::stream::{Doing, Overlap};
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
    /// Tokens that go through the model together.
    pub chunk: Option<NonZeroUsize>,
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

/// What a run took.
#[derive(Debug, Serialize)]
pub struct Stats {
    /// Name of the backend.
    pub backend: &'static str,
    /// Threads it computed with.
    pub threads: usize,
    /// Pieces the prompt was cut into, each of which went through the experts.
    pub chunks: usize,
    /// How experts were streamed, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamStats>,
    /// Why so.
    pub plan: String,
    /// Records that had routes.
    pub records_run: u64,
    /// Records that had none.
    pub records_skipped: u64,
    /// Time to read the bundle, in microseconds.
    pub load_us: u64,
    /// Time of the pass, in microseconds.
    pub prefill_us: u64,
    /// What makes up the memory ceiling.
    pub memory: Vec<Term>,
    /// The ceiling.
    pub memory_bytes: u64,
}

/// What streaming took.
#[derive(Debug, Serialize)]
pub struct StreamStats {
    /// The schedule and its numbers.
    #[serde(flatten)]
    pub config: StreamConfig,
    /// Records of each layer that stay in memory.
    pub pinned: usize,
    /// How files were read.
    pub io: &'static str,
    /// Reads issued.
    pub reads: usize,
    /// Records they brought.
    pub records_read: usize,
    /// Records read and not executed.
    pub records_wasted: usize,
    /// Times the executor waited for a record.
    pub waits: usize,
    /// How long it waited, in microseconds.
    pub wait_us: u64,
    /// Bytes read, over the bytes of the records that had routes.
    pub read_ratio: f64,
    /// T_io: some read was outstanding, in microseconds.
    pub io_us: u64,
    /// T_exec: the executor computed, in microseconds.
    pub exec_us: u64,
    /// The part of it that ran experts.
    pub experts_us: u64,
    /// 1 − max(T_io, T_exec) / T_total.
    pub bubble: f64,
    /// |T_io ∩ T_exec| / T_io.
    pub overlap: f64,
}

impl StreamStats {
    fn new(config: StreamConfig, model: &Model, outcome: &Outcome) -> StreamStats {
        let of = |doing| {
            let events = outcome.events.iter();
            events.filter(move |event| event.doing == doing)
        };
        let records_read: usize = of(Doing::Read).map(|event| event.records).sum();
        let total_ns = u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX);
        let times = Overlap::of(&outcome.events, total_ns);
        let run = usize::try_from(outcome.records_run).unwrap_or(usize::MAX);
        let from_flash = outcome.records_run - outcome.records_pinned;
        let from_flash = usize::try_from(from_flash).unwrap_or(usize::MAX);
        let span = |doing| {
            let spans = of(doing).map(|event| event.end_ns - event.start_ns);
            spans.sum::<u64>()
        };
        StreamStats {
            config,
            pinned: model.pinned(),
            io: model.io_mode().name(),
            reads: of(Doing::Read).count(),
            records_read,
            records_wasted: records_read.saturating_sub(from_flash),
            waits: of(Doing::Wait).count(),
            wait_us: span(Doing::Wait) / 1000,
            read_ratio: records_read as f64 / run.max(1) as f64,
            io_us: times.io_ns / 1000,
            exec_us: times.exec_ns / 1000,
            experts_us: span(Doing::Experts) / 1000,
            bubble: times.bubble(),
            overlap: times.overlap(),
        }
    }
}

/// One term of the memory ceiling.
#[derive(Debug, Serialize)]
pub struct Term {
    /// What takes it.
    pub term: &'static str,
    /// How much.
    pub bytes: u64,
}

impl Stats {
    /// The statistics of a pass over a model that took `load` to read, streamed as it was
    /// because of `plan`.
    pub fn new(model: &Model, outcome: &Outcome, load: Duration, plan: &str) -> Stats {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (backend, threads) = model.backend();
        let terms = outcome.memory.terms().into_iter();
        Stats {
            backend,
            threads,
            chunks: outcome.chunks,
            stream: outcome
                .stream
                .map(|config| StreamStats::new(config, model, outcome)),
            plan: plan.to_owned(),
            records_run: outcome.records_run,
            records_skipped: outcome.records_skipped,
            load_us: micros(load),
            prefill_us: micros(outcome.elapsed),
            memory: terms.map(|(term, bytes)| Term { term, bytes }).collect(),
            memory_bytes: outcome.memory.total_bytes(),
        }
    }
}

impl Ask {
    /// Everything that goes through the model: the prompt, then the continuation.
    pub fn tokens(&self) -> Vec<u32> {
        let continuation = self.continuation.iter().flatten();
        self.prompt.iter().chain(continuation).copied().collect()
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
        };
        let outcome = model.prefill(&tokens, &request, &mut collect)?;
        for file in [collect.logits, collect.hidden].into_iter().flatten() {
            file.finish().map_err(RunError::Sink)?;
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
