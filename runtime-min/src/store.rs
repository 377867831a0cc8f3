//! Where the executor gets expert records from.
//!
//! It asks for one record at a time, in storage order, and learns nothing of where the
//! bytes came from. Here every record is in memory, as it is stored.

use std::ops::Range;

use estream_schemas::layout::Layout;
use estream_schemas::manifest::{ExpertLayer, Region};

use crate::backend::{ExpertWeights, Weight};
use crate::error::{RunError, index, zeros};
use crate::ops::ExpertLayerId;
use crate::reader::{BundleReader, Verify};

const WHAT: &str = "expert weights";

/// Every expert record of a bundle.
#[derive(Debug)]
pub(crate) struct ExpertStore {
    layers: Vec<StoredLayer>,
}

#[derive(Debug)]
struct StoredLayer {
    shape: RecordShape,
    records: Vec<Vec<u8>>,
}

/// What the records of one layer hold, and in which order.
#[derive(Debug)]
pub(crate) struct RecordShape {
    /// The expert at each position of the storage order.
    pub(crate) order: Vec<usize>,
    /// Records of an expert, adjacent.
    pub(crate) shards: usize,
    gate: Place,
    up: Place,
    down: Place,
}

/// A matrix inside a record.
#[derive(Debug)]
struct Place {
    layout: Layout,
    rows: usize,
    cols: usize,
    bytes: Range<usize>,
}

impl Place {
    fn new(region: &Region) -> Result<Place, RunError> {
        // A checked bundle's regions lie in their record, so the end does not overflow.
        Ok(Place {
            layout: region.layout,
            rows: index(WHAT, region.rows)?,
            cols: index(WHAT, region.cols)?,
            bytes: index(WHAT, region.offset)?..index(WHAT, region.offset + region.bytes)?,
        })
    }

    fn weight<'a>(&self, record: &'a [u8]) -> Weight<'a> {
        Weight {
            layout: self.layout,
            rows: self.rows,
            cols: self.cols,
            bytes: &record[self.bytes.clone()],
        }
    }
}

impl RecordShape {
    fn new(layer: &ExpertLayer) -> Result<RecordShape, RunError> {
        let order = layer.order.iter().map(|&expert| index(WHAT, expert));
        Ok(RecordShape {
            order: order.collect::<Result<_, _>>()?,
            shards: index(WHAT, layer.shards)?,
            gate: Place::new(&layer.gate)?,
            up: Place::new(&layer.up)?,
            down: Place::new(&layer.down)?,
        })
    }

    /// The matrices in a record of this shape.
    pub(crate) fn weights<'a>(&self, record: &'a [u8]) -> ExpertWeights<'a> {
        ExpertWeights {
            gate: self.gate.weight(record),
            up: self.up.weight(record),
            down: self.down.weight(record),
        }
    }
}

impl ExpertStore {
    /// Reads all records in storage order, each hashed before the next unless `verify` is
    /// [`Verify::Never`].
    pub(crate) fn load(reader: &BundleReader, verify: Verify) -> Result<ExpertStore, RunError> {
        let layers = &reader.bundle().manifest().experts.layers;
        let layers = layers.iter().enumerate();
        let layers = layers.map(|(at, layer)| {
            let record_bytes = index(WHAT, layer.record_bytes)?;
            let records = (0..layer.records()).map(|record| {
                let mut bytes = zeros(WHAT, record_bytes)?;
                match verify {
                    Verify::Never => reader.read_record(at, record, &mut bytes)?,
                    Verify::Always | Verify::FirstUse => {
                        reader.read_record_verified(at, record, &mut bytes)?;
                    }
                }
                Ok(bytes)
            });
            Ok(StoredLayer {
                shape: RecordShape::new(layer)?,
                records: records.collect::<Result<_, RunError>>()?,
            })
        });
        Ok(ExpertStore {
            layers: layers.collect::<Result<_, RunError>>()?,
        })
    }

    /// What the records of a layer hold.
    pub(crate) fn shape(&self, layer: ExpertLayerId) -> &RecordShape {
        &self.layers[layer.0].shape
    }

    /// One record, counted in storage order, padding included.
    pub(crate) fn record(&self, layer: ExpertLayerId, record: usize) -> &[u8] {
        &self.layers[layer.0].records[record]
    }

    /// Rows of the widest record's gate.
    pub(crate) fn widest(&self) -> usize {
        let ff = self.layers.iter().map(|layer| layer.shape.gate.rows);
        ff.max().unwrap_or(0)
    }

    /// Memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        let records = self.layers.iter().flat_map(|layer| &layer.records);
        records.map(|record| record.len() as u64).sum()
    }
}
