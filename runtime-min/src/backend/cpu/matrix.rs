//! A weight matrix, read where it lies.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, NIBBLE_BYTES, element_index};

use super::decode::{f16_at, f32_at, iq4_nl, mxfp4, q4_0, q4_1, q8_0, u16_at};
use super::rows;
use crate::math::{bf16_to_f32, e8m0_half_to_f32, f16_to_f32};

/// Rows and columns of a tile, as an index.
pub(super) const TILE: usize = estream_schemas::layout::TILE as usize;

/// A matrix of `rows` output rows and `cols` elements each, in the bytes of a bundle.
///
/// Holding one proves that the kernels read its layout and that all its bytes are there;
/// it proves nothing about their values: any bytes decode, perhaps to infinities.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    layout: Layout,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

/// Why bytes are not a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// No kernel reads the layout.
    #[error(
        "the cpu backend does not read layout {layout}: build the bundle with another type for this weight"
    )]
    Unsupported {
        /// The layout.
        layout: Layout,
    },
    /// The layout cannot hold rows of that many elements, or the size overflows.
    #[error("{layout} holds no matrix of {rows} rows of {cols} elements: rebuild the bundle")]
    Shape {
        /// The layout.
        layout: Layout,
        /// Output rows.
        rows: usize,
        /// Elements a row.
        cols: usize,
    },
    /// Fewer bytes than the matrix takes.
    #[error(
        "a matrix of {rows} rows of {cols} elements in {layout} takes {needed_bytes} bytes and has {bytes}: rebuild the bundle"
    )]
    Short {
        /// The layout.
        layout: Layout,
        /// Output rows.
        rows: usize,
        /// Elements a row.
        cols: usize,
        /// Bytes there are.
        bytes: usize,
        /// Bytes the matrix takes.
        needed_bytes: u64,
    },
}

impl<'a> Matrix<'a> {
    /// A matrix at the start of `bytes`; what follows it there is padding.
    ///
    /// # Errors
    /// If the cpu backend does not read the layout, or `bytes` does not hold the matrix.
    pub fn new(
        layout: Layout,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Matrix<'a>, MatrixError> {
        if !layout.is_tiled() && !rows::reads(layout.dtype()) {
            return Err(MatrixError::Unsupported { layout });
        }
        let needed_bytes = layout
            .bytes(rows as u64, cols as u64)
            .ok_or(MatrixError::Shape { layout, rows, cols })?;
        let own = usize::try_from(needed_bytes)
            .ok()
            .and_then(|needed| bytes.get(..needed));
        match own {
            Some(bytes) => Ok(Matrix {
                layout,
                rows,
                cols,
                bytes,
            }),
            None => Err(MatrixError::Short {
                layout,
                rows,
                cols,
                bytes: bytes.len(),
                needed_bytes,
            }),
        }
    }

    /// Element type and arrangement.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Tiles of 32 output rows side by side: what one thread multiplies at a time.
    pub(super) fn strips(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Tile `index` of strip `strip`; the layout is tiled.
    #[inline(always)]
    pub(super) fn tile(&self, strip: usize, index: usize) -> &'a [u8] {
        let tile_bytes = self.bytes.len() / (self.strips() * self.cols.div_ceil(TILE));
        let start = (strip * self.cols.div_ceil(TILE) + index) * tile_bytes;
        &self.bytes[start..start + tile_bytes]
    }

    /// The bytes of row `n`; the layout is rows.
    pub(super) fn row_bytes(&self, n: usize) -> &'a [u8] {
        let row_bytes = self.bytes.len() / self.rows;
        &self.bytes[n * row_bytes..(n + 1) * row_bytes]
    }

    /// Row `n` as f32, exactly as the products use it.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not `cols` elements.
    pub fn row(&self, n: usize, out: &mut [f32]) {
        assert!(n < self.rows, "row {n} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "a row is `cols` elements");
        if self.layout.is_tiled() {
            let tiles = out.chunks_mut(TILE).enumerate();
            for (index, out) in tiles {
                let tile = self.tile(n / TILE, index);
                for (k, x) in out.iter_mut().enumerate() {
                    *x = self.element(tile, n % TILE, k);
                }
            }
        } else {
            rows::piece(self, n, 0, out);
        }
    }

    /// Element (n, k) of a tile.
    fn element(&self, tile: &[u8], n: usize, k: usize) -> f32 {
        let scales = NIBBLE_BYTES as usize;
        let at = element_index(n, k);
        match (self.layout.form(), self.layout.dtype()) {
            (Form::Nibbles(order), dtype) => {
                let (byte, shift) = order.place(n, k);
                let code = u32::from(tile[byte] >> shift & 15);
                match dtype {
                    DType::Q4_1 => {
                        let pair = scales + 4 * n;
                        q4_1(code, f16_at(tile, pair), f16_at(tile, pair + 2))
                    }
                    DType::IQ4_NL => iq4_nl(code, f16_at(tile, scales + 2 * n)),
                    DType::MXFP4 => mxfp4(code, e8m0_half_to_f32(tile[scales + n])),
                    _ => q4_0(code, f16_at(tile, scales + 2 * n)),
                }
            }
            (_, DType::Q8_0) => q8_0(tile[at], f16_at(tile, TILE * TILE + 2 * n)),
            (_, DType::F16) => f16_to_f32(u16_at(tile, 2 * at)),
            (_, DType::BF16) => bf16_to_f32(u16_at(tile, 2 * at)),
            _ => f32_at(tile, 4 * at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Known, LAYOUTS};
    use super::*;

    #[test]
    fn rows_of_every_layout_are_the_numbers_that_were_stored() {
        for (seed, layout) in LAYOUTS.iter().enumerate() {
            let cols = if layout.contains("_k") { 512 } else { 64 };
            let known = Known::random(layout, 33, cols, seed as u64);
            let mut row = vec![f32::NAN; cols];
            for n in 0..33 {
                known.matrix().row(n, &mut row);
                assert_eq!(row, known.row(n), "row {n} of {layout}");
            }
        }
    }

    #[test]
    fn bytes_that_hold_no_matrix_are_refused() {
        let q4_0: Layout = "q4_0.t32.direct".parse().unwrap();
        let bytes = [0; 2 * 576 + 5];
        assert!(Matrix::new(q4_0, 64, 32, &bytes).is_ok());
        assert!(Matrix::new(q4_0, 1, 33, &bytes).is_ok());
        assert!(Matrix::new(q4_0, 0, 32, &[]).is_ok());
        let short = Matrix::new(q4_0, 65, 32, &bytes).unwrap_err();
        assert_eq!(
            short.to_string(),
            "a matrix of 65 rows of 32 elements in q4_0.t32.direct takes 1728 bytes and has 1157: rebuild the bundle"
        );
        let (rows, cols) = (usize::MAX, usize::MAX);
        let layout = q4_0;
        assert_eq!(
            Matrix::new(q4_0, rows, cols, &bytes).unwrap_err(),
            MatrixError::Shape { layout, rows, cols }
        );
        let rows: Layout = "q4_0.rows".parse().unwrap();
        assert!(matches!(
            Matrix::new(rows, 1, 48, &bytes),
            Err(MatrixError::Shape { .. })
        ));
        let layout: Layout = "iq2_xs.rows".parse().unwrap();
        assert_eq!(
            Matrix::new(layout, 1, 256, &bytes).unwrap_err(),
            MatrixError::Unsupported { layout }
        );
    }
}
