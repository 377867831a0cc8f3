//! The one inner product of this backend.
//!
//! A vector lane is an output column, so a sum over k is a chain of fused
//! multiply-adds in ascending k whatever the width of the vectors, the number of
//! rows multiplied together, or where k is cut: partial sums wait in the output
//! matrix, as f32, which changes nothing.

use super::decode::{self, Lanes};
use super::matrix::{Matrix, TILE};
use super::simd::{Kernel, Simd, SimdPath};
use crate::pool::Block;

/// Elements of k decoded at once: 64 KiB of lanes.
pub(super) const K_BLOCK: usize = 512;
/// Rows packed at once. Weights are decoded once for each such block of rows.
pub(super) const ROW_BLOCK: usize = 256;

/// Buffers of one worker.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Rows of the left operand, as [`pack`] arranges them.
    pub(super) packed: Vec<f32>,
    /// A decoded piece of a strip.
    pub(super) lanes: Vec<Lanes>,
    /// Products that do not go straight to their output.
    pub(super) partial: Vec<f32>,
}

impl Scratch {
    pub(super) const fn new() -> Scratch {
        Scratch {
            packed: Vec::new(),
            lanes: Vec::new(),
            partial: Vec::new(),
        }
    }
}

/// At least `len` elements of a buffer that is kept, and grows no further than it must;
/// what they hold is unspecified.
pub(super) fn at_least<T: Clone>(buffer: &mut Vec<T>, len: usize, fill: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.reserve_exact(len - buffer.len());
        buffer.resize(len, fill);
    }
    &mut buffer[..len]
}

/// Neighbouring strips of a matrix, and where their products go: `out` has a column for
/// every output row of the strips.
pub(super) struct Job<'m, 'b> {
    pub(super) matrix: &'m Matrix<'m>,
    pub(super) first_strip: usize,
    pub(super) out: Block<'b>,
}

/// `out[i] = row(i) · matrixᵀ` for every job and `i < rows`, each row `cols` elements.
pub(super) fn multiply<'x>(
    simd: Simd,
    rows: usize,
    cols: usize,
    row: &dyn Fn(usize) -> &'x [f32],
    jobs: &mut [Job<'_, '_>],
    (packed, lanes): (&mut Vec<f32>, &mut Vec<Lanes>),
) {
    let packed = at_least(packed, rows.min(ROW_BLOCK) * cols.min(K_BLOCK), 0.0);
    let lanes = at_least(lanes, cols.min(K_BLOCK).next_multiple_of(TILE), Lanes::ZERO);
    for first_row in (0..rows).step_by(ROW_BLOCK) {
        let row_count = ROW_BLOCK.min(rows - first_row);
        for k in (0..cols.max(1)).step_by(K_BLOCK) {
            let len = K_BLOCK.min(cols - k);
            pack(
                simd.path(),
                row_count,
                len,
                |i| &row(first_row + i)[k..k + len],
                packed,
            );
            let lanes = &mut lanes[..len.next_multiple_of(TILE)];
            for job in &mut *jobs {
                for col in (0..job.out.cols()).step_by(TILE) {
                    let strip = job.first_strip + col / TILE;
                    decode::strip(simd, job.matrix, strip, k, len, lanes);
                    simd.run(Product {
                        lanes: &lanes[..len],
                        packed,
                        rows: row_count,
                        out: &mut job.out,
                        first_row,
                        col,
                        fresh: k == 0,
                    });
                }
            }
        }
    }
}

/// Whether the portable path has an instruction for a fused multiply-add.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Rows multiplied together: as many as the accumulators of a path's registers
/// take, and for the last rows of a block the largest smaller choice. One where a fused
/// multiply-add is a library call, beside which nothing else counts.
#[inline(always)]
fn together(path: SimdPath, rows: usize) -> usize {
    match rows {
        1.. if path == SimdPath::Portable && !FUSED => 1,
        12.. if path == SimdPath::Avx512 => 12,
        6.. => 6,
        4.. => 4,
        2.. => 2,
        rows => rows,
    }
}

/// Cuts rows into those multiplied together: (first row, how many).
pub(super) struct Together {
    path: SimdPath,
    first: usize,
    end: usize,
}

impl Together {
    #[inline(always)]
    pub(super) fn of(path: SimdPath, rows: usize) -> Together {
        Together {
            path,
            first: 0,
            end: rows,
        }
    }
}

impl Iterator for Together {
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        let (first, count) = (self.first, together(self.path, self.end - self.first));
        self.first += count;
        (count > 0).then_some((first, count))
    }
}

/// Copies rows of `len` elements so that the elements k of rows multiplied
/// together are neighbours: those of m rows from row i start at i · len, k by k.
pub(super) fn pack<'x>(
    path: SimdPath,
    rows: usize,
    len: usize,
    row: impl Fn(usize) -> &'x [f32],
    packed: &mut [f32],
) {
    for (first, count) in Together::of(path, rows) {
        let packed = &mut packed[first * len..(first + count) * len];
        for i in 0..count {
            let places = packed[i..].iter_mut().step_by(count);
            for (place, x) in places.zip(row(first + i)) {
                *place = *x;
            }
        }
    }
}

/// Adds `Σ packed[i][k] · lanes[k]` over ascending k to `rows` rows and up to 32
/// columns of `out`.
pub(super) struct Product<'a, 'b> {
    pub(super) lanes: &'a [Lanes],
    pub(super) packed: &'a [f32],
    pub(super) rows: usize,
    pub(super) out: &'a mut Block<'b>,
    /// First row in the output.
    pub(super) first_row: usize,
    /// First column in the output.
    pub(super) col: usize,
    /// Whether sums start from zero, or from what the output holds.
    pub(super) fresh: bool,
}

impl Kernel for Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, path: SimdPath) {
        for (first, count) in Together::of(path, self.rows) {
            // 24 accumulators of 16 lanes, or 12 (NEON: 24) of the narrower vectors.
            match (path, count) {
                (SimdPath::Avx512, 12) => self.tile::<12, 32>(first),
                (SimdPath::Avx512, 6) => self.tile::<6, 32>(first),
                (SimdPath::Avx512, 4) => self.tile::<4, 32>(first),
                (SimdPath::Avx512, 2) => self.tile::<2, 32>(first),
                (SimdPath::Avx512, _) => self.tile::<1, 32>(first),
                (SimdPath::Portable, _) if !FUSED => self.tile::<1, 16>(first),
                (_, 6) => self.tile::<6, 16>(first),
                (_, 4) => self.tile::<4, 16>(first),
                (_, 2) => self.tile::<2, 16>(first),
                _ => self.tile::<1, 16>(first),
            }
        }
    }
}

impl Product<'_, '_> {
    /// Rows `first..first + ROWS`.
    #[inline(always)]
    fn tile<const ROWS: usize, const WIDTH: usize>(&mut self, first: usize) {
        let len = self.lanes.len();
        let x = &self.packed[first * len..(first + ROWS) * len];
        let x = x.as_chunks::<ROWS>().0;
        let first_row = self.first_row + first;
        for lane in (0..TILE).step_by(WIDTH) {
            let col = self.col + lane;
            if col >= self.out.cols() {
                return;
            }
            let width = WIDTH.min(self.out.cols() - col);
            let mut sums = [[0.0; WIDTH]; ROWS];
            if !self.fresh {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let out = &self.out.row(first_row + i)[col..col + width];
                    sums[..width].copy_from_slice(out);
                }
            }
            let sums = chains(self.lanes, lane, x, sums);
            for (i, sums) in sums.iter().enumerate() {
                let out = &mut self.out.row(first_row + i)[col..col + width];
                out.copy_from_slice(&sums[..width]);
            }
        }
    }
}

/// The inner loop. It takes and returns its sums by value, and its loops count,
/// because then the compiler keeps all sums in vector registers.
#[inline(always)]
fn chains<const ROWS: usize, const WIDTH: usize>(
    lanes: &[Lanes],
    lane: usize,
    x: &[[f32; ROWS]],
    mut sums: [[f32; WIDTH]; ROWS],
) -> [[f32; WIDTH]; ROWS] {
    for (lanes, x) in lanes.iter().zip(x) {
        let w = &lanes.0[lane..lane + WIDTH];
        macro_rules! rows {
            ($($row:literal)*) => {$(
                if $row < ROWS {
                    for l in 0..WIDTH {
                        sums[$row][l] = w[l].mul_add(x[$row], sums[$row][l]);
                    }
                }
            )*};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11);
    }
    sums
}
