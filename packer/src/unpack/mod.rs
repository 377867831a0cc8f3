//! A GGUF file from a bundle: every block back where it was.
//!
//! The ledger says which source tensor held which weights, so a bundle that came from
//! GGUF gives back the same tensors; blocks are moved, never decoded.

mod error;
mod plan;

use std::fs::File;
use std::io::{self, BufWriter};
use std::ops::ControlFlow;
use std::path::Path;

use estream_compiler::ingest::gguf::{Gguf, GgufBuilder, GgufWriter};
use estream_compiler::layout::untile_strip;
use estream_runtime::partial::PartialFile;
use estream_runtime::reader::{BundleReader, Extent};
use estream_schemas::layout::{Layout, TILE};
use estream_schemas::manifest::{Manifest, Projection, SourceFormat};

pub use error::UnpackError;
use plan::{Piece, Tensor};

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Tensors of the file.
    pub tensor_count: usize,
    /// Tensors of the source that the bundle does not hold, because nobody needs them.
    pub dropped_count: usize,
}

/// Writes the weights of `reader`'s bundle to `out`, a file that must not exist.
pub fn unpack(
    reader: &BundleReader,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Unpacked, UnpackError> {
    let manifest = reader.bundle().manifest();
    let plan = plan::plan(reader, manifest)?;
    let write = |source| UnpackError::Write {
        path: out.to_owned(),
        source,
    };
    let mut builder = GgufBuilder::new();
    builder
        .pairs_of(&metadata(reader, manifest)?)
        .map_err(write)?;
    for tensor in &plan {
        builder
            .tensor(&tensor.entry.tensor, tensor.dtype, &tensor.entry.shape)
            .map_err(write)?;
    }
    let (partial, file) = PartialFile::beside(out).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => UnpackError::Exists {
            path: out.to_owned(),
        },
        _ => write(error.into()),
    })?;
    // A strip at a time has no digest, so all of the bundle is checked before.
    let checked = reader.verify_all(&mut |_, _| {})?;
    if let Some(problem) = checked.problems.first() {
        return Err(UnpackError::Damaged {
            problem: problem.to_string(),
            exit: checked.exit(),
        });
    }
    let mut job = Job {
        reader,
        out,
        writer: builder.begin(BufWriter::new(file)).map_err(write)?,
        done: 0,
        total: manifest.resident.bytes
            + manifest
                .experts
                .parts
                .iter()
                .map(|part| part.bytes)
                .sum::<u64>(),
        progress,
    };
    for tensor in &plan {
        job.tensor(tensor)?;
    }
    let file = job.writer.finish().map_err(write)?;
    let file = file
        .into_inner()
        .map_err(|e| write(e.into_error().into()))?;
    file.sync_all().map_err(|e| write(e.into()))?;
    partial.publish().map_err(|e| write(e.into()))?;
    Ok(Unpacked {
        tensor_count: plan.len(),
        dropped_count: manifest.ledger.len() - plan.len(),
    })
}

fn metadata(reader: &BundleReader, manifest: &Manifest) -> Result<Gguf, UnpackError> {
    let path = || reader.path().to_owned();
    let carried = match (&manifest.source.metadata, manifest.source.format) {
        (Some(carried), SourceFormat::Gguf) => carried,
        _ => return Err(UnpackError::NotFromGguf { path: path() }),
    };
    reader.check_file(carried)?;
    Gguf::open(&reader.path().join(&carried.file)).map_err(|error| UnpackError::Metadata {
        path: path(),
        source: error.fault,
    })
}

struct Job<'a> {
    reader: &'a BundleReader,
    out: &'a Path,
    writer: GgufWriter<BufWriter<File>>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

impl Job<'_> {
    fn tensor(&mut self, tensor: &Tensor<'_>) -> Result<(), UnpackError> {
        tensor.pieces.iter().try_for_each(|piece| self.piece(piece))
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<(), UnpackError> {
        match piece {
            Piece::Resident {
                index,
                layout,
                rows,
                cols,
            } => {
                let extent = self.reader.resident(*index)?;
                self.strips(&[extent], *layout, *rows, *cols)
            }
            Piece::Expert {
                index,
                layer,
                position,
                projection,
            } => {
                let region = projection.region(layer);
                let shards = (0..layer.shards).map(|shard| {
                    let record = position * layer.shards + shard;
                    self.reader.region(*index, record, *projection)
                });
                let shards = shards.collect::<Result<Vec<_>, _>>()?;
                match projection {
                    // Shards of gate and up are rows that follow one another; of down, columns.
                    Projection::Gate | Projection::Up => shards.iter().try_for_each(|shard| {
                        self.strips(
                            std::slice::from_ref(shard),
                            region.layout,
                            region.rows,
                            region.cols,
                        )
                    }),
                    Projection::Down => {
                        self.strips(&shards, region.layout, region.rows, region.cols)
                    }
                }
            }
        }
    }

    /// Writes the rows of a matrix whose columns are those of `side_by_side`, one
    /// extent of `rows` × `cols` after the other.
    fn strips(
        &mut self,
        side_by_side: &[Extent<'_>],
        layout: Layout,
        rows: u64,
        cols: u64,
    ) -> Result<(), UnpackError> {
        let row_bytes = size(layout.dtype().row_bytes(cols).unwrap_or(0));
        let strip_bytes = match layout.tile_bytes() {
            Some(tile_bytes) => size(tile_bytes * cols.div_ceil(TILE)),
            None => row_bytes * size(TILE),
        };
        let mut stored = vec![0; strip_bytes];
        let mut plain = vec![vec![0; row_bytes * size(TILE)]; side_by_side.len()];
        for strip in 0..rows.div_ceil(TILE) {
            let row_count = size((rows - strip * TILE).min(TILE));
            for (extent, plain) in side_by_side.iter().zip(&mut plain) {
                let from = strip * strip_bytes as u64;
                let out = &mut plain[..row_count * row_bytes];
                if layout.is_tiled() {
                    extent.read_at(from, &mut stored)?;
                    untile_strip(layout, &stored, row_count, size(cols), out)?;
                } else {
                    extent.read_at(from, out)?;
                }
            }
            for row in 0..row_count {
                for plain in &plain {
                    let bytes = &plain[row * row_bytes..(row + 1) * row_bytes];
                    self.write(bytes)?;
                }
            }
            self.done += (strip_bytes * side_by_side.len()) as u64;
            if (self.progress)(self.done.min(self.total), self.total).is_break() {
                return Err(UnpackError::Cancelled);
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        self.writer
            .write_tensor_data(bytes)
            .map_err(|source| UnpackError::Write {
                path: self.out.to_owned(),
                source,
            })
    }
}

/// A size that a checked manifest bounds.
fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
