//! The memory that experts live in: allocated once, cut into slots, never grown.

use std::iter::Take;
use std::slice::ChunksExactMut;

use estream_schemas::manifest::{ALIGN, ExpertLayer};

use super::buffers::{Buffers, NoBuffer, spans};
use crate::error::{RunError, index};

const WHAT: &str = "the arena";

/// Gate, up and down of a record, each with its padding.
pub type Regions<'a> = [&'a [u8]; 3];

/// Lengths of gate, up and down in the records of a layer, padding included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans([usize; 3]);

impl Spans {
    pub(crate) fn new(layer: &ExpertLayer) -> Result<Spans, RunError> {
        let [gate, up, down] = spans(layer).map(|bytes| index("a record", bytes));
        Ok(Spans([gate?, up?, down?]))
    }

    #[cfg(test)]
    pub(crate) fn of(spans: [usize; 3]) -> Spans {
        Spans(spans)
    }

    /// The regions of a record that is in one piece.
    pub(crate) fn cut<'a>(&self, record: &'a [u8]) -> Regions<'a> {
        let mut rest = record;
        self.0
            .map(|span| rest.split_off(..span).unwrap_or_default())
    }
}

/// The memory of one record.
#[derive(Debug)]
pub(crate) enum Slot<'a> {
    /// Its regions follow one another.
    Whole(&'a mut [u8]),
    /// Each is in a buffer of its own.
    Apart([&'a mut [u8]; 3]),
}

impl Default for Slot<'_> {
    fn default() -> Self {
        Slot::Whole(&mut [])
    }
}

impl Slot<'_> {
    /// The regions of the record in it.
    pub(crate) fn regions(&self, spans: &Spans) -> Regions<'_> {
        match self {
            Slot::Whole(bytes) => spans.cut(bytes),
            Slot::Apart([gate, up, down]) => {
                let [g, u, d] = spans.0;
                [&gate[..g], &up[..u], &down[..d]]
            }
        }
    }

    /// Where the regions of a record go.
    pub(crate) fn regions_mut(&mut self, spans: &Spans) -> [&mut [u8]; 3] {
        match self {
            Slot::Whole(bytes) => {
                let mut rest = &mut **bytes;
                spans
                    .0
                    .map(|span| rest.split_off_mut(..span).unwrap_or_default())
            }
            Slot::Apart([gate, up, down]) => {
                let [g, u, d] = spans.0;
                [&mut gate[..g], &mut up[..u], &mut down[..d]]
            }
        }
    }
}

impl From<NoBuffer> for RunError {
    fn from(no: NoBuffer) -> RunError {
        RunError::Buffer {
            group: no.group,
            region_bytes: no.region_bytes,
            needed: no.needed,
            limit: no.limit,
            hint: no.hint,
        }
    }
}

/// Slots for records, each region aligned for direct reads.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// Those of a bank stand together.
    buffers: Vec<Vec<u8>>,
    strides: Vec<usize>,
}

impl Arena {
    /// The slots of `buffers`. The system gives the memory when it is first written to.
    pub(crate) fn new(buffers: &Buffers) -> Result<Arena, RunError> {
        let strides = buffers.strides().iter().map(|stride| index(WHAT, *stride));
        Ok(Arena {
            strides: strides.collect::<Result<_, _>>()?,
            buffers: buffers.sizes().map(allocate).collect::<Result<_, _>>()?,
        })
    }

    /// Every slot. Whoever holds one is alone with it.
    pub(crate) fn slots(&mut self) -> Vec<Slot<'_>> {
        let mut slots = Vec::new();
        for bank in self.buffers.chunks_mut(self.strides.len().max(1)) {
            match (bank, &*self.strides) {
                ([whole], [stride]) => slots.extend(aligned(whole, *stride).map(Slot::Whole)),
                ([gates, ups, downs], [gate, up, down]) => {
                    let gates = aligned(gates, *gate);
                    let rest = aligned(ups, *up).zip(aligned(downs, *down));
                    let regions = gates.zip(rest);
                    slots.extend(regions.map(|(gate, (up, down))| Slot::Apart([gate, up, down])));
                }
                _ => {}
            }
        }
        slots
    }

    /// Touches every page, so that no read waits for the system to find it memory.
    pub(crate) fn populate(&mut self) {
        const PAGE: usize = 4096;
        for page in self
            .buffers
            .iter_mut()
            .flat_map(|buffer| buffer.chunks_mut(PAGE))
        {
            page[0] = 0;
        }
    }
}

/// Zeros, or an error instead of an abort.
fn allocate(bytes: u64) -> Result<Vec<u8>, RunError> {
    let size = index(WHAT, bytes)?;
    // Zeros from the system cost nothing until they are touched, but asking for them cannot
    // fail politely: so it is asked before whether there is room.
    Vec::<u8>::new()
        .try_reserve_exact(size)
        .map_err(|_| RunError::Memory { what: WHAT, bytes })?;
    Ok(vec![0; size])
}

/// A buffer's pieces of `stride` bytes, which is a multiple of [`ALIGN`].
fn aligned(buffer: &mut [u8], stride: usize) -> Take<ChunksExactMut<'_, u8>> {
    let align = ALIGN as usize;
    let stride = stride.max(align);
    let count = buffer.len().saturating_sub(align) / stride;
    let start = buffer.as_ptr().align_offset(align).min(align);
    let pieces = buffer.get_mut(start..).unwrap_or_default();
    pieces.chunks_exact_mut(stride).take(count)
}

#[cfg(test)]
mod tests {
    use estream_schemas::dtype::DType;
    use estream_schemas::layout::Layout;
    use estream_schemas::manifest::{Experts, Region};

    use super::*;

    /// Layers of records with regions of so many times [`ALIGN`].
    fn experts(layers: &[[u64; 3]]) -> Experts {
        let layers = layers.iter().map(|spans| {
            let starts = [0, spans[0], spans[0] + spans[1]];
            let [gate, up, down] = [0, 1, 2].map(|at| Region {
                layout: Layout::rows(DType::F32),
                rows: 256,
                cols: spans[at] * ALIGN / 1024,
                offset: starts[at] * ALIGN,
                bytes: spans[at] * ALIGN,
            });
            ExpertLayer {
                layer: 0,
                part: 0,
                offset: 0,
                record_bytes: spans.iter().sum::<u64>() * ALIGN,
                experts: 1,
                shards: 1,
                order: vec![0],
                digests: Vec::new(),
                gate,
                up,
                down,
            }
        });
        let layers: Vec<_> = layers.collect();
        Experts {
            slot_bytes: layers
                .iter()
                .map(|layer| layer.record_bytes)
                .max()
                .unwrap_or(0),
            parts: Vec::new(),
            layers,
        }
    }

    fn sizes(buffers: &Buffers) -> Vec<u64> {
        buffers.sizes().map(|bytes| bytes / ALIGN).collect()
    }

    #[test]
    fn buffers_are_as_large_as_the_limit_lets_them_be() {
        let experts = experts(&[[2, 1, 4], [2, 3, 1]]);
        let of = |limit: Option<u64>| Buffers::new(&experts, 5, 2, limit.map(|n| n * ALIGN));
        // Five slots of seven pages, and one page more for alignment.
        assert_eq!(sizes(&of(None).unwrap()), [36]);
        assert_eq!(sizes(&of(Some(15)).unwrap()), [15, 15, 8]);
        for limit in [9, 14] {
            let apart = of(Some(limit)).unwrap();
            assert_eq!(sizes(&apart), [5, 7, 9, 5, 7, 9, 3, 4, 5]);
            assert_eq!(apart.bytes(), 54 * ALIGN);
        }
        let error = Buffers::new(&experts, 5, 2, Some(9 * ALIGN - 1)).unwrap_err();
        let text = RunError::from(error).to_string();
        assert!(text.contains("2 · 65536 + 16384 = 147456 bytes"), "{text}");
        assert!(text.contains("more than the 147455"), "{text}");
        assert!(text.contains("-G 1)"), "{text}");
    }

    #[test]
    fn what_no_group_fits_into_needs_shards_if_they_would_do() {
        let experts = experts(&[[8, 8, 8]]);
        let says = |limit: u64| {
            let error = Buffers::new(&experts, 4, 2, Some(limit)).unwrap_err();
            RunError::from(error).to_string()
        };
        // Of 256 rows: shards divide 8, and are whole pages.
        assert!(says(5 * ALIGN).contains("-G 1, and compile the bundle with --shards 2"));
        assert!(says(5 * ALIGN - 1).contains("--shards 4"));
        assert!(says(2 * ALIGN).contains("--shards 8"));
        assert!(says(2 * ALIGN - 1).contains("no number of shards"));
        assert!(says(0).contains("no number of shards"));
    }

    #[test]
    fn slots_are_aligned_do_not_touch_and_no_buffer_exceeds_its_limit() {
        let experts = experts(&[[2, 1, 4], [2, 3, 1], [1, 1, 1]]);
        for limit in [None, Some(15 * ALIGN), Some(9 * ALIGN)] {
            let mut arena = Arena::new(&Buffers::new(&experts, 5, 2, limit).unwrap()).unwrap();
            arena.populate();
            let largest = arena.buffers.iter().map(Vec::capacity).max().unwrap_or(0);
            assert!(largest as u64 <= limit.unwrap_or(36 * ALIGN));
            let mut slots = arena.slots();
            assert_eq!(slots.len(), 5);
            for layer in &experts.layers {
                let spans = Spans::new(layer).unwrap();
                for (at, slot) in slots.iter_mut().enumerate() {
                    let regions = slot.regions_mut(&spans);
                    for (region, number) in regions.into_iter().zip(1..) {
                        assert_eq!(region.as_ptr().align_offset(ALIGN as usize), 0);
                        region.fill(8 * at as u8 + number);
                    }
                }
                for (at, slot) in slots.iter().enumerate() {
                    for ((region, span), number) in
                        slot.regions(&spans).iter().zip(spans.0).zip(1..)
                    {
                        assert_eq!(region.len(), span);
                        assert!(region.iter().all(|byte| *byte == 8 * at as u8 + number));
                    }
                }
            }
        }
        assert_eq!(Arena::default().slots().len(), 0);
    }

    #[test]
    fn more_than_there_can_be_is_an_error() {
        for (count, pages) in [(usize::MAX, 1), (1 << 40, 1 << 26)] {
            let buffers = Buffers::new(&experts(&[[pages; 3]]), count, 1, None).unwrap();
            let error = Arena::new(&buffers).unwrap_err();
            assert!(matches!(error, RunError::Memory { .. }), "{error}");
        }
    }
}
