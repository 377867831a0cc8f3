//! Where the executor gets expert records from: memory that holds them all, or an
//! arena they pass through.
//!
//! It asks for the records of a step, in storage order, and learns nothing of where the bytes
//! came from.

use std::fmt;

use estream_schemas::layout::Layout;
use estream_schemas::manifest::{ExpertLayer, Region};
use estream_schemas::plan::is_pinned;

use crate::backend::{ExpertWeights, Weight};
use crate::error::{RunError, index};
use crate::reader::{BundleReader, Verify};
use crate::stream::{
    Cancel, IoMode, LayerShape, Pins, Regions, Service, Spans, Streamed, Streaming,
};

const WHAT: &str = "expert weights";

/// Runs one record: its place in storage order, and its regions.
pub type RunRecord<'a> = &'a mut dyn FnMut(usize, Regions<'_>) -> Result<(), RunError>;

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
    /// Every record stays.
    Resident(Pins),
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
    /// Records of the layer that stay in memory while others stream.
    pinned: usize,
    spans: Spans,
    gate: Place,
    up: Place,
    down: Place,
}

/// A matrix at the start of a region.
#[derive(Debug)]
struct Place {
    layout: Layout,
    rows: usize,
    cols: usize,
    bytes: usize,
}

impl Place {
    fn new(region: &Region) -> Result<Place, RunError> {
        Ok(Place {
            layout: region.layout,
            rows: index(WHAT, region.rows)?,
            cols: index(WHAT, region.cols)?,
            bytes: index(WHAT, region.bytes)?,
        })
    }

    fn weight<'a>(&self, region: &'a [u8]) -> Weight<'a> {
        Weight {
            layout: self.layout,
            rows: self.rows,
            cols: self.cols,
            bytes: &region[..self.bytes],
        }
    }
}

impl RecordShape {
    fn new(layer: &ExpertLayer, pinned: usize) -> Result<RecordShape, RunError> {
        let order = layer.order.iter().map(|&expert| index(WHAT, expert));
        Ok(RecordShape {
            order: order.collect::<Result<_, _>>()?,
            shards: index(WHAT, layer.shards)?,
            layer: layer.layer,
            record_bytes: layer.record_bytes,
            pinned,
            spans: Spans::new(layer)?,
            gate: Place::new(&layer.gate)?,
            up: Place::new(&layer.up)?,
            down: Place::new(&layer.down)?,
        })
    }

    /// Records of the layer.
    pub(crate) fn records(&self) -> usize {
        self.order.len() * self.shards
    }

    /// Whether a record stays in memory while others stream.
    pub(crate) fn is_pinned(&self, record: usize) -> bool {
        is_pinned(record, self.records(), self.pinned)
    }

    /// The expert whose record, or shard, is at a place of the storage order.
    pub(crate) fn expert(&self, record: usize) -> usize {
        self.order[record / self.shards]
    }

    /// The matrices in a record of this shape.
    pub(crate) fn weights<'a>(&self, [gate, up, down]: Regions<'a>) -> ExpertWeights<'a> {
        ExpertWeights {
            gate: self.gate.weight(gate),
            up: self.up.weight(up),
            down: self.down.weight(down),
        }
    }
}

impl ExpertStore {
    /// With `streaming`, `pinned` records of each layer and an arena with no record in it; else all
    /// records.
    pub(crate) fn load(
        reader: &BundleReader,
        verify: Verify,
        streaming: Option<&Streaming>,
        pinned: usize,
    ) -> Result<ExpertStore, RunError> {
        let layers = reader.bundle().manifest().experts.layers.iter();
        let shapes = layers.map(|layer| RecordShape::new(layer, pinned));
        Ok(ExpertStore {
            shapes: shapes.collect::<Result<_, _>>()?,
            held: match streaming {
                Some(streaming) => {
                    let streamed = Streamed::new(reader, verify, streaming, pinned)?;
                    Held::Streamed(Box::new(streamed))
                }
                None => Held::Resident(Pins::load(reader, verify, usize::MAX)?),
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
                    shapes,
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

    /// How prompts are streamed, if they are.
    pub(crate) fn streaming(&self) -> Option<&Streaming> {
        match &self.held {
            Held::Resident(_) | Held::Given(_) => None,
            Held::Streamed(streamed) => Some(streamed.streaming()),
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

/// Every record is in memory.
struct AllThere<'a> {
    records: &'a Pins,
    shapes: &'a [RecordShape],
    cancel: &'a Cancel,
}

impl ExpertSource for AllThere<'_> {
    fn start(&mut self, _: usize) {}

    fn run(&mut self, step: usize, routed: Vec<bool>, run: RunRecord<'_>) -> Result<(), RunError> {
        let layer = step % self.shapes.len();
        let spans = &self.shapes[layer].spans;
        for (record, routed) in routed.into_iter().enumerate() {
            if self.cancel.is_cancelled() {
                return Err(RunError::Cancelled);
            }
            if routed {
                run(record, spans.cut(self.records.record(layer, record)))?;
            }
        }
        Ok(())
    }
}
