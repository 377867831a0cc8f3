//! Strips: what callers pass, checked, and the numbers of each layout.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, NibbleOrder, TILE};

use super::nibbles::{from_tile, to_tile};
use super::transpose::{ROWS, Tiling};

/// A strip that cannot be arranged as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The layout has no tiles.
    #[error("layout {layout} has no tiles; copy its rows as they are")]
    NotTiled {
        /// The layout asked for.
        layout: Layout,
    },

    /// A strip is 1 to 32 rows.
    #[error("a strip of {row_count} rows; pass 1 to 32 rows at a time")]
    RowCount {
        /// Rows passed.
        row_count: usize,
    },

    /// Rows do not end where a tile ends.
    #[error(
        "rows of {cols} columns do not fill tiles: {cols} mod 32 = {}; pad the rows to a multiple of 32 first",
        .cols % 32
    )]
    Columns {
        /// Columns of the rows passed.
        cols: usize,
    },

    /// A slice is not as long as rows, columns and layout say.
    #[error("{actual} bytes of {what}, where {expected} are due; pass slices of the exact size")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length by rows, columns and layout.
        expected: u64,
        /// Its length.
        actual: usize,
    },

    /// Two layouts of different element types.
    #[error("{from} cannot be rearranged into {to}; only the arrangement can change, not the type")]
    DTypeDiffers {
        /// Layout of the tiles passed.
        from: Layout,
        /// Layout asked for.
        to: Layout,
    },
}

/// Arranges `row_count` rows of `cols` elements into the tiles of one strip.
///
/// `rows` holds 1 to 32 rows as GGUF stores them, in blocks of the layout's type; `cols`
/// is a multiple of 32; `tiles` is exactly `cols / 32` tiles. Rows that are missing
/// decode to exactly +0.
///
/// # Errors
///
/// Any variant but [`LayoutError::DTypeDiffers`]; `tiles` is then untouched.
pub fn tile_strip(
    layout: Layout,
    rows: &[u8],
    row_count: usize,
    cols: usize,
    tiles: &mut [u8],
) -> Result<(), LayoutError> {
    check(layout, row_count, cols, rows.len(), tiles.len())?;
    match (layout.dtype(), layout.form()) {
        (DType::Q4_0, Form::Nibbles(order)) => {
            // Level 8 is zero; the scale is zero as well.
            tile_nibbles::<18, 2>(order, rows, row_count, tiles, &with_levels(0x88));
        }
        (DType::Q4_1, Form::Nibbles(order)) => {
            tile_nibbles::<20, 4>(order, rows, row_count, tiles, &[0; 20]);
        }
        (DType::IQ4_NL, Form::Nibbles(order)) => {
            // No level is zero, so the scale is; level 8 is +1, and makes it +0.
            tile_nibbles::<18, 2>(order, rows, row_count, tiles, &with_levels(0x88));
        }
        (DType::MXFP4, Form::Nibbles(order)) => {
            // No scale is zero, so the level is: level 0 is +0, and scale 0 finite.
            tile_nibbles::<17, 1>(order, rows, row_count, tiles, &[0; 17]);
        }
        (DType::Q8_0, _) => Tiling::<34, 2, 2>::tile(rows, row_count, tiles, &[0; 34], |b| *b),
        (DType::F16 | DType::BF16, _) => {
            Tiling::<64, 0, 4>::tile(rows, row_count, tiles, &[0; 64], |b| *b);
        }
        (DType::F32, _) => Tiling::<128, 0, 8>::tile(rows, row_count, tiles, &[0; 128], |b| *b),
        _ => return Err(LayoutError::NotTiled { layout }),
    }
    Ok(())
}

/// Restores the first `row_count` rows of a strip, bit for bit as [`tile_strip`] got them.
///
/// # Errors
///
/// Any variant but [`LayoutError::DTypeDiffers`]; `rows` is then untouched.
pub fn untile_strip(
    layout: Layout,
    tiles: &[u8],
    row_count: usize,
    cols: usize,
    rows: &mut [u8],
) -> Result<(), LayoutError> {
    check(layout, row_count, cols, rows.len(), tiles.len())?;
    match (layout.dtype(), layout.form()) {
        (DType::Q4_0 | DType::IQ4_NL, Form::Nibbles(order)) => {
            untile_nibbles::<18, 2>(order, tiles, row_count, rows);
        }
        (DType::Q4_1, Form::Nibbles(order)) => {
            untile_nibbles::<20, 4>(order, tiles, row_count, rows);
        }
        (DType::MXFP4, Form::Nibbles(order)) => {
            untile_nibbles::<17, 1>(order, tiles, row_count, rows);
        }
        (DType::Q8_0, _) => Tiling::<34, 2, 2>::untile(tiles, row_count, rows, |b| *b),
        (DType::F16 | DType::BF16, _) => {
            Tiling::<64, 0, 4>::untile(tiles, row_count, rows, |b| *b);
        }
        (DType::F32, _) => Tiling::<128, 0, 8>::untile(tiles, row_count, rows, |b| *b),
        _ => return Err(LayoutError::NotTiled { layout }),
    }
    Ok(())
}

/// Converts the tiles of a strip of `cols` columns to another layout of the same type,
/// padding rows included.
///
/// # Errors
///
/// Any variant but [`LayoutError::RowCount`]; `out` is then untouched.
pub fn relayout_strip(
    from: Layout,
    to: Layout,
    cols: usize,
    tiles: &[u8],
    out: &mut [u8],
) -> Result<(), LayoutError> {
    if from.dtype() != to.dtype() {
        return Err(LayoutError::DTypeDiffers { from, to });
    }
    // The rows of a whole strip take as many bytes as its tiles.
    check(from, ROWS, cols, tiles.len(), tiles.len())?;
    check(to, ROWS, cols, out.len(), out.len())?;
    if from == to {
        out.copy_from_slice(tiles);
        return Ok(());
    }
    // One tile at a time: its rows fit on the stack.
    let mut rows = [0; ROWS * 128];
    let tile_bytes = tiles.len() / (cols / ROWS).max(1);
    let pieces = tiles.chunks_exact(tile_bytes.max(1));
    for (tile, out) in pieces.zip(out.chunks_exact_mut(tile_bytes.max(1))) {
        let rows = &mut rows[..tile_bytes];
        untile_strip(from, tile, ROWS, ROWS, rows)?;
        tile_strip(to, rows, ROWS, ROWS, out)?;
    }
    Ok(())
}

/// Refuses a strip whose slices are not those of its rows, columns and layout.
fn check(
    layout: Layout,
    row_count: usize,
    cols: usize,
    row_bytes: usize,
    tile_bytes: usize,
) -> Result<(), LayoutError> {
    if !layout.is_tiled() {
        return Err(LayoutError::NotTiled { layout });
    }
    if row_count == 0 || row_count > ROWS {
        return Err(LayoutError::RowCount { row_count });
    }
    if !cols.is_multiple_of(ROWS) {
        return Err(LayoutError::Columns { cols });
    }
    let (rows, cols) = (row_count as u64, cols as u64);
    for (what, actual, expected) in [
        ("rows", row_bytes, layout.dtype().matrix_bytes(rows, cols)),
        ("tiles", tile_bytes, layout.bytes(TILE, cols)),
    ] {
        // A size beyond u64 is that of no slice.
        let expected = expected.unwrap_or(u64::MAX);
        if actual as u64 != expected {
            return Err(LayoutError::Length {
                what,
                expected,
                actual,
            });
        }
    }
    Ok(())
}

/// A block of scale 0 and all nibbles as in `levels`.
fn with_levels(levels: u8) -> [u8; 18] {
    let mut block = [levels; 18];
    block[..2].fill(0);
    block
}

fn tile_nibbles<const BLOCK: usize, const SCALES: usize>(
    order: NibbleOrder,
    rows: &[u8],
    row_count: usize,
    tiles: &mut [u8],
    padding: &[u8; BLOCK],
) {
    use NibbleOrder::{Direct, Pair};
    match order {
        Direct => {
            let arrange = |block: &_| map_nibbles(block, |nibbles| to_tile(Direct, nibbles));
            Tiling::<BLOCK, SCALES, 4>::tile(rows, row_count, tiles, padding, arrange);
        }
        Pair => {
            let arrange = |block: &_| map_nibbles(block, |nibbles| to_tile(Pair, nibbles));
            Tiling::<BLOCK, SCALES, 1>::tile(rows, row_count, tiles, padding, arrange);
        }
    }
}

fn untile_nibbles<const BLOCK: usize, const SCALES: usize>(
    order: NibbleOrder,
    tiles: &[u8],
    row_count: usize,
    rows: &mut [u8],
) {
    use NibbleOrder::{Direct, Pair};
    match order {
        Direct => {
            let restore = |block: &_| map_nibbles(block, |nibbles| from_tile(Direct, nibbles));
            Tiling::<BLOCK, SCALES, 4>::untile(tiles, row_count, rows, restore);
        }
        Pair => {
            let restore = |block: &_| map_nibbles(block, |nibbles| from_tile(Pair, nibbles));
            Tiling::<BLOCK, SCALES, 1>::untile(tiles, row_count, rows, restore);
        }
    }
}

/// A block with its last 16 bytes, the nibbles, put through `arrange`.
#[inline(always)]
fn map_nibbles<const BLOCK: usize>(
    block: &[u8; BLOCK],
    arrange: impl Fn(&[u8; 16]) -> [u8; 16],
) -> [u8; BLOCK] {
    let mut block = *block;
    if let Some(nibbles) = block.last_chunk_mut() {
        *nibbles = arrange(nibbles);
    }
    block
}
