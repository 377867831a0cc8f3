//! Element types: how the numbers of one tensor are stored.

use std::fmt;
use std::str::FromStr;

/// How the elements of a tensor are stored, in a source checkpoint or in a bundle.
///
/// Elements come in *blocks*: `block_len` consecutive elements of a row take
/// `block_bytes` bytes. Plain types have blocks of one element. The quantised
/// types are ggml's, with ggml's block formats and type ids; the sizes are
/// those of the `ggml_type_size` table of the GGUF specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(non_camel_case_types, missing_docs, reason = "the field's own names")]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    F8_E4M3,
    F8_E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
}

/// One row a type: type, name, ggml id, elements a block, bytes a block.
const TABLE: &[(DType, &str, Option<u32>, u32, u32)] = &[
    (DType::F64, "f64", Some(28), 1, 8),
    (DType::F32, "f32", Some(0), 1, 4),
    (DType::F16, "f16", Some(1), 1, 2),
    (DType::BF16, "bf16", Some(30), 1, 2),
    (DType::F8_E4M3, "f8_e4m3", None, 1, 1),
    (DType::F8_E5M2, "f8_e5m2", None, 1, 1),
    (DType::I64, "i64", Some(27), 1, 8),
    (DType::I32, "i32", Some(26), 1, 4),
    (DType::I16, "i16", Some(25), 1, 2),
    (DType::I8, "i8", Some(24), 1, 1),
    (DType::U64, "u64", None, 1, 8),
    (DType::U32, "u32", None, 1, 4),
    (DType::U16, "u16", None, 1, 2),
    (DType::U8, "u8", None, 1, 1),
    (DType::Bool, "bool", None, 1, 1),
    (DType::Q4_0, "q4_0", Some(2), 32, 18),
    (DType::Q4_1, "q4_1", Some(3), 32, 20),
    (DType::Q5_0, "q5_0", Some(6), 32, 22),
    (DType::Q5_1, "q5_1", Some(7), 32, 24),
    (DType::Q8_0, "q8_0", Some(8), 32, 34),
    (DType::Q8_1, "q8_1", Some(9), 32, 36),
    (DType::Q2_K, "q2_k", Some(10), 256, 84),
    (DType::Q3_K, "q3_k", Some(11), 256, 110),
    (DType::Q4_K, "q4_k", Some(12), 256, 144),
    (DType::Q5_K, "q5_k", Some(13), 256, 176),
    (DType::Q6_K, "q6_k", Some(14), 256, 210),
    (DType::Q8_K, "q8_k", Some(15), 256, 292),
    (DType::IQ1_S, "iq1_s", Some(19), 256, 50),
    (DType::IQ1_M, "iq1_m", Some(29), 256, 56),
    (DType::IQ2_XXS, "iq2_xxs", Some(16), 256, 66),
    (DType::IQ2_XS, "iq2_xs", Some(17), 256, 74),
    (DType::IQ2_S, "iq2_s", Some(22), 256, 82),
    (DType::IQ3_XXS, "iq3_xxs", Some(18), 256, 98),
    (DType::IQ3_S, "iq3_s", Some(21), 256, 110),
    (DType::IQ4_NL, "iq4_nl", Some(20), 32, 18),
    (DType::IQ4_XS, "iq4_xs", Some(23), 256, 136),
    (DType::TQ1_0, "tq1_0", Some(34), 256, 54),
    (DType::TQ2_0, "tq2_0", Some(35), 256, 66),
    (DType::MXFP4, "mxfp4", Some(39), 32, 17),
    (DType::NVFP4, "nvfp4", Some(40), 64, 36),
    (DType::Q1_0, "q1_0", Some(41), 128, 18),
];

impl DType {
    fn row(self) -> &'static (DType, &'static str, Option<u32>, u32, u32) {
        // The table has one row a variant (tested), in an order of its own.
        TABLE
            .iter()
            .find(|row| row.0 == self)
            .expect("every element type has a row in the table")
    }

    /// Every element type estream knows the size of.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    /// The name used in manifests, recipes and messages (`q4_0`, `bf16`).
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// ggml's type id, where ggml has one.
    pub fn ggml_id(self) -> Option<u32> {
        self.row().2
    }

    /// The type with ggml's id `id`; `None` for removed and unknown ids.
    pub fn from_ggml_id(id: u32) -> Option<DType> {
        TABLE.iter().find(|row| row.2 == Some(id)).map(|row| row.0)
    }

    /// Consecutive elements of a row stored together.
    pub fn block_len(self) -> u64 {
        u64::from(self.row().3)
    }

    /// Bytes one block takes.
    pub fn block_bytes(self) -> u64 {
        u64::from(self.row().4)
    }

    /// Whether elements share scales, so that a block is the smallest unit that means anything.
    pub fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Whether an element is a number on its own that converts to f32
    /// (FP8 counts only together with its scales).
    pub fn is_float(self) -> bool {
        matches!(
            self,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::F8_E4M3 | DType::F8_E5M2
        )
    }

    /// Bytes of a row of `cols` elements; `None` if `cols` is not a whole
    /// number of blocks or the size overflows.
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes of `rows` rows of `cols` elements, without any padding.
    pub fn matrix_bytes(self, rows: u64, cols: u64) -> Option<u64> {
        self.row_bytes(cols)?.checked_mul(rows)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name is not that of an element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown element type {0:?}")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<DType, UnknownDType> {
        TABLE
            .iter()
            .find(|row| row.1 == name)
            .map(|row| row.0)
            .ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

crate::text::serde_as_text!(
    DType,
    "DType",
    "An element type by name, as `q4_0` or `bf16`"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_lead_back_to_the_type() {
        for dtype in DType::all() {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            if let Some(id) = dtype.ggml_id() {
                assert_eq!(DType::from_ggml_id(id), Some(dtype));
            }
        }
        assert_eq!(DType::all().count(), DType::Q1_0 as usize + 1);
    }

    #[test]
    fn a_row_is_a_whole_number_of_blocks_or_has_no_size() {
        assert_eq!(DType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(DType::Q4_0.row_bytes(48), None);
        assert_eq!(DType::F32.matrix_bytes(1 << 62, 1 << 62), None);
    }
}
