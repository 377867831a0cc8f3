//! Kernel ABI 1 in Rust: what `c/abi.h` says, name by name (a test compares the two).
//!
//! A batch is a [`Batch`], its [`Buffer`]s and its operators, back to back, all little-endian.
//! Nothing here is trusted by the kernels: they check every field of what they get.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, NibbleOrder};

use crate::wire::{Described, Wire, codes, wire};

/// Begins every message.
pub const MAGIC: u32 = 0x4d52_5453;
/// Version of the messages.
pub const VERSION: u32 = 1;
/// Buffers of one batch.
pub const MAX_BUFFERS: u32 = 16;
/// Operators of one batch.
pub const MAX_OPS: u32 = 256;
/// Bytes of one batch.
pub const MAX_BATCH_BYTES: u32 = 65_536;
/// Expert ids are below this.
pub const MAX_EXPERTS: u32 = 4096;
/// Records one operator names.
pub const MAX_ENTRIES: u32 = 4096;
/// Banks one operator names.
pub const MAX_BANKS: u32 = 64;
/// Rows of an operand.
pub const MAX_TOKENS: u32 = 65_536;
/// Routes of one operator.
pub const MAX_ROUTES: u32 = 1_048_576;
/// Rows and columns of a tile.
pub const TILE: u32 = 32;
/// Bytes of a tile that the matrix unit reads.
pub const TILE_BYTES: u32 = 2048;
/// What operands in memory are aligned to.
pub const ALIGN: u32 = 128;
/// Bytes of the matrix unit's column scales.
pub const SCALES_BYTES: u32 = 256;
/// An operand that is not there.
pub const NONE: u32 = u32::MAX;

codes! {
    /// How a batch ended.
    Status {
        /// All of it ran.
        Ok = 0 as "ESTREAM_OK",
        /// Magic, version, sizes, counts, or a field that should be 0.
        BadMessage = 1 as "ESTREAM_BAD_MESSAGE",
        /// A buffer that is not mapped, or is shorter than said.
        BadBuffer = 2 as "ESTREAM_BAD_BUFFER",
        /// An operator that these kernels do not have.
        BadKind = 3 as "ESTREAM_BAD_KIND",
        /// An operand that leaves its buffer, or an id that leaves its table.
        BadRange = 4 as "ESTREAM_BAD_RANGE",
        /// An offset or stride that is no whole number of vectors.
        BadAlign = 5 as "ESTREAM_BAD_ALIGN",
        /// Operands that do not fit each other, or a limit.
        BadShape = 6 as "ESTREAM_BAD_SHAPE",
        /// A layout that the operator does not read.
        BadLayout = 7 as "ESTREAM_BAD_LAYOUT",
        /// Regions that overlap, leave the VTCM, or are misaligned.
        BadPlan = 8 as "ESTREAM_BAD_PLAN",
        /// Shapes or lists that VTCM or private memory is too small for.
        NoMemory = 9 as "ESTREAM_NO_MEMORY",
        /// A route of no such token or expert, an entry of no such slot.
        BadRoute = 10 as "ESTREAM_BAD_ROUTE",
        /// A score that is infinite or not a number.
        NotFinite = 11 as "ESTREAM_NOT_FINITE",
    }

    /// What an operator is.
    Kind {
        /// [`Embed`].
        Embed = 1 as "ESTREAM_KIND_EMBED",
        /// [`Linear`], the head too.
        Linear = 2 as "ESTREAM_KIND_LINEAR",
        /// [`RmsNorm`].
        RmsNorm = 3 as "ESTREAM_KIND_RMS_NORM",
        /// [`Rope`].
        Rope = 4 as "ESTREAM_KIND_ROPE",
        /// [`Attention`].
        Attention = 5 as "ESTREAM_KIND_ATTENTION",
        /// [`Mla`].
        Mla = 6 as "ESTREAM_KIND_MLA",
        /// [`ShortConv`].
        ShortConv = 7 as "ESTREAM_KIND_SHORT_CONV",
        /// [`Router`].
        Router = 8 as "ESTREAM_KIND_ROUTER",
        /// [`Experts`], a dense network too.
        Experts = 9 as "ESTREAM_KIND_EXPERTS",
        /// [`Add`].
        Add = 10 as "ESTREAM_KIND_ADD",
    }

    /// A layout the kernels know.
    LayoutCode {
        /// `q4_0.t32.direct`
        Q4_0Direct = 1 as "ESTREAM_Q4_0_DIRECT",
        /// `q4_0.t32.pair`
        Q4_0Pair = 2 as "ESTREAM_Q4_0_PAIR",
        /// `q4_1.t32.direct`
        Q4_1Direct = 3 as "ESTREAM_Q4_1_DIRECT",
        /// `q4_1.t32.pair`
        Q4_1Pair = 4 as "ESTREAM_Q4_1_PAIR",
        /// `iq4_nl.t32.direct`
        Iq4NlDirect = 5 as "ESTREAM_IQ4_NL_DIRECT",
        /// `iq4_nl.t32.pair`
        Iq4NlPair = 6 as "ESTREAM_IQ4_NL_PAIR",
        /// `mxfp4.t32.direct`
        Mxfp4Direct = 7 as "ESTREAM_MXFP4_DIRECT",
        /// `mxfp4.t32.pair`
        Mxfp4Pair = 8 as "ESTREAM_MXFP4_PAIR",
        /// `q8_0.t32`
        Q8_0 = 9 as "ESTREAM_Q8_0",
        /// `f16.t32`
        F16 = 10 as "ESTREAM_F16",
        /// `bf16.t32`
        Bf16 = 11 as "ESTREAM_BF16",
        /// `f32.t32`
        F32 = 12 as "ESTREAM_F32",
        /// `f16.rows`
        F16Rows = 13 as "ESTREAM_F16_ROWS",
        /// `bf16.rows`
        Bf16Rows = 14 as "ESTREAM_BF16_ROWS",
        /// `f32.rows`
        F32Rows = 15 as "ESTREAM_F32_ROWS",
        /// `q6_k.rows`
        Q6KRows = 16 as "ESTREAM_Q6_K_ROWS",
    }
}

impl LayoutCode {
    /// The code of a layout, if the kernels know it.
    pub fn of(layout: Layout) -> Option<LayoutCode> {
        use NibbleOrder::{Direct, Pair};
        Some(match (layout.dtype(), layout.form()) {
            (DType::Q4_0, Form::Nibbles(Direct)) => LayoutCode::Q4_0Direct,
            (DType::Q4_0, Form::Nibbles(Pair)) => LayoutCode::Q4_0Pair,
            (DType::Q4_1, Form::Nibbles(Direct)) => LayoutCode::Q4_1Direct,
            (DType::Q4_1, Form::Nibbles(Pair)) => LayoutCode::Q4_1Pair,
            (DType::IQ4_NL, Form::Nibbles(Direct)) => LayoutCode::Iq4NlDirect,
            (DType::IQ4_NL, Form::Nibbles(Pair)) => LayoutCode::Iq4NlPair,
            (DType::MXFP4, Form::Nibbles(Direct)) => LayoutCode::Mxfp4Direct,
            (DType::MXFP4, Form::Nibbles(Pair)) => LayoutCode::Mxfp4Pair,
            (DType::Q8_0, Form::Tiles) => LayoutCode::Q8_0,
            (DType::F16, Form::Tiles) => LayoutCode::F16,
            (DType::BF16, Form::Tiles) => LayoutCode::Bf16,
            (DType::F32, Form::Tiles) => LayoutCode::F32,
            (DType::F16, Form::Rows) => LayoutCode::F16Rows,
            (DType::BF16, Form::Rows) => LayoutCode::Bf16Rows,
            (DType::F32, Form::Rows) => LayoutCode::F32Rows,
            (DType::Q6_K, Form::Rows) => LayoutCode::Q6KRows,
            _ => return None,
        })
    }
}

wire! {
    /// The head of a message to the kernels.
    Batch = "estream_batch" {
        /// [`MAGIC`].
        magic: u32,
        /// [`VERSION`].
        version: u32,
        /// Bytes of the whole message.
        bytes: u32,
        /// Comes back in the reply.
        sequence: u32,
        /// Buffers that follow.
        buffer_count: u32,
        /// Operators that follow those.
        op_count: u32,
        /// 0.
        zero: [u32; 2],
    }

    /// Memory that operands are in.
    Buffer = "estream_buffer" {
        /// By which the transport knows it.
        handle: u32,
        /// Its size.
        bytes: u32,
    }

    /// What comes back.
    Reply = "estream_reply" {
        /// [`MAGIC`].
        magic: u32,
        /// [`VERSION`].
        version: u32,
        /// The batch's.
        sequence: u32,
        /// A [`Status`].
        status: u32,
        /// The first operator that failed, else [`NONE`].
        op: u32,
        /// What of it: a route, an entry, a row.
        detail: u32,
        /// 0.
        zero: [u32; 2],
    }

    /// How every operator begins.
    Op = "estream_op" {
        /// A [`Kind`].
        kind: u16,
        /// Bytes of the operator, these included.
        bytes: u16,
        /// 0.
        zero: u32,
    }

    /// Where an operand is.
    Ref = "estream_ref" {
        /// Buffer of the batch, or [`NONE`].
        buffer: u32,
        /// Bytes from its start.
        offset: u32,
    }

    /// A matrix of f32, one row a token, zeros from `width` to the end of a vector.
    Rows = "estream_rows" {
        /// The first row.
        at: Ref,
        /// Bytes from row to row, a multiple of [`ALIGN`].
        stride: u32,
        /// Elements of a row.
        width: u32,
    }

    /// A weight matrix.
    Weight = "estream_weight" {
        /// Where it is.
        at: Ref,
        /// A [`LayoutCode`].
        layout: u32,
        /// Output rows.
        rows: u32,
        /// Elements of the reduction dimension.
        cols: u32,
        /// 0.
        zero: u32,
    }

    /// `out[t] = scale · table[ids[t]]`.
    Embed = "estream_embed" {
        /// Kind and size.
        op: Op,
        /// Rows of `out`.
        tokens: u32,
        /// Bits of an f32.
        scale: u32,
        /// u32 each.
        ids: Ref,
        /// Result.
        out: Rows,
        /// One row a token id.
        table: Weight,
    }

    /// `out = scale · (x · weightᵀ) (+ bias)`.
    Linear = "estream_linear" {
        /// Kind and size.
        op: Op,
        /// Rows of `x` and `out`.
        tokens: u32,
        /// Bits of an f32.
        scale: u32,
        /// Operand.
        x: Rows,
        /// Result.
        out: Rows,
        /// Operand.
        weight: Weight,
        /// f32 each, or none.
        bias: Ref,
    }

    /// `out = weight · x · 1/sqrt(mean(x²) + eps)`.
    RmsNorm = "estream_rms_norm" {
        /// Kind and size.
        op: Op,
        /// Rows of `x` and `out`.
        tokens: u32,
        /// Bits of an f32.
        eps: u32,
        /// Operand.
        x: Rows,
        /// Result; may be `x`.
        out: Rows,
        /// f32 each.
        weight: Ref,
        /// Elements of one mean.
        weight_len: u32,
        /// 0.
        zero: u32,
    }

    /// Rotates the last `dims` elements of every head.
    Rope = "estream_rope" {
        /// Kind and size.
        op: Op,
        /// Rows of `x`.
        tokens: u32,
        /// Heads of a row.
        heads: u32,
        /// Elements of a head that rotate.
        dims: u32,
        /// 1: 2i with 2i + 1; 0: i with i + dims/2.
        adjacent: u32,
        /// In place.
        x: Rows,
        /// dims/2 cosines, dims/2 sines a row.
        table: Rows,
    }

    /// Causal attention.
    Attention = "estream_attention" {
        /// Kind and size.
        op: Op,
        /// Queries.
        tokens: u32,
        /// Position of the first query.
        position: u32,
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements of a key of one head.
        key_dim: u32,
        /// Elements of a value of one head.
        value_dim: u32,
        /// Factor on the scores, bits of an f32.
        scale: u32,
        /// 0.
        zero: u32,
        /// Queries.
        q: Rows,
        /// Keys from position 0.
        k: Rows,
        /// Values from position 0.
        v: Rows,
        /// Result.
        out: Rows,
    }

    /// Causal attention, keys and values being products of a latent row.
    Mla = "estream_mla" {
        /// Kind and size.
        op: Op,
        /// Queries.
        tokens: u32,
        /// Position of the first query.
        position: u32,
        /// Heads.
        heads: u32,
        /// Elements of a key of one head.
        key_dim: u32,
        /// Elements of a value of one head.
        value_dim: u32,
        /// Factor on the scores, bits of an f32.
        scale: u32,
        /// Queries.
        q: Rows,
        /// Latent rows from position 0.
        latent: Rows,
        /// Rotated parts of keys from position 0.
        k_pe: Rows,
        /// Result.
        out: Rows,
        /// From a latent row to keys and values.
        kv_b: Weight,
    }

    /// Short causal convolution.
    ShortConv = "estream_short_conv" {
        /// Kind and size.
        op: Op,
        /// Rows of `x` and `out`.
        tokens: u32,
        /// Taps of the filter.
        taps: u32,
        /// B | C | X a row.
        x: Rows,
        /// Result.
        out: Rows,
        /// taps − 1 rows before the first, then before the next.
        state: Rows,
        /// f32 each, `[width, taps]`.
        weight: Ref,
    }

    /// Chooses experts.
    Router = "estream_router" {
        /// Kind and size.
        op: Op,
        /// Rows of `x`.
        tokens: u32,
        /// Experts a token.
        top_k: u32,
        /// 1: each expert on its own; 0: softmax.
        sigmoid: u32,
        /// 1: scores are computed over the chosen; 0: before the choice.
        after_top_k: u32,
        /// 1: weights are divided by their sum plus `epsilon`.
        renormalise: u32,
        /// Bits of an f32.
        epsilon: u32,
        /// Factor on the weights, bits of an f32.
        scale: u32,
        /// 0.
        zero: u32,
        /// Operand.
        x: Rows,
        /// One row an expert.
        weight: Weight,
        /// f32 each, or none.
        selection_bias: Ref,
        /// Result: tokens · top_k [`Route`]s, by token.
        routes: Ref,
        /// Result: what was chosen from.
        logits: Rows,
    }

    /// `out += scale · x`.
    Add = "estream_add" {
        /// Kind and size.
        op: Op,
        /// Rows of both.
        tokens: u32,
        /// Bits of an f32.
        scale: u32,
        /// Operand.
        x: Rows,
        /// Accumulator.
        out: Rows,
    }

    /// (e, t, α) of the paper's Algorithm 1.
    Route = "estream_route" {
        /// Id.
        expert: u32,
        /// Row.
        token: u32,
        /// Bits of an f32.
        weight: u32,
    }

    /// A record that is resident.
    Entry = "estream_entry" {
        /// Whose; the shards of an expert are neighbours.
        expert: u32,
        /// Where.
        slot: u32,
    }

    /// Bases of the parameter planes of one bank.
    Bank = "estream_bank" {
        /// Of gate.
        gate: Ref,
        /// Of up.
        up: Ref,
        /// Of down.
        down: Ref,
    }

    /// One projection of a record, at base + slot · stride.
    Projection = "estream_projection" {
        /// A [`LayoutCode`].
        layout: u32,
        /// Output rows.
        rows: u32,
        /// Elements of the reduction dimension.
        cols: u32,
        /// Bytes from slot to slot.
        stride: u32,
    }

    /// Constants of a template, decided for a shape class and an architecture; regions are offsets
    /// in VTCM. `abi.h` says how long each is and how they must lie.
    Plan = "estream_plan" {
        /// C: routes of a chunk, a multiple of 32.
        rows: u32,
        /// Strips of 32 output columns that a step takes of gate, or of up.
        gate_up_strips: u32,
        /// And of down.
        down_strips: u32,
        /// Every region ends at or before this.
        vtcm_bytes: u32,
        /// Gathered activations.
        z: u32,
        /// SwiGLU results.
        h: u32,
        /// Weights as they are stored.
        c: [u32; 2],
        /// Weights as the matrix unit reads them.
        d: [u32; 2],
        /// Products.
        o: [u32; 4],
        /// Column scales of the matrix unit.
        scales: u32,
        /// 0.
        zero: u32,
    }

    /// `y[t] += α · down(silu(gate · x[t]) ⊙ (up · x[t]))`, entry by entry.
    Experts = "estream_experts" {
        /// Kind and size.
        op: Op,
        /// Rows of `x` and `y`.
        tokens: u32,
        /// Ids are below this.
        experts: u32,
        /// Routes.
        route_count: u32,
        /// Records.
        entry_count: u32,
        /// Banks.
        bank_count: u32,
        /// Slots of a bank.
        bank_slots: u32,
        /// [`Route`]s.
        routes: Ref,
        /// [`Entry`]s, in the order in which experts are added.
        entries: Ref,
        /// [`Bank`]s.
        banks: Ref,
        /// Operand.
        x: Rows,
        /// Accumulator.
        y: Rows,
        /// `[ff, hidden]`.
        gate: Projection,
        /// `[ff, hidden]`.
        up: Projection,
        /// `[hidden, ff]`.
        down: Projection,
        /// Constants of the template.
        plan: Plan,
    }
}

impl Op {
    /// The head of an operator of type `T`.
    ///
    /// # Panics
    /// If `T` is longer than an operator can say, which none is.
    pub fn of<T: Described>(kind: Kind) -> Op {
        let fits = "operators are a few hundred bytes";
        Op {
            kind: u16::try_from(kind.code()).expect(fits),
            bytes: u16::try_from(T::BYTES).expect(fits),
            zero: 0,
        }
    }
}

impl Ref {
    /// An operand that is not there.
    pub const ABSENT: Ref = Ref {
        buffer: NONE,
        offset: 0,
    };
}
