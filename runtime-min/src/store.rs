//! Where the executor gets expert records from: memory that holds them all, or an
//! arena they pass through.
//!
//! It asks for the records of a step, in storage order, and learns nothing of where the bytes
//! came from.

use std::fmt;
use std::ops::Range;

use estream_schemas::layout::Layout;
use estream_schemas::manifest::{ExpertLayer, Region};
use estream_schemas::plan::StreamConfig;

use crate::backend::{ExpertWeights, Weight};
use crate::error::{RunError, index, zeros};
use crate::reader::{BundleReader, Verify};
use crate::stream::{Cancel, IoMode, LayerShape, Service, Streamed, Streaming};

const WHAT: &str = "expert weights";

/// Runs one record: its place in storage order, and its bytes.
pub type RunRecord<'a> = &'a mut dyn FnMut(usize, &[u8]) -> Result<(), RunError>;

/// Hands out the records of one request. A *step* is a layer with experts, of a chunk of the
/// prompt; steps are counted from 0 and come in order. The runtime has its own: memory that holds
/// all records, and an arena.
pub trait ExpertSource {
    /// The step begins, with what comes before its routes are known.
    fn start(&mut self, step: usize);

    /// Calls `run` for each record that is `routed`, in storage order.
    ///
    /// # Errors
    /// If a record cannot be had, or `run` errs.
    fn run(&mut self, step: usize, routed: Vec<bool>, run: RunRecord<'_>) -> Result<(), RunError>;
}

/// The experts of a model.
#[derive(Debug)]
pub(crate) struct ExpertStore {
    pub(crate) shapes: Vec<RecordShape>,
    held: Held,
}

#[derive(Debug)]
enum Held {
    /// By layer and record.
    Resident(Vec<Vec<Vec<u8>>>),
    Streamed(Box<Streamed>),
    Given(Given),
}

/// A source of the caller's.
struct Given(Box<dyn ExpertSource + Send>);

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given")
    }
}

/// What the records of one layer hold, and in which order.
#[derive(Debug)]
pub(crate) struct RecordShape {
    /// The expert at each position of the storage order.
    pub(crate) order: Vec<usize>,
    /// Records of an expert, adjacent.
    pub(crate) shards: usize,
    /// Layer of the program.
    layer: u64,
    record_bytes: u64,
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
            layer: layer.layer,
            record_bytes: layer.record_bytes,
            gate: Place::new(&layer.gate)?,
            up: Place::new(&layer.up)?,
            down: Place::new(&layer.down)?,
        })
    }

    /// Records of the layer.
    pub(crate) fn records(&self) -> usize {
        self.order.len() * self.shards
    }

    /// The expert whose record, or shard, is at a place of the storage order.
    pub(crate) fn expert(&self, record: usize) -> usize {
        self.order[record / self.shards]
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
    /// With `streaming`, an arena and no record in it; else all records, each hashed before the
    /// next unless `verify` is [`Verify::Never`].
    pub(crate) fn load(
        reader: &BundleReader,
        verify: Verify,
        streaming: Option<&Streaming>,
    ) -> Result<ExpertStore, RunError> {
        let layers = &reader.bundle().manifest().experts.layers;
        let shapes = layers.iter().map(RecordShape::new);
        Ok(ExpertStore {
            shapes: shapes.collect::<Result<_, _>>()?,
            held: match streaming {
                Some(streaming) => {
                    Held::Streamed(Box::new(Streamed::new(reader, verify, streaming)?))
                }
                None => Held::Resident(all_records(reader, layers, verify)?),
            },
        })
    }

    /// From now on the caller hands out records.
    pub(crate) fn take_from(&mut self, source: Box<dyn ExpertSource + Send>) {
        self.held = Held::Given(Given(source));
    }

    /// Lets `work` take the records of one request, of `chunks` passes through all layers.
    pub(crate) fn serve<R>(
        &mut self,
        service: &Service<'_>,
        work: impl FnOnce(&[RecordShape], &mut dyn ExpertSource) -> Result<R, RunError>,
    ) -> Result<R, RunError> {
        let shapes = &self.shapes;
        match &mut self.held {
            Held::Resident(records) => {
                let there = &mut AllThere {
                    records,
                    layers: shapes.len(),
                    cancel: service.cancel,
                };
                work(shapes, there)
            }
            Held::Given(Given(source)) => work(shapes, &mut **source),
            Held::Streamed(streamed) => {
                let records = shapes.iter().map(RecordShape::records).collect();
                streamed.serve(records, service, |source| work(shapes, source))
            }
        }
    }

    /// How a prompt of `tokens` tokens is streamed, if it is.
    pub(crate) fn config(&self, tokens: usize) -> Option<StreamConfig> {
        match &self.held {
            Held::Resident(_) | Held::Given(_) => None,
            Held::Streamed(streamed) => Some(streamed.config(tokens)),
        }
    }

    /// What a timeline does not say of the layers that have experts.
    pub(crate) fn layers(&self) -> Vec<LayerShape> {
        let shapes = self.shapes.iter().map(|shape| LayerShape {
            layer: shape.layer,
            records: shape.records(),
            record_bytes: shape.record_bytes,
        });
        shapes.collect()
    }

    /// How records are read, and why not past the page cache.
    pub(crate) fn io_mode(&self) -> (IoMode, Option<String>) {
        match &self.held {
            Held::Resident(_) | Held::Given(_) => (IoMode::Buffered, None),
            Held::Streamed(streamed) => streamed.io_mode(),
        }
    }

    /// Touches memory that records will be read into.
    pub(crate) fn populate(&mut self) {
        if let Held::Streamed(streamed) = &mut self.held {
            streamed.populate();
        }
    }
}

fn all_records(
    reader: &BundleReader,
    layers: &[ExpertLayer],
    verify: Verify,
) -> Result<Vec<Vec<Vec<u8>>>, RunError> {
    let layers = layers.iter().enumerate().map(|(at, layer)| {
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
        records.collect()
    });
    layers.collect()
}

/// Every record is in memory.
struct AllThere<'a> {
    records: &'a [Vec<Vec<u8>>],
    layers: usize,
    cancel: &'a Cancel,
}

impl ExpertSource for AllThere<'_> {
    fn start(&mut self, _: usize) {}

    fn run(&mut self, step: usize, routed: Vec<bool>, run: RunRecord<'_>) -> Result<(), RunError> {
        let records = self.records[step % self.layers].iter().zip(routed);
        for (record, (bytes, routed)) in records.enumerate() {
            if self.cancel.is_cancelled() {
                return Err(RunError::Cancelled);
            }
            if routed {
                run(record, bytes)?;
            }
        }
        Ok(())
    }
}
