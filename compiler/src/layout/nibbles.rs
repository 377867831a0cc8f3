//! The nibbles of one row of a tile: from ggml's order to the tile's and back.
//!
//! ggml keeps element j < 16 in the low nibble of byte j and element j + 16 in the high
//! nibble of the same byte. The bytes that make up a tile's row are, in order,
//!
//! - `direct`: for each group of eight elements, elements t and t + 4 in a byte for
//!   t = 0, 2, 1, 3;
//! - `pair`: elements 2j and 2j + 1 in byte j.
//!
//! Both are written over words of several bytes, so that a block takes a handful of
//! shifts and masks.

use estream_schemas::layout::NibbleOrder;

const LOW_32: u32 = 0x0f0f_0f0f;
const LOW_64: u64 = 0x0f0f_0f0f_0f0f_0f0f;

/// ggml's 16 bytes of nibbles in the order a tile keeps a row's.
#[inline(always)]
pub(super) fn to_tile(order: NibbleOrder, nibbles: &[u8; 16]) -> [u8; 16] {
    match order {
        NibbleOrder::Direct => {
            let [a, b, c, d] = words(nibbles);
            let low = |a, b| swap_middle((a & LOW_32) | (b & LOW_32) << 4);
            let high = |a, b| swap_middle((a >> 4 & LOW_32) | (b & !LOW_32));
            bytes([low(a, b), low(c, d), high(a, b), high(c, d)])
        }
        NibbleOrder::Pair => {
            let all = u128::from_le_bytes(*nibbles);
            let low = [all as u64 & LOW_64, (all >> 64) as u64 & LOW_64];
            let high = [all as u64 >> 4 & LOW_64, (all >> 68) as u64 & LOW_64];
            let [a, b] = low.map(join_pairs);
            let [c, d] = high.map(join_pairs);
            bytes([a, b, c, d])
        }
    }
}

/// The inverse of [`to_tile`].
#[inline(always)]
pub(super) fn from_tile(order: NibbleOrder, nibbles: &[u8; 16]) -> [u8; 16] {
    let [a, b, c, d] = words(nibbles);
    match order {
        NibbleOrder::Direct => {
            let [a, b, c, d] = [a, b, c, d].map(swap_middle);
            let first = |low: u32, high: u32| (low & LOW_32) | (high & LOW_32) << 4;
            let second = |low: u32, high: u32| (low >> 4 & LOW_32) | (high & !LOW_32);
            bytes([first(a, c), second(a, c), first(b, d), second(b, d)])
        }
        NibbleOrder::Pair => {
            let [a, b, c, d] = [a, b, c, d].map(split_pairs);
            let (low, high) = (a | c << 4, b | d << 4);
            (u128::from(low) | u128::from(high) << 64).to_le_bytes()
        }
    }
}

fn words(bytes: &[u8; 16]) -> [u32; 4] {
    let all = u128::from_le_bytes(*bytes);
    [0, 32, 64, 96].map(|shift| (all >> shift) as u32)
}

fn bytes(words: [u32; 4]) -> [u8; 16] {
    let join = |all: u128, word: &u32| all << 32 | u128::from(*word);
    words.iter().rev().fold(0, join).to_le_bytes()
}

/// Exchanges the two bytes in the middle of a word: its own inverse.
fn swap_middle(word: u32) -> u32 {
    (word & 0xff00_00ff) | (word >> 8 & 0x0000_ff00) | (word << 8 & 0x00ff_0000)
}

/// Eight bytes below 16 to four bytes, neighbours together, the first in the low nibble.
fn join_pairs(bytes: u64) -> u32 {
    let pairs = (bytes | bytes >> 4) & 0x00ff_00ff_00ff_00ff;
    let quads = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    (quads | quads >> 16) as u32
}

/// The inverse of [`join_pairs`].
fn split_pairs(nibbles: u32) -> u64 {
    let quads = (u64::from(nibbles) | u64::from(nibbles) << 16) & 0x0000_ffff_0000_ffff;
    let pairs = (quads | quads << 8) & 0x00ff_00ff_00ff_00ff;
    (pairs | pairs << 4) & LOW_64
}
