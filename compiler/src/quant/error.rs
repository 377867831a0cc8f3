//! What can be wrong with numbers and blocks.

use estream_schemas::dtype::DType;

/// Values or blocks that cannot be converted.
///
/// Positions count from the start of the slice that was passed, so messages leave them
/// out: whoever cut a tensor into pieces says where in the tensor [`QuantError::element`] is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// No codec in this direction for the type.
    #[error(
        "{dtype} cannot be {}; keep the tensor in the type it has, or choose another type",
        if *.encoding { "made from floats here" } else { "read as floats here" }
    )]
    Unsupported {
        /// The type asked for.
        dtype: DType,
        /// Whether floats were to become blocks, or blocks floats.
        encoding: bool,
    },

    /// The two slices do not describe the same whole number of blocks.
    #[error(
        "{value_count} values and {byte_count} bytes are not the same number of {dtype} blocks ({} values in {} bytes each); pass whole rows",
        .dtype.block_len(), .dtype.block_bytes()
    )]
    Length {
        /// The type asked for.
        dtype: DType,
        /// Length of the slice of floats.
        value_count: usize,
        /// Length of the slice of bytes.
        byte_count: usize,
    },

    /// A value is an infinity or not a number.
    #[error("a value is infinite or not a number; repair the checkpoint it comes from")]
    NotFinite {
        /// Which value.
        index: usize,
    },

    /// A finite value, or the scale its block needs, exceeds what the type can hold.
    #[error("a value or the scale of its block is too large for {dtype}; choose a wider type")]
    Overflow {
        /// The type asked for.
        dtype: DType,
        /// Which value; for a quantised type, the first one of the block.
        index: usize,
    },

    /// A block stores an infinity or not a number as its scale or minimum.
    #[error(
        "the {dtype} block that starts here has a scale that is infinite or not a number; repair the checkpoint it comes from"
    )]
    ScaleNotFinite {
        /// The type of the blocks.
        dtype: DType,
        /// Which block.
        block_index: usize,
    },
}

impl QuantError {
    /// The element at fault, counted from the start of the slice that was passed; for a
    /// block, its first one. `None` if the fault is not that of an element.
    pub fn element(&self) -> Option<u64> {
        match self {
            QuantError::Unsupported { .. } | QuantError::Length { .. } => None,
            QuantError::NotFinite { index } | QuantError::Overflow { index, .. } => {
                Some(*index as u64)
            }
            QuantError::ScaleNotFinite { dtype, block_index } => {
                Some(*block_index as u64 * dtype.block_len())
            }
        }
    }
}
