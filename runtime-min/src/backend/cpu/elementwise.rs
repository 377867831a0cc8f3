//! Operators that touch every number once.

use super::{Cpu, row_count};
use crate::pool::Pool;

/// Elements a thread takes at a time.
const PIECE: usize = 1 << 16;

/// Rows of `width` elements that make up about a piece.
pub(super) fn rows_together(width: usize) -> usize {
    (PIECE / width.max(1)).max(1)
}

fn for_pieces(pool: &mut Pool, data: &mut [f32], each: impl Fn(usize, &mut [f32]) + Sync) {
    let len = data.len();
    pool.for_blocks(data, len, (1, PIECE), |mut block, _| {
        each(block.first_col(), block.row(0));
    });
}

impl Cpu {
    /// Adds `bias` to every row of `x`.
    ///
    /// # Panics
    /// If `x` is not whole rows of `bias.len()`.
    pub fn add_bias(&mut self, x: &mut [f32], bias: &[f32]) {
        row_count(x, bias.len());
        let block = (rows_together(bias.len()), usize::MAX);
        self.pool.for_blocks(x, bias.len(), block, |mut block, _| {
            for i in 0..block.rows() {
                for (x, b) in block.row(i).iter_mut().zip(bias) {
                    *x += b;
                }
            }
        });
    }

    /// `out += scale · input`: the product rounded, then added.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_scaled(&mut self, input: &[f32], scale: f32, out: &mut [f32]) {
        assert_eq!(input.len(), out.len(), "registers of one width");
        for_pieces(&mut self.pool, out, |first, out| {
            for (y, x) in out.iter_mut().zip(&input[first..]) {
                *y += scale * x;
            }
        });
    }

    /// `x *= factor`.
    pub fn scale(&mut self, x: &mut [f32], factor: f32) {
        for_pieces(&mut self.pool, x, |_, x| {
            for x in x {
                *x *= factor;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, every_way};
    use super::PIECE;

    #[test]
    fn every_element_is_touched_once() {
        let (width, tokens) = (300, PIECE / 200);
        let x = Random::new(1).reals(width * tokens);
        let y = Random::new(2).reals(width * tokens);
        let bias = Random::new(3).reals(width);
        for mut cpu in every_way() {
            let mut out = y.clone();
            cpu.add_scaled(&x, 0.3, &mut out);
            cpu.scale(&mut out, 1.7);
            cpu.add_bias(&mut out, &bias);
            for (i, out) in out.iter().enumerate() {
                assert_eq!(*out, (y[i] + 0.3 * x[i]) * 1.7 + bias[i % width]);
            }
            cpu.scale(&mut [], 2.0);
        }
    }
}
