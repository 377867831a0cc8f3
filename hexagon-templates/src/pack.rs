//! Places for blocks of VTCM, one above the other, so that the last one ends as early as can be.

use crate::abi;

/// Bytes of an operand tile: 32 × 32 of FP16.
pub(crate) const TILE_BYTES: u64 = abi::TILE_BYTES as u64;
/// Bytes that one instruction of the matrix unit walks at most: 32 tiles.
pub(crate) const RANGE_BYTES: u64 = 32 * TILE_BYTES;

/// Rows of tiles at a block's start. The matrix unit walks each row a range at a time, and a range must
/// not lie on two banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) row_tiles: u64,
    pub(crate) rows: u64,
}

/// What needs a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) bytes: u64,
    /// What its place is a multiple of.
    pub(crate) align: u64,
    pub(crate) walks: Vec<Walk>,
}

/// Memory with banks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) bank_bytes: u64,
}

/// Blocks in the order in which they are given, each in the first place above the one before; none if they do
/// not fit.
pub(crate) fn in_order(blocks: &[Block], room: Room) -> Option<Vec<u64>> {
    let mut end = 0;
    let place = |block: &Block| {
        let at = block.first_place(end, room)?;
        end = at + block.bytes;
        Some(at)
    };
    blocks.iter().map(place).collect()
}

/// The places with which the last block ends first; none if they do not fit.
///
/// Any arrangement stays one if its blocks, from the lowest on, move down to the first place above the one before.
/// So some order is best, and of all orders of the same blocks only one that ends first need be followed: from
/// there, everything that comes later ends no later than from any other. That leaves a few steps for each set
/// of blocks instead of all their orders.
pub(crate) fn tightest(blocks: &[Block], room: Room) -> Option<Vec<u64>> {
    let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
    if bytes > room.bytes {
        return None;
    }
    let all = (1usize << blocks.len()) - 1;
    // Of every set that fits: the least end, and the block there.
    let mut ends: Vec<Option<(u64, usize)>> = vec![None; all + 1];
    ends[0] = Some((0, 0));
    for set in 0..all {
        let Some((end, _)) = ends[set] else { continue };
        for (which, block) in blocks.iter().enumerate() {
            let with = set | 1 << which;
            // Of two that are alike the first comes first.
            let twin = blocks[..which].iter().rposition(|other| other == block);
            if with == set || twin.is_some_and(|twin| set & 1 << twin == 0) {
                continue;
            }
            if let Some(at) = block.first_place(end, room) {
                let end = at + block.bytes;
                if ends[with].is_none_or(|(least, _)| end < least) {
                    ends[with] = Some((end, which));
                }
            }
        }
    }
    let mut places = vec![0; blocks.len()];
    let mut set = all;
    while set != 0 {
        let (end, which) = ends[set]?;
        places[which] = end - blocks[which].bytes;
        set &= !(1 << which);
    }
    Some(places)
}

impl Block {
    /// The first place at `above` or later.
    fn first_place(&self, above: u64, room: Room) -> Option<u64> {
        let mut at = above.checked_next_multiple_of(self.align)?;
        loop {
            if at.checked_add(self.bytes)? > room.bytes {
                return None;
            }
            match self.straddle_bytes(at, room.bank_bytes) {
                0 => return Some(at),
                // Moved by less, the same range would still be on both banks.
                before => at += before,
            }
        }
    }

    /// Of a range that would lie on two banks if the block were at `at`, the bytes on the first one; 0 if there
    /// is no such range.
    fn straddle_bytes(&self, at: u64, bank_bytes: u64) -> u64 {
        let of = |walk: &Walk| {
            let row_bytes = walk.row_tiles * TILE_BYTES;
            let end = at + row_bytes * walk.rows;
            let first = (at / bank_bytes + 1) * bank_bytes;
            let boundaries = (0..).map(|bank| first + bank * bank_bytes);
            let mut inside = boundaries.take_while(|boundary| *boundary < end);
            inside.find_map(|boundary| {
                let before = (boundary - at) % row_bytes % RANGE_BYTES;
                (before != 0).then_some(before)
            })
        };
        self.walks.iter().find_map(of).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every arrangement of these blocks, each at every tile: whether there is one.
    fn fits(blocks: &[Block], taken: &mut Vec<(u64, u64)>, room: Room) -> bool {
        let Some((block, rest)) = blocks.split_first() else {
            return true;
        };
        let places = (0..room.bytes).step_by(usize::try_from(TILE_BYTES).unwrap());
        for at in places {
            let end = at + block.bytes;
            let is_free = taken.iter().all(|(from, to)| end <= *from || at >= *to);
            if end > room.bytes || !is_free || !is_sound(block, at, room) {
                continue;
            }
            taken.push((at, end));
            let found = fits(rest, taken, room);
            taken.pop();
            if found {
                return true;
            }
        }
        false
    }

    /// Whether every range that is walked, one after the other, is on one bank.
    fn is_sound(block: &Block, at: u64, room: Room) -> bool {
        block.walks.iter().all(|walk| {
            let rows = (0..walk.rows).map(|row| at + row * walk.row_tiles * TILE_BYTES);
            let mut ranges = rows.flat_map(|row| {
                let tiles = (0..walk.row_tiles).step_by(32);
                tiles.map(move |tile| {
                    let count = (walk.row_tiles - tile).min(32);
                    let first = row + tile * TILE_BYTES;
                    (first, first + count * TILE_BYTES - 1)
                })
            });
            ranges.all(|(first, last)| first / room.bank_bytes == last / room.bank_bytes)
        })
    }

    fn tiles(row_tiles: u64, rows: u64, is_walked: bool) -> Block {
        Block {
            bytes: row_tiles * rows * TILE_BYTES,
            align: TILE_BYTES,
            walks: match is_walked {
                true => vec![Walk { row_tiles, rows }],
                false => Vec::new(),
            },
        }
    }

    #[test]
    fn all_small_rooms_are_filled_as_well_as_any_arrangement_fills_them() {
        // Blocks of up to three rows of up to three tiles, walked or not, four of them at a time.
        let kinds = [
            tiles(1, 1, false),
            tiles(2, 1, false),
            tiles(2, 2, true),
            tiles(3, 1, true),
            tiles(3, 2, true),
            tiles(3, 3, true),
        ];
        let count = kinds.len();
        let (mut compared, mut orders_matter) = (0, 0);
        for pick in 0..count.pow(4) {
            let pick = [1, count, count.pow(2), count.pow(3)].map(|power| pick / power % count);
            if !pick.is_sorted() {
                continue;
            }
            let blocks = pick.map(|kind| kinds[kind].clone());
            for bank_tiles in [4, 5, 7] {
                let room = |tiles| Room {
                    bytes: tiles * TILE_BYTES,
                    bank_bytes: bank_tiles * TILE_BYTES,
                };
                let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
                let least = bytes / TILE_BYTES;
                for room in (least..least + 5).map(room) {
                    let possible = fits(&blocks, &mut Vec::new(), room);
                    let found = tightest(&blocks, room);
                    assert_eq!(found.is_some(), possible, "{blocks:?} in {room:?}");
                    orders_matter += usize::from(possible && in_order(&blocks, room).is_none());
                    compared += 1;
                    for places in found.into_iter().chain(in_order(&blocks, room)) {
                        check(&blocks, &places, room);
                    }
                }
            }
        }
        assert!(
            compared > 1000 && orders_matter > 50,
            "{compared}, {orders_matter}"
        );
    }

    #[track_caller]
    fn check(blocks: &[Block], places: &[u64], room: Room) {
        let mut taken: Vec<(u64, u64)> = blocks
            .iter()
            .zip(places)
            .map(|(block, at)| (*at, at + block.bytes))
            .collect();
        taken.sort_unstable();
        assert!(
            taken.windows(2).all(|pair| pair[0].1 <= pair[1].0),
            "{taken:?}"
        );
        assert!(taken.last().is_none_or(|(_, end)| *end <= room.bytes));
        for (block, at) in blocks.iter().zip(places) {
            assert!(is_sound(block, *at, room), "{block:?} at {at}");
        }
    }

    #[test]
    fn a_row_may_lie_on_two_banks_where_a_range_ends() {
        let room = Room {
            bytes: 8 << 20,
            bank_bytes: 4 << 20,
        };
        // 44 tiles are ranges of 32 and 12.
        let rows = tiles(44, 20, true);
        for (tiles_before, over) in [(44, 0), (32, 0), (12, 12), (43, 11), (1, 1)] {
            let at = room.bank_bytes - (2 * 44 + tiles_before) * TILE_BYTES;
            assert_eq!(rows.straddle_bytes(at, room.bank_bytes), over * TILE_BYTES);
            assert_eq!(rows.first_place(at, room), Some(at + over * TILE_BYTES));
            assert!(is_sound(&rows, at + over * TILE_BYTES, room));
        }
    }
}
