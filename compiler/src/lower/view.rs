//! A weight as a window on a source tensor.

use std::ops::Range;

use estream_schemas::dtype::DType;

use super::scales::{Scales, floats};
use crate::ingest::{Checkpoint, IngestError};

/// Where a canonical matrix is in the source: one matrix of a tensor (of several, if
/// experts are stacked), some of its rows, in some order. A vector is one row, or as
/// many rows of one element if only some of the stored ones are its own.
///
/// Only whole rows move, so a view never changes how a block is quantised; the
/// exception is a transposed matrix, whose elements must therefore be plain numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Index into [`Checkpoint::tensors`].
    pub tensor: usize,
    /// Type of the stored elements.
    pub dtype: DType,
    /// Canonical rows.
    pub rows: u64,
    /// Canonical elements a row.
    pub cols: u64,
    /// Where the stored matrix starts in the tensor, in bytes.
    pub(super) base_bytes: u64,
    /// Elements of a stored row.
    pub(super) stored_cols: u64,
    /// Stored row of canonical row 0.
    pub(super) first_row: u64,
    /// Stored rows from one canonical row to the next.
    pub(super) row_step: u64,
    /// Whether stored rows are canonical columns.
    pub(super) transposed: bool,
    /// Rows of one head, if the stored rows of a head are adjacent rope pairs.
    pub(super) rope_head_rows: Option<u64>,
    /// What the elements are multiplied by, if they mean nothing alone.
    pub(super) scales: Option<Scales>,
}

impl View {
    /// Elements of the weight.
    pub fn elements(&self) -> u64 {
        self.rows * self.cols
    }

    /// Whether the elements have scales in a tensor of their own.
    pub fn has_scales(&self) -> bool {
        self.scales.is_some()
    }

    /// Type that rows are read in: what is stored, or f32 once scales are applied.
    pub fn read_dtype(&self) -> DType {
        match self.scales {
            None => self.dtype,
            Some(_) => DType::F32,
        }
    }

    /// Bytes of one canonical row as it is read.
    pub fn row_bytes(&self) -> usize {
        self.bytes_of_row(self.read_dtype())
    }

    fn bytes_of_row(&self, dtype: DType) -> usize {
        // A view is made of a tensor whose whole size was checked.
        let bytes = dtype.row_bytes(self.cols).unwrap_or(0);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The stored row that holds canonical row `row` (for transposed views, the stored column).
    fn stored(&self, row: u64) -> u64 {
        let ordered = match self.rope_head_rows {
            None => row,
            Some(head_rows) => {
                let (head, within) = (row / head_rows, row % head_rows);
                let half = head_rows / 2;
                head * head_rows + 2 * (within % half) + within / half
            }
        };
        self.first_row + ordered * self.row_step
    }

    /// Where the element of canonical row `row` and column `col` is in a tensor of `shape`, of
    /// which this is a view: an index for each dimension, the slowest first.
    pub fn position(&self, shape: &[u64], row: u64, col: u64) -> Vec<u64> {
        let mut rest = self.element(row, col);
        let mut position = vec![0; shape.len()];
        for (index, dim) in position.iter_mut().zip(shape).rev() {
            *index = rest % (*dim).max(1);
            rest /= (*dim).max(1);
        }
        position
    }

    /// The element of canonical row `row` and column `col`, counted through the tensor.
    fn element(&self, row: u64, col: u64) -> u64 {
        let base = self.base_bytes / self.dtype.block_bytes() * self.dtype.block_len();
        match self.transposed {
            false => base + self.stored(row) * self.cols + col,
            true => base + col * self.stored_cols + self.stored(row),
        }
    }

    /// Whether this and `other`, a view of the same stored matrix, share elements.
    pub(super) fn overlaps(&self, other: &View) -> bool {
        let lies = |view: &View| (view.stored_cols, view.transposed);
        let holds = |stored: u64| {
            stored.checked_sub(other.first_row).is_some_and(|from| {
                from.is_multiple_of(other.row_step) && from / other.row_step < other.rows
            })
        };
        lies(self) != lies(other)
            || (0..self.rows).any(|row| holds(self.first_row + row * self.row_step))
    }

    /// Fills `out` with canonical rows `first..first + count`, one after another, in
    /// [`View::read_dtype`].
    pub fn read_rows(
        &self,
        checkpoint: &Checkpoint,
        first: u64,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), IngestError> {
        self.read_stored(checkpoint, first, count, out)?;
        if let Some(scales) = &self.scales {
            let mut values = floats(self.dtype, out);
            self.scale(scales, checkpoint, first..first + count, &mut values)?;
            out.clear();
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Ok(())
    }

    /// Multiplies the elements of canonical `rows` by their scales.
    fn scale(
        &self,
        scales: &Scales,
        checkpoint: &Checkpoint,
        rows: Range<u64>,
        values: &mut [f32],
    ) -> Result<(), IngestError> {
        let last = self.cols.saturating_sub(1);
        let ends = rows
            .clone()
            .flat_map(|row| [0, last].map(|col| self.element(row, col)));
        let (low, high) = ends.fold((u64::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
        if low > high {
            return Ok(());
        }
        let grid = scales.read(checkpoint, low..high + 1)?;
        let cols = usize::try_from(self.cols).unwrap_or(usize::MAX);
        for (row, values) in rows.zip(values.chunks_exact_mut(cols)) {
            match self.transposed {
                false => scales.apply(&grid, self.element(row, 0), values),
                true => {
                    for (col, value) in (0..).zip(values.chunks_exact_mut(1)) {
                        scales.apply(&grid, self.element(row, col), value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills `out` with canonical rows as they are stored.
    fn read_stored(
        &self,
        checkpoint: &Checkpoint,
        first: u64,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), IngestError> {
        let row_bytes = self.bytes_of_row(self.dtype);
        out.clear();
        out.resize(row_bytes * usize::try_from(count).unwrap_or(0), 0);
        if self.transposed {
            return self.read_columns(checkpoint, first, out);
        }
        let tensor = &checkpoint.tensors[self.tensor];
        let mut row = first;
        let mut rest = &mut out[..];
        while !rest.is_empty() {
            let run = self.run(row, first + count);
            let bytes = row_bytes * usize::try_from(run).unwrap_or(1);
            let (now, later) = rest.split_at_mut(bytes);
            let offset = self.base_bytes + self.stored(row) * row_bytes as u64;
            checkpoint.read(tensor, offset, now)?;
            rest = later;
            row += run;
        }
        Ok(())
    }

    /// How many canonical rows from `row` on, up to `end`, are stored one after another.
    fn run(&self, row: u64, end: u64) -> u64 {
        let mut next = row + 1;
        while next < end && self.stored(next) == self.stored(next - 1) + 1 {
            next += 1;
        }
        next - row
    }

    /// Rows of a transposed matrix: a piece of every stored row, one element a canonical row.
    fn read_columns(
        &self,
        checkpoint: &Checkpoint,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), IngestError> {
        let tensor = &checkpoint.tensors[self.tensor];
        let element_bytes = self.dtype.block_bytes();
        let width = usize::try_from(element_bytes).unwrap_or(1);
        let row_bytes = self.bytes_of_row(self.dtype);
        let count = (out.len() / row_bytes.max(1)) as u64;
        let Some(last) = count.checked_sub(1) else {
            return Ok(());
        };
        let columns: Vec<u64> = (first..=first + last).map(|row| self.stored(row)).collect();
        let (low, high) = columns
            .iter()
            .fold((u64::MAX, 0), |(low, high), &c| (low.min(c), high.max(c)));
        let span = usize::try_from((high - low + 1) * element_bytes).unwrap_or(0);
        let mut piece = vec![0; span];
        for col in 0..self.cols {
            let offset = self.base_bytes + (col * self.stored_cols + low) * element_bytes;
            checkpoint.read(tensor, offset, &mut piece)?;
            let to = usize::try_from(col).unwrap_or(0) * width;
            for (row, &column) in columns.iter().enumerate() {
                let from = usize::try_from(column - low).unwrap_or(0) * width;
                let at = row * row_bytes + to;
                out[at..at + width].copy_from_slice(&piece[from..from + width]);
            }
        }
        Ok(())
    }
}
