//! Numbers that stand for something in a message: [`abi`](crate::abi) has them all.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, NibbleOrder};

use crate::wire::codes;

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
        /// [`Embed`](crate::abi::Embed)(crate::abi::Embed).
        Embed = 1 as "ESTREAM_KIND_EMBED",
        /// [`Linear`](crate::abi::Linear), the head too.
        Linear = 2 as "ESTREAM_KIND_LINEAR",
        /// [`RmsNorm`](crate::abi::RmsNorm).
        RmsNorm = 3 as "ESTREAM_KIND_RMS_NORM",
        /// [`Rope`](crate::abi::Rope).
        Rope = 4 as "ESTREAM_KIND_ROPE",
        /// [`Attention`](crate::abi::Attention).
        Attention = 5 as "ESTREAM_KIND_ATTENTION",
        /// [`Mla`](crate::abi::Mla).
        Mla = 6 as "ESTREAM_KIND_MLA",
        /// [`ShortConv`](crate::abi::ShortConv).
        ShortConv = 7 as "ESTREAM_KIND_SHORT_CONV",
        /// [`Router`](crate::abi::Router).
        Router = 8 as "ESTREAM_KIND_ROUTER",
        /// [`Experts`](crate::abi::Experts), a dense network too.
        Experts = 9 as "ESTREAM_KIND_EXPERTS",
        /// [`Add`](crate::abi::Add).
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
