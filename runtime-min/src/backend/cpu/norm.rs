//! Root mean square norms.

use super::elementwise::rows_together;
use super::simd::{Kernel, SimdPath};
use super::{Cpu, row_count};
use crate::pool::Block;

/// Partial sums of a reduction over one token.
pub(super) const PARTIALS: usize = 16;

/// Adds partial sums in halves.
#[inline(always)]
pub(super) fn add_halves(mut partials: [f32; PARTIALS]) -> f32 {
    let mut half = PARTIALS / 2;
    while half > 0 {
        for i in 0..half {
            partials[i] += partials[i + half];
        }
        half /= 2;
    }
    partials[0]
}

/// Σ x², element i in partial sum i mod 16.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut partials = [0.0f32; PARTIALS];
    let (whole, rest) = x.as_chunks::<PARTIALS>();
    for x in whole {
        for (sum, x) in partials.iter_mut().zip(x) {
            *sum = x.mul_add(*x, *sum);
        }
    }
    for (sum, x) in partials.iter_mut().zip(rest) {
        *sum = x.mul_add(*x, *sum);
    }
    add_halves(partials)
}

/// 1 / sqrt(mean(x²) + eps); not a number if squares overflow, since zeros for a row
/// that is too large would be taken for a result.
#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mean = sum_of_squares(x) / x.len() as f32;
    if mean == f32::INFINITY {
        return f32::NAN;
    }
    1.0 / (mean + eps).sqrt()
}

struct NormKernel<'a, 'b> {
    /// Source, or nothing if the norm is in place.
    x: Option<&'a [f32]>,
    weight: &'a [f32],
    eps: f32,
    out: Block<'b>,
}

impl Kernel for NormKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, _: SimdPath) {
        let width = self.weight.len();
        for i in 0..self.out.rows() {
            let first = (self.out.first_row() + i) * width;
            let out = self.out.row(i);
            if let Some(x) = self.x {
                out.copy_from_slice(&x[first..first + width]);
            }
            let factor = inverse_rms(out, self.eps);
            for (x, w) in out.iter_mut().zip(self.weight) {
                *x = *x * factor * w;
            }
        }
    }
}

impl Cpu {
    /// `out = weight · x · rsqrt(mean(x²) + eps)`, row by row.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn rms_norm(&mut self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "a row for every token");
        self.norm(Some(x), weight, eps, out);
    }

    /// The same in place, over every `weight.len()` consecutive elements: a
    /// whole row of queries or keys, or each head of it.
    ///
    /// # Panics
    /// If `x` is not a whole number of them.
    pub fn qk_norm(&mut self, x: &mut [f32], weight: &[f32], eps: f32) {
        self.norm(None, weight, eps, x);
    }

    fn norm(&mut self, x: Option<&[f32]>, weight: &[f32], eps: f32, out: &mut [f32]) {
        row_count(out, weight.len());
        let simd = self.simd;
        let block = (rows_together(weight.len()), usize::MAX);
        self.pool.for_blocks(out, weight.len(), block, |out, _| {
            simd.run(NormKernel {
                x,
                weight,
                eps,
                out,
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, bits, every_way, one_way};

    #[test]
    fn a_row_whose_squares_overflow_is_no_row_of_zeros() {
        let x = [1e30f32; 64];
        let mut out = [0.0; 64];
        for mut cpu in every_way() {
            cpu.rms_norm(&x, &[1.0; 64], 1e-5, &mut out);
            assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
        }
    }

    #[test]
    fn norms_are_right_and_the_same_bits_in_every_way() {
        for (tokens, width) in [(3, 2048), (5, 7), (700, 128), (1, 1)] {
            let x = Random::new(width as u64).reals(tokens * width);
            let weight = Random::new(9).reals(width);
            let mut first = vec![0.0; x.len()];
            one_way().rms_norm(&x, &weight, 1e-5, &mut first);
            for (t, row) in x.chunks_exact(width).enumerate() {
                let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
                let factor = (squares / width as f64 + f64::from(1e-5f32)).sqrt().recip();
                for (j, x) in row.iter().enumerate() {
                    let exact = f64::from(*x) * factor * f64::from(weight[j]);
                    let got = f64::from(first[t * width + j]);
                    assert!((got - exact).abs() <= 1e-6 * exact.abs(), "{got} {exact}");
                }
            }
            for mut cpu in every_way() {
                let mut again = vec![0.0; x.len()];
                cpu.rms_norm(&x, &weight, 1e-5, &mut again);
                assert_eq!(bits(&again), bits(&first));
                // Heads in one row, or each a row of its own.
                let mut in_place = x.clone();
                cpu.qk_norm(&mut in_place, &weight, 1e-5);
                assert_eq!(bits(&in_place), bits(&first));
            }
        }
    }
}
