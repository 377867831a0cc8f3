//! What happened when, and what it says about the overlap of reading and computing.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::error::RunError;

/// What somebody did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// A loader read records.
    Read,
    /// A loader compared records with their digests; at the end they may be used.
    Verify,
    /// The executor ran what comes before the experts of a step: attention, router.
    Layer,
    /// The executor ran experts.
    Experts,
    /// The executor ran what comes after the last experts of a chunk, the head with it.
    Head,
    /// The executor waited for records.
    Wait,
    /// A slot held a record, or was kept for it.
    Slot,
}

impl Doing {
    /// Its name in a timeline.
    pub fn name(self) -> &'static str {
        match self {
            Doing::Read => "read",
            Doing::Verify => "verify",
            Doing::Layer => "layer",
            Doing::Experts => "experts",
            Doing::Head => "head",
            Doing::Wait => "wait",
            Doing::Slot => "record",
        }
    }

    /// Whether the executor computes.
    fn computes(self) -> bool {
        matches!(self, Doing::Layer | Doing::Experts | Doing::Head)
    }
}

/// One interval of one thread, or of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub doing: Doing,
    /// 0 for the executor, else a loader; of [`Doing::Slot`], the slot.
    pub thread: usize,
    /// The step of the pass: a layer with experts, of a chunk.
    pub step: usize,
    /// The first record, counted in storage order.
    pub first: usize,
    /// Records from there on. What is read, or waited for, may have some among them that nobody
    /// needs; what is executed has not.
    pub records: usize,
    /// Nanoseconds since the request began.
    pub start_ns: u64,
    /// The same, at the end.
    pub end_ns: u64,
}

/// Times of one request, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// T_io: some read was outstanding.
    pub io_ns: u64,
    /// T_exec: the executor computed.
    pub exec_ns: u64,
    /// Both at once.
    pub both_ns: u64,
    /// T_total: from the request to the last result.
    pub total_ns: u64,
}

impl Overlap {
    /// Of a request that took `total_ns`. What still went on then, as a read for nobody may, is
    /// counted up to there.
    pub fn of(events: &[Event], total_ns: u64) -> Overlap {
        let of = |wanted: fn(Doing) -> bool| {
            let events = events.iter().filter(|event| wanted(event.doing));
            union(events.map(|event| (event.start_ns.min(total_ns), event.end_ns.min(total_ns))))
        };
        let io = of(|doing| doing == Doing::Read);
        let exec = of(Doing::computes);
        let length = |spans: &[(u64, u64)]| spans.iter().map(|(start, end)| end - start).sum();
        let (mut both_ns, mut rest) = (0, &exec[..]);
        for (start, end) in &io {
            while let [(from, to), others @ ..] = rest {
                both_ns += end.min(to).saturating_sub(*start.max(from));
                if to > end {
                    break;
                }
                rest = others;
            }
        }
        Overlap {
            io_ns: length(&io),
            exec_ns: length(&exec),
            both_ns,
            total_ns,
        }
    }

    /// 1 − max(T_io, T_exec) / T_total: time in which the slower of the two stood still (paper Fig. 6).
    pub fn bubble(&self) -> f64 {
        match self.total_ns {
            0 => 0.0,
            total => 1.0 - self.io_ns.max(self.exec_ns) as f64 / total as f64,
        }
    }

    /// |T_io ∩ T_exec| / T_io.
    pub fn overlap(&self) -> f64 {
        match self.io_ns {
            0 => 0.0,
            io => self.both_ns as f64 / io as f64,
        }
    }
}

/// The union of intervals, as disjoint ones in order.
fn union(intervals: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for span in intervals {
        // They come by their ends, so that few change places; a sort is 5 KB of the runner.
        spans.insert(spans.partition_point(|other| *other <= span), span);
    }
    let mut union: Vec<(u64, u64)> = Vec::new();
    for (start, end) in spans {
        match union.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => union.push((start, end)),
        }
    }
    union
}

/// The most events that are about one record: in a slot, read, verified, waited for, executed.
pub(crate) const EVENTS_A_RECORD: u64 = 5;
/// The most that are about what a layer has besides, or about the head.
pub(crate) const EVENTS_A_STEP: u64 = 1;

/// Memory of so many events.
pub(crate) fn timeline_bytes(events: u64) -> u64 {
    events.saturating_mul(size_of::<Event>() as u64)
}

fn no_memory(events: u64) -> RunError {
    RunError::Memory {
        what: "a timeline",
        bytes: timeline_bytes(events),
    }
}

/// Takes events of all threads of a request.
#[derive(Debug)]
pub(crate) struct Recorder {
    began: Instant,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    /// With room for so many events, which the system gives when they happen.
    pub(crate) fn new(most: u64) -> Result<Recorder, RunError> {
        let mut events = Vec::new();
        let room = usize::try_from(most).map_err(|_| no_memory(most))?;
        events
            .try_reserve_exact(room)
            .map_err(|_| no_memory(most))?;
        Ok(Recorder {
            began: Instant::now(),
            events: Mutex::new(events),
        })
    }

    /// Nanoseconds since the request began.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn add(&self, event: Event) {
        self.events().push(event);
    }

    /// The executor has computed since `start_ns`: `records`, if they are experts.
    pub(crate) fn computed(&self, doing: Doing, step: usize, records: Range<usize>, start_ns: u64) {
        self.add(Event {
            doing,
            thread: 0,
            step,
            first: records.start,
            records: records.len(),
            start_ns,
            end_ns: self.now(),
        });
    }

    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events())
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(doing: Doing, start_ns: u64, end_ns: u64) -> Event {
        Event {
            doing,
            thread: 0,
            step: 0,
            first: 0,
            records: 1,
            start_ns,
            end_ns,
        }
    }

    #[test]
    fn times_are_those_of_a_timeline_made_by_hand() {
        let events = [
            event(Doing::Read, 0, 10),
            event(Doing::Read, 5, 20),
            event(Doing::Layer, 0, 4),
            event(Doing::Wait, 4, 20),
            event(Doing::Experts, 18, 30),
            event(Doing::Read, 25, 40),
            event(Doing::Verify, 40, 45),
            event(Doing::Experts, 45, 50),
        ];
        let overlap = Overlap::of(&events, 60);
        let expected = Overlap {
            io_ns: 20 + 15,
            exec_ns: 4 + 12 + 5,
            both_ns: 4 + 2 + 5,
            total_ns: 60,
        };
        assert_eq!(overlap, expected);
        assert!((overlap.bubble() - (1.0 - 35.0 / 60.0)).abs() < 1e-12);
        assert!((overlap.overlap() - 11.0 / 35.0).abs() < 1e-12);
        let backwards: Vec<_> = events.into_iter().rev().collect();
        assert_eq!(Overlap::of(&backwards, 60), expected);
        // The last result was there at 30: what went on after it is no part of the request.
        let clipped = Overlap {
            io_ns: 20 + 5,
            exec_ns: 4 + 12,
            both_ns: 4 + 2 + 5,
            total_ns: 30,
        };
        assert_eq!(Overlap::of(&events, 30), clipped);
    }

    #[test]
    fn nothing_that_happened_is_no_bubble_of_anything() {
        let overlap = Overlap::of(&[], 0);
        assert_eq!((overlap.bubble(), overlap.overlap()), (0.0, 0.0));
        let serial = [event(Doing::Read, 0, 5), event(Doing::Experts, 5, 10)];
        assert_eq!(Overlap::of(&serial, 10).both_ns, 0);
    }
}
