//! Short causal convolution.

use super::elementwise::rows_together;
use super::{Cpu, row_count};

impl Cpu {
    /// With x = B | C | X, `out[t] = C[t] ⊙ Σ_k weight[:, k] ⊙ u[t − taps + 1 + k]`, where
    /// u = B ⊙ X; each product is rounded, then added, taps ascending. x is `[T, 3 · width]`,
    /// weight `[width, taps]`, out `[T, width]`. `state` holds the `[taps − 1, width]` rows of u
    /// before the first, and then those before the next.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn short_conv(&mut self, x: &[f32], weight: &[f32], state: &mut [f32], out: &mut [f32]) {
        let width = weight.len() - state.len();
        let taps = weight.len().checked_div(width).unwrap_or(0);
        assert_eq!(
            weight.len(),
            taps * width,
            "a state of one row less than taps"
        );
        let tokens = row_count(out, width);
        assert_eq!(x.len(), 3 * out.len(), "three parts of every row");
        let part = |t: usize, part: usize| &x[(3 * t + part) * width..][..width];
        let before = &*state;
        let block = (rows_together(width * taps), usize::MAX);
        self.pool.for_blocks(out, width, block, |mut block, _| {
            for i in 0..block.rows() {
                let t = block.first_row() + i;
                let out = block.row(i);
                out.fill(0.0);
                for k in 0..taps {
                    let taps_of = weight[k..].iter().step_by(taps);
                    match (t + k + 1).checked_sub(taps) {
                        Some(t) => {
                            let u = part(t, 0).iter().zip(part(t, 2)).map(|(b, x)| b * x);
                            add_products(out, taps_of, u);
                        }
                        None => {
                            let u = &before[(t + k) * width..][..width];
                            add_products(out, taps_of, u.iter().copied());
                        }
                    }
                }
                for (y, c) in out.iter_mut().zip(part(t, 1)) {
                    *y *= c;
                }
            }
        });
        for row in 0..taps - 1 {
            let at = row * width;
            match (tokens + row + 1).checked_sub(taps) {
                Some(t) => {
                    let u = part(t, 0).iter().zip(part(t, 2));
                    for (state, (b, x)) in state[at..].iter_mut().zip(u) {
                        *state = b * x;
                    }
                }
                None => {
                    let from = at + tokens * width;
                    state.copy_within(from..from + width, at);
                }
            }
        }
    }
}

fn add_products<'a>(
    out: &mut [f32],
    taps: impl Iterator<Item = &'a f32>,
    u: impl Iterator<Item = f32>,
) {
    for ((y, w), u) in out.iter_mut().zip(taps).zip(u) {
        *y += w * u;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, bits, every_way};

    /// The definition, from the whole prompt.
    fn exact(x: &[f32], weight: &[f32], taps: usize) -> Vec<f64> {
        let width = weight.len() / taps;
        let u = |t: usize, c: usize| f64::from(x[3 * t * width + c] * x[(3 * t + 2) * width + c]);
        let mut out = Vec::new();
        for t in 0..x.len() / (3 * width) {
            for c in 0..width {
                let terms = (0..taps).filter_map(|k| Some((k, (t + k + 1).checked_sub(taps)?)));
                let sum: f64 = terms
                    .map(|(k, t)| f64::from(weight[c * taps + k]) * u(t, c))
                    .sum();
                out.push(f64::from(x[(3 * t + 1) * width + c]) * sum);
            }
        }
        out
    }

    #[test]
    fn a_prompt_in_any_pieces_is_the_convolution_of_the_whole() {
        let (width, tokens) = (40, 9);
        for taps in [1, 3, 4] {
            let x = Random::new(5).reals(tokens * 3 * width);
            let weight = Random::new(6).reals(width * taps);
            let expected = exact(&x, &weight, taps);
            let mut first = None;
            for mut cpu in every_way() {
                for pieces in [&[9][..], &[1, 1, 7], &[2, 4, 3], &[1; 9]] {
                    let mut state = vec![0.0; (taps - 1) * width];
                    let mut out = vec![f32::NAN; tokens * width];
                    let mut at = 0;
                    for piece in pieces {
                        let rows = at..at + piece;
                        cpu.short_conv(
                            &x[rows.start * 3 * width..rows.end * 3 * width],
                            &weight,
                            &mut state,
                            &mut out[rows.start * width..rows.end * width],
                        );
                        at = rows.end;
                    }
                    for (got, expected) in out.iter().zip(&expected) {
                        assert!(
                            (f64::from(*got) - expected).abs() < 1e-5,
                            "{got} {expected}"
                        );
                    }
                    let out = bits(&out);
                    assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
                }
            }
        }
    }
}
