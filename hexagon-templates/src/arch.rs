//! Architectures of the NPU that templates are made for, and what differs between them.

use std::fmt;
use std::str::FromStr;

/// An architecture of the Hexagon NPU that has a matrix unit for FP16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Snapdragon 8 Gen 2.
    V73,
    /// Snapdragon 8 Gen 3.
    V75,
    /// Snapdragon 8 Elite.
    V79,
    /// Snapdragon 8 Elite Gen 5.
    V81,
}

/// What one descriptor of the DMA engine can move at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaLimits {
    /// Bytes that lie one after another.
    pub linear_bytes: u32,
    /// Rows of a rectangle.
    pub rows: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Bytes between rows, on either side.
    pub stride_bytes: u32,
}

/// Largest number of 16 bits.
const BITS_16: u32 = (1 << 16) - 1;
/// Largest number of 24 bits.
const BITS_24: u32 = (1 << 24) - 1;

impl Arch {
    /// All of them, the oldest first.
    pub const ALL: [Arch; 4] = [Arch::V73, Arch::V75, Arch::V79, Arch::V81];

    /// Its name, as compilers and profiles have it.
    pub fn name(self) -> &'static str {
        match self {
            Arch::V73 => "v73",
            Arch::V75 => "v75",
            Arch::V79 => "v79",
            Arch::V81 => "v81",
        }
    }

    /// What a descriptor can move, by the bits that its fields have in llama.cpp's
    /// `ggml-hexagon/htp/dma-queue.h`: the wide form of rectangles, from v75 on, has long rows and no more of
    /// them.
    pub fn dma(self) -> DmaLimits {
        let row_bytes = match self {
            Arch::V73 => BITS_16,
            Arch::V75 | Arch::V79 | Arch::V81 => BITS_24,
        };
        DmaLimits {
            linear_bytes: BITS_24,
            rows: BITS_16,
            row_bytes,
            stride_bytes: row_bytes,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name is not that of an architecture templates are made for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are no templates for {0:?}; known are {known}", known = Arch::ALL.map(Arch::name).join(", "))]
pub struct UnknownArch(pub String);

impl FromStr for Arch {
    type Err = UnknownArch;

    fn from_str(name: &str) -> Result<Arch, UnknownArch> {
        let mut all = Arch::ALL.into_iter();
        let found = all.find(|arch| arch.name() == name);
        found.ok_or_else(|| UnknownArch(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_architectures_and_others_are_refused_with_those_there_are() {
        for arch in Arch::ALL {
            assert_eq!(arch.name().parse(), Ok(arch));
        }
        for name in ["", "v69", "V79", "79", "v79 "] {
            let error = name.parse::<Arch>().unwrap_err().to_string();
            assert!(error.contains("v73, v75, v79, v81"), "{error}");
        }
    }

    #[test]
    fn only_v73_has_narrow_rectangles_and_none_has_tall_ones() {
        let wide = 16_777_215;
        let strides = Arch::ALL.map(|arch| arch.dma().stride_bytes);
        assert_eq!(strides, [65_535, wide, wide, wide]);
        assert!(Arch::ALL.iter().all(|arch| arch.dma().rows == 65_535));
    }
}
