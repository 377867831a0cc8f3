//! Kernels for any CPU, and what they promise about numbers.
//!
//! - Operands are f32. A weight is exactly what its stored type says
//!   ([`Matrix::row`] shows it); activations are never rounded to anything shorter.
//! - A product over k is a chain of fused multiply-adds from zero in ascending k,
//!   one chain an output element. Attention is made of the same products: over
//!   the elements of a head, and over keys in blocks of 64 counted from position 0.
//! - Sums over one token (mean square, softmax denominator) go to 16 partial sums,
//!   element i to number i mod 16, which are then added in halves: 8, 4, 2, 1. A router
//!   adds its few scores in order.
//! - An expert's result is multiplied by its weight, rounded, and then added.
//! - `exp`, `sin`, `cos` and powers are [`crate::math`]'s.
//!
//! So results are the same bits for any number of threads, any [`SimdPath`], and any
//! way of cutting a prompt into rows that are computed together. A thread owns
//! output columns, or whole tokens where a kernel works on one token at a time.
//!
//! Matrices of numbers are row-major slices, one row a token. A slice whose length does
//! not fit is a mistake of the caller, and panics; what comes from files
//! ([`Matrix::new`]) and what depends on values ([`Cpu::router`]) returns an error.

mod attention;
mod conv;
mod decode;
mod elementwise;
mod experts;
mod linear;
mod matrix;
mod mla;
mod multiply;
mod norm;
mod rope;
mod router;
mod rows;
mod simd;
#[cfg(test)]
mod testing;

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use attention::AttentionForm;
pub use experts::{DEFAULT_EXPERT_ROWS, Expert, Route};
pub use matrix::{Matrix, MatrixError};
pub use rope::{RopeForm, RopeTable, Yarn};
pub use router::{ExpertRoutes, RouterError, Routes};
pub use simd::{Simd, SimdPath};

use self::mla::Expanded;
use self::multiply::Scratch;
use crate::pool::Pool;

/// The kernels, with their threads and buffers.
pub struct Cpu {
    pool: Pool,
    simd: Simd,
    /// One a worker, so that locking never waits.
    scratch: Vec<Mutex<Scratch>>,
    expert_rows: usize,
    /// Gated activations of the routes at work, `[expert_rows, ff]`.
    hidden: Vec<f32>,
    expanded: Expanded,
}

/// Buffers are left out: nobody reads so many numbers, and spelling them takes a runner 17 KB.
impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu")
            .field("pool", &self.pool)
            .field("simd", &self.simd)
            .finish_non_exhaustive()
    }
}

impl Cpu {
    /// Kernels that run on `threads` threads, the calling one included; 0 counts as 1.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(threads: usize, simd: Simd) -> io::Result<Cpu> {
        let pool = Pool::new(threads)?;
        let scratch = (0..pool.threads()).map(|_| Mutex::new(Scratch::new()));
        Ok(Cpu {
            scratch: scratch.collect(),
            pool,
            simd,
            expert_rows: DEFAULT_EXPERT_ROWS,
            hidden: Vec::new(),
            expanded: Expanded::default(),
        })
    }

    /// The same with at most `rows` routes of an expert multiplied together (C in
    /// the paper; 0 counts as 1). It changes memory and speed, never a result.
    #[must_use]
    pub fn with_expert_rows(self, rows: usize) -> Cpu {
        Cpu {
            expert_rows: rows.max(1),
            ..self
        }
    }

    /// Threads that kernels run on.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set they run on.
    pub fn simd(&self) -> Simd {
        self.simd
    }
}

/// The buffers of a worker. A panic leaves nothing in them that is read before
/// it is written again.
fn scratch_of(scratch: &[Mutex<Scratch>], worker: usize) -> MutexGuard<'_, Scratch> {
    scratch[worker]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Rows of `width` elements in `data`.
fn row_count(data: &[f32], width: usize) -> usize {
    let rows = data.len().checked_div(width).unwrap_or(0);
    assert_eq!(
        data.len(),
        rows * width,
        "a matrix is whole rows of {width}"
    );
    rows
}
