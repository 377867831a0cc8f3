//! The program: what a runtime does with a bundle's weights, as a short list of operators.
//!
//! A program works on *registers*, matrices of T rows (one a token) of f32 whose
//! width the program declares. The runtime never learns which model family it
//! runs: everything a family decides (router form, norm width, rope pairing) is
//! an operand here. Shapes below are `[rows, cols]`, weights `[out, in]`.

use serde::{Deserialize, Serialize};

use crate::real::Real;

/// Name of a register.
pub type Register = String;
/// Name of a resident tensor of the bundle.
pub type TensorName = String;

/// A register and its width in f32 elements a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RegisterSpec {
    /// Name, unique within the program.
    pub name: Register,
    /// Elements a token.
    pub width: u64,
}

/// All operators of one prefill, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Tokens in the vocabulary: ids a prompt may hold, columns of the logits.
    pub vocab: u64,
    /// Positions the model was made for.
    pub context: u64,
    /// Every register the operators name.
    pub registers: Vec<RegisterSpec>,
    /// Before the first layer: token ids to the residual stream.
    pub prologue: Vec<Op>,
    /// One list a layer.
    #[serde(deserialize_with = "crate::limits::one_a_layer")]
    pub layers: Vec<Vec<Op>>,
    /// After the last layer, for chosen positions only.
    pub epilogue: Vec<Op>,
}

/// Over how many elements a QK norm takes its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NormWidth {
    /// All heads together; the weight is as wide as the register.
    Full,
    /// Each head on its own; the weight is as wide as a head.
    Head,
}

/// Which dimensions of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RopePairing {
    /// i with i + d/2.
    Half,
    /// 2i with 2i + 1.
    Adjacent,
}

/// YaRN: frequencies stretched for contexts longer than the model was first trained for,
/// the slow ones by `factor`, the fast ones not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// How much longer, above 0.
    pub factor: Real,
    /// Positions the model was first trained for.
    pub original_context: u64,
    /// Turns within `original_context` from which on a frequency is left as it is.
    pub beta_fast: Real,
    /// Turns up to which a frequency is divided by `factor`.
    pub beta_slow: Real,
    /// Factor on cosines and sines.
    pub magnitude: Real,
}

/// The weights that expand a latent row into keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MlaWeights {
    /// `[heads · (nope + value), rank]`: for each head the rows of its key, then of its value.
    Joined(TensorName),
    /// The two apart, the key's turned within each head.
    Split {
        /// `[heads · rank, nope]`.
        k: TensorName,
        /// `[heads · value, rank]`.
        v: TensorName,
    },
}

/// How a router turns logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Over all experts (or, after top-k, over the chosen ones).
    Softmax,
    /// Each expert on its own.
    Sigmoid,
}

/// Whether scores are computed before the choice of experts or after it, over the chosen ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScoreWhen {
    /// Experts are chosen by score.
    BeforeTopK,
    /// Experts are chosen by logit.
    AfterTopK,
}

/// What the weights of the chosen experts are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Renormalise {
    /// Nothing.
    None,
    /// Their sum.
    Sum,
    /// Their sum plus this.
    SumPlus(Real),
}

/// The router's form; every part is stated, none has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RouterForm {
    /// Logits to scores.
    pub scoring: Scoring,
    /// Scores before or after the choice.
    pub score: ScoreWhen,
    /// Experts a token.
    pub top_k: u64,
    /// Divisor of the chosen weights.
    pub renormalise: Renormalise,
    /// Factor on the weights, after renormalising.
    pub scale: Real,
}

/// One operator. `out` registers are overwritten unless the operator says *adds*.
/// In JSON it is an object of one field, named after the operator: a tag inside the
/// object would make a parser buffer everything in it first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// `out[t] = scale · weight[id[t]]`; weight `[vocab, width]`.
    Embed {
        /// Residual stream.
        out: Register,
        /// Embedding table.
        weight: TensorName,
        /// Factor on the row.
        scale: Real,
    },
    /// `out = weight · input · rsqrt(mean(input²) + eps)`.
    RmsNorm {
        /// Source rows.
        input: Register,
        /// Normalised rows.
        out: Register,
        /// `[width]`.
        weight: TensorName,
        /// Added to the mean square.
        eps: Real,
    },
    /// `out = input · weightᵀ (+ bias)`; weight `[out, in]`.
    Linear {
        /// Source rows.
        input: Register,
        /// Products.
        out: Register,
        /// `[out width, in width]`.
        weight: TensorName,
        /// `[out width]`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bias: Option<TensorName>,
    },
    /// RMS norm of a query or key register, in place.
    QkNorm {
        /// Query or key rows.
        register: Register,
        /// `[width]` or `[head_dim]`, as `over` says.
        weight: TensorName,
        /// Added to the mean square.
        eps: Real,
        /// Heads in the register.
        heads: u64,
        /// Elements of one mean.
        over: NormWidth,
    },
    /// Rotates each head by position, in place: angle `pos · theta^(−2i/dims)`, or as
    /// `yarn` changes it.
    Rope {
        /// Query or key rows.
        register: Register,
        /// Heads in the register.
        heads: u64,
        /// Dimensions that rotate, the last ones of a head.
        dims: u64,
        /// Base of the frequencies.
        theta: Real,
        /// Which dimensions rotate together.
        pairing: RopePairing,
        /// Frequencies stretched for long contexts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        yarn: Option<Yarn>,
    },
    /// Causal grouped-query attention over this prompt's keys and values.
    Attention {
        /// `[heads · head_dim]`.
        q: Register,
        /// `[kv_heads · head_dim]`.
        k: Register,
        /// `[kv_heads · head_dim]`.
        v: Register,
        /// `[heads · head_dim]`.
        out: Register,
        /// Query heads.
        heads: u64,
        /// Key and value heads; divides `heads`.
        kv_heads: u64,
        /// Factor on the scores, before the softmax.
        scale: Real,
    },
    /// Causal multi-head latent attention (DeepSeek-V2): keys and values of a head are
    /// products of a latent row, and one rotated part of the key is shared by all heads.
    Mla {
        /// `[heads · (nope + rope)]`: for each head what does not rotate, then what does.
        q: Register,
        /// `[rank]`, normalised.
        latent: Register,
        /// `[rope]`, rotated.
        k_pe: Register,
        /// `[heads · value]`.
        out: Register,
        /// Heads.
        heads: u64,
        /// From a latent row to keys and values.
        weights: MlaWeights,
        /// Factor on the scores, before the softmax.
        scale: Real,
    },
    /// Short causal convolution (LFM2): with input B | C | X,
    /// `out[t] = C[t] ⊙ Σ_k weight[:, k] ⊙ (B ⊙ X)[t − taps + 1 + k]`, zero before the prompt.
    ShortConv {
        /// `[3 · width]`.
        input: Register,
        /// `[width]`.
        out: Register,
        /// `[width, taps]`; the last tap meets the token itself.
        weight: TensorName,
    },
    /// *Adds* `g · down(silu(gate · input) ⊙ (up · input))` to `out`: a dense
    /// feed-forward network, or experts that all tokens share.
    Mlp {
        /// Source rows.
        input: Register,
        /// Accumulator.
        out: Register,
        /// `[ff, width]`.
        gate: TensorName,
        /// `[ff, width]`.
        up: TensorName,
        /// `[width, ff]`.
        down: TensorName,
        /// `[width]`: g is the sigmoid of its product with the row; 1 without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_gate: Option<TensorName>,
    },
    /// Chooses experts for each token: logits `input · weightᵀ`, in f32 throughout.
    /// The larger score wins, then the lower id.
    Router {
        /// Source rows.
        input: Register,
        /// `[experts, width]`.
        weight: TensorName,
        /// `[experts]`, added to the scores for the choice only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        selection_bias: Option<TensorName>,
        /// Scores, choice and weights.
        form: RouterForm,
    },
    /// *Adds* `Σ w · down(silu(gate · x) ⊙ (up · x))` over each token's routes to `out`,
    /// experts in storage order (paper eq. 1 and 2).
    Experts {
        /// Source rows.
        input: Register,
        /// Accumulator.
        out: Register,
    },
    /// *Adds* `scale · input` to `out`.
    Add {
        /// Source rows.
        input: Register,
        /// Accumulator.
        out: Register,
        /// Factor on the source.
        scale: Real,
    },
    /// Logits `scale · input · weightᵀ`; weight `[vocab, width]`.
    LmHead {
        /// Normalised rows.
        input: Register,
        /// Head, or a tied embedding table.
        weight: TensorName,
        /// Factor on the logits.
        scale: Real,
    },
}

impl Op {
    /// The registers whose content it uses, accumulators included.
    pub fn reads(&self) -> Vec<&str> {
        match self {
            Op::Embed { .. } => Vec::new(),
            Op::RmsNorm { input, .. }
            | Op::Linear { input, .. }
            | Op::ShortConv { input, .. }
            | Op::Router { input, .. }
            | Op::LmHead { input, .. } => vec![input],
            Op::QkNorm { register, .. } | Op::Rope { register, .. } => vec![register],
            Op::Attention { q, k, v, .. } => vec![q, k, v],
            Op::Mla {
                q, latent, k_pe, ..
            } => vec![q, latent, k_pe],
            Op::Mlp { input, out, .. }
            | Op::Experts { input, out }
            | Op::Add { input, out, .. } => {
                vec![input, out]
            }
        }
    }

    /// The register it writes, if it writes one.
    pub fn writes(&self) -> Option<&str> {
        match self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Attention { out, .. }
            | Op::Mla { out, .. }
            | Op::ShortConv { out, .. }
            | Op::Mlp { out, .. }
            | Op::Experts { out, .. }
            | Op::Add { out, .. } => Some(out),
            Op::QkNorm { register, .. } | Op::Rope { register, .. } => Some(register),
            Op::Router { .. } | Op::LmHead { .. } => None,
        }
    }
}
