//! Whether a backend reads what a bundle holds, asked before any weight is read.

use estream_schemas::layout::Layout;
use estream_schemas::manifest::ResidentTensor;

use crate::backend::Backend;
use crate::backend::cpu::Matrix;
use crate::error::{RunError, index};
use crate::reader::{BundleReader, Projection};
use crate::resolve::{MatrixSource, Resolved};

/// Errors at the first weight of the program that cannot be read.
pub(crate) fn check(
    reader: &BundleReader,
    resolved: &Resolved,
    backend: &dyn Backend,
) -> Result<(), RunError> {
    let supported = |layout, what: &dyn Fn() -> String| match backend.supports(layout) {
        true => Ok(()),
        false => Err(refused(reader, backend.name(), layout, what())),
    };
    let manifest = reader.bundle().manifest();
    let tensors = &manifest.resident.tensors;
    // No rows need no bytes: only the layout can be refused.
    let decodable = |tensor: usize| decoded(reader, &tensors[tensor], 0, &[]).map(drop);
    for &matrix in &resolved.matrices {
        match matrix {
            MatrixSource::Stored(tensor) => {
                let ResidentTensor { name, layout, .. } = &tensors[tensor];
                supported(*layout, &|| format!("tensor {name:?}"))?;
            }
            MatrixSource::Joined { k, v, .. } => [k, v].into_iter().try_for_each(decodable)?,
        }
    }
    resolved.vectors.iter().copied().try_for_each(decodable)?;
    for layer in &manifest.experts.layers {
        for projection in Projection::ALL {
            let layout = projection.region(layer).layout;
            supported(layout, &|| {
                format!("{projection:?} of the experts of layer {}", layer.layer)
            })?;
        }
    }
    Ok(())
}

/// The first `rows` of a tensor that the host decodes for every backend.
pub(crate) fn decoded<'a>(
    reader: &BundleReader,
    tensor: &ResidentTensor,
    rows: usize,
    bytes: &'a [u8],
) -> Result<Matrix<'a>, RunError> {
    let cols = index("resident weights", tensor.matrix().1)?;
    Matrix::new(tensor.layout, rows, cols, bytes).map_err(|_| {
        let what = format!("tensor {:?}", tensor.name);
        refused(reader, "cpu", tensor.layout, what)
    })
}

fn refused(reader: &BundleReader, backend: &'static str, layout: Layout, what: String) -> RunError {
    RunError::Layout {
        path: reader.path().to_owned(),
        what,
        layout,
        backend,
    }
}
