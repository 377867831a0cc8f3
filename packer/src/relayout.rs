//! A bundle from a bundle: its nibbles in the other order, or its experts.

use std::cell::RefCell;
use std::collections::BTreeMap;

use estream_compiler::ingest::{Carried, CarriedContent};
use estream_compiler::layout::{LayoutError, relayout_strip};
use estream_runtime::reader::{BundleReader, Extent, Projection, ReadError};
use estream_schemas::digest::Digest;
use estream_schemas::exit::Exit;
use estream_schemas::layout::{Form, Layout, NibbleOrder, TILE};
use estream_schemas::manifest::{CarriedFile, ExpertLayer, Manifest};

use crate::{BundleSpec, LayerSpec, LicenseSpec, Payload, Sink, SourceSpec, Stopped, TensorSpec};

/// Bytes of a tensor read at a time, at most.
const PIECE_BYTES: usize = 1 << 20;
/// Columns of a tile.
const TILE_COLS: usize = TILE as usize;

/// The specification and the weights of `reader`'s bundle with every 4-bit tile in
/// `order`. Everything else is carried over as it is; levels and scales keep their bits,
/// so a bundle that is converted there and back is the same to the byte.
///
/// Nothing unchecked is passed on: carried files are compared with their digests here,
/// weights when they are pushed.
pub fn relayout(
    reader: &BundleReader,
    order: NibbleOrder,
) -> Result<(BundleSpec, Relayout<'_>), RelayoutError> {
    again(reader, Some(order))
}

/// The specification and the weights of `reader`'s bundle, its experts in the order that
/// `orders` has for their layer, if it has one. Whole records move and everything else is carried over as it
/// is, so a bundle that is reordered there and back is the same to the byte.
///
/// Bytes are checked as by [`relayout`]; whether an order is one of its layer is for
/// [`plan`](crate::plan()) to say.
pub fn reorder<'a>(
    reader: &'a BundleReader,
    orders: &BTreeMap<u64, Vec<u64>>,
) -> Result<(BundleSpec, Relayout<'a>), RelayoutError> {
    let (mut spec, payload) = again(reader, None)?;
    spec.reorder(orders);
    Ok((spec, payload))
}

/// `reader`'s bundle once more, nibbles in `order` if one is named.
fn again(
    reader: &BundleReader,
    order: Option<NibbleOrder>,
) -> Result<(BundleSpec, Relayout<'_>), RelayoutError> {
    let manifest = reader.bundle().manifest();
    let carried = |files: &[CarriedFile]| {
        let files = files.iter().map(|file| carried(reader, file));
        files.collect::<Result<Vec<_>, _>>()
    };
    let part_bytes = manifest.experts.parts.iter().map(|part| part.bytes);
    let spec = BundleSpec {
        model: manifest.model.clone(),
        program: manifest.program.clone(),
        resident: manifest
            .resident
            .tensors
            .iter()
            .map(|tensor| TensorSpec {
                name: tensor.name.clone(),
                layout: in_order(tensor.layout, order),
                shape: tensor.shape.clone(),
            })
            .collect(),
        layers: manifest
            .experts
            .layers
            .iter()
            .map(|layer| layer_spec(layer, order))
            .collect(),
        recipe: manifest.recipe.clone(),
        descriptor: manifest.descriptor.text.clone(),
        ledger: manifest.ledger.clone(),
        source: SourceSpec {
            format: manifest.source.format,
            files: manifest.source.files.clone(),
            metadata: carried(manifest.source.metadata.as_slice())?.pop(),
        },
        tokenizer: carried(&manifest.tokenizer)?,
        license: LicenseSpec {
            declared: manifest.license.declared.clone(),
            files: carried(&manifest.license.files)?,
        },
        // Sizes do not change, so parts as large as the largest are split where these are.
        max_part_bytes: part_bytes.max(),
    };
    let payload = Relayout {
        reader,
        order,
        record: RefCell::default(),
    };
    Ok((spec, payload))
}

/// `layout` with nibbles in `order`, if it has nibbles and an order is named.
fn in_order(layout: Layout, order: Option<NibbleOrder>) -> Layout {
    match (layout.form(), order) {
        (Form::Nibbles(_), Some(order)) => {
            Layout::new(layout.dtype(), Form::Nibbles(order)).unwrap_or(layout)
        }
        _ => layout,
    }
}

fn layer_spec(layer: &ExpertLayer, order: Option<NibbleOrder>) -> LayerSpec {
    LayerSpec {
        layer: layer.layer,
        experts: layer.experts,
        shards: layer.shards,
        order: layer.order.clone(),
        hidden: layer.gate.cols,
        ff: layer.gate.rows * layer.shards,
        gate: in_order(layer.gate.layout, order),
        up: in_order(layer.up.layout, order),
        down: in_order(layer.down.layout, order),
    }
}

fn carried(reader: &BundleReader, file: &CarriedFile) -> Result<Carried, ReadError> {
    reader.check_file(file)?;
    let name = file.file.rsplit('/').next().unwrap_or(&file.file);
    Ok(Carried {
        name: name.to_owned(),
        content: CarriedContent::File(reader.path().join(&file.file)),
    })
}

/// The weights of a bundle, for another one.
#[derive(Debug)]
pub struct Relayout<'a> {
    reader: &'a BundleReader,
    order: Option<NibbleOrder>,
    /// The record last read, whose three projections are asked for one after another:
    /// layer, record, and bytes that have the stated digest.
    record: RefCell<Option<(usize, u64, Vec<u8>)>>,
}

/// Weights that cannot be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayoutError {
    /// The bundle cannot be read, or its bytes are not what its manifest says.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Tiles could not be converted: a bug.
    #[error("tiles cannot be converted: {0}")]
    Layout(#[from] LayoutError),
    /// The specification is not the one that came with the payload.
    #[error("there is no {what} in the bundle; this is a bug in estream, report it")]
    NoSuch {
        /// What was asked for.
        what: String,
    },
    /// The writer stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl RelayoutError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            RelayoutError::Read(error) => error.exit(),
            RelayoutError::Layout(_) | RelayoutError::NoSuch { .. } | RelayoutError::Stopped(_) => {
                Exit::Internal
            }
        }
    }
}

impl Relayout<'_> {
    fn manifest(&self) -> &Manifest {
        self.reader.bundle().manifest()
    }

    /// Converts whole tiles, or passes on a piece of anything else.
    fn push(
        &self,
        layout: Layout,
        piece: &[u8],
        converted: &mut Vec<u8>,
        sink: &mut Sink<'_, '_>,
    ) -> Result<(), RelayoutError> {
        let to = in_order(layout, self.order);
        if to == layout {
            return Ok(sink.push(piece)?);
        }
        // Tiles are converted one by one, so any number of them is as good as a strip.
        let cols = piece.len() / tile_bytes(layout) * TILE_COLS;
        converted.resize(piece.len(), 0);
        relayout_strip(layout, to, cols, piece, converted)?;
        Ok(sink.push(converted)?)
    }

    /// Leaves the record in `self.record`.
    fn read_record(&self, layer: usize, record: u64, bytes: u64) -> Result<(), RelayoutError> {
        let mut held = self.record.borrow_mut();
        if matches!(&*held, Some((of, at, _)) if (*of, *at) == (layer, record)) {
            return Ok(());
        }
        let mut buffer = held.take().map(|(_, _, buffer)| buffer).unwrap_or_default();
        // The file was that large when it was opened.
        buffer.resize(size(bytes)?, 0);
        self.reader
            .read_record_verified(layer, record, &mut buffer)?;
        *held = Some((layer, record, buffer));
        Ok(())
    }
}

impl Payload for Relayout<'_> {
    type Error = RelayoutError;

    fn resident(&self, index: usize, sink: &mut Sink<'_, '_>) -> Result<(), RelayoutError> {
        let extent = self.reader.resident(index)?;
        let tensors = &self.manifest().resident.tensors;
        let tensor = tensors.get(index).ok_or_else(|| no_such("tensor", index))?;
        let (mut piece, mut converted) = (Vec::new(), Vec::new());
        let mut hasher = blake3::Hasher::new();
        let mut from = 0;
        while from < extent.bytes() {
            let left = extent.bytes() - from;
            piece.resize(size(left)?.min(piece_bytes(tensor.layout)), 0);
            extent.read_at(from, &mut piece)?;
            hasher.update(&piece);
            self.push(tensor.layout, &piece, &mut converted, sink)?;
            from += piece.len() as u64;
        }
        // A tensor may be larger than memory, so it is known to be whole only now; the
        // writer drops the output if it was not.
        let found = Digest(*hasher.finalize().as_bytes());
        if found != tensor.digest {
            return Err(integrity(&extent, &tensor.name, tensor.digest, found).into());
        }
        Ok(())
    }

    fn region(
        &self,
        layer: usize,
        expert: u64,
        shard: u64,
        projection: Projection,
        sink: &mut Sink<'_, '_>,
    ) -> Result<(), RelayoutError> {
        let layers = &self.manifest().experts.layers;
        let stated = layers
            .get(layer)
            .ok_or_else(|| no_such("expert layer", layer))?;
        let position = stated.order.iter().position(|&other| other == expert);
        let position = position.ok_or_else(|| no_such("expert", expert))?;
        let record = position as u64 * stated.shards + shard;
        self.read_record(layer, record, stated.record_bytes)?;

        let region = projection.region(stated);
        let (start, bytes) = (size(region.offset)?, size(region.bytes)?);
        let held = self.record.borrow();
        let tiles = held
            .as_ref()
            .and_then(|(_, _, record)| record.get(start..)?.get(..bytes))
            .ok_or_else(|| no_such("record", record))?;
        let mut converted = Vec::new();
        tiles
            .chunks(piece_bytes(region.layout))
            .try_for_each(|piece| self.push(region.layout, piece, &mut converted, sink))
    }
}

/// Bytes of a tile; one byte where there are no tiles.
fn tile_bytes(layout: Layout) -> usize {
    let bytes = layout
        .tile_bytes()
        .and_then(|bytes| usize::try_from(bytes).ok());
    bytes.unwrap_or(1)
}

/// Bytes handled at a time: as many whole tiles as fit.
fn piece_bytes(layout: Layout) -> usize {
    PIECE_BYTES - PIECE_BYTES % tile_bytes(layout)
}

/// A size from a checked manifest as a length in memory.
fn size(bytes: u64) -> Result<usize, RelayoutError> {
    usize::try_from(bytes).map_err(|_| no_such("memory for bytes", bytes))
}

fn no_such(what: &str, which: impl std::fmt::Display) -> RelayoutError {
    RelayoutError::NoSuch {
        what: format!("{what} {which}"),
    }
}

fn integrity(extent: &Extent<'_>, name: &str, expected: Digest, found: Digest) -> ReadError {
    ReadError::Integrity {
        path: extent.path().to_owned(),
        what: format!("tensor {name:?}"),
        expected,
        found,
    }
}
