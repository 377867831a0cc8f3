//! Causal attention, blocked over keys, in bounded memory.
//!
//! For every query and block of 64 keys: scores, their maximum, e to the
//! differences, and the weighted sum of values, with the running sums rescaled when
//! the maximum grows. Blocks are counted from position 0 and a query sees exactly the
//! keys up to its own, so nothing depends on where a prompt was cut.

use std::array;
use std::ops::Range;

use super::decode::{Lanes, ROWS_TOGETHER, transpose};
use super::matrix::TILE;
use super::multiply::{Product, Scratch, Together, at_least, pack};
use super::norm::{PARTIALS, add_halves};
use super::simd::{Kernel, Simd, SimdPath};
use super::{Cpu, row_count, scratch_of};
use crate::math::exp;
use crate::pool::Block;

/// Keys of a block.
const KEYS: usize = 64;
/// Queries, over all heads that share keys, that one thread takes at a time.
const QUERIES: usize = 128;

/// Shapes of one attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionForm {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query or key of one head.
    pub key_dim: usize,
    /// Elements of a value of one head.
    pub value_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Position of the first query: keys and values hold that many more rows than queries.
    pub position: usize,
}

/// The work of one thread: some tokens, and the heads that share one key head.
struct Group<'a, 'b> {
    form: &'a AttentionForm,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: Block<'b>,
    scratch: &'a mut Scratch,
}

/// The running maximum and denominator of a query.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    sum: f32,
}

impl AttentionForm {
    /// Heads that share keys.
    fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(0).max(1)
    }

    /// Tokens that one thread takes at a time.
    fn tokens_together(&self) -> usize {
        (QUERIES / self.group()).max(1)
    }

    /// Bytes that [`Cpu::attention`] may allocate at most on `threads` threads,
    /// however long the prompt; buffers of other kernels are used first.
    pub fn scratch_bytes(&self, threads: usize) -> u64 {
        let rows = self.tokens_together() * self.group();
        let floats = rows * (self.key_dim + KEYS)
            + rows * (KEYS + self.value_dim)
            + TILE * (self.key_dim * KEYS / TILE).max(KEYS);
        (4 * floats + rows * size_of::<Softmax>()) as u64 * threads.max(1) as u64
    }
}

impl Group<'_, '_> {
    fn run(mut self, simd: Simd) {
        let form = *self.form;
        let (group, key_dim, value_dim) = (form.group(), form.key_dim, form.value_dim);
        let first_token = self.out.first_row();
        let kv_head = self.out.first_col() / (group * value_dim);
        // A row is a query of one head; rows of a token are neighbours.
        let rows = self.out.rows() * group;
        let visible = |row: usize| form.position + first_token + row / group + 1;

        let Scratch {
            packed,
            lanes,
            partial,
        } = self.scratch;
        let packed = at_least(packed, rows * (key_dim + KEYS), 0.0);
        let (queries, weights) = packed.split_at_mut(rows * key_dim);
        let lanes = at_least(lanes, (key_dim * KEYS / TILE).max(KEYS), Lanes::ZERO);
        let partial = at_least(partial, rows * (KEYS + value_dim), 0.0);
        let (scores, sums) = partial.split_at_mut(rows * KEYS);
        let mut sums = Block::of(sums, value_dim);
        let mut softmax = vec![
            Softmax {
                max: f32::NEG_INFINITY,
                sum: 0.0
            };
            rows
        ];

        let q = self.q;
        let query = |row: usize| {
            let (token, head) = (first_token + row / group, kv_head * group + row % group);
            &q[(token * form.heads + head) * key_dim..][..key_dim]
        };
        pack(simd.path(), rows, key_dim, query, queries);
        for first_key in (0..visible(rows - 1)).step_by(KEYS) {
            let keys = KEYS.min(visible(rows - 1) - first_key);
            // Rows before this one see no key of the block.
            let seen = |row: usize| visible(row).saturating_sub(first_key).min(keys);

            for (strip, lanes) in lanes[..key_dim * KEYS / TILE]
                .chunks_exact_mut(key_dim)
                .enumerate()
            {
                for lane in (0..TILE).step_by(ROWS_TOGETHER) {
                    // Past the last key any will do: no row sees its score.
                    let rows = array::from_fn(|i| {
                        let key = (strip * TILE + lane + i).min(keys - 1);
                        &self.k[((first_key + key) * form.kv_heads + kv_head) * key_dim..]
                    });
                    transpose(rows, lane, lanes);
                }
                simd.run(Product {
                    lanes,
                    packed: queries,
                    rows,
                    out: &mut Block::of(scores, KEYS),
                    first_row: 0,
                    col: strip * TILE,
                    fresh: true,
                });
            }

            for (row, softmax) in softmax.iter_mut().enumerate() {
                let rescale = simd.run(Weigh {
                    softmax,
                    scale: form.scale,
                    scores: &mut scores[row * KEYS..][..KEYS],
                    seen: seen(row),
                });
                if first_key == 0 {
                    sums.row(row).fill(0.0);
                } else if seen(row) > 0 {
                    for x in sums.row(row) {
                        *x *= rescale;
                    }
                }
            }
            let alone = |row: usize| &scores[row * KEYS..][..KEYS];
            pack(simd.path(), rows, KEYS, alone, weights);

            for col in (0..value_dim).step_by(TILE) {
                let width = TILE.min(value_dim - col);
                let lanes = &mut lanes[..keys];
                for (j, lanes) in lanes.iter_mut().enumerate() {
                    let value = (first_key + j) * form.kv_heads + kv_head;
                    let value = &self.v[value * value_dim + col..][..width];
                    lanes.0[..width].copy_from_slice(value);
                }
                let mut add = |keys: Range<usize>, packed, first_row, rows| {
                    simd.run(Product {
                        lanes: &lanes[keys],
                        packed,
                        rows,
                        out: &mut sums,
                        first_row,
                        col,
                        fresh: false,
                    });
                };
                for (first, count) in Together::of(simd.path(), rows) {
                    // What all these rows see, then what each of the later ones sees
                    // besides; a row alone is packed as it is.
                    let common = seen(first);
                    add(0..common, &weights[first * KEYS..], first, count);
                    for row in first..first + count {
                        if seen(row) > common {
                            add(common..seen(row), &alone(row)[common..], row, 1);
                        }
                    }
                }
            }
        }

        for (row, softmax) in softmax.iter().enumerate() {
            let out = &mut self.out.row(row / group)[row % group * value_dim..][..value_dim];
            for (y, x) in out.iter_mut().zip(&*sums.row(row)) {
                *y = x / softmax.sum;
            }
        }
    }
}

/// Turns the first `seen` of a block's scores into weights and the rest into
/// zeros; returns the factor on what was summed before.
struct Weigh<'a> {
    softmax: &'a mut Softmax,
    scale: f32,
    scores: &'a mut [f32],
    seen: usize,
}

impl Kernel for Weigh<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self, _: SimdPath) -> f32 {
        let Weigh {
            softmax,
            scale,
            scores,
            seen,
        } = self;
        if seen == 0 {
            return 1.0;
        }
        let mut max = softmax.max;
        for x in &mut scores[..seen] {
            *x *= scale;
            max = if *x > max { *x } else { max };
        }
        for x in &mut scores[..seen] {
            *x = exp(*x - max);
        }
        scores[seen..].fill(0.0);
        let mut partials = [0.0; PARTIALS];
        for x in scores.as_chunks::<PARTIALS>().0 {
            for (sum, x) in partials.iter_mut().zip(x) {
                *sum += x;
            }
        }
        let rescale = exp(softmax.max - max);
        softmax.sum = softmax.sum * rescale + add_halves(partials);
        softmax.max = max;
        rescale
    }
}

impl Cpu {
    /// `out[t] = softmax(scale · q[t] · kᵀ) · v` for every head, over the keys of
    /// positions up to the query's own. With T queries, q and out are
    /// `[T, heads · dim]`, k and v `[position + T, kv_heads · dim]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn attention(
        &mut self,
        form: &AttentionForm,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) {
        let group = form.group();
        assert_eq!(
            form.heads,
            group * form.kv_heads,
            "every group of heads has a key head"
        );
        let tokens = row_count(q, form.heads * form.key_dim);
        let positions = form.position + tokens;
        assert_eq!(
            tokens,
            row_count(out, form.heads * form.value_dim),
            "a row for every query"
        );
        assert_eq!(
            k.len(),
            positions * form.kv_heads * form.key_dim,
            "a key for every position"
        );
        assert_eq!(
            v.len(),
            positions * form.kv_heads * form.value_dim,
            "a value for every position"
        );
        let (simd, scratch) = (self.simd, &self.scratch);
        let width = form.heads * form.value_dim;
        let block = (form.tokens_together(), group * form.value_dim);
        self.pool.for_blocks(out, width, block, |out, worker| {
            let group = Group {
                form,
                q,
                k,
                v,
                out,
                scratch: &mut scratch_of(scratch, worker),
            };
            group.run(simd);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, bits, every_way, one_way};
    use super::*;

    fn exact(form: &AttentionForm, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
        let (group, kd, vd) = (form.group(), form.key_dim, form.value_dim);
        let mut out = Vec::new();
        for (t, q) in q.chunks_exact(form.heads * kd).enumerate() {
            for (head, q) in q.chunks_exact(kd).enumerate() {
                let row = |j: usize| j * form.kv_heads + head / group;
                let scores = (0..=form.position + t).map(|j| {
                    let terms = q.iter().zip(&k[row(j) * kd..][..kd]);
                    let dot: f64 = terms.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    dot * f64::from(form.scale)
                });
                let scores: Vec<f64> = scores.collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..vd {
                    let terms = weights.iter().enumerate();
                    let dot: f64 = terms.map(|(j, w)| w * f64::from(v[row(j) * vd + d])).sum();
                    out.push(dot / sum);
                }
            }
        }
        out
    }

    #[test]
    fn attention_is_right_and_the_same_bits_in_every_way_and_however_it_is_cut() {
        for (tokens, heads, kv_heads, key_dim, value_dim) in [
            (1, 1, 1, 4, 4),
            (70, 4, 2, 16, 16),
            (200, 6, 1, 24, 40),
            (129, 2, 2, 64, 64),
            (150, 3, 3, 5, 33),
        ] {
            let whole = AttentionForm {
                heads,
                kv_heads,
                key_dim,
                value_dim,
                scale: 3.0 / (key_dim as f32).sqrt(),
                position: 0,
            };
            let q = Random::new(1).reals(tokens * heads * key_dim);
            let k = Random::new(2).reals(tokens * kv_heads * key_dim);
            let v = Random::new(3).reals(tokens * kv_heads * value_dim);
            let mut first = vec![f32::NAN; tokens * heads * value_dim];
            one_way().attention(&whole, &q, &k, &v, &mut first);
            for (got, exact) in first.iter().zip(exact(&whole, &q, &k, &v)) {
                assert!(
                    (f64::from(*got) - exact).abs() < 2e-6,
                    "{got} is not {exact}"
                );
            }
            for mut cpu in every_way() {
                for cut in [0, 1, 3, 63, 64, 65, 130] {
                    let cut = cut.min(tokens);
                    let mut again = vec![f32::NAN; first.len()];
                    let (head, tail) = again.split_at_mut(cut * heads * value_dim);
                    let (q_head, q_tail) = q.split_at(cut * heads * key_dim);
                    let (k_head, v_head) = (
                        &k[..cut * kv_heads * key_dim],
                        &v[..cut * kv_heads * value_dim],
                    );
                    cpu.attention(&whole, q_head, k_head, v_head, head);
                    let rest = AttentionForm {
                        position: cut,
                        ..whole
                    };
                    cpu.attention(&rest, q_tail, &k, &v, tail);
                    assert_eq!(bits(&again), bits(&first), "cut at {cut} {cpu:?}");
                }
            }
        }
    }

    #[test]
    fn a_token_never_sees_a_later_one() {
        let form = AttentionForm {
            heads: 2,
            kv_heads: 1,
            key_dim: 8,
            value_dim: 8,
            scale: 1.0,
            position: 0,
        };
        let q = Random::new(1).reals(90 * 16);
        let mut k = Random::new(2).reals(90 * 8);
        let mut v = Random::new(3).reals(90 * 8);
        let (mut before, mut after) = (vec![0.0; 90 * 16], vec![0.0; 90 * 16]);
        one_way().attention(&form, &q, &k, &v, &mut before);
        k[80 * 8..].fill(f32::NAN);
        v[80 * 8..].fill(f32::INFINITY);
        one_way().attention(&form, &q, &k, &v, &mut after);
        assert_eq!(bits(&before[..80 * 16]), bits(&after[..80 * 16]));
        assert!(after[80 * 16..].iter().all(|x| !x.is_finite()));
    }
}
