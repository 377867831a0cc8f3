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
use crate::store::RunRecord;

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
    /// Why reading stopped.
    fault: Option<ReadError>,
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
            let layer = shared.sequence.layer(read.step);
            drop(shared);
            let result = self.read(thread, layer, &read, &mut slots);
            shared = self.lock();
            for (slot, memory) in read.slots.iter().zip(slots) {
                shared.slots[slot.slot()] = Some(memory);
            }
            shared.sequence.settle(read, result.is_ok());
            if let Err(fault) = result {
                shared.sequence.stop();
                shared.fault.get_or_insert(fault);
            }
            self.executor.notify_one();
            // A record that nobody needs has made room.
            self.loaders.notify_all();
        }
    }

    fn read(
        &self,
        thread: usize,
        layer: usize,
        read: &Read,
        slots: &mut [Slot<'a>],
    ) -> Result<(), ReadError> {
        let spans = &self.spans[layer];
        let mut records: Vec<_> = slots
            .iter_mut()
            .map(|slot| slot.regions_mut(spans))
            .collect();
        let event = |doing, start_ns| Event {
            doing,
            thread,
            step: read.step,
            first: read.first,
            records: read.slots.len(),
            start_ns,
            end_ns: self.recorder.now(),
        };
        let start = self.recorder.now();
        let result = self.storage.read(layer, read.first as u64, &mut records);
        self.recorder.add(event(Doing::Read, start));
        // The next read goes out while these bytes are looked at.
        self.lock().sequence.returned();
        self.loaders.notify_one();
        result?;
        let start = self.recorder.now();
        let mut records = (read.first..).zip(&*slots);
        let result =
            records.try_for_each(|(at, slot)| self.check.check(layer, at, slot.regions(spans)));
        self.recorder.add(event(Doing::Verify, start));
        result
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
        self.lock().sequence.route(routed);
        self.loaders.notify_all();
    }

    /// The next group of the step, with the memory of its records; none when it is done.
    pub(crate) fn next(&self, step: usize, cancel: &Cancel) -> Result<Option<Bound<'a>>, RunError> {
        let start = self.recorder.now();
        let mut waited = false;
        let mut shared = self.lock();
        loop {
            if let Some(fault) = shared.fault.take() {
                return Err(fault.into());
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
                    if waited {
                        self.recorder.add(Event {
                            doing: Doing::Wait,
                            thread: 0,
                            step,
                            first: memory.first().map_or(0, |(record, _)| *record),
                            records: memory.len(),
                            start_ns: start,
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
                    waited = true;
                    self.loaders.notify_all();
                    let guard = self.executor.wait_timeout(shared, LOOK_UP);
                    shared = guard.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Calls `run` for each record of a group.
    pub(crate) fn timed(
        &self,
        step: usize,
        bound: &Bound<'a>,
        run: RunRecord<'_>,
    ) -> Result<(), RunError> {
        let start_ns = self.recorder.now();
        let result = bound
            .records()
            .try_for_each(|(record, regions)| run(record, regions));
        self.recorder.add(Event {
            doing: Doing::Experts,
            thread: 0,
            step,
            first: bound.records().next().map_or(0, |(record, _)| record),
            records: bound.memory.len(),
            start_ns,
            end_ns: self.recorder.now(),
        });
        result
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
        drop(shared);
        self.loaders.notify_all();
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
