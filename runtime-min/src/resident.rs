//! Weights that are always in memory.

use estream_schemas::layout::Layout;
use estream_schemas::manifest::ResidentTensor;

use crate::backend::Weight;
use crate::error::{RunError, index, zeros};
use crate::layouts::vector;
use crate::ops::{MatrixId, VectorId};
use crate::reader::{BundleReader, Verify};
use crate::resolve::Resolved;

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
        let read = |&tensor: &usize| read(reader, tensor, &tensors[tensor], verify);
        let matrices = resolved.matrices.iter().map(read);
        let vectors = resolved.vectors.iter().map(|tensor| {
            let Stored { cols, bytes, .. } = read(tensor)?;
            let mut out = zeros(WHAT, cols)?;
            vector(reader, &tensors[*tensor], 1, &bytes)?.row(0, &mut out);
            Ok(out)
        });
        Ok(Resident {
            matrices: matrices.collect::<Result<_, _>>()?,
            vectors: vectors.collect::<Result<_, RunError>>()?,
        })
    }

    pub(crate) fn matrix(&self, id: MatrixId) -> Weight<'_> {
        self.matrices[id.0].weight()
    }

    pub(crate) fn vector(&self, id: VectorId) -> &[f32] {
        &self.vectors[id.0]
    }

    /// Columns of the widest matrix.
    pub(crate) fn widest(&self) -> usize {
        let cols = self.matrices.iter().map(|matrix| matrix.cols);
        cols.max().unwrap_or(0)
    }

    /// Memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        let matrices = self.matrices.iter().map(|matrix| matrix.bytes.len());
        let vectors = self.vectors.iter().map(|vector| size_of_val(&vector[..]));
        matrices.chain(vectors).map(|bytes| bytes as u64).sum()
    }
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
