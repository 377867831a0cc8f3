//! One runtime: who may use it when, and what it keeps of a request.
//!
//! 1. [`Runtime::open`] reads the weights.
//! 2. [`Runtime::with`] gives one caller at a time the [`Session`]; others wait.
//! 3. [`Runtime::cancel`] waits for nobody, and means the request that runs, if one does.
//! 4. [`Runtime::close`] cancels, waits for the caller who is in, and frees everything; whoever
//!    waited then, or comes later, is told that the handle is none.

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use estream_runtime::reader::{BundleReader, Verify};
use estream_runtime::stats::Stats;
use estream_runtime::{
    Cancel, Choice, Chosen, IoMode, LoadOptions, Model, Positions, Request, RunError, Sink,
    check_prompt,
};

use crate::abi::{
    ESTREAM_CANNOT_RUN, ESTREAM_INTERNAL, ESTREAM_LOG_ERROR, ESTREAM_LOG_INFO, ESTREAM_LOG_WARNING,
};
use crate::failure::Failure;
use crate::report;

/// What a caller asks for when it opens a bundle.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) path: PathBuf,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) choice: Choice,
    pub(crate) budget_bytes: Option<u64>,
    pub(crate) expected: Option<(usize, Option<NonZeroUsize>)>,
    pub(crate) verify: Verify,
    pub(crate) log: Log,
}

/// Takes a level and a line.
type Say = dyn Fn(u32, &str) + Send;

/// Where lines for the caller's log go.
pub(crate) struct Log(pub(crate) Box<Say>);

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// A runtime that several threads may hold.
#[derive(Debug)]
pub(crate) struct Runtime {
    cancel: Arc<Cancel>,
    /// Never held for long.
    state: Mutex<State>,
    /// None once it is closed; poisoned once a call has panicked.
    session: Mutex<Option<Session>>,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    closing: bool,
}

impl Runtime {
    /// Opens a bundle and reads its weights.
    pub(crate) fn open(open: Open) -> Result<Runtime, Failure> {
        let result = Session::open(&open);
        if let Err(failure) = &result {
            (open.log.0)(ESTREAM_LOG_ERROR, &failure.message);
        }
        let parts = result?;
        let session = Session::new(open, parts);
        Ok(Runtime {
            cancel: session.model.canceller(),
            state: Mutex::default(),
            session: Mutex::new(Some(session)),
        })
    }

    /// Lets `work` use the session, alone.
    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut Session) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut session = self.session.lock().map_err(|_| {
            let text = "a call before ended in a bug of estream; close the handle";
            Failure::new(ESTREAM_INTERNAL, text)
        })?;
        let session = session.as_mut().filter(|_| !self.state().closing);
        let session = session.ok_or_else(Failure::no_handle)?;
        let result = work(session);
        if let Err(failure) = &result {
            session.say(ESTREAM_LOG_ERROR, &failure.message);
        }
        result
    }

    /// Runs a prompt; the session then holds its results, or none if it fails.
    pub(crate) fn prefill(&self, ids: &[u32], wanted: Wanted) -> Result<(), Failure> {
        self.with(|session| {
            let _running = Running::begin(self)?;
            session.prefill(ids, wanted)
        })
    }

    /// Ends the request that runs.
    pub(crate) fn cancel(&self) -> Result<(), Failure> {
        match &*self.state() {
            State { running: true, .. } => {
                self.cancel.cancel();
                Ok(())
            }
            _ => Err(Failure::no("no request runs")),
        }
    }

    /// Ends the request that runs, waits for its end, and frees everything.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state();
            state.closing = true;
            if state.running {
                self.cancel.cancel();
            }
        }
        let session = self.session.lock();
        let session = session.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(session) = session {
            session.say(ESTREAM_LOG_INFO, "closed");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While a request runs, also if it panics.
struct Running<'a>(&'a Runtime);

impl<'a> Running<'a> {
    fn begin(runtime: &'a Runtime) -> Result<Running<'a>, Failure> {
        let mut state = runtime.state();
        if state.closing {
            return Err(Failure::no_handle());
        }
        // What was meant for a request before is not for this one.
        runtime.cancel.reset();
        state.running = true;
        Ok(Running(runtime))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state().running = false;
    }
}

/// What a caller asks of a prompt.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) positions: Positions,
    pub(crate) hidden: bool,
    pub(crate) chunk: Option<NonZeroUsize>,
    pub(crate) hot: bool,
}

/// An open model, and the results of its last request.
#[derive(Debug)]
pub(crate) struct Session {
    reader: BundleReader,
    model: Model,
    chosen: Chosen,
    load: Duration,
    budget_bytes: Option<u64>,
    log: Log,
    results: Option<Results>,
}

#[derive(Debug)]
struct Results {
    rows: Rows,
    /// JSON.
    stats: String,
}

impl Session {
    fn open(open: &Open) -> Result<(BundleReader, Chosen, Model, Duration), Failure> {
        let reader = BundleReader::open(&open.path)?;
        let chosen = open.choice.resolve(&reader)?;
        let start = Instant::now();
        let options = LoadOptions {
            verify: open.verify,
            threads: open.threads,
            streaming: chosen.streaming.clone(),
            budget_bytes: open.budget_bytes,
            expected: open.expected.map(|(tokens, chunk)| {
                let chunk = chunk.or_else(|| chunk_of(&chosen, tokens));
                (tokens, chunk)
            }),
            ..LoadOptions::default()
        };
        let model = Model::load(&reader, &options)?;
        Ok((reader, chosen, model, start.elapsed()))
    }

    fn new(
        open: Open,
        (reader, chosen, model, load): (BundleReader, Chosen, Model, Duration),
    ) -> Session {
        let session = Session {
            reader,
            model,
            chosen,
            load,
            budget_bytes: open.budget_bytes,
            log: open.log,
            results: None,
        };
        session.say(
            ESTREAM_LOG_INFO,
            &format!(
                "{}: opened bundle {} in {} ms, streaming: {}",
                session.reader.path().display(),
                session.reader.identity(),
                load.as_millis(),
                session.chosen.why
            ),
        );
        if session.chosen.streaming.is_some() && session.model.io_mode() == IoMode::Buffered {
            let text =
                "the file system refuses direct reads: experts are read through the page cache";
            session.say(ESTREAM_LOG_WARNING, text);
        }
        session
    }

    fn say(&self, level: u32, line: &str) {
        (self.log.0)(level, line);
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// What would be done for a prompt of `tokens` tokens by the plan called `name`, or as the
    /// runtime was opened; in JSON.
    pub(crate) fn plan(&self, name: Option<String>, tokens: usize) -> Result<String, Failure> {
        let as_opened = name.is_none();
        let named = name.map(|name| {
            let choice = Choice {
                plan: Some(name),
                ..Choice::default()
            };
            choice.resolve(&self.reader)
        });
        let named = named.transpose()?;
        let chosen = named.as_ref().unwrap_or(&self.chosen);
        let memory_bytes = as_opened.then(|| {
            let memory = self.model.memory(tokens, chunk_of(chosen, tokens));
            memory.total_bytes()
        });
        report::plan(&self.reader, chosen, tokens, memory_bytes)
    }

    fn prefill(&mut self, ids: &[u32], wanted: Wanted) -> Result<(), Failure> {
        self.results = None;
        let (vocab, tokens) = (self.model.vocab(), ids.len());
        check_prompt(ids, vocab as u64, self.model.context())?;
        let positions = ascending(wanted.positions, tokens)?;
        let chunk = wanted.chunk.or_else(|| chunk_of(&self.chosen, tokens));
        let widths = (vocab, wanted.hidden.then(|| self.model.hidden_width()));
        let result_bytes = Rows::bytes(positions.len(), widths);
        if let Some(budget) = self.budget_bytes {
            let ceiling = self.model.memory(tokens, chunk).total_bytes();
            if ceiling.saturating_add(result_bytes) > budget {
                let text = format!(
                    "the request can take {ceiling} bytes and its results {result_bytes}, more than the \
                     budget of {budget}; ask for fewer positions, or use chunks"
                );
                return Err(Failure::new(ESTREAM_CANNOT_RUN, text));
            }
        }
        let mut rows = Rows::new(&positions, widths, self.model.canceller())?;
        let request = Request {
            positions: Positions::Some(positions),
            hidden: wanted.hidden,
            chunk,
            kept_bytes: result_bytes,
            hot: wanted.hot,
        };
        let outcome = self.model.prefill(ids, &request, &mut rows);
        let outcome = outcome.map_err(|error| match error {
            // The rows refuse for no other reason.
            RunError::Sink(_) => RunError::Cancelled,
            error => error,
        })?;
        if outcome.chunks > 1 {
            let chunks = outcome.chunks;
            let text = format!("the prompt was cut: it went through the experts {chunks} times");
            self.say(ESTREAM_LOG_WARNING, &text);
        }
        self.say(
            ESTREAM_LOG_INFO,
            &format!(
                "prefill of {tokens} tokens took {} ms, {} records run ({})",
                outcome.elapsed.as_millis(),
                outcome.records_run,
                outcome.column.why(&self.chosen.why)
            ),
        );
        let stats = Stats::new(&self.model, &outcome, self.load, &self.chosen.why);
        self.results = Some(Results {
            stats: report::stats(&self.reader, &outcome, result_bytes, stats)?,
            rows,
        });
        Ok(())
    }

    fn results(&self) -> Result<&Results, Failure> {
        let results = self.results.as_ref();
        results.ok_or_else(|| Failure::usage("there are no results: no request has ended well"))
    }

    /// The logits at a position that was wanted.
    pub(crate) fn logits(&self, position: usize) -> Result<&[f32], Failure> {
        let rows = &self.results()?.rows;
        rows.row(position, &rows.logits, rows.vocab)
    }

    /// The row the head read at a position that was wanted.
    pub(crate) fn hidden(&self, position: usize) -> Result<&[f32], Failure> {
        let rows = &self.results()?.rows;
        let width = rows.hidden_width.ok_or_else(|| {
            Failure::usage("the request did not ask for hidden rows: set `hidden` of it")
        })?;
        rows.row(position, &rows.hidden, width)
    }

    /// What the last request took, in JSON.
    pub(crate) fn stats(&self) -> Result<&str, Failure> {
        Ok(&self.results()?.stats)
    }
}

fn chunk_of(chosen: &Chosen, tokens: usize) -> Option<NonZeroUsize> {
    let row = chosen.streaming.as_ref()?.row(tokens);
    let chunk = usize::try_from(row.chunk?).unwrap_or(usize::MAX);
    NonZeroUsize::new(chunk)
}

/// The positions of a prompt of `tokens` tokens, ascending, each once.
fn ascending(positions: Positions, tokens: usize) -> Result<Vec<usize>, RunError> {
    let mut list = match positions {
        Positions::Last => vec![tokens - 1],
        Positions::All => (0..tokens).collect(),
        Positions::Some(list) => list,
    };
    list.sort_unstable();
    list.dedup();
    match list.last() {
        Some(&position) if position >= tokens => Err(RunError::NoSuchPosition { position, tokens }),
        _ => Ok(list),
    }
}

/// Rows by position.
#[derive(Debug)]
struct Rows {
    /// Ascending.
    positions: Vec<usize>,
    vocab: usize,
    hidden_width: Option<usize>,
    logits: Vec<f32>,
    hidden: Vec<f32>,
    cancel: Arc<Cancel>,
}

impl Rows {
    /// Bytes of `rows` rows.
    fn bytes(rows: usize, (vocab, hidden): (usize, Option<usize>)) -> u64 {
        let row = (vocab as u64).saturating_add(hidden.unwrap_or(0) as u64);
        row.saturating_mul(size_of::<f32>() as u64)
            .saturating_mul(rows as u64)
    }

    /// Room for the rows at `positions`.
    fn new(
        positions: &[usize],
        (vocab, hidden_width): (usize, Option<usize>),
        cancel: Arc<Cancel>,
    ) -> Result<Rows, RunError> {
        let room = |width: usize| {
            let mut room = Vec::new();
            let len = positions.len().checked_mul(width);
            len.and_then(|len| room.try_reserve_exact(len).ok())
                .map(|()| room)
                .ok_or_else(|| RunError::Memory {
                    what: "results",
                    bytes: Rows::bytes(positions.len(), (width, None)),
                })
        };
        Ok(Rows {
            logits: room(vocab)?,
            hidden: room(hidden_width.unwrap_or(0))?,
            positions: positions.to_vec(),
            vocab,
            hidden_width,
            cancel,
        })
    }

    fn row<'a>(&self, position: usize, all: &'a [f32], width: usize) -> Result<&'a [f32], Failure> {
        let at = self.positions.binary_search(&position).ok();
        let row = at.and_then(|at| all.chunks_exact(width).nth(at));
        row.ok_or_else(|| {
            Failure::usage(format!(
                "there are no results at position {position}: the request asked for others"
            ))
        })
    }
}

/// Positions ascend, and so chunks do, so rows come in order.
impl Sink for Rows {
    fn logits(&mut self, _: usize, row: &[f32]) -> io::Result<()> {
        if self.cancel.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.logits.extend_from_slice(row);
        Ok(())
    }

    fn hidden(&mut self, _: usize, row: &[f32]) -> io::Result<()> {
        self.hidden.extend_from_slice(row);
        Ok(())
    }
}
