//! What multiplies: the contract an executor needs of a backend, and one module a backend.
//!
//! The contract is the program's operators, no finer: a backend gets whole
//! matrices of numbers and weights where they lie, and may run an operator in any way that
//! keeps its promise about numbers. [`cpu`] states its own.

pub mod cpu;
mod cpu_backend;

use estream_schemas::layout::Layout;
use estream_schemas::program::{RopePairing, RouterForm};

pub use cpu::{AttentionForm, ExpertRoutes, RopeForm, RopeTable, Route, Routes, Yarn};
pub use cpu_backend::CpuBackend;

/// A weight matrix where it lies: `rows` output rows of `cols` elements.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// Element type and arrangement.
    pub layout: Layout,
    /// Output rows.
    pub rows: usize,
    /// Elements of the reduction dimension.
    pub cols: usize,
    /// The matrix; padding may follow it.
    pub bytes: &'a [u8],
}

/// The three matrices of one expert record, or of a network that all tokens share.
#[derive(Clone, Copy, Debug)]
pub struct ExpertWeights<'a> {
    /// `[ff, hidden]`, before the activation.
    pub gate: Weight<'a>,
    /// `[ff, hidden]`, the factor of the activation.
    pub up: Weight<'a>,
    /// `[hidden, ff]`.
    pub down: Weight<'a>,
}

/// An operator a backend could not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A router's score is infinite or not a number.
    #[error("the score of expert {expert} for row {token} is not finite")]
    NotFinite {
        /// Row of the input.
        token: usize,
        /// Whose score.
        expert: usize,
    },
    /// Operands that a checked bundle cannot have: a bug in estream.
    #[error("operands were rejected: {0}")]
    Rejected(String),
}

/// What runs the operators of a program.
///
/// Registers are row-major f32, one row a token. Lengths that do not fit the weights
/// are a mistake of the caller, and panic. `out` is overwritten unless said otherwise.
pub trait Backend: std::fmt::Debug + Send {
    /// Name on the command line and in messages.
    fn name(&self) -> &'static str;

    /// Threads of the host that it keeps, the calling one included.
    fn threads(&self) -> usize;

    /// Whether it reads weights in `layout`.
    fn supports(&self, layout: Layout) -> bool;

    /// The most bytes its operators allocate beside their results, where the widest
    /// record has `ff` rows and the widest weight `cols` columns.
    fn scratch_bytes(&self, ff: usize, cols: usize) -> u64;

    /// `out[t] = scale · table[ids[t]]`; every id is a row of the table.
    fn embed(
        &mut self,
        table: &Weight<'_>,
        ids: &[u32],
        scale: f32,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// `out = weight · x · rsqrt(mean(x²) + eps)`, one mean a row.
    fn rms_norm(
        &mut self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// RMS norm in place, one mean every `weight.len()` elements.
    fn qk_norm(&mut self, x: &mut [f32], weight: &[f32], eps: f32) -> Result<(), BackendError>;

    /// `out = x · weightᵀ (+ bias)`.
    fn linear(
        &mut self,
        x: &[f32],
        weight: &Weight<'_>,
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Rotates the heads of `x` in place; row t by row t of the table.
    fn rope(
        &mut self,
        x: &mut [f32],
        heads: usize,
        pairing: RopePairing,
        table: &RopeTable,
    ) -> Result<(), BackendError>;

    /// Causal attention of the rows of `q`, the first of which is at `form.position`,
    /// over keys and values from position 0.
    fn attention(
        &mut self,
        form: &AttentionForm,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Attention of `form` whose keys are, for each head, the first part of that head's rows
    /// of `kv_b · latent`, then `k_pe`, and whose values are the rest. Latent rows and
    /// `k_pe` are there from position 0.
    fn mla(
        &mut self,
        form: &AttentionForm,
        q: &[f32],
        latent: &[f32],
        k_pe: &[f32],
        kv_b: &Weight<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// The most bytes [`Backend::mla`] allocates for so many positions.
    fn mla_bytes(&self, form: &AttentionForm, positions: usize) -> u64;

    /// `out[t] = C ⊙ Σ_k weight[:, k] ⊙ (B ⊙ X)[t − taps + 1 + k]`, where a row of `x` is
    /// B | C | X; `weight` is `[width, taps]`, and `state`, `[taps − 1, width]`, holds B ⊙ X of
    /// the rows before the first: afterwards, before the next.
    fn short_conv(
        &mut self,
        x: &[f32],
        weight: &[f32],
        state: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// *Adds* `g · down(silu(gate · x) ⊙ (up · x))` to `out`, where g is the sigmoid of the
    /// row's product with `token_gate`, `[1, hidden]`, or 1.
    fn mlp(
        &mut self,
        x: &[f32],
        mlp: &ExpertWeights<'_>,
        token_gate: Option<&Weight<'_>>,
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// Chooses experts for every row of `x`.
    ///
    /// # Errors
    /// [`BackendError::NotFinite`], naming the row.
    fn router(
        &mut self,
        x: &[f32],
        weight: &Weight<'_>,
        selection_bias: Option<&[f32]>,
        form: &RouterForm,
    ) -> Result<Routes, BackendError>;

    /// *Adds* one record's part of its expert's routes to `out`:
    /// `out[t] += w · down(silu(gate · x[t]) ⊙ (up · x[t]))`.
    fn expert(
        &mut self,
        x: &[f32],
        expert: &ExpertWeights<'_>,
        routes: &[Route],
        out: &mut [f32],
    ) -> Result<(), BackendError>;

    /// *Adds* `scale · x` to `out`.
    fn add(&mut self, x: &[f32], scale: f32, out: &mut [f32]) -> Result<(), BackendError>;

    /// `out = scale · (x · weightᵀ)`.
    fn lm_head(
        &mut self,
        x: &[f32],
        weight: &Weight<'_>,
        scale: f32,
        out: &mut [f32],
    ) -> Result<(), BackendError>;
}
