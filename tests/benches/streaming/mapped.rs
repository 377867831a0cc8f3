//! Experts in the mapped file: the system reads a page when it is first touched.
#![expect(
    unsafe_code,
    reason = "a map is sound while nobody writes to the file, and nobody does"
)]

use std::ops::Range;
use std::sync::Arc;

use estream_runtime::reader::BundleReader;
use estream_runtime::{ExpertSource, Regions, RunError, RunRecord};
use memmap2::Mmap;

/// By layer and record.
pub(crate) struct Mapped(Vec<Vec<Record>>);

/// A record's place in the map of its layer's part, and the lengths of its first two regions.
struct Record {
    map: Arc<Mmap>,
    place: Range<usize>,
    gate: usize,
    up: usize,
}

impl Record {
    fn regions(&self) -> Regions<'_> {
        let (gate, rest) = self.map[self.place.clone()].split_at(self.gate);
        let (up, down) = rest.split_at(self.up);
        [gate, up, down]
    }
}

impl Mapped {
    pub(crate) fn new(reader: &BundleReader) -> Mapped {
        let layers = &reader.bundle().manifest().experts.layers;
        let layers = layers.iter().enumerate().map(|(at, layer)| {
            let all = reader
                .records(at, 0, layer.records())
                .expect("records of a layer");
            // SAFETY: the bundle was made by this bench, and nobody writes to it now.
            let map = unsafe { Mmap::map(all.file()) }.expect("a map");
            let map = Arc::new(map);
            let records = (0..layer.records()).map(|record| {
                let extent = reader.record(at, record).expect("a record");
                let start = extent.offset() as usize;
                Record {
                    map: map.clone(),
                    place: start..start + extent.bytes() as usize,
                    gate: layer.up.offset as usize,
                    up: (layer.down.offset - layer.up.offset) as usize,
                }
            });
            records.collect()
        });
        Mapped(layers.collect())
    }
}

impl ExpertSource for Mapped {
    fn start(&mut self, _: usize) {}

    fn run(&mut self, step: usize, routed: Vec<bool>, run: RunRecord<'_>) -> Result<(), RunError> {
        let records = &self.0[step % self.0.len()];
        for (at, record) in records.iter().enumerate().filter(|(at, _)| routed[*at]) {
            run(at, record.regions())?;
        }
        Ok(())
    }
}
