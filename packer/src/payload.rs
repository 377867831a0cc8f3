//! Where weights come from, and where they go.

use std::ops::ControlFlow;

use estream_runtime::reader::Projection;

use crate::writer::{Output, Progress};
use crate::{OutputError, PackError};

/// What a bundle's payload comes from: a compiled checkpoint, or another bundle.
///
/// A [`write`](crate::write()) asks for each tensor once, in file order: all resident
/// tensors, then record by record `gate`, `up`, `down`. A payload pushes exactly the
/// bytes the tensor's layout takes; padding between tensors is the writer's.
pub trait Payload {
    /// What can go wrong in making weights. It must be able to hold a [`Stopped`], so
    /// that `?` works on [`Sink::push`]; the writer then reports its own error.
    type Error: std::error::Error + From<Stopped> + Send + Sync + 'static;

    /// Pushes resident tensor `index` of the specification.
    fn resident(&self, index: usize, sink: &mut Sink<'_, '_>) -> Result<(), Self::Error>;

    /// Pushes one projection of shard `shard` of expert `expert` of the `layer`-th expert
    /// layer of the specification.
    fn region(
        &self,
        layer: usize,
        expert: u64,
        shard: u64,
        projection: Projection,
        sink: &mut Sink<'_, '_>,
    ) -> Result<(), Self::Error>;
}

/// The writer wants no more bytes and knows why: give up at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the output was stopped")]
pub struct Stopped(());

/// Takes one tensor's bytes, in order, in pieces of any size.
#[derive(Debug)]
pub struct Sink<'a, 'p> {
    pub(crate) output: &'a mut Output,
    pub(crate) progress: &'a mut Progress<'p>,
    pub(crate) hasher: &'a mut blake3::Hasher,
    /// What messages call the tensor.
    pub(crate) what: String,
    /// Bytes of the whole tensor.
    pub(crate) expected: u64,
    /// Bytes pushed so far.
    pub(crate) pushed: u64,
    /// Why nothing more is taken.
    pub(crate) failed: Option<OutputError>,
}

impl Sink<'_, '_> {
    /// Appends `bytes` to the tensor.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        if self.failed.is_none() {
            self.failed = self.take(bytes).err();
        }
        match self.failed {
            None => Ok(()),
            Some(_) => Err(Stopped(())),
        }
    }

    /// Bytes the tensor still lacks.
    pub fn left(&self) -> u64 {
        self.expected.saturating_sub(self.pushed)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        let size = bytes.len() as u64;
        self.pushed = self.pushed.saturating_add(size);
        if self.pushed > self.expected {
            return Err(self.wrong_size());
        }
        self.hasher.update(bytes);
        self.output.write(bytes)?;
        match self.progress.advance(size) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(OutputError::Cancelled),
        }
    }

    /// What became of the tensor, given what the payload says.
    pub(crate) fn finish<E>(mut self, payload: Result<(), E>) -> Result<(), PackError<E>>
    where
        E: std::error::Error + 'static,
    {
        // A payload that stops because the sink did has nothing to add.
        if let Some(failed) = self.failed.take() {
            return Err(failed.into());
        }
        payload.map_err(PackError::Payload)?;
        if self.pushed < self.expected {
            return Err(self.wrong_size().into());
        }
        Ok(())
    }

    fn wrong_size(&self) -> OutputError {
        OutputError::PayloadSize {
            what: self.what.clone(),
            expected: self.expected,
            found: self.pushed,
        }
    }
}
