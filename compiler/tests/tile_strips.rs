//! Tiles hold every element where the layout's formula says, and give the rows back.

use estream_compiler::layout::{LayoutError, relayout_strip, tile_strip, untile_strip};
use estream_compiler::quant::decode;
use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, NibbleOrder};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Every tiled layout of version 1.
const TILED: [&str; 12] = [
    "q4_0.t32.direct",
    "q4_0.t32.pair",
    "iq4_nl.t32.direct",
    "iq4_nl.t32.pair",
    "q4_1.t32.direct",
    "q4_1.t32.pair",
    "mxfp4.t32.direct",
    "mxfp4.t32.pair",
    "q8_0.t32",
    "f16.t32",
    "bf16.t32",
    "f32.t32",
];

fn layout(name: &str) -> Layout {
    name.parse().unwrap()
}

/// A strip of random bytes: layout, rows, row count, columns.
fn strips() -> impl Strategy<Value = (Layout, Vec<u8>, usize, usize)> {
    (select(&TILED[..]), 1..=32_usize, 0..4_usize).prop_flat_map(|(name, row_count, tiles)| {
        let layout = layout(name);
        let cols = 32 * tiles;
        let row_bytes = layout.dtype().row_bytes(cols as u64).unwrap() as usize;
        vec(any::<u8>(), row_count * row_bytes)
            .prop_map(move |rows| (layout, rows, row_count, cols))
    })
}

fn tiled(layout: Layout, rows: &[u8], row_count: usize, cols: usize) -> Vec<u8> {
    // No byte of the output may be left as it was.
    let tile_bytes = layout.bytes(32, cols as u64).unwrap() as usize;
    let mut tiles = vec![0xaa; tile_bytes];
    tile_strip(layout, rows, row_count, cols, &mut tiles).unwrap();
    let mut again = vec![0x55; tile_bytes];
    tile_strip(layout, rows, row_count, cols, &mut again).unwrap();
    assert_eq!(tiles, again, "{layout}");
    tiles
}

/// One element as it is stored: a level or the bytes of a number.
fn element_of_row(dtype: DType, row: &[u8], k: usize) -> Vec<u8> {
    let block_len = dtype.block_len() as usize;
    let block_bytes = dtype.block_bytes() as usize;
    let block = &row[k / block_len * block_bytes..][..block_bytes];
    let j = k % 32;
    match dtype {
        DType::Q4_0 | DType::Q4_1 | DType::IQ4_NL | DType::MXFP4 => {
            let levels = &block[block_bytes - 16..];
            vec![levels[j % 16] >> (4 * (j / 16)) & 0x0f]
        }
        DType::Q8_0 => vec![block[2 + j]],
        _ => block.to_vec(),
    }
}

/// The same element by the formulas of the table of layouts, one at a time.
fn element_of_tile(layout: Layout, tile: &[u8], n: usize, k: usize) -> Vec<u8> {
    let place = (k >> 1) * 64 + 2 * n + (k & 1);
    let nibble = |byte: usize, high: usize| vec![tile[byte] >> (4 * high) & 0x0f];
    match layout.form() {
        Form::Nibbles(NibbleOrder::Direct) => {
            let (g, h, t) = (k >> 3, (k >> 2) & 1, k & 3);
            let p = ((t & 1) << 1) | (t >> 1);
            nibble(128 * g + 4 * n + p, h)
        }
        Form::Nibbles(NibbleOrder::Pair) => nibble((k >> 1) * 32 + n, k & 1),
        _ => {
            let size = match layout.dtype() {
                DType::Q8_0 => 1,
                DType::F32 => 4,
                _ => 2,
            };
            tile[place * size..][..size].to_vec()
        }
    }
}

/// Bytes of the scales of a block, which come first in it, and after the elements of a tile.
fn scale_bytes(dtype: DType) -> usize {
    match dtype {
        DType::Q4_0 | DType::IQ4_NL | DType::Q8_0 => 2,
        DType::Q4_1 => 4,
        DType::MXFP4 => 1,
        _ => 0,
    }
}

proptest! {
    #[test]
    fn untiling_restores_the_rows((layout, rows, row_count, cols) in strips()) {
        let tiles = tiled(layout, &rows, row_count, cols);
        let mut back = vec![0xaa; rows.len()];
        untile_strip(layout, &tiles, row_count, cols, &mut back).unwrap();
        prop_assert_eq!(back, rows);
    }

    #[test]
    fn every_element_and_scale_is_where_the_formula_says(
        (layout, rows, row_count, cols) in strips()
    ) {
        let tiles = tiled(layout, &rows, row_count, cols);
        let dtype = layout.dtype();
        let tile_bytes = layout.tile_bytes().unwrap() as usize;
        let row_bytes = rows.len() / row_count;
        let scales = scale_bytes(dtype);
        for n in 0..row_count {
            let row = &rows[n * row_bytes..][..row_bytes];
            for k in 0..cols {
                let tile = &tiles[k / 32 * tile_bytes..][..tile_bytes];
                prop_assert_eq!(
                    element_of_tile(layout, tile, n, k % 32),
                    element_of_row(dtype, row, k),
                    "{} row {} column {}", layout, n, k
                );
                if k % 32 == 0 && scales > 0 {
                    let block_bytes = dtype.block_bytes() as usize;
                    let stored = &tile[tile_bytes - 32 * scales + n * scales..][..scales];
                    prop_assert_eq!(stored, &row[k / 32 * block_bytes..][..scales]);
                }
            }
        }
    }

    #[test]
    fn missing_rows_decode_to_plus_zero((layout, rows, row_count, cols) in strips()) {
        let tiles = tiled(layout, &rows, row_count, cols);
        let row_bytes = rows.len() / row_count;
        let mut all = vec![0xaa; 32 * row_bytes];
        untile_strip(layout, &tiles, 32, cols, &mut all).unwrap();
        let missing = &all[rows.len()..];
        let mut values = vec![f32::NAN; (32 - row_count) * cols];
        decode(layout.dtype(), missing, &mut values).unwrap();
        prop_assert!(values.iter().all(|x| x.to_bits() == 0), "{}", layout);
    }

    #[test]
    fn relayout_equals_tiling_anew((layout, rows, row_count, cols) in strips()) {
        let orders = [NibbleOrder::Direct, NibbleOrder::Pair];
        for to in orders.map(|order| Layout::tiled(layout.dtype(), order).unwrap()) {
            let tiles = tiled(layout, &rows, row_count, cols);
            let mut moved = vec![0xaa; tiles.len()];
            relayout_strip(layout, to, cols, &tiles, &mut moved).unwrap();
            prop_assert_eq!(moved, tiled(to, &rows, row_count, cols), "{} to {}", layout, to);
        }
    }

    #[test]
    fn no_combination_of_lengths_panics(
        name in select([&TILED[..], &["q4_0.rows", "q6_k.rows", "i8.rows"]].concat()),
        row_count in select(&[0, 1, 31, 32, 33, usize::MAX][..]),
        cols in select(&[0, 31, 32, 33, 64, usize::MAX, usize::MAX - 31][..]),
        row_bytes in 0..5000_usize,
        tile_bytes in 0..5000_usize,
    ) {
        let layout = layout(name);
        let (mut rows, mut tiles) = (vec![0; row_bytes], vec![0; tile_bytes]);
        let fits = (1..=32).contains(&row_count)
            && layout.is_tiled()
            && layout.dtype().matrix_bytes(row_count as u64, cols as u64) == Some(row_bytes as u64)
            && layout.bytes(32, cols as u64) == Some(tile_bytes as u64);
        prop_assert_eq!(tile_strip(layout, &rows, row_count, cols, &mut tiles).is_ok(), fits);
        prop_assert_eq!(untile_strip(layout, &tiles, row_count, cols, &mut rows).is_ok(), fits);
        // A wrong length is an error here as well, never a panic.
        let _ = relayout_strip(layout, layout, cols, &tiles, &mut rows);
    }
}

#[test]
fn what_cannot_be_arranged_is_refused_by_name() {
    let (direct, q8) = (layout("q4_0.t32.direct"), layout("q8_0.t32"));
    let rows = layout("q4_0.rows");
    let mut out = [0; 576];
    assert_eq!(
        relayout_strip(direct, q8, 32, &[0; 576], &mut out),
        Err(LayoutError::DTypeDiffers {
            from: direct,
            to: q8
        })
    );
    assert_eq!(
        relayout_strip(direct, rows, 32, &[0; 576], &mut out),
        Err(LayoutError::NotTiled { layout: rows })
    );
    assert_eq!(
        tile_strip(direct, &[0; 18], 33, 32, &mut out),
        Err(LayoutError::RowCount { row_count: 33 })
    );
    // C32: the message does the arithmetic on the row length.
    let error = tile_strip(direct, &[0; 27], 1, 48, &mut out).unwrap_err();
    assert_eq!(error, LayoutError::Columns { cols: 48 });
    assert!(error.to_string().contains("48 mod 32 = 16"));
}
