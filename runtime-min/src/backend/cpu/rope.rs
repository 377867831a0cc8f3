//! Rotary position embedding.

use estream_schemas::program::RopePairing;

use super::elementwise::rows_together;
use super::{Cpu, row_count};
use crate::math::{exp64, ln64, sin_cos};

/// What angles are made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeForm {
    /// Base of the frequencies, positive and normal.
    pub theta: f32,
    /// Dimensions that rotate, an even number.
    pub dims: usize,
    /// Frequencies stretched for long contexts.
    pub yarn: Option<Yarn>,
}

/// How YaRN stretches frequencies; all but the magnitude are positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How much longer the context is.
    pub factor: f32,
    /// Positions before that.
    pub original_context: u64,
    /// Turns within those from which on a frequency stays.
    pub beta_fast: f32,
    /// Turns up to which it is divided by `factor`.
    pub beta_slow: f32,
    /// Factor on cosines and sines.
    pub magnitude: f32,
}

impl RopeForm {
    /// Radians a position, one a pair, each step rounded to f32 as where models are trained.
    fn frequencies(&self) -> Vec<f32> {
        let ln_theta = ln64(f64::from(self.theta));
        let ramp = self.yarn.map(|yarn| yarn.ramp(ln_theta, self.dims));
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / self.dims as f32;
            let power = exp64(f64::from(exponent) * ln_theta) as f32;
            let Some((yarn, (low, high))) = self.yarn.zip(ramp) else {
                return 1.0 / power;
            };
            let stretched = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            let kept = 1.0 - stretched;
            1.0 / (yarn.factor * power) * (1.0 - kept) + 1.0 / power * kept
        };
        (0..self.dims / 2).map(frequency).collect()
    }
}

impl Yarn {
    /// The pairs between which frequencies go from kept to divided: those that turn
    /// `beta_fast` and `beta_slow` times within the original context.
    fn ramp(&self, ln_theta: f64, dims: usize) -> (f32, f32) {
        let pair = |turns: f32| {
            let radians = f64::from(turns) * std::f64::consts::TAU;
            dims as f64 * ln64(self.original_context as f64 / radians) / (2.0 * ln_theta)
        };
        let last = (dims - 1) as f64;
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(last);
        // A ramp of no width is a step.
        let high = if low == high { high + 0.001 } else { high };
        (low as f32, high as f32)
    }
}

/// Cosines and sines of the angles `pos · frequency`, one row a position.
#[derive(Clone, Debug)]
pub struct RopeTable {
    dims: usize,
    /// `[positions, dims]`: dims/2 cosines, then dims/2 sines.
    rows: Vec<f32>,
}

impl RopeTable {
    /// The table for `count` positions from `first_position`. It takes `count · dims` f32.
    ///
    /// # Panics
    /// If the dimensions are odd or none, or theta is not positive and normal.
    pub fn new(form: &RopeForm, first_position: usize, count: usize) -> RopeTable {
        let RopeForm { theta, dims, yarn } = *form;
        assert!(
            dims > 0 && dims.is_multiple_of(2),
            "dimensions rotate in pairs"
        );
        assert!(
            theta.is_normal() && theta > 0.0,
            "the base of a power is positive"
        );
        let frequencies = form.frequencies();
        let magnitude = yarn.map_or(1.0, |yarn| yarn.magnitude);
        let mut rows = vec![0.0; count * dims];
        for (t, row) in rows.chunks_exact_mut(dims).enumerate() {
            let position = (first_position + t) as f32;
            let (cosines, sines) = row.split_at_mut(dims / 2);
            for (i, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = sin_cos(f64::from(position * frequency));
                cosines[i] = cos as f32 * magnitude;
                sines[i] = sin as f32 * magnitude;
            }
        }
        RopeTable { dims, rows }
    }

    /// Dimensions of a head that rotate.
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.rows.len() / self.dims
    }
}

/// (a, b) rotated: each product rounded, then added.
fn rotate(a: &mut f32, b: &mut f32, cos: f32, sin: f32) {
    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
}

impl Cpu {
    /// Rotates the last `table.dims()` dimensions of every head of `x`, in
    /// place; row t of `x` by row t of the table, which has as many.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn rope(&mut self, x: &mut [f32], heads: usize, pairing: RopePairing, table: &RopeTable) {
        let width = x.len().checked_div(table.positions()).unwrap_or(0);
        row_count(x, width);
        if x.is_empty() {
            return;
        }
        let head_dim = width.checked_div(heads).unwrap_or(0);
        assert_eq!(width, heads * head_dim, "heads of one width");
        assert!(table.dims <= head_dim, "a head rotates no more than itself");
        let half = table.dims / 2;
        let block = (rows_together(width), usize::MAX);
        self.pool.for_blocks(x, width, block, |mut block, _| {
            for i in 0..block.rows() {
                let angles = &table.rows[(block.first_row() + i) * table.dims..][..table.dims];
                let (cos, sin) = angles.split_at(half);
                for head in block.row(i).chunks_exact_mut(head_dim) {
                    let rotated = &mut head[head_dim - table.dims..];
                    match pairing {
                        RopePairing::Half => {
                            let (a, b) = rotated.split_at_mut(half);
                            for j in 0..half {
                                rotate(&mut a[j], &mut b[j], cos[j], sin[j]);
                            }
                        }
                        RopePairing::Adjacent => {
                            for (j, [a, b]) in rotated.as_chunks_mut::<2>().0.iter_mut().enumerate()
                            {
                                rotate(a, b, cos[j], sin[j]);
                            }
                        }
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, bits, every_way};
    use super::*;

    fn plain(theta: f32, dims: usize) -> RopeForm {
        RopeForm {
            theta,
            dims,
            yarn: None,
        }
    }

    /// The published values of DeepSeek-V2-Lite: 64 dimensions, 4,096 positions made 40 times
    /// as many. Pairs up to 10 turn fast enough to stay, pairs from 23 on are divided by 40.
    #[test]
    fn yarn_keeps_fast_frequencies_and_divides_slow_ones() {
        let stretched = RopeForm {
            yarn: Some(Yarn {
                factor: 40.0,
                original_context: 4096,
                beta_fast: 32.0,
                beta_slow: 1.0,
                magnitude: 1.0,
            }),
            ..plain(1e4, 64)
        };
        let before = plain(1e4, 64).frequencies();
        for (i, (f, before)) in stretched.frequencies().iter().zip(&before).enumerate() {
            let expected = match i {
                0..=10 => *before,
                23.. => before / 40.0,
                _ => {
                    let share = (i - 10) as f32 / 13.0;
                    before / 40.0 * share + before * (1.0 - share)
                }
            };
            assert!(
                (f / expected - 1.0).abs() < 1e-6,
                "pair {i}: {f}, not {expected}"
            );
        }
    }

    #[test]
    fn pairs_rotate_by_position_times_frequency_and_the_rest_stays() {
        let (heads, head_dim, dims, theta) = (3, 12, 8, 10_000.0f32);
        for (pairing, first) in [(RopePairing::Half, 0), (RopePairing::Adjacent, 500)] {
            let x = Random::new(4).reals(6 * heads * head_dim);
            let table = RopeTable::new(&plain(theta, dims), first, 6);
            let mut first_bits = None;
            for mut cpu in every_way() {
                let mut out = x.clone();
                cpu.rope(&mut out, heads, pairing, &table);
                for (i, (x, out)) in x
                    .chunks_exact(head_dim)
                    .zip(out.chunks_exact(head_dim))
                    .enumerate()
                {
                    assert_eq!(x[..4], out[..4]);
                    let position = (first + i / heads) as f64;
                    for j in 0..dims / 2 {
                        let (a, b) = match pairing {
                            RopePairing::Half => (4 + j, 4 + j + dims / 2),
                            RopePairing::Adjacent => (4 + 2 * j, 4 + 2 * j + 1),
                        };
                        let frequency = f64::from(theta).powf(-2.0 * j as f64 / dims as f64);
                        let (sin, cos) = (position * frequency).sin_cos();
                        let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
                        let tolerance = 1e-6 + 1e-7 * position;
                        assert!((f64::from(out[a]) - (xa * cos - xb * sin)).abs() < tolerance);
                        assert!((f64::from(out[b]) - (xb * cos + xa * sin)).abs() < tolerance);
                    }
                }
                let out = bits(&out);
                assert_eq!(first_bits.get_or_insert_with(|| out.clone()), &out);
            }
        }
    }

    #[test]
    fn a_table_cut_in_two_is_the_same_table() {
        let form = plain(1e6, 64);
        let whole = RopeTable::new(&form, 0, 300);
        let tail = RopeTable::new(&form, 200, 100);
        assert_eq!(bits(&whole.rows[200 * 64..]), bits(&tail.rows));
        assert_eq!((tail.dims(), tail.positions()), (64, 100));
    }

    #[test]
    fn no_tokens_rotate_to_none() {
        let table = RopeTable::new(&plain(1e4, 8), 0, 0);
        every_way()[0].rope(&mut [], 2, RopePairing::Half, &table);
    }
}
