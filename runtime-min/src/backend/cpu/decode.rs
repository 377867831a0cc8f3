//! Stored elements to f32, exactly as ggml defines each type: every operation
//! below is one f32 operation there, in the same order.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, NIBBLE_BYTES, NibbleOrder};

use super::matrix::{Matrix, TILE};
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
const IQ4_NL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];
/// Twice the values of the 16 codes of MXFP4 (E2M1).
const MXFP4: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

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
    d * pick(&IQ4_NL, code)
}

#[inline(always)]
pub(super) fn mxfp4(code: u32, half: f32) -> f32 {
    pick(&MXFP4, code) * half
}

#[inline(always)]
pub(super) fn q8_0(code: u8, d: f32) -> f32 {
    f32::from(code.cast_signed()) * d
}

/// `table[code]` by halving the table four times: selections become vector
/// code on every machine, loads from a table do not.
#[inline(always)]
fn pick(table: &[f32; 16], code: u32) -> f32 {
    let mut left = *table;
    for bit in [3, 2, 1, 0] {
        let upper = code >> bit & 1 == 1;
        for i in 0..1 << bit {
            left[i] = if upper { left[i + (1 << bit)] } else { left[i] };
        }
    }
    left[0]
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
        rows(matrix, strip, first, &mut out[..len]);
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
        DType::Q4_1 => {
            let d = lanes(|n| f16_at(scales, 4 * n));
            let m = lanes(|n| f16_at(scales, 4 * n + 2));
            nibbles(order, codes, out, |code, n| q4_1(code, d[n], m[n]));
        }
        DType::IQ4_NL => {
            let d = lanes(|n| f16_at(scales, 2 * n));
            nibbles(order, codes, out, |code, n| iq4_nl(code, d[n]));
        }
        DType::MXFP4 => {
            let half = lanes(|n| e8m0_half_to_f32(scales[n]));
            nibbles(order, codes, out, |code, n| mxfp4(code, half[n]));
        }
        _ => {
            let d = lanes(|n| f16_at(scales, 2 * n));
            nibbles(order, codes, out, |code, n| q4_0(code, d[n]));
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

fn rows(matrix: &Matrix<'_>, strip: usize, first: usize, out: &mut [Lanes]) {
    let mut pieces = [[0.0; PIECE]; ROWS_TOGETHER];
    for (i, out) in out.chunks_mut(PIECE).enumerate() {
        for n in (0..TILE).step_by(ROWS_TOGETHER) {
            for (row, piece) in (strip * TILE + n..).zip(&mut pieces) {
                let piece = &mut piece[..out.len()];
                if row < matrix.rows() {
                    row_piece(matrix, row, first + i * PIECE, piece);
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

/// Whether [`row_piece`] reads rows of `dtype`.
pub(super) fn reads_rows_of(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, IQ4_NL, MXFP4, Q4_0, Q4_1, Q6_K, Q8_0};
    matches!(
        dtype,
        F32 | F16 | BF16 | Q4_0 | Q4_1 | Q8_0 | IQ4_NL | MXFP4 | Q6_K
    )
}

/// Elements `first..first + out.len()` of row `row`, stored as GGUF stores it;
/// both ends are whole blocks. It is no kernel: wider vectors gain nothing here.
pub(super) fn row_piece(matrix: &Matrix<'_>, row: usize, first: usize, out: &mut [f32]) {
    let row = matrix.row_bytes(row);
    match matrix.layout().dtype() {
        DType::F32 => blocks::<1, 4>(row, first, out, |b, out| out[0] = f32::from_le_bytes(*b)),
        DType::F16 => blocks::<1, 2>(row, first, out, |b, out| out[0] = f16_at(b, 0)),
        DType::BF16 => blocks::<1, 2>(row, first, out, |b, out| {
            out[0] = bf16_to_f32(u16::from_le_bytes(*b));
        }),
        DType::Q4_0 => blocks::<32, 18>(row, first, out, |b, out| {
            let d = f16_at(b, 0);
            nibble_block(&b[2..], out, |code| q4_0(code, d));
        }),
        DType::Q4_1 => blocks::<32, 20>(row, first, out, |b, out| {
            let (d, m) = (f16_at(b, 0), f16_at(b, 2));
            nibble_block(&b[4..], out, |code| q4_1(code, d, m));
        }),
        DType::IQ4_NL => blocks::<32, 18>(row, first, out, |b, out| {
            let d = f16_at(b, 0);
            nibble_block(&b[2..], out, |code| d * IQ4_NL[code as usize]);
        }),
        DType::MXFP4 => blocks::<32, 17>(row, first, out, |b, out| {
            let half = e8m0_half_to_f32(b[0]);
            nibble_block(&b[1..], out, |code| MXFP4[code as usize] * half);
        }),
        DType::Q8_0 => blocks::<32, 34>(row, first, out, |b, out| {
            let d = f16_at(b, 0);
            for (x, code) in out.iter_mut().zip(&b[2..]) {
                *x = q8_0(*code, d);
            }
        }),
        _ => blocks::<256, 210>(row, first, out, q6_k_block),
    }
}

/// Calls `decode` for each block of `LEN` elements in `BYTES` bytes.
fn blocks<const LEN: usize, const BYTES: usize>(
    row: &[u8],
    first: usize,
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let blocks = &row.as_chunks::<BYTES>().0[first / LEN..];
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<LEN>().0) {
        decode(block, out);
    }
}

/// 32 nibbles: the low ones of 16 bytes, then the high ones.
fn nibble_block(codes: &[u8], out: &mut [f32; 32], value: impl Fn(u32) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (x, code) in low.iter_mut().zip(codes) {
        *x = value(u32::from(code & 15));
    }
    for (x, code) in high.iter_mut().zip(codes) {
        *x = value(u32::from(code >> 4));
    }
}

/// Two halves of 128 elements, each four quarters of 32: low four bits of the codes
/// in `ql`, upper two in `qh`, a scale for every 16 elements.
fn q6_k_block(block: &[u8; 210], out: &mut [f32; 256]) {
    let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16_at(block, 208);
    for (half, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        for (quarter, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = &ql[64 * half + 32 * (quarter & 1)..][..32];
            let high = &qh[32 * half..][..32];
            let scales = &scales[8 * half + 2 * quarter..][..2];
            let scales = [0, 1].map(|i: usize| d * f32::from(scales[i].cast_signed()));
            for (k, x) in out.iter_mut().enumerate() {
                let low = low[k] >> (4 * (quarter >> 1)) & 15;
                let high = high[k] >> (2 * quarter) & 3;
                *x = scales[k / 16] * (f32::from(low | high << 4) - 32.0);
            }
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
