//! Experts from flash, through an arena of fixed size (paper §3.3 and §3.4).
//!
//! [`residency`] says what is in a slot, [`sequence`] what is read and run next; both are
//! plain state. [`pipeline`] puts threads around them, [`storage`] reads, [`arena`] is the
//! memory, [`buffers`] what it is made of, [`timeline`] is what happened when, and [`tally`] what that says of records. [`rates`] measures
//! storage alone.

mod arena;
mod buffers;
mod choice;
#[cfg(test)]
mod exhaustive;
#[cfg(all(test, loom))]
mod orders;
mod pins;
mod pipeline;
pub(crate) mod rates;
mod residency;
mod sequence;
mod storage;
mod sync;
mod tally;
mod timeline;
mod trace;

use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use estream_schemas::manifest::Experts;
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};
use estream_schemas::profile::Storage as StorageProfile;

use self::arena::Arena;
use self::buffers::{Buffers, NoBuffer};
use self::pipeline::{Check, Pipeline};
use self::sequence::Sequence;
use self::storage::{Files, Parts, Storage, System, Throttled};
use crate::error::{RunError, index};
use crate::model::MAX_THREADS;
use crate::reader::{BundleReader, ReadError, Verify};
use crate::store::{ExpertSource, RunRecord};

pub use arena::Regions;
pub(crate) use arena::Spans;
pub use choice::{Choice, Chosen, Pin, bytes};
pub(crate) use pins::Pins;
pub use pipeline::Cancel;
pub use storage::{Disk, IoMode};
pub use tally::{Counts, LayerShape, Step, Tally};
pub use timeline::{Doing, Event, Overlap};
pub(crate) use timeline::{EVENTS_A_RECORD, EVENTS_A_STEP, Recorder, timeline_bytes};
pub use trace::{TraceFile, write_trace};

/// Bytes of a loader's stack: it calls the system and hashes.
pub(crate) const STACK_BYTES: usize = 128 << 10;

/// How to stream, by the length of the prompt.
#[derive(Clone, Debug)]
pub struct Streaming {
    /// Ascending; the last is also for longer prompts.
    rows: Vec<PlanRow>,
    /// Storage to imitate.
    throttle: Option<StorageProfile>,
    disk: Arc<dyn Disk>,
    pin: Pin,
    /// The most bytes of one buffer.
    buffer_bytes: Option<u64>,
}

impl Streaming {
    /// As the rows of a plan say.
    ///
    /// # Errors
    /// If there is no row, one cannot be, or one would have all experts in memory, be it on a hot device.
    pub fn new(rows: Vec<PlanRow>) -> Result<Streaming, RunError> {
        let configs = || rows.iter().flat_map(PlanRow::configs);
        let bad = configs().find_map(|config| config.check().err());
        match bad {
            Some(why) => Err(RunError::Stream(why)),
            None if configs().any(is_resident) => Err(RunError::PartlyResident),
            None if rows.is_empty() => Err(RunError::Internal("a plan without rows")),
            None => Ok(Streaming {
                rows,
                throttle: None,
                disk: Arc::new(System),
                pin: Pin::default(),
                buffer_bytes: None,
            }),
        }
    }

    /// The same, as slow as the storage of a profile and with buffers no larger than it has. A request of a
    /// hot device has the profile's rates of one, if it has such.
    #[must_use]
    pub fn throttled(self, profile: StorageProfile) -> Streaming {
        let limited = self.limited(profile.buffer_bytes);
        Streaming {
            throttle: Some(profile),
            ..limited
        }
    }

    /// The same, with an arena of buffers of at most so many bytes; the smallest limit counts.
    #[must_use]
    pub fn limited(self, buffer_bytes: Option<u64>) -> Streaming {
        let limits = self.buffer_bytes.into_iter().chain(buffer_bytes);
        Streaming {
            buffer_bytes: limits.min(),
            ..self
        }
    }

    /// The same, read through a disk of the caller's.
    #[must_use]
    pub fn through(self, disk: Arc<dyn Disk>) -> Streaming {
        Streaming { disk, ..self }
    }

    /// The same, with records that stay in memory.
    ///
    /// # Errors
    /// If a row's schedule reads slices, which cannot leave them out.
    pub fn pinned(self, pin: Pin) -> Result<Streaming, RunError> {
        pin.check(&self.rows)?;
        Ok(Streaming { pin, ..self })
    }

    /// Which records are to stay in memory.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// The row for a prompt of `tokens` tokens.
    pub fn row(&self, tokens: usize) -> &PlanRow {
        let at = self
            .rows
            .partition_point(|row| row.max_tokens < tokens as u64);
        &self.rows[at.min(self.rows.len() - 1)]
    }

    /// How many tokens of a prompt of `tokens` go through the model together, if its row says so.
    pub(crate) fn chunk(&self, tokens: usize) -> Option<NonZeroUsize> {
        let chunk = self.row(tokens).chunk?;
        NonZeroUsize::new(usize::try_from(chunk).unwrap_or(usize::MAX))
    }

    /// What the arena is made of; a bank is as large as that of any row, hot or not.
    pub(crate) fn buffers(&self, experts: &Experts) -> Result<Buffers, NoBuffer> {
        let group = self.most(|config| config.group);
        Buffers::new(
            experts,
            self.most(StreamConfig::slots),
            group,
            self.buffer_bytes,
        )
    }

    /// Threads that load.
    ///
    /// # Errors
    /// If there would be more than a process should have.
    pub(crate) fn loaders(&self, experts: &Experts) -> Result<u64, RunError> {
        let records = most_records(experts)?;
        few(self.most(|config| loaders(config, records)))
    }

    fn most(&self, of: impl Fn(&StreamConfig) -> usize) -> usize {
        let configs = self.rows.iter().flat_map(PlanRow::configs);
        configs.map(of).max().unwrap_or(0)
    }
}

/// Whether it keeps all experts in memory.
pub(crate) fn is_resident(config: &StreamConfig) -> bool {
    config.schedule == Schedule::Resident
}

/// Threads that load, where the largest layer has `records`: as many as read at a time, and as many that look at
/// what was read. No more than reads under way, each of which has a bank, or slots, and is of one of two layers.
fn loaders(config: &StreamConfig, records: usize) -> usize {
    let (room, of_layer) = match config.schedule.is_by_record() {
        true => (config.slots(), records),
        false => (config.banks, records.div_ceil(config.group)),
    };
    let wanted = config.depth.saturating_mul(2);
    wanted.min(room).min(of_layer.saturating_mul(2))
}

/// Errors if those are more threads than a process should have.
fn few(threads: usize) -> Result<u64, RunError> {
    if threads > MAX_THREADS {
        let source = io::Error::other(format!("the most is {MAX_THREADS}"));
        return Err(RunError::Threads { threads, source });
    }
    Ok(threads as u64)
}

fn most_records(experts: &Experts) -> Result<usize, RunError> {
    let records = experts.layers.iter().map(|layer| layer.records());
    index("a layer", records.max().unwrap_or(0))
}

/// The least room that experts can stream in: bytes of an arena of one record, in buffers as `like` imitates them,
/// and threads that load into it.
pub(crate) fn least_room(
    experts: &Experts,
    like: Option<&Streaming>,
) -> Result<(u64, u64), RunError> {
    let imitated = like.and_then(|streaming| streaming.throttle.as_ref());
    let limit = imitated.and_then(|storage| storage.buffer_bytes);
    let config = StreamConfig::new(Schedule::Ahead, 1, 1, 1, 0);
    let buffers = Buffers::new(experts, config.slots(), config.group, limit)?;
    let loaders = loaders(&config, most_records(experts)?);
    Ok((buffers.bytes(), loaders as u64))
}

/// What a request brings to those who stream for it.
pub(crate) struct Service<'a> {
    pub(crate) tokens: usize,
    pub(crate) chunks: usize,
    pub(crate) is_hot: bool,
    pub(crate) cancel: &'a Cancel,
    pub(crate) recorder: &'a Recorder,
}

/// Experts that pass through an arena.
#[derive(Debug)]
pub(crate) struct Streamed {
    reader: BundleReader,
    parts: Parts,
    /// By layer.
    spans: Vec<Spans>,
    arena: Arena,
    streaming: Streaming,
    pins: Pins,
    pinned: usize,
    verify: Verify,
    /// By layer and record, whether it was compared with its digest.
    seen: Vec<Vec<AtomicBool>>,
}

impl Streamed {
    pub(crate) fn new(
        reader: &BundleReader,
        verify: Verify,
        streaming: &Streaming,
        pinned: usize,
    ) -> Result<Streamed, RunError> {
        let experts = &reader.bundle().manifest().experts;
        let spans = experts.layers.iter().map(Spans::new);
        let seen = experts.layers.iter().map(|layer| {
            let unseen = || AtomicBool::new(false);
            layer.digests.iter().map(|_| unseen()).collect()
        });
        Ok(Streamed {
            parts: Parts::open(reader, &*streaming.disk)?,
            spans: spans.collect::<Result<_, _>>()?,
            arena: Arena::new(&streaming.buffers(experts)?)?,
            streaming: streaming.clone(),
            pins: Pins::load(reader, verify, pinned)?,
            pinned,
            verify,
            seen: seen.collect(),
            reader: reader.clone(),
        })
    }

    pub(crate) fn streaming(&self) -> &Streaming {
        &self.streaming
    }

    /// How the last request was read, or how the first will be; and why not past the page cache.
    pub(crate) fn io_mode(&self) -> (IoMode, Option<String>) {
        (self.parts.mode(), self.parts.why())
    }

    /// Touches the arena's memory.
    pub(crate) fn populate(&mut self) {
        self.arena.populate();
    }

    /// Streams for one request; loaders have ended when this returns.
    pub(crate) fn serve<R>(
        &mut self,
        records: Vec<usize>,
        service: &Service<'_>,
        work: impl FnOnce(&mut dyn ExpertSource) -> Result<R, RunError>,
    ) -> Result<R, RunError> {
        let row = self.streaming.row(service.tokens);
        let config = row.config(service.is_hot);
        self.parts.begin();
        let files = Files {
            reader: &self.reader,
            parts: &self.parts,
            disk: &*self.streaming.disk,
        };
        let throttle = self.streaming.throttle.as_ref();
        let hot = throttle.filter(|_| service.is_hot);
        let hot = hot.and_then(StorageProfile::when_hot);
        let throttle = hot.as_ref().or(throttle);
        let throttled = throttle.map(|profile| Throttled::new(&files, profile));
        let storage: &dyn Storage = match &throttled {
            Some(throttled) => throttled,
            None => &files,
        };
        let check = Digests {
            reader: &self.reader,
            verify: self.verify,
            seen: &self.seen,
        };
        // The arena is as large as the largest row asks for.
        let mut slots = self.arena.slots();
        slots.truncate(config.slots());
        let loaders = loaders(&config, records.iter().copied().max().unwrap_or(0));
        let pipeline = Pipeline::new(
            Sequence::new(config, records, service.chunks, self.pinned),
            slots,
            storage,
            &check,
            &self.spans,
            &self.pins,
            service.recorder,
        );
        std::thread::scope(|scope| {
            // Also if `work` panics, or a thread cannot be started.
            let _closes = Closes(&pipeline);
            let pipeline = &pipeline;
            for thread in 1..=loaders {
                let loader = std::thread::Builder::new()
                    .name(format!("loader-{thread}"))
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, move || {
                        // The request has been told, and it ends with an error.
                        let _ = catch_unwind(AssertUnwindSafe(|| pipeline.load(thread)));
                    });
                loader.map_err(|source| RunError::Threads {
                    threads: loaders,
                    source,
                })?;
            }
            work(&mut Stream {
                pipeline,
                cancel: service.cancel,
            })
        })
    }
}

struct Closes<'p, 'a>(&'p Pipeline<'a>);

impl Drop for Closes<'_, '_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Compares records with their digests, as often as was asked for.
struct Digests<'a> {
    reader: &'a BundleReader,
    verify: Verify,
    seen: &'a [Vec<AtomicBool>],
}

impl Check for Digests<'_> {
    fn check(&self, layer: usize, record: usize, regions: Regions<'_>) -> Result<(), ReadError> {
        let seen = &self.seen[layer][record];
        let needed = match self.verify {
            Verify::Always => true,
            Verify::FirstUse => !seen.load(Ordering::Relaxed),
            Verify::Never => false,
        };
        if needed {
            self.reader
                .check_record_pieces(layer, record as u64, &regions)?;
            seen.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The executor's side of a pipeline.
struct Stream<'p, 'a> {
    pipeline: &'p Pipeline<'a>,
    cancel: &'p Cancel,
}

impl ExpertSource for Stream<'_, '_> {
    fn start(&mut self, step: usize) {
        self.pipeline.start(step);
    }

    fn run(&mut self, step: usize, routed: Vec<bool>, run: RunRecord<'_>) -> Result<(), RunError> {
        self.pipeline.route(routed);
        while let Some(bound) = self.pipeline.next(step, self.cancel)? {
            let mut records = bound.records();
            let done = records.try_for_each(|(record, bytes)| run(record, bytes));
            drop(records);
            self.pipeline.complete(bound);
            done?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_threads_load_than_reads_can_be_under_way() {
        let of = |schedule, (group, depth, banks), records| {
            loaders(
                &StreamConfig::new(schedule, group, depth, banks, 0),
                records,
            )
        };
        use Schedule::{Ahead, Compact, Early};
        assert_eq!(of(Ahead, (4, 2, 3), 16), 4);
        assert_eq!(of(Ahead, (1, 1, 1), 16), 1);
        assert_eq!(of(Early, (8, 3, 3), 64), 3);
        for schedule in [Ahead, Compact] {
            assert_eq!(of(schedule, (1, 65536, 65536), 16), 32);
            assert_eq!(of(schedule, (8, 65536, 65536), 16), 32);
        }
        assert_eq!(of(Early, (1, 65536, 65536), 16), 32);
        assert_eq!(of(Early, (8, 65536, 65536), 16), 4);
        assert_eq!(of(Early, (65536, 65536, 65536), 16), 2);
        assert_eq!(of(Ahead, (1, 1, 1), 0), 0);
    }

    #[test]
    fn more_threads_than_a_process_should_have_are_refused() {
        assert_eq!(few(MAX_THREADS).unwrap(), MAX_THREADS as u64);
        let error = few(MAX_THREADS + 1).unwrap_err();
        assert_eq!(error.exit(), estream_schemas::exit::Exit::CannotRun);
        assert!(error.to_string().contains("ask for fewer"), "{error}");
    }
}
