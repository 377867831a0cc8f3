//! A bundle in memory, ready to run.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Instant;

use estream_schemas::exit::Exit;

use crate::backend::cpu::Simd;
use crate::backend::{Backend, CpuBackend};
use crate::error::RunError;
use crate::executor::{Buffers, Pass};
use crate::layouts;
use crate::memory::{Memory, process_bytes};
use crate::ops::Graph;
use crate::reader::{BundleReader, Verify};
use crate::request::{Observer, Outcome, Positions, Request, Sink, check_prompt};
use crate::resident::Resident;
use crate::resolve::resolve;
use crate::store::ExpertStore;

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

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// When weights are compared with their digests. All are read once, when the model
    /// is loaded, so that is when.
    pub verify: Verify,
    /// Threads to compute with; as many as the machine has if `None`. Results are the
    /// same for any number.
    pub threads: Option<NonZeroUsize>,
    /// What to compute on.
    pub backend: BackendKind,
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
    backend: Box<dyn Backend>,
    buffers: Buffers,
    process_bytes: u64,
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
        let backend = CpuBackend::new(threads, Simd::detect())
            .map_err(|source| RunError::Threads { threads, source })?;
        Model::load_on(reader, options.verify, Box::new(backend))
    }

    /// [`Model::load`] on a backend of the caller's.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_on(
        reader: &BundleReader,
        verify: Verify,
        backend: Box<dyn Backend>,
    ) -> Result<Model, RunError> {
        let process_bytes = process_bytes();
        let resolved = resolve(reader)?;
        layouts::check(reader, &resolved, &*backend)?;
        let resident = Resident::load(reader, &resolved, verify)?;
        let store = ExpertStore::load(reader, verify)?;
        Ok(Model {
            graph: resolved.graph,
            resident,
            store,
            backend,
            buffers: Buffers::default(),
            process_bytes,
        })
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

    /// The most memory a request of `tokens` tokens can take.
    pub fn memory(&self, tokens: usize) -> Memory {
        Memory::of(
            &self.graph,
            &self.resident,
            &self.store,
            &*self.backend,
            tokens,
            self.process_bytes,
        )
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
        let memory = self.memory(ids.len());
        let start = Instant::now();
        let mut pass = Pass::new(
            &self.graph,
            &self.resident,
            &self.store,
            &mut *self.backend,
            0,
            ids.len(),
        );
        pass.body(ids, &mut self.buffers, observer)?;
        pass.head(&chosen, request.hidden, &mut self.buffers, sink)?;
        Ok(Outcome {
            tokens: ids.len(),
            rows: chosen.len(),
            records_run: pass.records_run,
            records_skipped: pass.records_skipped,
            memory,
            elapsed: start.elapsed(),
        })
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
