//! What is read next, into which slots, and what may run: the schedules of paper §3.4 and
//! two that go on where those stop.
//!
//! Nothing here reads, computes, waits or looks at a clock. Threads ask under one lock, so
//! every interleaving of theirs is a sequence of these calls.
//!
//! A pass goes through *steps*, one a layer with experts and chunk of the prompt. Records are
//! read in storage order, and they are executed in storage order.

use estream_schemas::plan::{Schedule, StreamConfig, is_pinned};

use super::residency::{Binding, Loaded, Owner, Reserved, Residency};

/// Where a record of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whereabouts {
    /// In the file, and nobody has asked for it.
    Unread,
    /// On its way.
    Coming,
    /// In a slot.
    Here(Loaded),
    /// In memory of its own, where it was before the request and stays.
    Pinned,
    /// It was executed, or is being executed, or turned out not to be needed.
    Gone,
}

/// A step whose records are read.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
struct Front {
    step: usize,
    records: Vec<Whereabouts>,
    /// By record, once routes are known.
    routed: Option<Vec<bool>>,
    /// The first record that was neither read nor passed over.
    cursor: usize,
    /// The first record that was neither executed nor passed over.
    run: usize,
    /// Whether the executor waits for a record that nobody has asked for.
    demanded: bool,
}

impl Front {
    fn new(step: usize, records: usize, pinned: usize) -> Front {
        let whereabouts = |record| match is_pinned(record, records, pinned) {
            true => Whereabouts::Pinned,
            false => Whereabouts::Unread,
        };
        Front {
            step,
            records: (0..records).map(whereabouts).collect(),
            routed: None,
            cursor: 0,
            run: 0,
            demanded: false,
        }
    }

    /// Whether the record is needed, as far as that is known.
    fn may_be_needed(&self, record: usize) -> bool {
        self.routed.as_ref().is_none_or(|routed| routed[record])
    }

    /// Whether the record is needed, as far as that is known, and has to be read for that.
    fn may_be_read(&self, record: usize) -> bool {
        self.records[record] != Whereabouts::Pinned && self.may_be_needed(record)
    }

    /// Whether every record that is needed has been asked for.
    fn is_asked_for(&self) -> bool {
        let mut rest = self.cursor..self.records.len();
        self.routed.is_some() && !rest.any(|record| self.may_be_read(record))
    }
}

/// One read: records that follow one another in the file, each with a slot of its own.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Read {
    /// The step it is for.
    pub(crate) step: usize,
    /// The first record.
    pub(crate) first: usize,
    /// Where each goes.
    pub(crate) slots: Vec<Reserved>,
}

/// Records that are executed together.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Group {
    /// Each record and the right to use its slot, ascending. One that is pinned has no slot.
    pub(crate) records: Vec<(usize, Option<Binding>)>,
}

/// What an executor does next.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
pub(crate) enum Next {
    /// These, then [`Sequence::complete`].
    Run(Group),
    /// Something has to be read first.
    Wait,
    /// The step is done.
    Done,
}

/// The reads and executions of one request.
#[derive(Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Sequence {
    config: StreamConfig,
    /// Records of each layer that has experts.
    layers: Vec<usize>,
    /// Records of each that are always in memory.
    pinned: usize,
    /// Steps of the whole request.
    steps: usize,
    residency: Residency,
    front: Option<Front>,
    /// The step after that, where a schedule reads for it.
    ahead: Option<Front>,
    /// Reads that have not returned.
    reading: usize,
    /// Reads that have not been dealt with.
    open: usize,
    /// Banks that were filled so far; they are used in turn.
    banks_used: usize,
    stopped: bool,
}

impl Sequence {
    /// For `chunks` passes over `layers`, each with so many records, `pinned` of which are there.
    pub(crate) fn new(
        config: StreamConfig,
        layers: Vec<usize>,
        chunks: usize,
        pinned: usize,
    ) -> Sequence {
        Sequence {
            steps: layers.len() * chunks,
            residency: Residency::new(config.slots()),
            front: None,
            ahead: None,
            reading: 0,
            open: 0,
            banks_used: 0,
            stopped: false,
            config,
            layers,
            pinned,
        }
    }

    /// The layer, among those with experts, that a step runs.
    pub(crate) fn layer(&self, step: usize) -> usize {
        step % self.layers.len()
    }

    /// The executor begins a step: with what comes before routes are known.
    pub(crate) fn start(&mut self, step: usize) {
        let known = self.ahead.take().filter(|front| front.step == step);
        self.front = Some(known.unwrap_or_else(|| self.front_of(step)));
        let next = step + 1;
        if self.config.schedule == Schedule::Ahead && next < self.steps {
            self.ahead = Some(self.front_of(next));
        }
    }

    fn front_of(&self, step: usize) -> Front {
        Front::new(step, self.layers[self.layer(step)], self.pinned)
    }

    /// Which records of the step have routes. Those that are there in vain go.
    pub(crate) fn route(&mut self, routed: Vec<bool>) {
        let Some(front) = &mut self.front else { return };
        for (record, needed) in front.records.iter_mut().zip(&routed) {
            if let Whereabouts::Here(loaded) = *record
                && !needed
            {
                // Nobody binds before routes are known.
                let _ = self.residency.retire(loaded);
                *record = Whereabouts::Gone;
            }
        }
        front.routed = Some(routed);
    }

    /// The next read, if there is one to issue now.
    pub(crate) fn next_read(&mut self) -> Option<Read> {
        if self.stopped || self.reading >= self.config.depth {
            return None;
        }
        let read = match self.config.schedule {
            Schedule::Resident => None,
            Schedule::OnDemand | Schedule::Prefetch | Schedule::Early => self.next_slice(),
            Schedule::Compact => self.next_run(false),
            Schedule::Ahead => self.next_run(false).or_else(|| {
                let front = self.front.as_ref();
                let done = front.is_some_and(Front::is_asked_for);
                done.then(|| self.next_run(true)).flatten()
            }),
        };
        if read.is_some() {
            self.reading += 1;
            self.open += 1;
        }
        read
    }

    /// The next slice of G records into the next bank, if that is free.
    fn next_slice(&mut self) -> Option<Read> {
        let group = self.config.group;
        let schedule = self.config.schedule;
        let front = self.front.as_mut()?;
        if schedule != Schedule::Early && front.routed.is_none() {
            return None;
        }
        if schedule == Schedule::OnDemand && !(front.demanded && self.reading == 0) {
            return None;
        }
        let slice = loop {
            let slice = front.cursor..front.records.len().min(front.cursor + group);
            if slice.is_empty() {
                return None;
            }
            if slice.clone().any(|record| front.may_be_needed(record)) {
                break slice;
            }
            front.records[slice.clone()].fill(Whereabouts::Gone);
            front.cursor = slice.end;
        };
        let bank = self.banks_used % self.config.banks;
        let slots = bank * group..(bank + 1) * group;
        if !slots.clone().all(|slot| self.residency.is_available(slot)) {
            return None;
        }
        front.cursor = slice.end;
        front.demanded = false;
        self.banks_used += 1;
        reserve(
            &mut self.residency,
            front,
            slice.start,
            slots.take(slice.len()),
        )
    }

    /// The next run of records that are needed, or may be, into any free slots.
    fn next_run(&mut self, ahead: bool) -> Option<Read> {
        let front = if ahead {
            &mut self.ahead
        } else {
            &mut self.front
        };
        let front = front.as_mut()?;
        let records = front.records.len();
        while front.cursor < records && !front.may_be_read(front.cursor) {
            front.cursor += 1;
        }
        let first = front.cursor;
        let most = match front.routed {
            Some(_) => records,
            None => {
                let asked = (0..first).filter(|record| front.may_be_read(*record));
                self.config.early_records.saturating_sub(asked.count())
            }
        };
        let run = (first..records).take(self.config.group.min(most));
        let run = run.take_while(|record| front.may_be_read(*record));
        let slots: Vec<usize> = self.residency.available().take(run.count()).collect();
        front.cursor += slots.len();
        reserve(&mut self.residency, front, first, slots)
    }

    /// The read has returned: another may be issued while its bytes are looked at.
    pub(crate) fn returned(&mut self) {
        self.reading -= 1;
    }

    /// The records of a read that has returned are whole and right, or not.
    pub(crate) fn settle(&mut self, read: Read, good: bool) {
        self.open -= 1;
        let fronts = [&mut self.front, &mut self.ahead];
        let mut front = fronts
            .into_iter()
            .flatten()
            .find(|front| front.step == read.step);
        for (record, slot) in (read.first..).zip(read.slots) {
            let front = front.as_mut();
            let needed = front.filter(|front| good && front.may_be_needed(record));
            match needed {
                Some(front) => {
                    front.records[record] = Whereabouts::Here(self.residency.publish(slot));
                }
                None => self.residency.abandon(slot),
            }
        }
    }

    /// What the executor runs next in this step, whose routes are known.
    pub(crate) fn next_group(&mut self) -> Next {
        let group = self.config.group;
        let Some(front) = &mut self.front else {
            return Next::Done;
        };
        let needed = |front: &Front, record: &usize| front.may_be_needed(*record);
        let rest = front.run..front.records.len();
        let Some(first) = rest.clone().find(|record| needed(front, record)) else {
            front.run = rest.end;
            return Next::Done;
        };
        let here = |record: usize| match front.records[record] {
            Whereabouts::Here(loaded) => Some((record, Some(loaded))),
            Whereabouts::Pinned => Some((record, None)),
            _ => None,
        };
        let ready: Option<Vec<_>> = match self.config.schedule {
            Schedule::Compact | Schedule::Ahead => {
                let rest = (first..rest.end).filter(|record| needed(front, record));
                let ready: Vec<_> = rest.take(group).map_while(here).collect();
                (!ready.is_empty()).then_some(ready)
            }
            _ => {
                let end = rest.end.min((first / group + 1) * group);
                let slice = (first..end).filter(|record| needed(front, record));
                slice.map(here).collect()
            }
        };
        let Some(ready) = ready else {
            front.demanded = front.cursor <= first;
            return Next::Wait;
        };
        let mut records = Vec::with_capacity(ready.len());
        for (record, loaded) in ready {
            let binding = loaded.map(|loaded| self.residency.bind(loaded));
            if binding.is_some() {
                front.records[record] = Whereabouts::Gone;
            }
            // What is here is Ready: it leaves that state only in this loop.
            if let Ok(binding) = binding.transpose() {
                records.push((record, binding));
            }
            front.run = record + 1;
        }
        Next::Run(Group { records })
    }

    /// The last use of a group has ended.
    pub(crate) fn complete(&mut self, group: Group) {
        for binding in group.records.into_iter().filter_map(|(_, binding)| binding) {
            self.residency.complete(binding);
        }
    }

    /// Whether nobody has the slot.
    pub(crate) fn is_free(&self, slot: usize) -> bool {
        self.residency.is_available(slot)
    }

    /// No read is issued from now on.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether a read is still under way, or its bytes not dealt with.
    #[cfg(test)]
    pub(crate) fn is_reading(&self) -> bool {
        self.open > 0
    }
}

/// Gives the records from `first` on the slots; none if there are no slots.
fn reserve(
    residency: &mut Residency,
    front: &mut Front,
    first: usize,
    slots: impl IntoIterator<Item = usize>,
) -> Option<Read> {
    let mut reserved = Vec::new();
    for (record, slot) in (first..).zip(slots) {
        let step = front.step;
        // Only slots that are available were chosen.
        if let Ok(slot) = residency.reserve(slot, Owner { step, record }) {
            front.records[record] = Whereabouts::Coming;
            reserved.push(slot);
        }
    }
    (!reserved.is_empty()).then_some(Read {
        step: front.step,
        first,
        slots: reserved,
    })
}
