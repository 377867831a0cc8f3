//! A bundle in memory, ready to run.

use std::io;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use estream_schemas::exit::Exit;

use crate::backend::cpu::Simd;
use crate::backend::{Backend, CpuBackend};
use crate::error::{RunError, index};
use crate::executor::{Buffers, Pass};
use crate::layouts;
use crate::memory::{Memory, Sizes, Tokens, most_pinned, process_bytes};
use crate::ops::Graph;
use crate::reader::{BundleReader, Verify};
use crate::request::{Column, Observer, Outcome, Positions, Request, Sink, check_prompt};
use crate::resident::Resident;
use crate::resolve::resolve;
use crate::store::{ExpertSource, ExpertStore};
use crate::stream::{Cancel, IoMode, Pin, Recorder, Service, Streaming};

/// The backends of this build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendKind {
    /// The threads of this machine.
    #[default]
    Cpu,
}

/// A backend's name that this build cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoBackend {
    /// Another build has it.
    #[error("this build has no {0} backend; use --backend cpu")]
    NotBuilt(String),
    /// No build has it.
    #[error("there is no backend {0:?}; use --backend cpu")]
    Unknown(String),
}

impl NoBackend {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            NoBackend::NotBuilt(_) => Exit::CannotRun,
            NoBackend::Unknown(_) => Exit::Usage,
        }
    }
}

impl FromStr for BackendKind {
    type Err = NoBackend;

    fn from_str(name: &str) -> Result<BackendKind, NoBackend> {
        match name {
            "cpu" => Ok(BackendKind::Cpu),
            "hexagon" | "hexagon-emulated" => Err(NoBackend::NotBuilt(name.to_owned())),
            _ => Err(NoBackend::Unknown(name.to_owned())),
        }
    }
}

/// Threads a model computes with, at most: each has a stack and scratch of its own.
pub(crate) const MAX_THREADS: usize = 1024;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// When weights are compared with their digests. All are read once, when the model
    /// is loaded, so that is when.
    pub verify: Verify,
    /// Threads to compute with; as many as the machine has if `None`. Results are the
    /// same for any number.
    pub threads: Option<NonZeroUsize>,
    /// What to compute on.
    pub backend: BackendKind,
    /// How experts come from storage; all are read into memory at once if `None`.
    pub streaming: Option<Streaming>,
    /// The most memory a request may take.
    pub budget_bytes: Option<u64>,
    /// Tokens of the longest prompt to come, which a budget is compared with before any
    /// weight is read, and how many of them go through the model together.
    pub expected: Option<(usize, Option<NonZeroUsize>)>,
    /// Its [`Request::kept_bytes`], which count towards the budget.
    pub kept_bytes: u64,
}

/// A bundle in memory, with a backend to run it.
///
/// Requests run one after another and use the same buffers; a request that fails leaves
/// the model as it was.
#[derive(Debug)]
pub struct Model {
    graph: Graph,
    resident: Resident,
    store: ExpertStore,
    sizes: Sizes,
    backend: Box<dyn Backend>,
    buffers: Buffers,
    cancel: Arc<Cancel>,
    budget_bytes: Option<u64>,
    process_bytes: u64,
    pinned: usize,
}

impl Model {
    /// Reads all weights of an open bundle into memory.
    ///
    /// # Errors
    /// If the backend does not run the program or read a weight's layout (known before
    /// any weight is read), a read fails, or a digest differs.
    pub fn load(reader: &BundleReader, options: &LoadOptions) -> Result<Model, RunError> {
        let BackendKind::Cpu = options.backend;
        let threads = options
            .threads
            .or_else(|| std::thread::available_parallelism().ok());
        let threads = threads.map_or(1, NonZeroUsize::get);
        if threads > MAX_THREADS {
            let source = io::Error::other(format!("the most is {MAX_THREADS}"));
            return Err(RunError::Threads { threads, source });
        }
        let backend = CpuBackend::new(threads, Simd::detect())
            .map_err(|source| RunError::Threads { threads, source })?;
        Model::load_on(reader, options, Box::new(backend))
    }

    /// [`Model::load`] on a backend of the caller's, whatever the options say of one.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_on(
        reader: &BundleReader,
        options: &LoadOptions,
        backend: Box<dyn Backend>,
    ) -> Result<Model, RunError> {
        let verify = options.verify;
        let process_bytes = process_bytes();
        let resolved = resolve(reader)?;
        layouts::check(reader, &resolved, &*backend)?;
        let manifest = reader.bundle().manifest();
        let streaming = options.streaming.as_ref();
        let mut sizes = Sizes::new(manifest, &resolved, streaming)?;
        let expected = options.budget_bytes.zip(options.expected);
        let expected = expected
            .map(|(budget, (tokens, chunk))| (budget, Tokens::planned(tokens, chunk, streaming)));
        let of = |sizes: &Sizes, tokens| Memory {
            kept_bytes: options.kept_bytes,
            ..Memory::of(&resolved.graph, sizes, &*backend, tokens, process_bytes)
        };
        let pinned = match (streaming.map(Streaming::pin), expected) {
            (None, _) => 0,
            (Some(Pin::Records(count)), _) => count,
            (Some(Pin::Max), Some((budget, tokens))) => {
                let ceiling = of(&sizes, tokens).total_bytes();
                most_pinned(&manifest.experts, budget.saturating_sub(ceiling))
            }
            (Some(Pin::Max), None) => return Err(RunError::PinsWithoutBudget),
        };
        let most = manifest.experts.layers.iter().map(|layer| layer.records());
        let pinned = pinned.min(index("a layer", most.max().unwrap_or(0))?);
        sizes.pin(&manifest.experts, pinned);
        if let Some((budget, tokens)) = expected {
            of(&sizes, tokens).keep_within(budget, &sizes, tokens)?;
        }
        let mut store = ExpertStore::load(reader, verify, streaming, pinned)?;
        // The arena's memory is touched while the other weights are read.
        let resident = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .spawn_scoped(scope, || store.populate())
                .map_err(|source| RunError::Threads { threads: 1, source })?;
            Resident::load(reader, &resolved, verify)
        })?;
        Ok(Model {
            graph: resolved.graph,
            resident,
            store,
            sizes,
            backend,
            buffers: Buffers::default(),
            cancel: Arc::default(),
            budget_bytes: options.budget_bytes,
            process_bytes,
            pinned,
        })
    }

    /// Runs the records that `source` hands out from now on; memory for those it had is freed.
    pub fn take_experts_from(&mut self, source: Box<dyn ExpertSource + Send>) {
        self.store.take_from(source);
    }

    /// Ids a prompt may hold, and logits of a row.
    pub fn vocab(&self) -> usize {
        self.graph.vocab
    }

    /// Tokens a prompt may have.
    pub fn context(&self) -> u64 {
        self.graph.context
    }

    /// Elements of a row that [`Sink::hidden`] gets.
    pub fn hidden_width(&self) -> usize {
        self.graph.width(self.graph.head.input)
    }

    /// Name and threads of the backend.
    pub fn backend(&self) -> (&'static str, usize) {
        (self.backend.name(), self.backend.threads())
    }

    /// Records of each layer that stay in memory while others stream.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// How experts were read in the last request; before the first, how they will be.
    pub fn io_mode(&self) -> IoMode {
        self.store.io_mode().0
    }

    /// Why they were not all read past the page cache, if they were streamed and were not.
    pub fn io_why(&self) -> Option<String> {
        self.store.io_mode().1
    }

    /// The most memory a request of `tokens` tokens can take, `chunk` at a time or as many as the
    /// plan says.
    pub fn memory(&self, tokens: usize, chunk: Option<NonZeroUsize>) -> Memory {
        self.memory_of(self.tokens(tokens, chunk))
    }

    fn tokens(&self, tokens: usize, chunk: Option<NonZeroUsize>) -> Tokens {
        Tokens::planned(tokens, chunk, self.store.streaming())
    }

    fn memory_of(&self, tokens: Tokens) -> Memory {
        let (graph, sizes, backend) = (&self.graph, &self.sizes, &*self.backend);
        Memory::of(graph, sizes, backend, tokens, self.process_bytes)
    }

    /// Runs prompt `ids` and passes the results of the chosen positions to `sink`.
    ///
    /// # Errors
    /// If the prompt or a position is not one of this model, values stop being finite, or
    /// the sink refuses a row.
    pub fn prefill(
        &mut self,
        ids: &[u32],
        request: &Request,
        sink: &mut dyn Sink,
    ) -> Result<Outcome, RunError> {
        self.prefill_observed(ids, request, sink, &mut ())
    }

    /// [`Model::prefill`], watched by `observer`.
    ///
    /// # Errors
    /// As [`Model::prefill`].
    pub fn prefill_observed(
        &mut self,
        ids: &[u32],
        request: &Request,
        sink: &mut dyn Sink,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        let chosen = self.check(ids, &request.positions)?;
        let tokens = self.tokens(ids.len(), request.chunk);
        let memory = Memory {
            kept_bytes: request.kept_bytes,
            ..self.memory_of(tokens)
        };
        if let Some(budget) = self.budget_bytes {
            memory.keep_within(budget, &self.sizes, tokens)?;
        }
        let recorder = Recorder::new(self.sizes.events(tokens.chunks()))?;
        let service = Service {
            tokens: tokens.all,
            chunks: index("chunks", tokens.chunks())?,
            is_hot: request.hot,
            cancel: &self.cancel,
            recorder: &recorder,
        };
        let streaming = self.store.streaming();
        let row = streaming.map(|streaming| streaming.row(tokens.all));
        let mut outcome = Outcome {
            tokens: tokens.all,
            rows: chosen.len(),
            chunks: service.chunks,
            records_run: 0,
            records_pinned: 0,
            records_skipped: 0,
            memory,
            stream: row.map(|row| row.config(request.hot)),
            column: Column::of(row, request.hot),
            layers: self.store.layers(),
            events: Vec::new(),
            elapsed: Duration::ZERO,
        };
        let (graph, resident, backend) = (&self.graph, &self.resident, &mut *self.backend);
        let buffers = &mut self.buffers;
        buffers.history.begin(graph, tokens.all, tokens.are_cut())?;
        self.store.serve(&service, |shapes, source| {
            for (chunk, ids) in ids.chunks(tokens.together).enumerate() {
                let first = chunk * tokens.together;
                let mut pass = Pass::new(
                    (graph, resident),
                    (shapes, &mut *source),
                    &mut *backend,
                    &recorder,
                    (chunk, first, ids.len()),
                );
                pass.body(ids, buffers, observer)?;
                let rows = chosen
                    .iter()
                    .filter_map(|position| position.checked_sub(first));
                let rows: Vec<usize> = rows.filter(|row| *row < ids.len()).collect();
                pass.head(&rows, request.hidden, buffers, sink)?;
                pass.finish();
                outcome.records_run += pass.records_run;
                outcome.records_pinned += pass.records_pinned;
                outcome.records_skipped += pass.records_skipped;
            }
            // Reads for nobody may still be under way.
            outcome.elapsed = Duration::from_nanos(recorder.now());
            Ok(())
        })?;
        outcome.events = recorder.take();
        Ok(outcome)
    }

    /// What ends the request that runs, from another thread.
    pub fn canceller(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel)
    }

    /// The chosen rows of a prompt that this model can run.
    fn check(&self, ids: &[u32], positions: &Positions) -> Result<Vec<usize>, RunError> {
        check_prompt(ids, self.graph.vocab as u64, self.graph.context)?;
        let tokens = ids.len();
        match positions {
            Positions::Last => Ok(vec![tokens - 1]),
            Positions::All => Ok((0..tokens).collect()),
            Positions::Some(chosen) => match chosen.iter().find(|position| **position >= tokens) {
                Some(&position) => Err(RunError::NoSuchPosition { position, tokens }),
                None => Ok(chosen.clone()),
            },
        }
    }
}
