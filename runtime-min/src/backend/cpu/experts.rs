//! The gated feed-forward network of one expert, or of a slice of one.

use super::linear::strips_together;
use super::matrix::{Matrix, TILE};
use super::multiply::{Job, K_BLOCK, ROW_BLOCK, Scratch, at_least, multiply};
use super::simd::{Kernel, SimdPath};
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

/// `out = silu(gate · x) ⊙ (up · x)` for some columns of the hidden layer.
struct GateUpKernel<'a, 'b> {
    x: &'a [f32],
    expert: &'a Expert<'a>,
    routes: &'a [Route],
    out: Block<'b>,
    scratch: &'a mut Scratch,
}

impl Kernel for GateUpKernel<'_, '_> {
    #[inline(always)]
    fn run(mut self, path: SimdPath) {
        let Expert { gate, up, .. } = self.expert;
        let (x, routes, cols) = (self.x, self.routes, gate.cols());
        let (count, width) = (self.out.rows(), self.out.cols());
        let strip = self.out.first_col() / TILE;
        let strips = strip..strip + width.div_ceil(TILE);
        let Scratch {
            packed,
            lanes,
            partial,
        } = self.scratch;
        let partial = at_least(partial, count * width, 0.0);
        let row = |i: usize| &x[routes[i].token as usize * cols..][..cols];
        let mut jobs = [
            Job {
                matrix: gate,
                strips: strips.clone(),
                out: self.out.reborrow(),
            },
            Job {
                matrix: up,
                strips,
                out: Block::of(partial, width),
            },
        ];
        multiply(path, count, cols, row, &mut jobs, (packed, lanes));
        for (i, up) in partial.chunks_exact(width).enumerate() {
            for (h, up) in self.out.row(i).iter_mut().zip(up) {
                *h = silu(*h) * up;
            }
        }
    }
}

/// `out[token] += weight · (down · hidden)` for some columns of the output.
struct DownKernel<'a, 'b> {
    hidden: &'a [f32],
    down: &'a Matrix<'a>,
    routes: &'a [Route],
    out: Block<'b>,
    scratch: &'a mut Scratch,
}

impl Kernel for DownKernel<'_, '_> {
    #[inline(always)]
    fn run(mut self, path: SimdPath) {
        let (hidden, cols, width) = (self.hidden, self.down.cols(), self.out.cols());
        let strip = self.out.first_col() / TILE;
        let Scratch {
            packed,
            lanes,
            partial,
        } = self.scratch;
        let partial = at_least(partial, self.routes.len() * width, 0.0);
        let row = |i: usize| &hidden[i * cols..][..cols];
        let job = Job {
            matrix: self.down,
            strips: strip..strip + width.div_ceil(TILE),
            out: Block::of(partial, width),
        };
        multiply(
            path,
            self.routes.len(),
            cols,
            row,
            &mut [job],
            (packed, lanes),
        );
        for (route, products) in self.routes.iter().zip(partial.chunks_exact(width)) {
            let out = self.out.row(route.token as usize);
            for (y, product) in out.iter_mut().zip(products) {
                *y += route.weight * product;
            }
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
                    simd.run(GateUpKernel {
                        x,
                        expert,
                        routes,
                        out,
                        scratch: &mut scratch_of(scratch, worker),
                    });
                });
            let hidden = &*hidden;
            let cols = TILE * strips_together(down.strips(), threads);
            self.pool
                .for_blocks(out, width, (usize::MAX, cols), |out, worker| {
                    simd.run(DownKernel {
                        hidden,
                        down,
                        routes,
                        out,
                        scratch: &mut scratch_of(scratch, worker),
                    });
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
