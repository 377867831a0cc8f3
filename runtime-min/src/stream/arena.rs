//! The memory that experts live in: allocated once, cut into slots, never grown.

use estream_schemas::manifest::ALIGN;

use crate::error::{RunError, index};

const WHAT: &str = "the arena";

/// Slots of one size, each aligned for direct reads.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    slot_bytes: usize,
}

impl Arena {
    /// `count` slots of `slot_bytes`, which is a multiple of [`ALIGN`]. The system gives the memory
    /// when it is first written to.
    pub(crate) fn new(count: usize, slot_bytes: u64) -> Result<Arena, RunError> {
        let slot_bytes = index(WHAT, slot_bytes)?;
        let size = count
            .checked_mul(slot_bytes)
            .and_then(|bytes| bytes.checked_add(index(WHAT, ALIGN).ok()?));
        let no_memory = || RunError::Memory {
            what: WHAT,
            bytes: (count as u64).saturating_mul(slot_bytes as u64),
        };
        let size = size.ok_or_else(no_memory)?;
        // Zeros from the system cost nothing until they are touched, but asking for them cannot
        // fail politely: so it is asked before whether there is room.
        Vec::<u8>::new()
            .try_reserve_exact(size)
            .map_err(|_| no_memory())?;
        Ok(Arena {
            bytes: vec![0; size],
            slot_bytes,
        })
    }

    /// Every slot. Whoever holds one is alone with it.
    pub(crate) fn slots(&mut self) -> Vec<&mut [u8]> {
        let align = ALIGN as usize;
        let start = self.bytes.as_ptr().align_offset(align).min(align);
        let slots = self.bytes.get_mut(start..).unwrap_or_default();
        match self.slot_bytes {
            0 => Vec::new(),
            slot_bytes => {
                let count = slots.len() / slot_bytes;
                slots.chunks_exact_mut(slot_bytes).take(count).collect()
            }
        }
    }

    /// Touches every page, so that no read waits for the system to find it memory.
    pub(crate) fn populate(&mut self) {
        const PAGE: usize = 4096;
        for page in self.bytes.chunks_mut(PAGE) {
            page[0] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_and_do_not_touch() {
        let mut arena = Arena::new(5, 2 * ALIGN).unwrap();
        arena.populate();
        let slots = arena.slots();
        assert_eq!(slots.len(), 5);
        for pair in slots.windows(2) {
            let [a, b] = [&pair[0], &pair[1]].map(|slot| slot.as_ptr().addr());
            assert_eq!(b - a, 2 * ALIGN as usize);
            assert_eq!(a % ALIGN as usize, 0);
        }
        assert_eq!(Arena::default().slots().len(), 0);
    }

    #[test]
    fn more_than_there_can_be_is_an_error() {
        for (count, slot) in [(usize::MAX, ALIGN), (1 << 40, 1 << 40)] {
            let error = Arena::new(count, slot).unwrap_err();
            assert!(matches!(error, RunError::Memory { .. }), "{error}");
        }
    }
}
