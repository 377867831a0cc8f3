//! How fast storage is, by the size of a read and the number of reads at a time: what a profile says
//! of it, measured on a bundle's own records.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use estream_schemas::manifest::{ExpertLayer, Experts};
use estream_schemas::profile::{Rate, Storage as StorageProfile};

use super::arena::{Arena, Slot, Spans};
use super::buffers::Buffers;
use super::storage::{BLOCK_BYTES, Files, Parts, Storage, System, Throttled};
use super::{IoMode, STACK_BYTES};
use crate::error::RunError;
use crate::measure::{Tell, Times};
use crate::reader::BundleReader;

/// Reads at a time.
pub(crate) const DEPTHS: [usize; 3] = [1, 2, 4];
/// How often a measurement is repeated; the median counts.
const BATCHES: usize = 5;
/// How long a thread reads in a batch: it begins no read after that, unless there were fewer
/// than [`READS`].
const BATCH: Duration = Duration::from_millis(100);
const READS: u64 = 2;
/// Memory that is read into, if there is room. Of reads that need more, those of one record alone are
/// measured.
const MAX_BYTES: u64 = 512 << 20;

/// Storage as it was found.
pub(crate) struct Found {
    pub(crate) storage: StorageProfile,
    /// Why not every read went past the page cache, if so.
    pub(crate) io_why: Option<String>,
}

/// What is read.
#[derive(Clone, Copy)]
enum Size {
    /// The first block of a record.
    Block,
    /// So many records.
    Records(usize),
}

/// What a batch needs.
struct Probe<'a> {
    storage: &'a dyn Storage,
    layers: &'a [ExpertLayer],
    /// By layer.
    spans: &'a [Spans],
    /// Bytes of the records that are read, the largest.
    record_bytes: u64,
}

/// Reads `groups` neighbours at a time, of the largest records of a bundle, into `room` bytes.
///
/// A rate is what a profile means by it: the bytes under way, over the mean time of a read less the
/// latency. So a profile's prediction of a read is what was measured, whatever the latency is said to be:
/// that of a read of nothing, by those of a block and of the smallest group, and at most half of any time.
pub(crate) fn find(
    reader: &BundleReader,
    throttle: Option<&StorageProfile>,
    (groups, room): (&[usize], u64),
    tell: Tell<'_>,
) -> Result<Found, RunError> {
    let experts = &reader.bundle().manifest().experts;
    let parts = Parts::open(reader, &System)?;
    let files = Files {
        reader,
        parts: &parts,
        disk: &System,
    };
    let throttled = throttle.map(|profile| Throttled::new(&files, profile));
    let spans = experts.layers.iter().map(Spans::new);
    let spans = spans.collect::<Result<Vec<_>, _>>()?;
    let probe = Probe {
        storage: match &throttled {
            Some(throttled) => throttled,
            None => &files,
        },
        layers: &experts.layers,
        spans: &spans,
        record_bytes: experts.slot_bytes,
    };
    let mut sizes = Vec::new();
    for group in groups {
        let each = experts.slot_bytes.saturating_mul(*group as u64);
        let fits = |depth: &usize| {
            *group == 1 || each.saturating_mul(*depth as u64) <= room.min(MAX_BYTES)
        };
        sizes.extend(DEPTHS.into_iter().filter(fits).map(|depth| (*group, depth)));
    }
    let mut arena = arena(experts, &sizes)?;
    let slots = &mut arena.slots()[..];
    let block_ns = probe.median(Size::Block, 1, slots)?;
    tell(format_args!(
        "read a block of {BLOCK_BYTES} bytes: {} µs",
        block_ns / 1000
    ));
    let mut times = Vec::new();
    for (group, depth) in sizes {
        let ns = probe.median(Size::Records(group), depth, slots)?;
        let bytes = probe.record_bytes.saturating_mul(group as u64);
        tell(format_args!(
            "read {group} × {} bytes, {depth} at a time: {} µs, {} MB/s",
            probe.record_bytes,
            ns / 1000,
            rate(bytes, depth, ns) / 1_000_000
        ));
        times.push((bytes, depth, ns));
    }
    let least = times.iter().map(|(.., ns)| *ns).min().unwrap_or(0);
    let (bytes, _, ns) = times.first().copied().unwrap_or_default();
    let rise = u128::from(ns.saturating_sub(block_ns)) * u128::from(BLOCK_BYTES);
    let rise = rise / u128::from(bytes.saturating_sub(BLOCK_BYTES).max(1));
    let latency_ns = block_ns.saturating_sub(u64::try_from(rise).unwrap_or(u64::MAX));
    let latency_ns = latency_ns.min(least / 2);
    let rates = times.into_iter().map(|(bytes, depth, ns)| Rate {
        read_bytes: bytes,
        outstanding: depth as u64,
        bytes_per_second: rate(bytes, depth, ns - latency_ns),
    });
    Ok(Found {
        storage: StorageProfile {
            latency_ns,
            rates: rates.collect(),
            hot_rates: Vec::new(),
            buffer_bytes: throttle.and_then(|profile| profile.buffer_bytes),
        },
        io_why: match parts.mode() {
            IoMode::Direct => None,
            _ => parts.why(),
        },
    })
}

/// Bytes a second, where `depth` reads of `bytes` are under way and each takes `ns`; at least 1.
fn rate(bytes: u64, depth: usize, ns: u64) -> u64 {
    let work = u128::from(bytes) * depth as u128 * 1_000_000_000;
    let rate = work / u128::from(ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX).max(1)
}

/// Slots for the largest of `sizes`, records of a read and reads at a time.
fn arena(experts: &Experts, sizes: &[(usize, usize)]) -> Result<Arena, RunError> {
    let slots = sizes.iter().map(|(group, depth)| group * depth);
    let slots = slots.max().unwrap_or(1);
    let mut arena = Arena::new(&Buffers::new(experts, slots, 1, None)?)?;
    arena.populate();
    Ok(arena)
}

impl Probe<'_> {
    /// The median over batches of the mean time of a read, with `depth` under way.
    fn median(&self, size: Size, depth: usize, slots: &mut [Slot<'_>]) -> Result<u64, RunError> {
        let records = match size {
            Size::Block => 1,
            Size::Records(records) => records,
        };
        let places = self.places(records);
        let next = AtomicUsize::new(0);
        let mut times = Times::default();
        for _ in 0..BATCHES {
            let slots = slots.chunks_mut(records).take(depth);
            times.add(self.batch(size, slots.collect(), &places, &next)?);
        }
        Ok(times.median())
    }

    /// Where reads of `records` neighbours begin: layer and record.
    fn places(&self, records: usize) -> Vec<(usize, u64)> {
        let layers = self.layers.iter().enumerate();
        let layers = layers.filter(|(_, layer)| layer.record_bytes == self.record_bytes);
        let places = layers.flat_map(|(at, layer)| {
            let last = layer.records().checked_sub(records as u64);
            let firsts = last.into_iter().flat_map(|last| 0..=last);
            firsts.step_by(records).map(move |first| (at, first))
        });
        places.collect()
    }

    /// The mean time of a read, one thread for each of `slots`.
    fn batch(
        &self,
        size: Size,
        slots: Vec<&mut [Slot<'_>]>,
        places: &[(usize, u64)],
        next: &AtomicUsize,
    ) -> Result<u64, RunError> {
        let threads = slots.len();
        let results: Result<Vec<_>, RunError> = std::thread::scope(|scope| {
            let mut handles = Vec::with_capacity(threads);
            for slots in slots {
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                let handle =
                    thread.spawn_scoped(scope, move || self.reads(size, slots, places, next));
                handles.push(handle.map_err(|source| RunError::Threads { threads, source })?);
            }
            let mut results = Vec::with_capacity(threads);
            for handle in handles {
                let panicked = |_| RunError::Internal("a thread that reads experts panicked");
                results.push(handle.join().map_err(panicked)??);
            }
            Ok(results)
        });
        let mut sum = (0u128, 0u64);
        for (elapsed, reads) in results? {
            sum.0 += elapsed.as_nanos();
            sum.1 += reads;
        }
        let mean = sum.0 / u128::from(sum.1.max(1));
        Ok(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Reads one after another into `slots`: how long, and how many. The first does not count, because the
    /// other threads may not have begun.
    fn reads(
        &self,
        size: Size,
        slots: &mut [Slot<'_>],
        places: &[(usize, u64)],
        next: &AtomicUsize,
    ) -> Result<(Duration, u64), RunError> {
        let mut read = || {
            let at = next.fetch_add(1, Ordering::Relaxed) % places.len().max(1);
            let Some((layer, first)) = places.get(at).copied() else {
                return Err(RunError::Internal("nothing to read"));
            };
            let spans = &self.spans[layer];
            let regions = slots.iter_mut().map(|slot| slot.regions_mut(spans));
            let mut regions: Vec<_> = regions.collect();
            if let (Size::Block, [[gate, up, down], ..]) = (size, &mut regions[..]) {
                let block = gate.len().min(BLOCK_BYTES as usize);
                let cut = [&mut gate[..block], &mut up[..0], &mut down[..0]];
                return Ok(self.storage.read(layer, first, &mut [cut])?);
            }
            Ok(self.storage.read(layer, first, &mut regions)?)
        };
        read()?;
        let began = Instant::now();
        let mut reads = 0;
        while reads < READS || began.elapsed() < BATCH {
            read()?;
            reads += 1;
        }
        Ok((began.elapsed(), reads))
    }
}
