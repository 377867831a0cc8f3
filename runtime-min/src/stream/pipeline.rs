//! Loaders and an executor around one [`Sequence`].
//!
//! All they share is under one lock, and nobody reads, hashes or computes while holding it.
//! A slot's memory is passed on by value: who has it is alone with it, and has a
//! [`Reserved`](super::residency::Reserved) or a [`Binding`](super::residency::Binding) for it.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::arena::{Regions, Slot, Spans};
use super::pins::Pins;
use super::sequence::{Group, Next, Read, Sequence};
use super::storage::Storage;
use super::sync::{Condvar, Mutex, MutexGuard};
use super::timeline::{Doing, Event, Recorder};
use crate::error::RunError;
use crate::reader::ReadError;

/// How often a waiting executor looks whether it is still wanted.
const LOOK_UP: Duration = Duration::from_millis(20);

/// Asks a request to end early, from any thread.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    /// The request ends with [`RunError::Cancelled`] soon, once reads under way have returned.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lets the next request run.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What loaders do with a record before anyone sees it.
pub(crate) trait Check: Sync {
    /// Errors unless the bytes are those of the record.
    fn check(&self, layer: usize, record: usize, regions: Regions<'_>) -> Result<(), ReadError>;
}

struct Shared<'a> {
    sequence: Sequence,
    /// The memory of every slot that nobody has taken.
    slots: Vec<Option<Slot<'a>>>,
    /// What every slot holds, since when.
    held: Vec<Option<Event>>,
    /// Why reading stopped.
    fault: Option<RunError>,
    closing: bool,
}

/// The threads' meeting place for one request.
pub(crate) struct Pipeline<'a> {
    shared: Mutex<Shared<'a>>,
    loaders: Condvar,
    executor: Condvar,
    storage: &'a dyn Storage,
    check: &'a dyn Check,
    /// By layer.
    spans: &'a [Spans],
    pins: &'a Pins,
    recorder: &'a Recorder,
}

impl Shared<'_> {
    /// The slots of a read are taken.
    fn hold(&mut self, read: &Read, start_ns: u64) {
        for (first, slot) in (read.first..).zip(&read.slots) {
            self.held[slot.slot()] = Some(Event {
                doing: Doing::Slot,
                thread: slot.slot(),
                step: read.step,
                first,
                records: 1,
                start_ns,
                end_ns: start_ns,
            });
        }
    }

    /// Tells of the slots that are free by now.
    fn free(&mut self, recorder: &Recorder) {
        let end_ns = recorder.now();
        for (slot, held) in self.held.iter_mut().enumerate() {
            if self.sequence.is_free(slot)
                && let Some(event) = held.take()
            {
                recorder.add(Event { end_ns, ..event });
            }
        }
    }
}

impl<'a> Pipeline<'a> {
    pub(crate) fn new(
        sequence: Sequence,
        slots: Vec<Slot<'a>>,
        storage: &'a dyn Storage,
        check: &'a dyn Check,
        spans: &'a [Spans],
        pins: &'a Pins,
        recorder: &'a Recorder,
    ) -> Pipeline<'a> {
        Pipeline {
            shared: Mutex::new(Shared {
                sequence,
                held: vec![None; slots.len()],
                slots: slots.into_iter().map(Some).collect(),
                fault: None,
                closing: false,
            }),
            loaders: Condvar::new(),
            executor: Condvar::new(),
            storage,
            check,
            spans,
            pins,
            recorder,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared<'a>> {
        // A thread that panics under the lock ends the request; the others must still end.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a loader does, until [`Pipeline::close`].
    pub(crate) fn load(&self, thread: usize) {
        let mut loader = Loader {
            pipeline: self,
            taken: None,
        };
        let mut shared = self.lock();
        while !shared.closing {
            let Some(read) = shared.sequence.next_read() else {
                let waited = self.loaders.wait(shared);
                shared = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut slots: Vec<Slot<'a>> = Vec::with_capacity(read.slots.len());
            for slot in &read.slots {
                // The memory of a reserved slot is there: its last user has given it back.
                slots.extend(shared.slots[slot.slot()].take());
            }
            shared.hold(&read, self.recorder.now());
            let layer = shared.sequence.layer(read.step);
            drop(shared);
            let (read, slots) = loader.taken.insert((read, slots));
            let result = self.read(thread, layer, read, slots);
            shared = self.lock();
            if let Ok(start_ns) = result {
                // Under the lock, so that it ends before or after a wait as the executor saw it.
                self.recorder.add(Event {
                    doing: Doing::Verify,
                    thread,
                    step: read.step,
                    first: read.first,
                    records: read.slots.len(),
                    start_ns,
                    end_ns: self.recorder.now(),
                });
            }
            loader.settle(&mut shared, result.map(drop).map_err(RunError::from));
        }
    }

    /// Reads and compares; says when the latter began.
    fn read(
        &self,
        thread: usize,
        layer: usize,
        read: &Read,
        slots: &mut [Slot<'a>],
    ) -> Result<u64, ReadError> {
        let spans = &self.spans[layer];
        let mut records: Vec<_> = slots
            .iter_mut()
            .map(|slot| slot.regions_mut(spans))
            .collect();
        let start_ns = self.recorder.now();
        let result = self.storage.read(layer, read.first as u64, &mut records);
        self.recorder.add(Event {
            doing: Doing::Read,
            thread,
            step: read.step,
            first: read.first,
            records: read.slots.len(),
            start_ns,
            end_ns: self.recorder.now(),
        });
        // The next read goes out while these bytes are looked at.
        self.lock().sequence.returned();
        self.loaders.notify_one();
        result?;
        let start = self.recorder.now();
        let mut records = (read.first..).zip(&*slots);
        records.try_for_each(|(at, slot)| self.check.check(layer, at, slot.regions(spans)))?;
        Ok(start)
    }

    /// Lets loaders end, once what they read has returned.
    pub(crate) fn close(&self) {
        let mut shared = self.lock();
        shared.sequence.stop();
        shared.closing = true;
        drop(shared);
        self.loaders.notify_all();
    }

    /// Begins a step.
    pub(crate) fn start(&self, step: usize) {
        self.lock().sequence.start(step);
        self.loaders.notify_all();
    }

    /// Says which records of the step have routes.
    pub(crate) fn route(&self, routed: Vec<bool>) {
        let mut shared = self.lock();
        shared.sequence.route(routed);
        shared.free(self.recorder);
        drop(shared);
        self.loaders.notify_all();
    }

    /// The next group of the step, with the memory of its records; none when it is done.
    pub(crate) fn next(&self, step: usize, cancel: &Cancel) -> Result<Option<Bound<'a>>, RunError> {
        let mut waits_since = None;
        let mut shared = self.lock();
        loop {
            if let Some(fault) = shared.fault.take() {
                return Err(fault);
            }
            if cancel.is_cancelled() {
                return Err(RunError::Cancelled);
            }
            match shared.sequence.next_group() {
                Next::Done => return Ok(None),
                Next::Run(group) => {
                    let layer = shared.sequence.layer(step);
                    let records = group.records.iter();
                    let memory = records.map(|(record, binding)| {
                        let memory = match binding {
                            Some(binding) => {
                                Lent::Slot(shared.slots[binding.slot()].take().unwrap_or_default())
                            }
                            None => Lent::Pinned(self.pins.record(layer, *record)),
                        };
                        (*record, memory)
                    });
                    let memory: Vec<_> = memory.collect();
                    drop(shared);
                    let ends = memory.first().zip(memory.last());
                    if let (Some(start_ns), Some(((first, _), (last, _)))) = (waits_since, ends) {
                        self.recorder.add(Event {
                            doing: Doing::Wait,
                            thread: 0,
                            step,
                            first: *first,
                            records: last - first + 1,
                            start_ns,
                            end_ns: self.recorder.now(),
                        });
                    }
                    return Ok(Some(Bound {
                        group,
                        memory,
                        spans: &self.spans[layer],
                    }));
                }
                Next::Wait => {
                    waits_since.get_or_insert_with(|| self.recorder.now());
                    self.loaders.notify_all();
                    let guard = self.executor.wait_timeout(shared, LOOK_UP);
                    shared = guard.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Gives a group's slots back.
    pub(crate) fn complete(&self, bound: Bound<'a>) {
        let Bound { group, memory, .. } = bound;
        let mut shared = self.lock();
        for ((_, binding), (_, memory)) in group.records.iter().zip(memory) {
            if let (Some(binding), Lent::Slot(memory)) = (binding, memory) {
                shared.slots[binding.slot()] = Some(memory);
            }
        }
        shared.sequence.complete(group);
        shared.free(self.recorder);
        drop(shared);
        self.loaders.notify_all();
    }
}

/// One loader, and what it has taken. One that panics ends its read as one that failed, and the
/// request with it, so that nobody waits for it.
struct Loader<'p, 'a> {
    pipeline: &'p Pipeline<'a>,
    taken: Option<(Read, Vec<Slot<'a>>)>,
}

impl<'a> Loader<'_, 'a> {
    /// Gives back what was taken, with what became of it.
    fn settle(&mut self, shared: &mut Shared<'a>, result: Result<(), RunError>) {
        if let Some((read, slots)) = self.taken.take() {
            for (slot, memory) in read.slots.iter().zip(slots) {
                shared.slots[slot.slot()] = Some(memory);
            }
            shared.sequence.settle(read, result.is_ok());
            shared.free(self.pipeline.recorder);
        }
        if let Err(fault) = result {
            shared.sequence.stop();
            shared.fault.get_or_insert(fault);
        }
        self.pipeline.executor.notify_one();
        // A record that nobody needs has made room.
        self.pipeline.loaders.notify_all();
    }
}

impl Drop for Loader<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let pipeline = self.pipeline;
            let fault = RunError::Internal("a thread that reads experts panicked");
            self.settle(&mut pipeline.lock(), Err(fault));
        }
    }
}

/// Records that may be used, each with its memory.
pub(crate) struct Bound<'a> {
    group: Group,
    memory: Vec<(usize, Lent<'a>)>,
    spans: &'a Spans,
}

/// The memory of a record while it is executed.
enum Lent<'a> {
    /// Goes back to those who fill it.
    Slot(Slot<'a>),
    /// Stays as it is.
    Pinned(&'a [u8]),
}

impl Bound<'_> {
    /// Each record and its regions, ascending.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, Regions<'_>)> {
        let records = self.memory.iter();
        records.map(|(record, memory)| match memory {
            Lent::Slot(slot) => (*record, slot.regions(self.spans)),
            Lent::Pinned(bytes) => (*record, self.spans.cut(bytes)),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::AtomicUsize;

    use estream_schemas::exit::Exit;
    use estream_schemas::plan::{Schedule, StreamConfig};

    use super::*;

    /// Storage and a check of which one call unwinds.
    struct Breaks {
        read: usize,
        check: usize,
        reads: AtomicUsize,
        checks: AtomicUsize,
    }

    fn call(calls: &AtomicUsize, breaks: usize) -> Result<(), ReadError> {
        if calls.fetch_add(1, Ordering::Relaxed) == breaks {
            resume_unwind(Box::new("as told"));
        }
        Ok(())
    }

    impl Storage for Breaks {
        fn read(&self, _: usize, _: u64, _: &mut [[&mut [u8]; 3]]) -> Result<(), ReadError> {
            call(&self.reads, self.read)
        }
    }

    impl Check for Breaks {
        fn check(&self, _: usize, _: usize, _: Regions<'_>) -> Result<(), ReadError> {
            call(&self.checks, self.check)
        }
    }

    /// Runs one layer of four records, all with routes; `cancel` ends a hang.
    fn execute(pipeline: &Pipeline<'_>, cancel: &Cancel) -> Result<(), RunError> {
        pipeline.start(0);
        pipeline.route(vec![true; 4]);
        while let Some(bound) = pipeline.next(0, cancel)? {
            pipeline.complete(bound);
        }
        Ok(())
    }

    fn a_panic_ends_the_request(config: StreamConfig, read: usize, check: usize) {
        let breaks = Breaks {
            read,
            check,
            reads: AtomicUsize::new(0),
            checks: AtomicUsize::new(0),
        };
        let mut memory = vec![0; 4 * config.slots()];
        let (recorder, pins) = (Recorder::new(100).unwrap(), Pins::default());
        let spans = [Spans::of([1, 1, 2])];
        let pipeline = Pipeline::new(
            Sequence::new(config, vec![4], 1, 0),
            memory.chunks_mut(4).map(Slot::Whole).collect(),
            &breaks,
            &breaks,
            &spans,
            &pins,
            &recorder,
        );
        let (cancel, ended) = (Cancel::default(), AtomicBool::new(false));
        let result = std::thread::scope(|scope| {
            for thread in 1..=2 * config.depth {
                let pipeline = &pipeline;
                scope.spawn(move || catch_unwind(AssertUnwindSafe(|| pipeline.load(thread))));
            }
            scope.spawn(|| {
                for _ in 0..1000 {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                cancel.cancel();
            });
            let result = execute(&pipeline, &cancel);
            ended.store(true, Ordering::Relaxed);
            pipeline.close();
            result
        });
        let error = result.unwrap_err();
        assert!(
            matches!(error, RunError::Internal(_)),
            "{config:?}: {error}"
        );
        assert_eq!(error.exit(), Exit::Internal);
        let shared = pipeline.lock();
        assert!(!shared.sequence.is_reading(), "{config:?}");
        assert!(shared.slots.iter().all(Option::is_some), "{config:?}");
    }

    #[test]
    fn a_loader_that_panics_ends_the_request_and_keeps_no_slot() {
        const NEVER: usize = usize::MAX;
        for schedule in [
            Schedule::OnDemand,
            Schedule::Prefetch,
            Schedule::Early,
            Schedule::Compact,
            Schedule::Ahead,
        ] {
            for (group, depth, banks) in [(1, 1, 1), (2, 1, 1), (2, 2, 2)] {
                let config = StreamConfig::new(schedule, group, depth, banks, 1000);
                for at in 0..4 / group {
                    a_panic_ends_the_request(config, at, NEVER);
                }
                for at in 0..4 {
                    a_panic_ends_the_request(config, NEVER, at);
                }
            }
        }
    }
}
