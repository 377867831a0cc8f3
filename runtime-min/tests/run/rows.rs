//! Loading a model for a test, and a sink that keeps what it gets.

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

use estream_runtime::reader::BundleReader;
use estream_runtime::{LoadOptions, Model, Positions, Request, Sink};

pub(crate) fn load(bundle: &Path, threads: usize) -> Model {
    let reader = BundleReader::open(bundle).unwrap();
    let options = LoadOptions {
        threads: NonZeroUsize::new(threads),
        ..LoadOptions::default()
    };
    Model::load(&reader, &options).unwrap()
}

/// Everything that came, one row after another.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) positions: Vec<usize>,
    pub(crate) logits: Vec<f32>,
    pub(crate) hidden: Vec<f32>,
}

impl Rows {
    /// Runs `ids` and keeps the results at `positions`.
    pub(crate) fn of(model: &mut Model, ids: &[u32], positions: Positions) -> Rows {
        let mut rows = Rows::default();
        let request = Request {
            positions,
            hidden: true,
            ..Request::default()
        };
        model.prefill(ids, &request, &mut rows).unwrap();
        rows
    }

    /// Every number as bits, so that equal is equal.
    pub(crate) fn bits(&self) -> Vec<u32> {
        let all = self.logits.iter().chain(&self.hidden);
        all.map(|x| x.to_bits()).collect()
    }
}

impl Sink for Rows {
    fn logits(&mut self, position: usize, row: &[f32]) -> io::Result<()> {
        self.positions.push(position);
        self.logits.extend(row);
        Ok(())
    }

    fn hidden(&mut self, _position: usize, row: &[f32]) -> io::Result<()> {
        self.hidden.extend(row);
        Ok(())
    }
}
