//! The one movement behind every tiled layout.
//!
//! Of a row, a tile holds 32 elements: one ggml block of a quantised type. Once its
//! nibbles are in the tile's order, a block is its scales followed by *chunks* of a few
//! bytes, and every layout is the same transposition of chunks:
//!
//! ```text
//! tile    chunk 0 of rows 0..32 | chunk 1 of rows 0..32 | … | scales of rows 0..32
//! ```
//!
//! | layout | chunk bytes | chunks | scale bytes |
//! |---|---|---|---|
//! | nibbles, `direct` | 4 (8 elements) | 4 | 2, 4 or 1 |
//! | nibbles, `pair` | 1 (2 elements) | 16 | 2, 4 or 1 |
//! | `q8_0.t32` | 2 (2 elements) | 16 | 2 |
//! | `f16.t32`, `bf16.t32` | 4 (2 elements) | 16 | 0 |
//! | `f32.t32` | 8 (2 elements) | 16 | 0 |

/// Rows of a tile, as an array length.
pub(super) const ROWS: usize = 32;

/// How the blocks of one layout become the columns of a tile: `BLOCK` bytes, of which
/// the first `SCALES` are scales, in chunks of `CHUNK` bytes.
pub(super) struct Tiling<const BLOCK: usize, const SCALES: usize, const CHUNK: usize>;

impl<const BLOCK: usize, const SCALES: usize, const CHUNK: usize> Tiling<BLOCK, SCALES, CHUNK> {
    /// Fills `tiles` from the blocks of `row_count` ≤ 32 rows; `padding` stands for the
    /// rows that are missing. `arrange` puts a block's bytes in the tile's order.
    pub(super) fn tile(
        rows: &[u8],
        row_count: usize,
        tiles: &mut [u8],
        padding: &[u8; BLOCK],
        arrange: impl Fn(&[u8; BLOCK]) -> [u8; BLOCK],
    ) {
        let blocks = rows.as_chunks::<BLOCK>().0;
        let row_blocks = blocks.len() / row_count;
        let padding = arrange(padding);
        for (column, tile) in tiles.chunks_exact_mut(ROWS * BLOCK).enumerate() {
            let (chunks, scales) = tile.split_at_mut(ROWS * (BLOCK - SCALES));
            let chunks = chunks.as_chunks_mut::<CHUNK>().0;
            let chunks = chunks.as_chunks_mut::<ROWS>().0;
            for n in 0..ROWS {
                let block = if n < row_count {
                    arrange(&blocks[n * row_blocks + column])
                } else {
                    padding
                };
                let (own_scales, own_chunks) = block.split_at(SCALES);
                for (chunk, own) in chunks.iter_mut().zip(own_chunks.as_chunks().0) {
                    chunk[n] = *own;
                }
                scales[n * SCALES..][..SCALES].copy_from_slice(own_scales);
            }
        }
    }

    /// The inverse of [`Tiling::tile`], for the first `row_count` ≤ 32 rows of the tiles.
    pub(super) fn untile(
        tiles: &[u8],
        row_count: usize,
        rows: &mut [u8],
        restore: impl Fn(&[u8; BLOCK]) -> [u8; BLOCK],
    ) {
        let blocks = rows.as_chunks_mut::<BLOCK>().0;
        let row_blocks = blocks.len() / row_count;
        for (column, tile) in tiles.chunks_exact(ROWS * BLOCK).enumerate() {
            let (chunks, scales) = tile.split_at(ROWS * (BLOCK - SCALES));
            let chunks = chunks.as_chunks::<CHUNK>().0;
            let chunks = chunks.as_chunks::<ROWS>().0;
            for n in 0..row_count.min(ROWS) {
                let mut block = [0; BLOCK];
                let (own_scales, own_chunks) = block.split_at_mut(SCALES);
                for (chunk, own) in chunks.iter().zip(own_chunks.as_chunks_mut().0) {
                    *own = chunk[n];
                }
                own_scales.copy_from_slice(&scales[n * SCALES..][..SCALES]);
                blocks[n * row_blocks + column] = restore(&block);
            }
        }
    }
}
