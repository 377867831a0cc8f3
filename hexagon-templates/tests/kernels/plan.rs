//! Places in VTCM for tests: correct, and deliberately not tidy.

use estream_hexagon::abi::{Plan, TILE_BYTES};
use estream_schemas::layout::Layout;

use crate::random::Random;

/// What a plan depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) hidden: u32,
    /// Of one shard.
    pub(crate) ff: u32,
    pub(crate) gate: Layout,
    pub(crate) up: Layout,
    pub(crate) down: Layout,
}

/// How steps and chunks are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) rows: u32,
    pub(crate) gate_up_strips: u32,
    pub(crate) down_strips: u32,
}

/// The granularity of memory: a region that ends there has nothing behind it.
const PAGE: u32 = 65_536;

pub(crate) fn stride(layout: Layout) -> u32 {
    (layout.tile_bytes().unwrap() as u32).next_multiple_of(128)
}

/// Regions in an order of their own, with gaps between, the last at the very end.
pub(crate) fn plan(shape: &Shape, cut: &Cut, random: &mut Random) -> Plan {
    let (hidden, ff) = (shape.hidden.div_ceil(32), shape.ff.div_ceil(32));
    let row_tiles = cut.rows / 32;
    let (gate_up, down) = (cut.gate_up_strips * hidden, cut.down_strips * ff);
    let c = (gate_up * stride(shape.gate).max(stride(shape.up))).max(down * stride(shape.down));
    let d = gate_up.max(down) * TILE_BYTES;
    let products = cut.gate_up_strips * row_tiles * TILE_BYTES;
    let o = products.max(cut.down_strips * row_tiles * TILE_BYTES);
    let mut regions = [
        (0, row_tiles * hidden * TILE_BYTES, TILE_BYTES),
        (1, row_tiles * ff * TILE_BYTES, TILE_BYTES),
        (2, c, 128),
        (3, c, 128),
        (4, d, TILE_BYTES),
        (5, d, TILE_BYTES),
        (6, o, TILE_BYTES),
        (7, o, TILE_BYTES),
        (8, products, TILE_BYTES),
        (9, products, TILE_BYTES),
        (10, 256, 256),
    ];
    random.shuffle(&mut regions);
    let mut at = [0; 11];
    let mut end = 0u32;
    for (which, bytes, align) in regions {
        at[which] = (end + 128 * random.below(3)).next_multiple_of(align);
        end = at[which] + bytes;
    }
    let vtcm_bytes = end.next_multiple_of(PAGE);
    let (which, bytes, align) = regions[10];
    at[which] = (vtcm_bytes - bytes) / align * align;
    Plan {
        rows: cut.rows,
        gate_up_strips: cut.gate_up_strips,
        down_strips: cut.down_strips,
        vtcm_bytes,
        z: at[0],
        h: at[1],
        c: [at[2], at[3]],
        d: [at[4], at[5]],
        o: [at[6], at[7], at[8], at[9]],
        scales: at[10],
        zero: 0,
    }
}
