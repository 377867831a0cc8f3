//! Products of many tokens with one matrix, and rows of a table.

use super::matrix::{Matrix, TILE};
use super::multiply::{Job, Scratch, multiply};
use super::{Cpu, row_count, scratch_of};

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
        let row = |i: usize| {
            let i = match rows {
                Rows::All => i,
                Rows::Listed(list) => list[i] as usize,
            };
            &x[i * w.cols()..][..w.cols()]
        };
        self.pool
            .for_blocks(out, w.rows(), (usize::MAX, cols), |out, worker| {
                let Scratch { packed, lanes, .. } = &mut *scratch_of(scratch, worker);
                let count = out.rows();
                let job = Job {
                    matrix: w,
                    first_strip: out.first_col() / TILE,
                    out,
                };
                multiply(simd, count, w.cols(), &row, &mut [job], (packed, lanes));
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

#[cfg(test)]
mod tests {
    use super::super::testing::{Known, LAYOUTS, Random, bits, every_way, one_way};
    use estream_schemas::layout::Layout;
    use proptest::prelude::*;

    /// A number of columns the layout can have, about `cols`.
    fn fitting(layout: &str, cols: usize) -> usize {
        let layout: Layout = layout.parse().unwrap();
        match layout.is_tiled() {
            true => cols,
            false => cols.next_multiple_of(layout.dtype().block_len() as usize),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn products_are_right_and_the_same_bits_in_every_way(
            tokens in 1usize..40, rows in 1usize..140, cols in 1usize..700, cut in 0usize..40, seed: u64,
        ) {
            for layout in LAYOUTS {
                let cols = fitting(layout, cols);
                let known = Known::random(layout, rows, cols, seed);
                let matrix = known.matrix();
                let x = Random::new(seed ^ 1).reals(tokens * cols);
                let mut first = vec![f32::NAN; tokens * rows];
                one_way().linear(&x, &matrix, &mut first);
                for (got, (exact, magnitude)) in first.iter().zip(known.exact_products(&x)) {
                    prop_assert!((f64::from(*got) - exact).abs() <= 2e-5 * magnitude, "{}", layout);
                }
                let cut = cut.min(tokens);
                for mut cpu in every_way() {
                    let mut again = vec![f32::NAN; tokens * rows];
                    let (head, tail) = again.split_at_mut(cut * rows);
                    cpu.linear(&x[..cut * cols], &matrix, head);
                    cpu.linear(&x[cut * cols..], &matrix, tail);
                    prop_assert_eq!(bits(&again), bits(&first), "{} {:?}", layout, cpu);
                }
            }
        }
    }

    #[test]
    fn more_tokens_and_columns_than_a_block_are_cut_without_a_trace() {
        let (tokens, rows, cols) = (260, 70, 1100);
        let known = Known::random("q4_0.t32.direct", rows, cols, 5);
        let x = Random::new(6).reals(tokens * cols);
        let mut out = vec![f32::NAN; tokens * rows];
        one_way().linear(&x, &known.matrix(), &mut out);
        for t in [0, 255, 256, 259] {
            for n in [0, 31, 69] {
                let terms = x[t * cols..][..cols].iter().zip(known.row(n));
                let chain = terms.fold(0.0f32, |sum, (x, w)| w.mul_add(*x, sum));
                assert_eq!(out[t * rows + n].to_bits(), chain.to_bits());
            }
        }
    }

    #[test]
    fn listed_rows_are_the_rows_of_the_whole() {
        let known = Known::random("q8_0.t32", 50, 64, 1);
        let x = Random::new(2).reals(9 * 64);
        let mut all = vec![0.0; 9 * 50];
        let mut some = vec![0.0; 3 * 50];
        let mut cpu = one_way();
        cpu.linear(&x, &known.matrix(), &mut all);
        cpu.linear_rows(&x, &[8, 0, 8], &known.matrix(), &mut some);
        for (i, t) in [8, 0, 8].into_iter().enumerate() {
            assert_eq!(some[i * 50..][..50], all[t * 50..][..50]);
        }
        cpu.linear_rows(&x, &[], &known.matrix(), &mut []);
    }

    #[test]
    fn embedded_tokens_are_scaled_rows_of_the_table() {
        for layout in ["q4_0.t32.pair", "q6_k.rows"] {
            let known = Known::random(layout, 70, 256, 3);
            let ids: Vec<u32> = (0..40).map(|i| i * 7 % 70).collect();
            for mut cpu in every_way() {
                let mut out = vec![0.0; ids.len() * 256];
                cpu.embed(&known.matrix(), &ids, 0.5, &mut out);
                for (id, out) in ids.iter().zip(out.chunks_exact(256)) {
                    let row = known.row(*id as usize);
                    assert!(out.iter().zip(row).all(|(x, w)| *x == w * 0.5));
                }
            }
        }
    }
}
