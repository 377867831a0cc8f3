//! Weights that are always in memory.

use estream_schemas::dtype::DType;
use estream_schemas::layout::Layout;
use estream_schemas::manifest::ResidentTensor;

use crate::backend::Weight;
use crate::error::{RunError, index, zeros};
use crate::layouts::decoded;
use crate::ops::{MatrixId, VectorId};
use crate::reader::{BundleReader, Verify};
use crate::resolve::{MatrixSource, Resolved};

const WHAT: &str = "resident weights";

/// The tensors a program uses: matrices in the bytes they are stored in, one
/// allocation each, and vectors as f32.
#[derive(Debug)]
pub(crate) struct Resident {
    matrices: Vec<Stored>,
    vectors: Vec<Vec<f32>>,
}

#[derive(Debug)]
struct Stored {
    layout: Layout,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Stored {
    fn weight(&self) -> Weight<'_> {
        Weight {
            layout: self.layout,
            rows: self.rows,
            cols: self.cols,
            bytes: &self.bytes,
        }
    }
}

impl Resident {
    /// Reads the tensors that were resolved, each hashed before the next unless `verify`
    /// is [`Verify::Never`].
    pub(crate) fn load(
        reader: &BundleReader,
        resolved: &Resolved,
        verify: Verify,
    ) -> Result<Resident, RunError> {
        let tensors = &reader.bundle().manifest().resident.tensors;
        let read = |tensor: usize| read(reader, tensor, &tensors[tensor], verify);
        let decode = |tensor: usize| {
            let stored = read(tensor)?;
            let mut out = zeros(WHAT, stored.rows.saturating_mul(stored.cols))?;
            let matrix = decoded(reader, &tensors[tensor], stored.rows, &stored.bytes)?;
            for (row, out) in out.chunks_exact_mut(stored.cols).enumerate() {
                matrix.row(row, out);
            }
            Ok::<_, RunError>((stored.cols, out))
        };
        let matrices = resolved.matrices.iter().map(|matrix| match *matrix {
            MatrixSource::Stored(tensor) => read(tensor),
            MatrixSource::Joined { k, v, heads } => join(decode(k)?, decode(v)?, heads),
        });
        let vectors = resolved.vectors.iter();
        let vectors = vectors.map(|tensor| Ok(decode(*tensor)?.1));
        Ok(Resident {
            matrices: matrices.collect::<Result<_, RunError>>()?,
            vectors: vectors.collect::<Result<_, RunError>>()?,
        })
    }

    pub(crate) fn matrix(&self, id: MatrixId) -> Weight<'_> {
        self.matrices[id.0].weight()
    }

    pub(crate) fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0]
    }
}

/// `[heads · (nope + value), rank]` from the key's part, `[heads · rank, nope]`, and the
/// value's, `[heads · value, rank]`, each with its columns: exactly the same numbers, in f32.
fn join(
    (nope, k): (usize, Vec<f32>),
    (rank, v): (usize, Vec<f32>),
    heads: usize,
) -> Result<Stored, RunError> {
    let mut bytes = zeros(WHAT, size_of::<f32>() * (k.len() + v.len()))?;
    let mut numbers = bytes.chunks_exact_mut(size_of::<f32>());
    // A checked program has heads, and they divide both.
    let of_heads = k
        .chunks_exact(k.len() / heads)
        .zip(v.chunks_exact(v.len() / heads));
    for (k, v) in of_heads {
        let turned = (0..nope).flat_map(|row| k[row..].iter().step_by(nope));
        for (x, out) in turned.chain(v).zip(numbers.by_ref()) {
            out.copy_from_slice(&x.to_le_bytes());
        }
    }
    Ok(Stored {
        layout: Layout::rows(DType::F32),
        rows: (k.len() + v.len()) / rank,
        cols: rank,
        bytes,
    })
}

fn read(
    reader: &BundleReader,
    tensor: usize,
    stated: &ResidentTensor,
    verify: Verify,
) -> Result<Stored, RunError> {
    let (rows, cols) = stated.matrix();
    let mut bytes = zeros(WHAT, index(WHAT, stated.bytes)?)?;
    reader.read_resident(tensor, &mut bytes)?;
    if verify != Verify::Never {
        reader.check_resident(tensor, &bytes)?;
    }
    Ok(Stored {
        layout: stated.layout,
        rows: index(WHAT, rows)?,
        cols: index(WHAT, cols)?,
        bytes,
    })
}
