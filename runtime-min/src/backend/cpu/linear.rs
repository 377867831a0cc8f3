//! Products of many tokens with one matrix, and rows of a table.

use super::matrix::{Matrix, TILE};
use super::multiply::{Job, Scratch, multiply};
use super::simd::{Kernel, SimdPath};
use super::{Cpu, row_count, scratch_of};
use crate::pool::Block;

/// Strips of a work item: enough columns that packing rows for them is cheap.
pub(super) const STRIPS_TOGETHER: usize = 16;

/// Strips of a work item when `strips` are shared by `threads`: two items a
/// thread, so that a slow one is not waited for long.
pub(super) fn strips_together(strips: usize, threads: usize) -> usize {
    let items = if threads == 1 { 1 } else { 2 * threads };
    strips.div_ceil(items).clamp(1, STRIPS_TOGETHER)
}

/// Which rows of the left operand are multiplied.
#[derive(Clone, Copy)]
enum Rows<'a> {
    All,
    Listed(&'a [u32]),
}

struct LinearKernel<'a, 'b> {
    x: &'a [f32],
    rows: Rows<'a>,
    matrix: &'a Matrix<'a>,
    out: Block<'b>,
    scratch: &'a mut Scratch,
}

impl Kernel for LinearKernel<'_, '_> {
    #[inline(always)]
    fn run(self, path: SimdPath) {
        let cols = self.matrix.cols();
        let (x, rows) = (self.x, self.rows);
        let row = |i: usize| {
            let i = match rows {
                Rows::All => i,
                Rows::Listed(list) => list[i] as usize,
            };
            &x[i * cols..][..cols]
        };
        let strip = self.out.first_col() / TILE;
        let count = self.out.rows();
        let job = Job {
            matrix: self.matrix,
            strips: strip..strip + self.out.cols().div_ceil(TILE),
            out: self.out,
        };
        let Scratch { packed, lanes, .. } = self.scratch;
        multiply(path, count, cols, row, &mut [job], (packed, lanes));
    }
}

impl Cpu {
    /// `out = x · wᵀ`: `[tokens, w.cols]` to `[tokens, w.rows]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn linear(&mut self, x: &[f32], w: &Matrix<'_>, out: &mut [f32]) {
        assert_eq!(
            row_count(x, w.cols()),
            row_count(out, w.rows()),
            "a row of products for every token"
        );
        self.linear_of(x, Rows::All, w, out);
    }

    /// `out[i] = x[rows[i]] · wᵀ`: logits of chosen positions.
    ///
    /// # Panics
    /// If the lengths do not fit, or `rows` names a row `x` does not have.
    pub fn linear_rows(&mut self, x: &[f32], rows: &[u32], w: &Matrix<'_>, out: &mut [f32]) {
        let tokens = row_count(x, w.cols());
        assert_eq!(
            rows.len(),
            row_count(out, w.rows()),
            "a row of products for every position"
        );
        assert!(
            rows.iter().all(|row| (*row as usize) < tokens),
            "every position is one of the {tokens} tokens"
        );
        self.linear_of(x, Rows::Listed(rows), w, out);
    }

    fn linear_of(&mut self, x: &[f32], rows: Rows<'_>, w: &Matrix<'_>, out: &mut [f32]) {
        let (simd, scratch) = (self.simd, &self.scratch);
        let cols = TILE * strips_together(w.strips(), self.pool.threads());
        self.pool
            .for_blocks(out, w.rows(), (usize::MAX, cols), |out, worker| {
                simd.run(LinearKernel {
                    x,
                    rows,
                    matrix: w,
                    out,
                    scratch: &mut scratch_of(scratch, worker),
                });
            });
    }

    /// `out[t] = scale · table[ids[t]]`.
    ///
    /// # Panics
    /// If the lengths do not fit, or an id is not a row of the table.
    pub fn embed(&mut self, table: &Matrix<'_>, ids: &[u32], scale: f32, out: &mut [f32]) {
        assert_eq!(
            ids.len(),
            row_count(out, table.cols()),
            "a row for every token"
        );
        self.pool
            .for_blocks(out, table.cols(), (16, usize::MAX), |mut block, _| {
                for i in 0..block.rows() {
                    let id = ids[block.first_row() + i] as usize;
                    let row = block.row(i);
                    table.row(id, row);
                    for x in row {
                        *x *= scale;
                    }
                }
            });
    }
}
