//! Scales of FP8 weights, which stand in a tensor of their own.
//!
//! The elements of a matrix mean nothing without their scales: what `W[r, c]` stands for
//! is element × grid `[r / rows, c / cols]`, where the grid has one number for each
//! block of rows × cols elements.
//!
//! | shape of the grid | of a matrix `[R, C]` it has one number for |
//! |---|---|
//! | `[⌈R / rows⌉, ⌈C / cols⌉]` | each block of the size that the configuration states; the last ones may be smaller |
//! | `[R]`, `[R, 1]` | each row, where it states none |
//! | `[]`, `[1]`, `[1, 1]` | the matrix, where it states none |
//!
//! Dimensions before the last two, as of stacked experts, are the same in both tensors.
//! The product is that of two f32, rounded once.

use std::ops::Range;

use estream_schemas::dtype::DType;

use crate::ingest::{Checkpoint, IngestError, SourceTensor};
use crate::quant::decode;

/// Where the scales of one tensor are. All numbers are at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scales {
    /// Index into [`Checkpoint::tensors`].
    tensor: usize,
    /// Type of the scales.
    dtype: DType,
    /// Rows and columns of one matrix of the tensor.
    matrix: [u64; 2],
    /// Rows and columns that share a scale.
    block: [u64; 2],
    /// Rows and columns of the grid of one matrix.
    grid: [u64; 2],
}

/// The scales of some grid rows.
pub(super) struct Grid {
    first_row: u64,
    values: Vec<f32>,
}

impl Scales {
    /// The scales of `source` in `scale`, which is number `tensor` of the checkpoint.
    /// `block` is what the configuration states.
    pub(super) fn of(
        source: &SourceTensor,
        scale: &SourceTensor,
        tensor: usize,
        block: Option<[u64; 2]>,
    ) -> Result<Scales, String> {
        if !matches!(scale.dtype, DType::F32 | DType::BF16 | DType::F16) {
            let why = "scales are f32, bf16 or f16";
            return Err(format!("{:?} is {}: {why}", scale.name, scale.dtype));
        }
        let [outer @ .., rows, cols] = &source.shape[..] else {
            return Err(format!(
                "{:?} is {} {:?}, and only matrices have scales",
                source.name, source.dtype, source.shape
            ));
        };
        let matrix = [*rows, *cols];
        let own = scale.shape.strip_prefix(outer);
        let (block, is_flat) = match (block, own) {
            (Some(block), _) => (block, false),
            (None, Some([] | [1] | [1, 1])) => (matrix, true),
            (None, _) => ([1, *cols], own == Some(&[*rows])),
        };
        let grid = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        if !is_flat && own != Some(&grid) {
            let expected: Vec<u64> = outer.iter().chain(&grid).copied().collect();
            return Err(format!(
                "wrong shape: {:?} is {:?}, the scales of {:?} {:?} must be {expected:?}, one for {} × {} elements",
                scale.name, scale.shape, source.name, source.shape, block[0], block[1]
            ));
        }
        Ok(Scales {
            tensor,
            dtype: scale.dtype,
            matrix,
            block,
            grid,
        })
    }

    /// The row of the grid for `element`, counted through the whole tensor.
    fn grid_row(&self, element: u64) -> u64 {
        let row = element / self.matrix[1];
        row / self.matrix[0] * self.grid[0] + row % self.matrix[0] / self.block[0]
    }

    /// Reads the grid rows of `elements`, counted through the whole tensor.
    pub(super) fn read(
        &self,
        checkpoint: &Checkpoint,
        elements: Range<u64>,
    ) -> Result<Grid, IngestError> {
        let tensor = &checkpoint.tensors[self.tensor];
        let first_row = self.grid_row(elements.start);
        let last_row = self.grid_row(elements.end.saturating_sub(1).max(elements.start));
        let count = (last_row + 1 - first_row) * self.grid[1];
        let row_bytes = self.grid[1] * self.dtype.block_bytes();
        let mut bytes = vec![0; size(count * self.dtype.block_bytes())];
        checkpoint.read(tensor, first_row * row_bytes, &mut bytes)?;
        Ok(Grid {
            first_row,
            values: floats(self.dtype, &bytes),
        })
    }

    /// Multiplies `values`, which are the elements from `element` on, by their scales.
    pub(super) fn apply(&self, grid: &Grid, element: u64, values: &mut [f32]) {
        let mut element = element;
        let mut rest = values;
        while !rest.is_empty() {
            let col = element % self.matrix[1];
            let block = col / self.block[1];
            let end = ((block + 1) * self.block[1]).min(self.matrix[1]);
            let (now, later) = rest.split_at_mut(size(end - col).min(rest.len()));
            let row = self.grid_row(element) - grid.first_row;
            let scale = grid.values[size(row * self.grid[1] + block)];
            for value in &mut *now {
                *value *= scale;
            }
            element += now.len() as u64;
            rest = later;
        }
    }
}

/// The numbers of a type without blocks. One that cannot be read is none: whoever
/// writes a weight refuses it, and nothing takes a zero in its place.
pub(super) fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let count = bytes.len() as u64 / dtype.block_bytes();
    let mut values = vec![0.0; size(count)];
    if decode(dtype, bytes, &mut values).is_err() {
        values.fill(f32::NAN);
    }
    values
}

/// A size that the shape of a tensor in a file has bounded.
fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
