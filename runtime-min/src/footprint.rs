//! The memory that requests to a bundle can take, known without its weights.

use std::io;
use std::num::NonZeroUsize;

use crate::backend::cpu::Simd;
use crate::backend::{Backend, CpuBackend};
use crate::error::RunError;
use crate::layouts;
use crate::memory::{Memory, Sizes, Tokens};
use crate::model::MAX_THREADS;
use crate::reader::BundleReader;
use crate::resolve::{Resolved, resolve};
use crate::stream::Streaming;

/// An open bundle and the backend that is to run it, as far as memory is concerned.
#[derive(Debug)]
pub struct Footprint {
    reader: BundleReader,
    resolved: Resolved,
    backend: Box<dyn Backend>,
}

impl Footprint {
    /// Of a bundle on so many threads of the `cpu` backend.
    ///
    /// # Errors
    /// If [`Model::load`](crate::Model::load) would refuse the program or a layout.
    pub fn new(reader: &BundleReader, threads: NonZeroUsize) -> Result<Footprint, RunError> {
        let threads = threads.get();
        if threads > MAX_THREADS {
            let source = io::Error::other(format!("the most is {MAX_THREADS}"));
            return Err(RunError::Threads { threads, source });
        }
        let backend = CpuBackend::new(threads, Simd::detect())
            .map_err(|source| RunError::Threads { threads, source })?;
        let resolved = resolve(reader)?;
        layouts::check(reader, &resolved, &backend)?;
        Ok(Footprint {
            reader: reader.clone(),
            resolved,
            backend: Box::new(backend),
        })
    }

    /// The most memory of a request of `tokens` tokens, `chunk` at a time or as the plan says, in a model that
    /// is loaded so and pins nothing. `process_bytes` is 0: it is that of another process.
    ///
    /// # Errors
    /// If a buffer may not be as large as a bank of the arena.
    pub fn memory(
        &self,
        streaming: Option<&Streaming>,
        tokens: usize,
        chunk: Option<NonZeroUsize>,
    ) -> Result<Memory, RunError> {
        let manifest = self.reader.bundle().manifest();
        let sizes = Sizes::new(manifest, &self.resolved, streaming)?;
        let tokens = Tokens::planned(tokens, chunk, streaming);
        Ok(Memory::of(
            &self.resolved.graph,
            &sizes,
            &*self.backend,
            tokens,
            0,
        ))
    }

    /// The buffers that the arena of such a model is made of.
    ///
    /// # Errors
    /// As [`Footprint::memory`].
    pub fn buffers(&self, streaming: &Streaming) -> Result<u64, RunError> {
        let experts = &self.reader.bundle().manifest().experts;
        Ok(streaming.buffers(experts)?.sizes().count() as u64)
    }
}
