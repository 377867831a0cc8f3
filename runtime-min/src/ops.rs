//! A program with its names resolved: what the executor walks.
//!
//! Registers and tensors are found by name once, when a model is loaded; from
//! then on they are indices.

use std::fmt;

use estream_schemas::program::{RopePairing, RouterForm};

use crate::backend::{AttentionForm, RopeForm};

/// A register of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterId(pub(crate) usize);

/// A resident matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixId(pub(crate) usize);

/// A resident vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorId(pub(crate) usize);

/// A layer that has experts, counted among those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertLayerId(pub(crate) usize);

/// A form of rotation, counted among those of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RopeId(pub(crate) usize);

/// An operator that looks back on earlier rows, counted among those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryId(pub(crate) usize);

/// Where in a program an operator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the first layer.
    Prologue,
    /// In this layer.
    Layer(usize),
    /// After the last layer.
    Epilogue,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Prologue => f.write_str("prologue"),
            Place::Layer(layer) => write!(f, "layer {layer}"),
            Place::Epilogue => f.write_str("epilogue"),
        }
    }
}

/// One operator; the embedding and the head stand apart, in [`Graph`].
#[derive(Clone, Debug)]
pub(crate) enum Op {
    RmsNorm {
        input: RegisterId,
        out: RegisterId,
        weight: VectorId,
        eps: f32,
    },
    Linear {
        input: RegisterId,
        out: RegisterId,
        weight: MatrixId,
        bias: Option<VectorId>,
    },
    /// In place; the width of a mean is the weight's.
    QkNorm {
        register: RegisterId,
        weight: VectorId,
        eps: f32,
    },
    Rope {
        register: RegisterId,
        heads: usize,
        pairing: RopePairing,
        rope: RopeId,
    },
    Attention {
        q: RegisterId,
        k: RegisterId,
        v: RegisterId,
        out: RegisterId,
        heads: usize,
        kv_heads: usize,
        scale: f32,
        history: HistoryId,
    },
    Mla {
        q: RegisterId,
        latent: RegisterId,
        k_pe: RegisterId,
        out: RegisterId,
        kv_b: MatrixId,
        heads: usize,
        scale: f32,
        history: HistoryId,
    },
    ShortConv {
        input: RegisterId,
        out: RegisterId,
        weight: VectorId,
        history: HistoryId,
    },
    Mlp {
        input: RegisterId,
        out: RegisterId,
        gate: MatrixId,
        up: MatrixId,
        down: MatrixId,
        token_gate: Option<MatrixId>,
    },
    Router {
        input: RegisterId,
        weight: MatrixId,
        selection_bias: Option<VectorId>,
        form: RouterForm,
    },
    Experts {
        input: RegisterId,
        out: RegisterId,
        layer: ExpertLayerId,
    },
    Add {
        input: RegisterId,
        out: RegisterId,
        scale: f32,
    },
}

impl Op {
    /// The register it writes, if it writes one.
    pub(crate) fn out(&self) -> Option<RegisterId> {
        match *self {
            Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Attention { out, .. }
            | Op::Mla { out, .. }
            | Op::ShortConv { out, .. }
            | Op::Mlp { out, .. }
            | Op::Experts { out, .. }
            | Op::Add { out, .. } => Some(out),
            Op::QkNorm { register, .. } | Op::Rope { register, .. } => Some(register),
            Op::Router { .. } => None,
        }
    }
}

/// Token ids to the residual stream: always the first operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embed {
    pub(crate) out: RegisterId,
    pub(crate) weight: MatrixId,
    pub(crate) scale: f32,
}

/// Hidden states to logits: always the last operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) input: RegisterId,
    pub(crate) weight: MatrixId,
    pub(crate) scale: f32,
}

/// What an operator that looks back needs of earlier chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HistoryForm {
    /// All rows of two registers.
    Rows { widths: [usize; 2] },
    /// So many numbers of its own.
    State { len: usize },
}

/// A register by name and width.
#[derive(Clone, Debug)]
pub(crate) struct RegisterForm {
    pub(crate) name: String,
    pub(crate) width: usize,
}

/// The whole program.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) vocab: usize,
    pub(crate) context: u64,
    pub(crate) registers: Vec<RegisterForm>,
    pub(crate) ropes: Vec<RopeForm>,
    pub(crate) histories: Vec<HistoryForm>,
    pub(crate) embed: Embed,
    pub(crate) prologue: Vec<Op>,
    pub(crate) layers: Vec<Vec<Op>>,
    pub(crate) epilogue: Vec<Op>,
    pub(crate) head: Head,
}

impl Graph {
    pub(crate) fn width(&self, register: RegisterId) -> usize {
        self.registers[register.0].width
    }

    /// The shapes of an attention from register `q` to register `out`.
    pub(crate) fn attention(
        &self,
        q: RegisterId,
        out: RegisterId,
        heads: usize,
        kv_heads: usize,
        scale: f32,
        position: usize,
    ) -> AttentionForm {
        AttentionForm {
            heads,
            kv_heads,
            key_dim: self.width(q) / heads,
            value_dim: self.width(out) / heads,
            scale,
            position,
        }
    }

    /// Every operator before the epilogue.
    pub(crate) fn body(&self) -> impl Iterator<Item = &Op> {
        self.prologue.iter().chain(self.layers.iter().flatten())
    }
}
