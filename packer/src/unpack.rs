//! A GGUF file from a bundle: every block back where it was.
//!
//! The ledger says which source tensor held which weights, so a bundle that came from
//! GGUF gives back the same tensors; blocks are moved, never decoded.

use std::fs::File;
use std::io::{self, BufWriter};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use estream_compiler::arch::{ArchError, Family};
use estream_compiler::ingest::gguf::{Gguf, GgufBuilder, GgufFault, GgufWriter, WriteFault};
use estream_compiler::layout::{LayoutError, untile_strip};
use estream_runtime::partial::PartialFile;
use estream_runtime::reader::{BundleReader, Extent, ReadError};
use estream_schemas::dtype::DType;
use estream_schemas::exit::Exit;
use estream_schemas::layout::{Layout, TILE};
use estream_schemas::manifest::{
    ExpertLayer, Fate, LedgerEntry, Manifest, Projection, SourceFormat,
};

/// Why a bundle does not become a GGUF file. Nothing is left of the output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The bundle cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The bundle is not what it was when it was made.
    #[error("{problem}; compile the bundle again")]
    Damaged {
        /// The first thing that is wrong.
        problem: String,
        /// What kind of thing it is.
        exit: Exit,
    },
    /// The descriptor in the bundle is not one.
    #[error("the bundle's {0}")]
    Descriptor(#[from] ArchError),
    /// The bundle was made from safetensors.
    #[error("{}: was made from safetensors, whose tokenizer and names are not those of a GGUF file; only bundles made from GGUF can be unpacked so far", path.display())]
    NotFromGguf {
        /// The bundle.
        path: PathBuf,
    },
    /// The carried key-value pairs are not readable.
    #[error("{}: the key-value pairs carried from the source are damaged: {source}", path.display())]
    Metadata {
        /// The bundle.
        path: PathBuf,
        /// What is wrong.
        source: GgufFault,
    },
    /// A source tensor that cannot be put together again.
    #[error("tensor {tensor:?} cannot be restored: {why}")]
    Tensor {
        /// Its name in the source.
        tensor: String,
        /// What is in the way.
        why: String,
    },
    /// Blocks do not fit their tiles: a bug of ours.
    #[error("internal error: {0}")]
    Layout(#[from] LayoutError),
    /// Something is at the output already.
    #[error("{}: exists; name another output", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The output cannot be written.
    #[error("{}: cannot be written: {source}; nothing was left at the output", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// What went wrong.
        source: WriteFault,
    },
    /// The progress callback said stop.
    #[error("cancelled; nothing was left at the output")]
    Cancelled,
}

impl UnpackError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            UnpackError::Read(error) => error.exit(),
            UnpackError::Damaged { exit, .. } => *exit,
            UnpackError::Descriptor(_) | UnpackError::Metadata { .. } => Exit::Invalid,
            UnpackError::NotFromGguf { .. } | UnpackError::Tensor { .. } => Exit::CannotRun,
            UnpackError::Layout(_) => Exit::Internal,
            UnpackError::Exists { .. } => Exit::Usage,
            UnpackError::Write { .. } => Exit::Io,
            UnpackError::Cancelled => Exit::No,
        }
    }
}

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
    let plan = plan(reader, manifest)?;
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

/// A source tensor and where its rows are in the bundle.
struct Tensor<'a> {
    entry: &'a LedgerEntry,
    dtype: DType,
    /// Matrices whose rows follow one another.
    pieces: Vec<Piece<'a>>,
}

/// A matrix of the bundle.
enum Piece<'a> {
    Resident {
        index: usize,
        layout: Layout,
        rows: u64,
        cols: u64,
    },
    /// One projection of one expert, all its shards.
    Expert {
        index: usize,
        layer: &'a ExpertLayer,
        position: u64,
        projection: Projection,
    },
}

impl Piece<'_> {
    fn layout(&self) -> Layout {
        match self {
            Piece::Resident { layout, .. } => *layout,
            Piece::Expert {
                layer, projection, ..
            } => projection.region(layer).layout,
        }
    }

    /// Elements of a row of one stored matrix.
    fn stored_cols(&self) -> u64 {
        match self {
            Piece::Resident { cols, .. } => *cols,
            Piece::Expert {
                layer, projection, ..
            } => projection.region(layer).cols,
        }
    }

    fn elements(&self) -> u64 {
        match self {
            Piece::Resident { rows, cols, .. } => rows * cols,
            Piece::Expert {
                layer, projection, ..
            } => {
                let region = projection.region(layer);
                region.rows * region.cols * layer.shards
            }
        }
    }
}

/// Everything that must hold before the first byte is written.
fn plan<'a>(reader: &BundleReader, manifest: &'a Manifest) -> Result<Vec<Tensor<'a>>, UnpackError> {
    if manifest.source.format != SourceFormat::Gguf {
        return Err(UnpackError::NotFromGguf {
            path: reader.path().to_owned(),
        });
    }
    let family = Family::parse("descriptor", &manifest.descriptor.text)?;
    let mut plan = Vec::new();
    for entry in &manifest.ledger {
        let refuse = |why: String| UnpackError::Tensor {
            tensor: entry.tensor.clone(),
            why,
        };
        let Fate::Became(names) = &entry.fate else {
            continue;
        };
        let pieces = names
            .iter()
            .map(|name| pieces(manifest, &family, name).map_err(refuse))
            .collect::<Result<Vec<_>, _>>()?;
        let pieces: Vec<Piece<'_>> = pieces.into_iter().flatten().collect();
        let dtype = pieces.first().map(|piece| piece.layout().dtype());
        let dtype =
            dtype.ok_or_else(|| refuse("the bundle does not say what became of it".into()))?;
        for piece in &pieces {
            if piece.layout().dtype() != dtype {
                return Err(refuse(
                    "its parts have different types in the bundle".into(),
                ));
            }
            if piece.layout().is_tiled() && !piece.stored_cols().is_multiple_of(TILE) {
                return Err(refuse("its rows were padded with zeros (--pad-k)".into()));
            }
        }
        let elements: u64 = pieces.iter().map(Piece::elements).sum();
        let stated = entry
            .shape
            .iter()
            .try_fold(1u64, |n, &dim| n.checked_mul(dim));
        if stated != Some(elements) {
            return Err(refuse(format!(
                "the bundle holds {elements} elements of it"
            )));
        }
        plan.push(Tensor {
            entry,
            dtype,
            pieces,
        });
    }
    Ok(plan)
}

/// The matrices that the ledger calls `name`.
fn pieces<'a>(
    manifest: &'a Manifest,
    family: &Family,
    name: &str,
) -> Result<Vec<Piece<'a>>, String> {
    let parts: Vec<&str> = name.split('.').collect();
    let role = match parts[..] {
        [role] | ["layers", _, role] | ["layers", _, role, _] => role,
        _ => return Err(format!("{name:?} is no weight's name")),
    };
    if family.reorders_gguf(role) {
        return Err(format!("{role} is stored in another order in GGUF"));
    }
    if let Some(index) = (manifest.resident.tensors.iter()).position(|tensor| tensor.name == name) {
        let tensor = &manifest.resident.tensors[index];
        let (rows, cols) = tensor.matrix();
        return Ok(vec![Piece::Resident {
            index,
            layout: tensor.layout,
            rows,
            cols,
        }]);
    }
    let lost = || format!("the bundle holds no {name:?}");
    let projection = match role {
        "expert_gate" => Projection::Gate,
        "expert_up" => Projection::Up,
        "expert_down" => Projection::Down,
        _ => return Err(lost()),
    };
    let number = |at: usize| parts.get(at).and_then(|part| part.parse::<u64>().ok());
    let layers = &manifest.experts.layers;
    let index = layers
        .iter()
        .position(|layer| Some(layer.layer) == number(1));
    let index = index.ok_or_else(lost)?;
    let layer = &layers[index];
    let experts = match parts.len() {
        3 => 0..layer.experts,
        _ => number(3)
            .map(|expert| expert..expert + 1)
            .ok_or_else(lost)?,
    };
    experts
        .map(|expert| {
            let position = layer.order.iter().position(|stored| *stored == expert);
            Ok(Piece::Expert {
                index,
                layer,
                position: position.ok_or_else(lost)? as u64,
                projection,
            })
        })
        .collect()
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
