//! Weights that are always in memory.

use estream_schemas::layout::Layout;
use estream_schemas::manifest::ResidentTensor;

use crate::backend::cpu::Matrix;
use crate::backend::{Backend, Weight};
use crate::error::{RunError, index, zeros};
use crate::ops::{MatrixId, VectorId};
use crate::reader::{BundleReader, Verify};
use crate::resolve::Resolved;

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
    /// is [`Verify::Never`]. Layouts are looked at before anything is read.
    pub(crate) fn load(
        reader: &BundleReader,
        resolved: &Resolved,
        backend: &dyn Backend,
        verify: Verify,
    ) -> Result<Resident, RunError> {
        let tensors = &reader.bundle().manifest().resident.tensors;
        for &tensor in &resolved.matrices {
            let ResidentTensor { name, layout, .. } = &tensors[tensor];
            supported(reader, backend, *layout, || format!("tensor {name:?}"))?;
        }
        let read = |&tensor: &usize| read(reader, tensor, &tensors[tensor], verify);
        let matrices = resolved.matrices.iter().map(read);
        let vectors = resolved.vectors.iter().map(|tensor| {
            let stored = read(tensor)?;
            decoded(reader, &tensors[*tensor].name, &stored)
        });
        Ok(Resident {
            matrices: matrices.collect::<Result<_, _>>()?,
            vectors: vectors.collect::<Result<_, _>>()?,
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

/// An error unless `backend` reads `layout`; `what` is the weight in it.
pub(crate) fn supported(
    reader: &BundleReader,
    backend: &dyn Backend,
    layout: Layout,
    what: impl FnOnce() -> String,
) -> Result<(), RunError> {
    if backend.supports(layout) {
        return Ok(());
    }
    Err(RunError::Layout {
        path: reader.path().to_owned(),
        what: what(),
        layout,
        backend: backend.name(),
    })
}

fn read(
    reader: &BundleReader,
    tensor: usize,
    stated: &ResidentTensor,
    verify: Verify,
) -> Result<Stored, RunError> {
    const WHAT: &str = "resident weights";
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

/// A vector as f32: what every backend adds and multiplies with.
fn decoded(reader: &BundleReader, name: &str, stored: &Stored) -> Result<Vec<f32>, RunError> {
    let matrix = Matrix::new(stored.layout, 1, stored.cols, &stored.bytes);
    let matrix = matrix.map_err(|_| RunError::Layout {
        path: reader.path().to_owned(),
        what: format!("tensor {name:?}"),
        layout: stored.layout,
        backend: "cpu",
    })?;
    let mut out = zeros("resident weights", stored.cols)?;
    matrix.row(0, &mut out);
    Ok(out)
}
