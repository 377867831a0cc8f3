//! The gated feed-forward network of one expert, or of a slice of one.

use super::linear::strips_together;
use super::matrix::{Matrix, TILE};
use super::multiply::{Job, K_BLOCK, ROW_BLOCK, Scratch, at_least, multiply};
use super::simd::{Kernel, Simd, SimdPath};
use super::{Cpu, linear, row_count, scratch_of};
use crate::math::silu;
use crate::pool::Block;

/// Routes of an expert multiplied together unless [`Cpu::with_expert_rows`] says otherwise.
pub const DEFAULT_EXPERT_ROWS: usize = ROW_BLOCK;

/// The weights of one record.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// `[ff, hidden]`.
    pub gate: Matrix<'a>,
    /// `[ff, hidden]`.
    pub up: Matrix<'a>,
    /// `[hidden, ff]`.
    pub down: Matrix<'a>,
}

/// One token that an expert serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// Row of the token.
    pub token: u32,
    /// Factor on the expert's result.
    pub weight: f32,
}

/// `gate = silu(gate) ⊙ up`.
struct Gate<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: SimdPath) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            *gate = silu(*gate) * up;
        }
    }
}

/// `out = silu(gate · x) ⊙ (up · x)` for some columns of the hidden layer.
fn gate_up(
    simd: Simd,
    x: &[f32],
    expert: &Expert<'_>,
    routes: &[Route],
    mut out: Block<'_>,
    scratch: &mut Scratch,
) {
    let Expert { gate, up, .. } = expert;
    let (cols, width) = (gate.cols(), out.cols());
    let first_strip = out.first_col() / TILE;
    let Scratch {
        packed,
        lanes,
        partial,
    } = scratch;
    let partial = at_least(partial, routes.len() * width, 0.0);
    let row = |i: usize| &x[routes[i].token as usize * cols..][..cols];
    let mut jobs = [
        Job {
            matrix: gate,
            first_strip,
            out: out.reborrow(),
        },
        Job {
            matrix: up,
            first_strip,
            out: Block::of(partial, width),
        },
    ];
    multiply(simd, routes.len(), cols, &row, &mut jobs, (packed, lanes));
    for (i, up) in partial.chunks_exact(width).enumerate() {
        let gate = out.row(i);
        simd.run(Gate { gate, up });
    }
}

/// `out[token] += weight · (down · hidden)` for some columns of the output.
fn add_down(
    simd: Simd,
    hidden: &[f32],
    down: &Matrix<'_>,
    routes: &[Route],
    mut out: Block<'_>,
    scratch: &mut Scratch,
) {
    let (cols, width) = (down.cols(), out.cols());
    let Scratch {
        packed,
        lanes,
        partial,
    } = scratch;
    let partial = at_least(partial, routes.len() * width, 0.0);
    let row = |i: usize| &hidden[i * cols..][..cols];
    let job = Job {
        matrix: down,
        first_strip: out.first_col() / TILE,
        out: Block::of(partial, width),
    };
    multiply(simd, routes.len(), cols, &row, &mut [job], (packed, lanes));
    for (route, products) in routes.iter().zip(partial.chunks_exact(width)) {
        let out = out.row(route.token as usize);
        for (y, product) in out.iter_mut().zip(products) {
            *y += route.weight * product;
        }
    }
}

impl Cpu {
    /// *Adds* `weight · down(silu(gate · x) ⊙ (up · x))` to row `token` of `out`
    /// for every route. `x` and `out` are `[tokens, hidden]`.
    ///
    /// Records of a layer are to be passed in storage order: that is the order
    /// in which a token's experts are added. With one route of weight 1 for
    /// every token this is a dense gated network.
    ///
    /// # Panics
    /// If the lengths or the three shapes do not fit, or a route names a token `x` does not have.
    pub fn expert(&mut self, x: &[f32], expert: &Expert<'_>, routes: &[Route], out: &mut [f32]) {
        let Expert { gate, up, down } = expert;
        let (ff, width) = (gate.rows(), gate.cols());
        assert_eq!((up.rows(), up.cols()), (ff, width), "gate and up agree");
        assert_eq!((down.rows(), down.cols()), (width, ff), "down leads back");
        let tokens = row_count(x, width);
        assert_eq!(x.len(), out.len(), "a row of output for every token");
        assert!(
            routes.iter().all(|route| (route.token as usize) < tokens),
            "every route is one of the {tokens} tokens"
        );
        let (simd, scratch) = (self.simd, &self.scratch);
        let threads = self.pool.threads();
        for routes in routes.chunks(self.expert_rows) {
            let hidden = at_least(&mut self.hidden, routes.len() * ff, 0.0);
            let cols = TILE * strips_together(gate.strips(), threads);
            self.pool
                .for_blocks(hidden, ff, (usize::MAX, cols), |out, worker| {
                    let scratch = &mut scratch_of(scratch, worker);
                    gate_up(simd, x, expert, routes, out, scratch);
                });
            let hidden = &*hidden;
            let cols = TILE * strips_together(down.strips(), threads);
            self.pool
                .for_blocks(out, width, (usize::MAX, cols), |out, worker| {
                    let scratch = &mut scratch_of(scratch, worker);
                    add_down(simd, hidden, down, routes, out, scratch);
                });
        }
    }

    /// Bytes that products may allocate at most, on `threads` threads, for
    /// experts of at most `ff` and matrices of at most `cols` columns.
    pub fn scratch_bytes(threads: usize, expert_rows: usize, ff: usize, cols: usize) -> u64 {
        let floats = |a: usize, b: usize| 4 * a as u64 * b as u64;
        let k = cols.max(ff).min(K_BLOCK).next_multiple_of(TILE);
        let worker = floats(ROW_BLOCK, k)
            + floats(TILE, k)
            + floats(expert_rows, TILE * linear::STRIPS_TOGETHER);
        worker * threads.max(1) as u64 + floats(expert_rows, ff)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Known, Random, bits, every_way, one_way};
    use super::*;

    struct Case {
        gate: Known,
        up: Known,
        down: Known,
        x: Vec<f32>,
        routes: Vec<Route>,
    }

    impl Case {
        fn new(layout: &str, hidden: usize, ff: usize, tokens: u32) -> Case {
            let mut random = Random::new(u64::from(tokens));
            let routes = (0..tokens).filter(|t| t % 3 != 1).map(|token| Route {
                token,
                weight: random.real(),
            });
            Case {
                routes: routes.collect(),
                gate: Known::random(layout, ff, hidden, 1),
                up: Known::random(layout, ff, hidden, 2),
                down: Known::random(layout, hidden, ff, 3),
                x: Random::new(4).reals(tokens as usize * hidden),
            }
        }

        fn expert(&self) -> Expert<'_> {
            Expert {
                gate: self.gate.matrix(),
                up: self.up.matrix(),
                down: self.down.matrix(),
            }
        }
    }

    #[test]
    fn an_expert_adds_its_weighted_network_to_its_tokens_only() {
        for (layout, hidden, ff, tokens) in [
            ("q4_0.t32.direct", 128, 64, 20),
            ("q4_1.t32.pair", 48, 80, 7),
            ("bf16.t32", 96, 544, 33),
        ] {
            let case = Case::new(layout, hidden, ff, tokens);
            let before = Random::new(5).reals(case.x.len());
            let mut first = before.clone();
            one_way().expert(&case.x, &case.expert(), &case.routes, &mut first);

            let mut exact: Vec<_> = before.iter().map(|x| f64::from(*x)).collect();
            let mut magnitude = exact.clone();
            for route in &case.routes {
                let x = &case.x[route.token as usize * hidden..][..hidden];
                let gate = case.gate.exact_products(x);
                let up = case.up.exact_products(x);
                for n in 0..hidden {
                    let at = route.token as usize * hidden + n;
                    for k in 0..ff {
                        let (gate, up) = (gate[k], up[k]);
                        let h = gate.0 / (1.0 + (-gate.0).exp()) * up.0;
                        let w = f64::from(route.weight) * f64::from(case.down.row(n)[k]);
                        exact[at] += w * h;
                        magnitude[at] += (w * gate.1 * up.1).abs();
                    }
                }
            }
            for (i, got) in first.iter().enumerate() {
                let error = (f64::from(*got) - exact[i]).abs();
                assert!(
                    error <= 1e-5 * magnitude[i].abs().max(1.0),
                    "{layout} {i}: {error}"
                );
                let token = (i / hidden) as u32;
                if case.routes.iter().all(|route| route.token != token) {
                    assert_eq!(got.to_bits(), before[i].to_bits());
                }
            }

            for cpu in every_way() {
                for rows in [0, 3, 300] {
                    let mut cpu = Cpu::new(cpu.threads(), cpu.simd())
                        .unwrap()
                        .with_expert_rows(rows);
                    let mut again = before.clone();
                    cpu.expert(&case.x, &case.expert(), &case.routes, &mut again);
                    assert_eq!(bits(&again), bits(&first), "{layout} {rows} {cpu:?}");
                }
            }
        }
    }

    #[test]
    fn an_expert_without_routes_changes_nothing() {
        let case = Case::new("q8_0.t32", 32, 32, 2);
        let mut out = case.x.clone();
        one_way().expert(&case.x, &case.expert(), &[], &mut out);
        assert_eq!(out, case.x);
    }

    #[test]
    fn buffers_stay_within_what_was_announced() {
        let case = Case::new("f16.t32", 640, 576, 400);
        for threads in [1, 3] {
            let mut cpu = Cpu::new(threads, Simd::detect())
                .unwrap()
                .with_expert_rows(40);
            let mut out = case.x.clone();
            // Fewer routes first: a buffer that doubled as it grows would be found out.
            for routes in [&case.routes[..30], &case.routes] {
                cpu.expert(&case.x, &case.expert(), routes, &mut out);
            }
            let mut bytes = 4 * cpu.hidden.capacity();
            for worker in 0..threads {
                let scratch = scratch_of(&cpu.scratch, worker);
                bytes += 4 * (scratch.packed.capacity() + scratch.partial.capacity());
                bytes += 4 * TILE * scratch.lanes.capacity();
            }
            let bound = Cpu::scratch_bytes(threads, 40, 576, 640);
            assert!(bytes > 0 && bytes as u64 <= bound, "{bytes} of {bound}");
        }
    }
}
