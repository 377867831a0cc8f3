//! Memory that operators take besides their operands: VTCM, which the kernels divide among themselves
//! where no plan does, and their private memory. With less, an operator answers
//! [`Status::NoMemory`](crate::abi::Status::NoMemory).

use crate::abi::{
    Attention, Embed, LayoutCode, Linear, Mla, Route, Router, SCALES_BYTES, TILE, TILE_BYTES,
    Weight,
};
use crate::wire::Wire;

/// VTCM that these operators use at most: a bank, so that tiles never lie in two.
pub const MOST_VTCM_BYTES: u32 = 4 << 20;

/// What one operator takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// The least VTCM; with more, fewer steps repeat work.
    pub vtcm_bytes: u64,
    /// Private memory, exactly.
    pub private_bytes: u64,
}

/// An operator that takes some.
pub trait Needs {
    /// How much; nothing sensible if its layouts are unknown.
    fn room(&self) -> Room;
}

/// Every piece is whole tiles.
fn whole(bytes: u64) -> u64 {
    bytes.next_multiple_of(TILE_BYTES.into())
}

fn tiles(elements: u32) -> u64 {
    elements.div_ceil(TILE).into()
}

/// Bytes from stored tile to stored tile in VTCM, where rows never come.
fn stored_stride(layout: LayoutCode) -> u64 {
    use LayoutCode::{
        Bf16, Bf16Rows, F16, F16Rows, F32, F32Rows, Iq4NlDirect, Iq4NlPair, Mxfp4Direct, Mxfp4Pair,
        Q4_0Direct, Q4_0Pair, Q4_1Direct, Q4_1Pair, Q6KRows, Q8_0,
    };
    match layout {
        Q4_0Direct | Q4_0Pair | Q4_1Direct | Q4_1Pair | Iq4NlDirect | Iq4NlPair | Mxfp4Direct
        | Mxfp4Pair => 640,
        Q8_0 => 1152,
        F16 | Bf16 => 2048,
        F32 => 4096,
        F16Rows | Bf16Rows | F32Rows | Q6KRows => 0,
    }
}

/// Two strips of weights as they are stored and two decoded, a tile of rows and two of products.
fn product_vtcm_bytes(weight: &Weight) -> u64 {
    let k_tiles = tiles(weight.cols);
    let strip = k_tiles * u64::from(TILE_BYTES);
    let stored = whole(k_tiles * LayoutCode::from_code(weight.layout).map_or(0, stored_stride));
    whole(SCALES_BYTES.into()) + 2 * (stored + strip) + strip + 2 * u64::from(TILE_BYTES)
}

/// 32 queries and all their scores, a strip of values, a tile of keys, a tile of the result.
fn attention_vtcm_bytes(key_dim: u32, positions: u32) -> u64 {
    let tiles = 2 * tiles(key_dim) + 2 * tiles(positions) + 1;
    whole(SCALES_BYTES.into()) + tiles * u64::from(TILE_BYTES)
}

impl Needs for Embed {
    fn room(&self) -> Room {
        Room {
            private_bytes: whole(4 * u64::from(self.tokens)),
            ..Room::default()
        }
    }
}

impl Needs for Linear {
    fn room(&self) -> Room {
        Room {
            vtcm_bytes: product_vtcm_bytes(&self.weight),
            ..Room::default()
        }
    }
}

impl Needs for Attention {
    fn room(&self) -> Room {
        let positions = self.position.saturating_add(self.tokens);
        Room {
            vtcm_bytes: attention_vtcm_bytes(self.key_dim, positions),
            ..Room::default()
        }
    }
}

impl Needs for Mla {
    fn room(&self) -> Room {
        let positions = self.position.saturating_add(self.tokens);
        let rows = self.key_dim.saturating_sub(self.k_pe.width) + self.value_dim;
        // A head's rows begin anywhere in a strip.
        let row_bytes = 128 * (tiles(rows) + 1);
        let attention = attention_vtcm_bytes(self.key_dim, positions);
        Room {
            vtcm_bytes: attention.max(product_vtcm_bytes(&self.kv_b)),
            private_bytes: whole(row_bytes * u64::from(positions)),
        }
    }
}

impl Needs for Router {
    fn room(&self) -> Room {
        let (experts, top_k) = (u64::from(self.weight.rows), u64::from(self.top_k));
        let row = whole(128 * tiles(self.weight.cols));
        let chosen = whole(Route::BYTES as u64 * top_k) + whole(4 * top_k);
        Room {
            private_bytes: row + 2 * whole(4 * experts) + chosen,
            ..Room::default()
        }
    }
}
