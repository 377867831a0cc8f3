//! Stored elements to f32, exactly as ggml defines each type: every operation
//! below is one f32 operation there, in the same order. Rows have [`super::rows`].

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, NIBBLE_BYTES, NibbleOrder};

use super::matrix::{Matrix, TILE};
use super::rows;
use super::simd::{Kernel, Simd, SimdPath};
use crate::math::{bf16_to_f32, e8m0_half_to_f32, f16_to_f32};

/// Element k of 32 output rows: what one vector of a product multiplies with.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; TILE]);

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0.0; TILE]);
}

/// Values of the 16 codes of IQ4_NL.
pub(super) const IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// Twice the values of the 16 codes of MXFP4 (E2M1); minus zero reads as plus zero.
pub(super) const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

#[inline(always)]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(super) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(bytes, at))
}

#[inline(always)]
pub(super) fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
pub(super) fn q4_0(code: u32, d: f32) -> f32 {
    (code.cast_signed() - 8) as f32 * d
}

#[inline(always)]
pub(super) fn q4_1(code: u32, d: f32, m: f32) -> f32 {
    code.cast_signed() as f32 * d + m
}

#[inline(always)]
pub(super) fn iq4_nl(code: u32, d: f32) -> f32 {
    d * pick(const { floats(IQ4_NL) }, code)
}

#[inline(always)]
pub(super) fn mxfp4(code: u32, half: f32) -> f32 {
    pick(const { floats(MXFP4) }, code) * half
}

#[inline(always)]
pub(super) fn q8_0(code: u8, d: f32) -> f32 {
    f32::from(code.cast_signed()) * d
}

/// `table[code]` by halving the table four times: selections become vector
/// code on every machine, loads from a table do not.
#[inline(always)]
fn pick(table: [f32; 16], code: u32) -> f32 {
    let mut left = table;
    for bit in [3, 2, 1, 0] {
        let upper = code >> bit & 1 == 1;
        for i in 0..1 << bit {
            left[i] = if upper { left[i + (1 << bit)] } else { left[i] };
        }
    }
    left[0]
}

const fn floats(table: [i8; 16]) -> [f32; 16] {
    let mut floats = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        floats[i] = table[i] as f32;
        i += 1;
    }
    floats
}

/// The 32 lanes `value(0)`, `value(1)`, …
///
/// A loop, because the standard library's `from_fn` is not always inlined, and
/// what is not inlined is compiled for the portable path.
#[inline(always)]
fn lanes(value: impl Fn(usize) -> f32) -> [f32; TILE] {
    let mut lanes = [0.0; TILE];
    for (n, lane) in lanes.iter_mut().enumerate() {
        *lane = value(n);
    }
    lanes
}

/// Decodes elements `first..first + len` of the 32 rows of a strip into `out`,
/// whose length is `len` rounded up to whole tiles; `first` is a whole number
/// of tiles and, for rows, of blocks. Rows the matrix does not have are zero.
pub(super) fn strip(
    simd: Simd,
    matrix: &Matrix<'_>,
    strip: usize,
    first: usize,
    len: usize,
    out: &mut [Lanes],
) {
    if matrix.layout().form() == Form::Rows {
        strip_of_rows(matrix, strip, first, &mut out[..len]);
    } else {
        simd.run(Tiles {
            matrix,
            strip,
            first: first / TILE,
            out,
        });
    }
}

/// Decodes neighbouring tiles of a strip, from tile `first`.
struct Tiles<'a> {
    matrix: &'a Matrix<'a>,
    strip: usize,
    first: usize,
    out: &'a mut [Lanes],
}

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: SimdPath) {
        let dtype = self.matrix.layout().dtype();
        for (i, out) in self.out.chunks_exact_mut(TILE).enumerate() {
            let tile = self.matrix.tile(self.strip, self.first + i);
            match self.matrix.layout().form() {
                Form::Nibbles(order) => nibble_tile(dtype, order, tile, out),
                _ => element_tile(dtype, tile, out),
            }
        }
    }
}

#[inline(always)]
fn nibble_tile(dtype: DType, order: NibbleOrder, tile: &[u8], out: &mut [Lanes]) {
    let (codes, scales) = tile.split_at(NIBBLE_BYTES as usize);
    match dtype {
        DType::IQ4_NL | DType::MXFP4 => {
            let (table, scale) = match dtype {
                DType::IQ4_NL => (floats(IQ4_NL), lanes(|n| f16_at(scales, 2 * n))),
                _ => (floats(MXFP4), lanes(|n| e8m0_half_to_f32(scales[n]))),
            };
            nibbles(order, codes, out, |code, n| scale[n] * pick(table, code));
        }
        _ => {
            // A minimum of minus zero changes no bit.
            let (zero, d, m) = match dtype {
                DType::Q4_1 => (
                    0,
                    lanes(|n| f16_at(scales, 4 * n)),
                    lanes(|n| f16_at(scales, 4 * n + 2)),
                ),
                _ => (8, lanes(|n| f16_at(scales, 2 * n)), [-0.0; TILE]),
            };
            nibbles(order, codes, out, |code, n| {
                (code.cast_signed() - zero) as f32 * d[n] + m[n]
            });
        }
    }
}

/// The 1,024 nibbles of a tile, as [`NibbleOrder::place`] says where they are,
/// taken in the order that reads 32 rows at once.
#[inline(always)]
fn nibbles(order: NibbleOrder, codes: &[u8], out: &mut [Lanes], value: impl Fn(u32, usize) -> f32) {
    match order {
        NibbleOrder::Direct => {
            // Row n's eight elements of a group are one little-endian word.
            let groups = codes.as_chunks::<{ 4 * TILE }>().0;
            for (group, out) in groups.iter().zip(out.chunks_exact_mut(8)) {
                let rows = group.as_chunks::<4>().0;
                let mut words = [0; TILE];
                for (word, row) in words.iter_mut().zip(rows) {
                    *word = u32::from_le_bytes(*row);
                }
                for (k, out) in out.iter_mut().enumerate() {
                    let (byte, shift) = order.place(0, k);
                    let shift = shift + 8 * byte as u32;
                    *out = Lanes(lanes(|n| value(words[n] >> shift & 15, n)));
                }
            }
        }
        NibbleOrder::Pair => {
            let pairs = codes.as_chunks::<TILE>().0;
            for (pair, out) in pairs.iter().zip(out.as_chunks_mut::<2>().0) {
                out[0] = Lanes(lanes(|n| value(u32::from(pair[n] & 15), n)));
                out[1] = Lanes(lanes(|n| value(u32::from(pair[n] >> 4), n)));
            }
        }
    }
}

#[inline(always)]
fn element_tile(dtype: DType, tile: &[u8], out: &mut [Lanes]) {
    match dtype {
        DType::Q8_0 => {
            let (codes, scales) = tile.split_at(TILE * TILE);
            let d = lanes(|n| f16_at(scales, 2 * n));
            pairs::<1>(codes, out, |code, n| q8_0(code[0], d[n]));
        }
        DType::F16 => halves(tile, out, f16_to_f32),
        DType::BF16 => halves(tile, out, bf16_to_f32),
        _ => pairs(tile, out, |bytes, _| f32::from_le_bytes(bytes)),
    }
}

/// Like [`pairs`] for elements of two bytes, a pair read as one word.
#[inline(always)]
fn halves(tile: &[u8], out: &mut [Lanes], value: impl Fn(u16) -> f32) {
    let words = tile.as_chunks::<4>().0.as_chunks::<TILE>().0;
    for (words, out) in words.iter().zip(out.as_chunks_mut::<2>().0) {
        let word = |n: usize| u32::from_le_bytes(words[n]);
        out[0] = Lanes(lanes(|n| value((word(n) & 0xffff) as u16)));
        out[1] = Lanes(lanes(|n| value((word(n) >> 16) as u16)));
    }
}

/// The elements of a tile of `BYTES` bytes each: 32 rows of (k, k + 1), pair by pair.
#[inline(always)]
fn pairs<const BYTES: usize>(
    tile: &[u8],
    out: &mut [Lanes],
    value: impl Fn([u8; BYTES], usize) -> f32,
) {
    let elements = tile.as_chunks::<BYTES>().0.as_chunks::<{ 2 * TILE }>().0;
    for (pair, out) in elements.iter().zip(out.as_chunks_mut::<2>().0) {
        out[0] = Lanes(lanes(|n| value(pair[2 * n], n)));
        out[1] = Lanes(lanes(|n| value(pair[2 * n + 1], n)));
    }
}

/// Elements of a row decoded before they are turned into lanes: a block of any type.
const PIECE: usize = 256;
/// Rows turned into lanes together: several neighbours a store.
pub(super) const ROWS_TOGETHER: usize = 8;

fn strip_of_rows(matrix: &Matrix<'_>, strip: usize, first: usize, out: &mut [Lanes]) {
    let mut pieces = [[0.0; PIECE]; ROWS_TOGETHER];
    for (i, out) in out.chunks_mut(PIECE).enumerate() {
        for n in (0..TILE).step_by(ROWS_TOGETHER) {
            for (row, piece) in (strip * TILE + n..).zip(&mut pieces) {
                let piece = &mut piece[..out.len()];
                if row < matrix.rows() {
                    rows::piece(matrix, row, first + i * PIECE, piece);
                } else {
                    piece.fill(0.0);
                }
            }
            transpose(pieces.each_ref().map(|piece| &piece[..]), n, out);
        }
    }
}

/// Row i to lane `first_lane` + i: element k of every row to `out[k]`.
pub(super) fn transpose(rows: [&[f32]; ROWS_TOGETHER], first_lane: usize, out: &mut [Lanes]) {
    let rows = rows.map(|row| &row[..out.len()]);
    for (k, lanes) in out.iter_mut().enumerate() {
        let lanes = &mut lanes.0[first_lane..first_lane + ROWS_TOGETHER];
        for (x, row) in lanes.iter_mut().zip(&rows) {
            *x = row[k];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Known, LAYOUTS};
    use super::*;

    #[test]
    fn strips_of_every_layout_are_the_numbers_that_were_stored() {
        for (seed, layout) in LAYOUTS.iter().enumerate() {
            // A last tile that is not full needs a tiled layout.
            let cols = if layout.contains("t32") { 592 } else { 768 };
            let known = Known::random(layout, 40, cols, seed as u64);
            for simd in SimdPath::ALL.into_iter().filter_map(Simd::new) {
                for (index, first, len) in [
                    (0, 0, 512),
                    (1, 0, 512),
                    (0, 512, cols - 512),
                    (1, 512, cols - 512),
                ] {
                    let mut out = [Lanes([f32::NAN; TILE]); 512];
                    let out = &mut out[..len.next_multiple_of(TILE)];
                    strip(simd, &known.matrix(), index, first, len, out);
                    for (k, lanes) in out[..len].iter().enumerate() {
                        for (n, x) in lanes.0.iter().enumerate() {
                            let row = index * TILE + n;
                            if row < 40 {
                                assert_eq!(
                                    *x,
                                    known.row(row)[first + k],
                                    "({row}, {k}) of {layout}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
