//! Which buffers an arena is made of. Plain numbers: the planner's tests include this file, so that what it
//! plans is what can be loaded.
//!
//! It is one buffer, unless a device limits how large one may be. Then each bank of G slots is a buffer,
//! if that fits, or else three: its gates, its ups and its downs.

use estream_schemas::limits::MAX_SHARDS;
use estream_schemas::manifest::{ALIGN, ExpertLayer, Experts};

/// A bank of which no buffer can hold a projection.
#[derive(Debug)]
pub(crate) struct NoBuffer {
    /// G.
    pub(crate) group: usize,
    /// The largest region of a record.
    pub(crate) region_bytes: u64,
    /// What a buffer would take.
    pub(crate) needed: u64,
    /// What one may take.
    pub(crate) limit: u64,
    /// The smallest change that would do.
    pub(crate) hint: String,
}

/// Which buffers an arena is made of.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    slots: usize,
    /// Slots that share a buffer, or three.
    together: usize,
    /// Bytes of a slot in each of those.
    strides: Vec<u64>,
}

impl Buffers {
    /// For `slots` records of a bundle, `group` a bank, where a buffer may have `limit` bytes.
    ///
    /// # Errors
    /// If not even a projection of a bank fits into a buffer.
    pub(crate) fn new(
        experts: &Experts,
        slots: usize,
        group: usize,
        limit: Option<u64>,
    ) -> Result<Buffers, NoBuffer> {
        let with = |together, strides| Buffers {
            slots,
            together,
            strides,
        };
        let Some(limit) = limit else {
            return Ok(with(slots, vec![experts.slot_bytes]));
        };
        let layers = experts.layers.iter();
        let widest = layers.fold([0; 3], |most: [u64; 3], layer| {
            let spans = spans(layer);
            [0, 1, 2].map(|region| most[region].max(spans[region]))
        });
        let banks = [vec![experts.slot_bytes], widest.to_vec()].map(|strides| with(group, strides));
        let fits = |bank: &Buffers| {
            let mut sizes = bank
                .strides
                .iter()
                .map(|stride| buffer_bytes(group, *stride));
            sizes.all(|bytes| bytes <= limit)
        };
        banks.into_iter().find(fits).ok_or_else(|| {
            let region_bytes = widest.into_iter().max().unwrap_or(0);
            NoBuffer {
                group,
                region_bytes,
                needed: buffer_bytes(group, region_bytes),
                limit,
                hint: smaller(experts, region_bytes, limit),
            }
        })
    }

    /// Bytes of a slot in each buffer of its bank.
    pub(crate) fn strides(&self) -> &[u64] {
        &self.strides
    }

    /// Bytes of each.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> {
        let together = self.together.max(1);
        let firsts = (0..self.slots).step_by(together);
        firsts.flat_map(move |first| {
            let slots = together.min(self.slots - first);
            self.strides
                .iter()
                .map(move |stride| buffer_bytes(slots, *stride))
        })
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.sizes().fold(0, u64::saturating_add)
    }
}

/// Bytes of gate, up and down in the records of a layer, padding included. A checked bundle's regions follow
/// one another, so that each ends where the next one begins.
pub(crate) fn spans(layer: &ExpertLayer) -> [u64; 3] {
    let (up, down) = (layer.up.offset, layer.down.offset);
    [up, down - up, layer.record_bytes - down]
}

/// Bytes of a buffer for `slots` records or regions, with what it takes to align them.
fn buffer_bytes(slots: usize, stride: u64) -> u64 {
    stride.saturating_mul(slots as u64).saturating_add(ALIGN)
}

/// The smallest change with which regions of `region_bytes` fit into buffers of `limit`.
fn smaller(experts: &Experts, region_bytes: u64, limit: u64) -> String {
    let room = limit.saturating_sub(ALIGN);
    match room.checked_div(region_bytes) {
        Some(group @ 1..) => format!("use groups of {group} (-G {group})"),
        _ => {
            let layer = experts
                .layers
                .iter()
                .find(|layer| spans(layer).contains(&region_bytes));
            let fits = |shards: &u64| {
                let layer = layer.filter(|layer| {
                    let tiles = layer.gate.rows * layer.shards / 32;
                    tiles.is_multiple_of(*shards)
                });
                layer.is_some_and(|layer| {
                    let bytes = (region_bytes * layer.shards).div_ceil(*shards);
                    bytes.next_multiple_of(ALIGN) <= room
                })
            };
            match (2..=MAX_SHARDS).find(fits) {
                Some(shards) => {
                    format!("use -G 1, and compile the bundle with --shards {shards}")
                }
                None => "no number of shards would do".to_owned(),
            }
        }
    }
}
