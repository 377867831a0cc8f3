//! Layouts: how the elements of a matrix are arranged in bytes.
//!
//! A matrix has `rows` output rows (n) and `cols` elements of the reduction
//! dimension (k). A *tiled* layout cuts it into 32 × 32 tiles, the operand of a
//! Hexagon matrix unit, and stores them one after another, the tiles of 32
//! output rows (a *strip*) together:
//!
//! ```text
//! tile index = (n / 32) * ceil(cols / 32) + k / 32
//! ```
//!
//! | layout | bytes a tile | content |
//! |---|---|---|
//! | `q4_0.t32.{direct,pair}`, `iq4_nl.…` | 576 | 512 of nibbles, 32 fp16 scales in row order |
//! | `q4_1.t32.{direct,pair}` | 640 | 512 of nibbles, 32 × (fp16 d, fp16 m) |
//! | `mxfp4.t32.{direct,pair}` | 544 | 512 of nibbles, 32 E8M0 scales |
//! | `q8_0.t32` | 1,088 | 1,024 int8, 32 fp16 scales |
//! | `f16.t32`, `bf16.t32` | 2,048 | 1,024 elements |
//! | `f32.t32` | 4,096 | 1,024 elements |
//! | `*.rows` | | rows as GGUF stores them |
//!
//! A strip that the matrix does not fill is padded with rows that decode to
//! exactly zero, and so is the last tile of a strip whose `cols` is not a multiple
//! of 32 (which a compiler makes only when asked to pad).

use std::fmt;
use std::str::FromStr;

use crate::dtype::DType;

/// Rows and columns of a tile.
pub const TILE: u64 = 32;
/// Elements of a tile.
pub const TILE_LEN: u64 = TILE * TILE;
/// Bytes the 1,024 nibbles of a 4-bit tile take; its scales follow.
pub const NIBBLE_BYTES: u64 = TILE_LEN / 2;

/// Where element (n, k) of a tile is among the tile's elements of whole bytes
/// (int8, f16, bf16, f32): k pairs interleaved, as the matrix unit reads a weight.
pub const fn element_index(n: usize, k: usize) -> usize {
    (k >> 1) * 64 + 2 * n + (k & 1)
}

/// Which nibble of which byte holds element (n, k) of a 4-bit tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NibbleOrder {
    /// One table look-up yields vectors already in the matrix unit's weight order.
    Direct,
    /// Low and high nibble are neighbours in k.
    Pair,
}

impl NibbleOrder {
    /// Byte (0..512) and shift (0 or 4) of element (n, k).
    pub const fn place(self, n: usize, k: usize) -> (usize, u32) {
        match self {
            NibbleOrder::Direct => {
                let (group, high, t) = (k >> 3, (k >> 2) & 1, k & 3);
                let lane = ((t & 1) << 1) | (t >> 1);
                (128 * group + 4 * n + lane, if high == 1 { 4 } else { 0 })
            }
            NibbleOrder::Pair => ((k >> 1) * 32 + n, if k & 1 == 1 { 4 } else { 0 }),
        }
    }
}

/// The arrangement half of a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// 32 × 32 tiles of nibbles.
    Nibbles(NibbleOrder),
    /// 32 × 32 tiles of whole-byte elements.
    Tiles,
    /// One row after another, as GGUF stores them.
    Rows,
}

/// An element type and its arrangement: everything needed to read a matrix's bytes.
///
/// Holding one proves that the type has that arrangement in version 1 of the layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    dtype: DType,
    form: Form,
}

impl Layout {
    /// The layout of `dtype` elements in `form`, if there is one.
    pub fn new(dtype: DType, form: Form) -> Option<Layout> {
        let fits = match form {
            Form::Nibbles(_) => matches!(
                dtype,
                DType::Q4_0 | DType::Q4_1 | DType::IQ4_NL | DType::MXFP4
            ),
            Form::Tiles => matches!(dtype, DType::Q8_0 | DType::F16 | DType::BF16 | DType::F32),
            Form::Rows => true,
        };
        fits.then_some(Layout { dtype, form })
    }

    /// The tiled layout of `dtype`, nibbles in `order`; `None` if it has no tiles.
    pub fn tiled(dtype: DType, order: NibbleOrder) -> Option<Layout> {
        Layout::new(dtype, Form::Nibbles(order)).or_else(|| Layout::new(dtype, Form::Tiles))
    }

    /// Rows as GGUF stores them.
    pub fn rows(dtype: DType) -> Layout {
        Layout {
            dtype,
            form: Form::Rows,
        }
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The arrangement.
    pub fn form(self) -> Form {
        self.form
    }

    /// Whether the layout is made of 32 × 32 tiles.
    pub fn is_tiled(self) -> bool {
        self.form != Form::Rows
    }

    /// Bytes of one tile: 1,024 elements at the type's own density; `None` for rows.
    pub fn tile_bytes(self) -> Option<u64> {
        self.is_tiled()
            .then(|| TILE_LEN / self.dtype.block_len() * self.dtype.block_bytes())
    }

    /// Bytes of a matrix, padding to whole tiles included; `None` if rows of
    /// `cols` elements do not fit the layout or the size overflows.
    pub fn bytes(self, rows: u64, cols: u64) -> Option<u64> {
        match self.tile_bytes() {
            None => self.dtype.matrix_bytes(rows, cols),
            Some(tile) => rows
                .div_ceil(TILE)
                .checked_mul(cols.div_ceil(TILE))?
                .checked_mul(tile),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            Form::Nibbles(NibbleOrder::Direct) => "t32.direct",
            Form::Nibbles(NibbleOrder::Pair) => "t32.pair",
            Form::Tiles => "t32",
            Form::Rows => "rows",
        };
        f.pad(&format!("{}.{form}", self.dtype))
    }
}

/// The name is not that of a layout this version reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown layout {0:?}: this version reads the layouts of kernel ABI 1")]
pub struct UnknownLayout(pub String);

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(name: &str) -> Result<Layout, UnknownLayout> {
        let parse = || {
            let (dtype, form) = name.split_once('.')?;
            let form = match form {
                "t32.direct" => Form::Nibbles(NibbleOrder::Direct),
                "t32.pair" => Form::Nibbles(NibbleOrder::Pair),
                "t32" => Form::Tiles,
                "rows" => Form::Rows,
                _ => return None,
            };
            Layout::new(dtype.parse().ok()?, form)
        };
        parse().ok_or_else(|| UnknownLayout(name.to_owned()))
    }
}

crate::text::serde_as_text!(
    Layout,
    "Layout",
    "A layout of kernel ABI 1 by name, as `q4_0.t32.direct` or `f32.rows`",
    "^[a-z0-9_]+[.](t32|t32[.]direct|t32[.]pair|rows)$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_the_sizes_of_the_table() {
        for (name, bytes) in [
            ("q4_0.t32.direct", 576),
            ("q4_0.t32.pair", 576),
            ("iq4_nl.t32.direct", 576),
            ("q4_1.t32.direct", 640),
            ("mxfp4.t32.pair", 544),
            ("q8_0.t32", 1088),
            ("f16.t32", 2048),
            ("bf16.t32", 2048),
            ("f32.t32", 4096),
        ] {
            let layout: Layout = name.parse().unwrap();
            assert_eq!(layout.tile_bytes(), Some(bytes), "{name}");
            assert_eq!(layout.to_string(), name);
        }
        assert_eq!("q6_k.rows".parse::<Layout>().unwrap().tile_bytes(), None);
        for name in [
            "q6_k.t32",
            "q4_0.t32",
            "q8_0.t32.direct",
            "q4_0",
            "q4_0.t64",
        ] {
            assert!(name.parse::<Layout>().is_err(), "{name}");
        }
    }

    #[test]
    fn every_element_of_a_tile_has_a_place_of_its_own() {
        for order in [NibbleOrder::Direct, NibbleOrder::Pair] {
            let mut seen = [false; 1024];
            for n in 0..32 {
                for k in 0..32 {
                    let (byte, shift) = order.place(n, k);
                    let nibble = 2 * byte + usize::from(shift == 4);
                    assert!(!std::mem::replace(&mut seen[nibble], true));
                }
            }
        }
        let mut seen = [false; 1024];
        for n in 0..32 {
            for k in 0..32 {
                assert!(!std::mem::replace(&mut seen[element_index(n, k)], true));
            }
        }
    }

    #[test]
    fn a_matrix_is_padded_to_whole_tiles_and_rows_are_whole_blocks() {
        let layout: Layout = "q4_0.t32.direct".parse().unwrap();
        assert_eq!(layout.bytes(33, 64), Some(4 * 576));
        assert_eq!(layout.bytes(32, 48), Some(2 * 576));
        assert_eq!(layout.bytes(u64::MAX, u64::MAX), None);
        let rows: Layout = "q4_0.rows".parse().unwrap();
        assert_eq!(rows.bytes(33, 64), Some(33 * 36));
        assert_eq!(rows.bytes(32, 48), None);
    }
}
