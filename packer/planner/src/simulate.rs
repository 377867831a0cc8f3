//! A request, event by event: what is read and run when, as the runtime decides it.
//!
//! Reads take as long as a profile says of Q under way, the executor runs one group at a time, and nothing
//! else takes time. At one moment reads land first, then the executor goes on, then reads are issued. Which
//! slot a record has does not matter, but for schedules that use banks in turn.

use estream_schemas::plan::{Schedule, StreamConfig, is_pinned};

use crate::evaluate::{Outcome, Prediction, Tally};
use crate::forecast::{Span, What};
use crate::problem::Problem;
use crate::times::{ReadTimes, Request, Step};

/// Where a record of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    Unread,
    Coming,
    Here,
    /// In memory of its own, where it stays.
    Pinned,
    Gone,
}

/// A step whose records are read.
#[derive(Debug, Default)]
struct Front {
    step: usize,
    records: Vec<Whereabouts>,
    /// The bank of each slice, where banks are used.
    banks: Vec<usize>,
    is_known: bool,
    /// The first record that was neither read nor passed over.
    cursor: usize,
    /// The first record that was neither executed nor passed over.
    run: usize,
    /// The executor waits for a record that nobody has asked for.
    demanded: bool,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    end: u64,
    step: usize,
    first: usize,
    records: usize,
    bank: usize,
    /// Which of the Q, if somebody wants to know.
    lane: usize,
}

/// What the executor does.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// What comes before the routes.
    Other { end: u64 },
    /// Records that give their slots back.
    Group {
        end: u64,
        bank: usize,
        records: usize,
    },
    /// It waits for a read.
    Nothing,
    /// The request is done.
    Done,
    /// It would not end before the bound.
    Late,
}

struct Simulation<'a> {
    problem: &'a Problem,
    request: &'a Request,
    times: &'a ReadTimes,
    config: &'a StreamConfig,
    least_ns: &'a [u64],
    bound: u64,
    now: u64,
    doing: Doing,
    front: Front,
    /// The step after that.
    ahead: Front,
    flights: Vec<Flight>,
    /// Slots of each bank that somebody has; one bank where slots are free one by one.
    used: Vec<usize>,
    /// Slots of each.
    bank_slots: usize,
    banks_used: usize,
    submissions: u64,
    outcome: Outcome,
    tally: Tally,
    spans: Option<&'a mut Vec<Span>>,
}

/// The request with one configuration; its end is left out if it is not before `bound`, and then what else is
/// predicted means nothing. `least_ns` is a lower bound of what is left from each step on. What happens when
/// is added to `spans`.
pub(crate) fn simulate(
    problem: &Problem,
    request: &Request,
    times: &ReadTimes,
    config: &StreamConfig,
    (least_ns, bound): (&[u64], u64),
    spans: Option<&mut Vec<Span>>,
) -> (Outcome, Prediction) {
    let by_slot = matches!(config.schedule, Schedule::Compact | Schedule::Ahead);
    let banks = if by_slot { 1 } else { config.banks };
    let mut simulation = Simulation {
        problem,
        request,
        times,
        config,
        least_ns,
        bound,
        now: 0,
        doing: Doing::Nothing,
        front: Front::default(),
        ahead: Front::default(),
        flights: Vec::with_capacity(config.depth.min(64)),
        used: vec![0; banks],
        bank_slots: if by_slot {
            config.slots()
        } else {
            config.group
        },
        banks_used: 0,
        submissions: 0,
        outcome: Outcome::default(),
        tally: Tally::default(),
        spans,
    };
    simulation.ahead.open(0, request, problem.question().pinned);
    simulation.start(0);
    simulation.go();
    let (last, head_ns) = (simulation.front.step, request.head_ns);
    simulation.span(What::Head, last, (0, 0), simulation.now + head_ns);
    let Simulation {
        now,
        doing,
        submissions,
        mut outcome,
        tally,
        ..
    } = simulation;
    let total_ns = now + request.head_ns;
    if matches!(doing, Doing::Done) && total_ns < bound {
        outcome.total_ns = Some(total_ns);
    }
    let dispatch_ns = submissions * request.dispatch_ns;
    let exec_ns = request.exec_ns(|_| 0) + dispatch_ns;
    (outcome, tally.finish(request, exec_ns, total_ns))
}

impl Front {
    /// Begins with a step, of which nothing is read but `pinned` records are there.
    fn open(&mut self, step: usize, request: &Request, pinned: usize) {
        self.step = step;
        self.records.clear();
        let records = request.steps.get(step).map_or(0, Step::records);
        self.records.resize(records, Whereabouts::Unread);
        if pinned > 0 {
            for record in (0..records).filter(|record| is_pinned(*record, records, pinned)) {
                self.records[record] = Whereabouts::Pinned;
            }
        }
        self.banks.clear();
        self.is_known = false;
        self.cursor = 0;
        self.run = 0;
        self.demanded = false;
    }

    /// The first record from `from` on that is needed, or may be; the number of records if there is none.
    fn needed(&self, step: &Step, from: usize) -> usize {
        let mut record = from;
        while self.is_known && record < self.records.len() && !step.is_routed(record) {
            record += 1;
        }
        record
    }

    /// Whether a record is needed, or may be, and has to be read for that.
    fn may_be_read(&self, step: &Step, record: usize) -> bool {
        let needed = !self.is_known || step.is_routed(record);
        needed && self.records[record] != Whereabouts::Pinned
    }

    /// How many records before `end` are not pinned.
    fn unpinned(&self, end: usize) -> usize {
        let records = self.records[..end].iter();
        records.filter(|at| **at != Whereabouts::Pinned).count()
    }
}

impl Simulation<'_> {
    fn step(&self) -> &Step {
        &self.request.steps[self.front.step]
    }

    fn by_slot(&self) -> bool {
        matches!(self.config.schedule, Schedule::Compact | Schedule::Ahead)
    }

    fn go(&mut self) {
        loop {
            self.land();
            self.execute();
            if matches!(self.doing, Doing::Done | Doing::Late) {
                return;
            }
            while self.flights.len() < self.config.depth && self.issue() {}
            let landing = self.flights.iter().map(|flight| flight.end).min();
            let ending = match self.doing {
                Doing::Other { end } | Doing::Group { end, .. } => Some(end),
                _ => None,
            };
            match landing.into_iter().chain(ending).min() {
                Some(next) => self.now = next,
                // Nothing can happen any more: no configuration leads here.
                None => return,
            }
        }
    }

    /// Begins a step: with what comes before its routes are known.
    fn start(&mut self, step: usize) {
        if self.now + self.least_ns[step] >= self.bound {
            self.doing = Doing::Late;
            return;
        }
        std::mem::swap(&mut self.front, &mut self.ahead);
        let pinned = self.problem.question().pinned;
        self.ahead.open(step + 1, self.request, pinned);
        let end = self.now + self.request.other_ns;
        self.span(What::Other, step, (0, 0), end);
        self.doing = Doing::Other { end };
    }

    /// Takes down what begins now, if somebody wants to know.
    fn span(&mut self, what: What, step: usize, (first, records): (usize, usize), end_ns: u64) {
        if let Some(spans) = &mut self.spans {
            spans.push(Span {
                what,
                step,
                first,
                records,
                start_ns: self.now,
                end_ns,
            });
        }
    }

    /// Reads that have ended: their records are here, or nobody needs them.
    fn land(&mut self) {
        let mut at = 0;
        while at < self.flights.len() {
            if self.flights[at].end > self.now {
                at += 1;
                continue;
            }
            let Flight {
                step,
                first,
                records,
                bank,
                ..
            } = self.flights.remove(at);
            let routes = &self.request.steps[step];
            let front = match step {
                step if step == self.front.step => Some(&mut self.front),
                step if step == self.ahead.step => Some(&mut self.ahead),
                _ => None,
            };
            let Some(front) = front else {
                self.used[bank] -= records;
                continue;
            };
            for record in first..first + records {
                if front.is_known && !routes.is_routed(record) {
                    front.records[record] = Whereabouts::Gone;
                    self.used[bank] -= 1;
                } else {
                    front.records[record] = Whereabouts::Here;
                }
            }
        }
    }

    /// What the executor does at this moment.
    fn execute(&mut self) {
        loop {
            match self.doing {
                Doing::Other { end } if end <= self.now => {
                    self.route();
                    self.doing = Doing::Nothing;
                }
                Doing::Group { end, bank, records } if end <= self.now => {
                    self.used[bank] -= records;
                    self.doing = Doing::Nothing;
                }
                Doing::Nothing => {
                    let first = self.front.needed(self.step(), self.front.run);
                    if first < self.front.records.len() {
                        if !self.next_group(first) {
                            return;
                        }
                    } else if self.front.step + 1 < self.request.steps.len() {
                        self.start(self.front.step + 1);
                    } else {
                        self.doing = Doing::Done;
                    }
                }
                _ => return,
            }
        }
    }

    /// The routes of the step are known. Records that are here in vain go.
    fn route(&mut self) {
        self.front.is_known = true;
        let group = self.config.group;
        for record in 0..self.front.cursor {
            if self.front.records[record] == Whereabouts::Here && !self.step().is_routed(record) {
                self.front.records[record] = Whereabouts::Gone;
                let bank = match self.by_slot() {
                    true => 0,
                    false => self.front.banks[record / group],
                };
                self.used[bank] -= 1;
            }
        }
    }

    /// Runs the group that begins with a record that is needed, if what it takes is here.
    fn next_group(&mut self, first: usize) -> bool {
        let group = self.config.group;
        let records = self.front.records.len();
        let resident = self.config.schedule == Schedule::Resident;
        let end = match self.by_slot() {
            true => records,
            false => records.min((first / group + 1) * group),
        };
        let (mut count, mut last) = (0, first);
        let mut record = first;
        while count < group && record < end {
            let at = self.front.records[record];
            let here = resident || matches!(at, Whereabouts::Here | Whereabouts::Pinned);
            if !here && self.by_slot() {
                break;
            }
            if !here {
                count = 0;
                break;
            }
            count += 1;
            last = record;
            record = self.front.needed(self.step(), record + 1);
        }
        if count == 0 {
            self.front.demanded = self.front.cursor <= first;
            return false;
        }
        let run_ns = self.step().run(first, last + 1) + self.request.dispatch_ns;
        let bank = match self.by_slot() || resident {
            true => 0,
            false => self.front.banks[first / group],
        };
        let mut slots = 0;
        for at in &mut self.front.records[first..=last] {
            slots += usize::from(*at == Whereabouts::Here);
            if *at != Whereabouts::Pinned {
                *at = Whereabouts::Gone;
            }
        }
        self.front.run = last + 1;
        self.submissions += 1;
        let end = self.now + run_ns;
        self.span(What::Group, self.front.step, (first, count), end);
        self.doing = Doing::Group {
            end,
            bank,
            records: slots,
        };
        true
    }

    /// Issues the next read, if there is one now.
    fn issue(&mut self) -> bool {
        match self.config.schedule {
            Schedule::Resident => false,
            Schedule::OnDemand | Schedule::Prefetch | Schedule::Early => self.next_slice(),
            Schedule::Compact => self.next_run(false),
            Schedule::Ahead => {
                self.next_run(false)
                    || self.front.is_known
                        && self.front.cursor == self.front.records.len()
                        && self.next_run(true)
            }
        }
    }

    /// The next slice of G records into the next bank, if that is free.
    fn next_slice(&mut self) -> bool {
        let schedule = self.config.schedule;
        if schedule != Schedule::Early && !self.front.is_known {
            return false;
        }
        if schedule == Schedule::OnDemand && !(self.front.demanded && self.flights.is_empty()) {
            return false;
        }
        let (group, records) = (self.config.group, self.front.records.len());
        loop {
            let first = self.front.cursor;
            let end = records.min(first + group);
            if first >= end {
                return false;
            }
            if self.front.is_known && self.step().routed(first, end) == 0 {
                self.front.cursor = end;
                self.front.banks.push(0);
                continue;
            }
            let bank = self.banks_used % self.config.banks;
            if self.used[bank] > 0 {
                self.outcome.held = true;
                return false;
            }
            self.banks_used += 1;
            self.front.banks.push(bank);
            self.front.cursor = end;
            self.front.demanded = false;
            self.read(false, first, end - first, bank);
            return true;
        }
    }

    /// The next run of records that are needed, or may be, into any free slots.
    fn next_run(&mut self, ahead: bool) -> bool {
        let front = if ahead { &self.ahead } else { &self.front };
        let Some(step) = self.request.steps.get(front.step) else {
            return false;
        };
        let records = front.records.len();
        let mut rest = front.cursor..records;
        let first = rest.find(|record| front.may_be_read(step, *record));
        let first = first.unwrap_or(records);
        let early = self.config.early_records;
        let most = match front.is_known {
            true => records,
            false => early.saturating_sub(front.unpinned(first)),
        };
        // How many are read early depends on B.
        self.outcome.held |= !front.is_known && early < records;
        let wanted = (first..records).take(self.config.group.min(most));
        let wanted = wanted.take_while(|record| front.may_be_read(step, *record));
        let wanted = wanted.count();
        let count = wanted.min(self.bank_slots - self.used[0]);
        self.outcome.held |= count < wanted;
        let front = if ahead {
            &mut self.ahead
        } else {
            &mut self.front
        };
        front.cursor = first + count;
        if count > 0 {
            self.read(ahead, first, count, 0);
        }
        count > 0
    }

    fn read(&mut self, ahead: bool, first: usize, records: usize, bank: usize) {
        let front = if ahead {
            &mut self.ahead
        } else {
            &mut self.front
        };
        front.records[first..first + records].fill(Whereabouts::Coming);
        self.used[bank] += records;
        let layer = self.request.layer(front.step);
        let end = self.now + self.times.read_ns(layer, records);
        let step = front.step;
        let taken = |lane: &usize| self.flights.iter().any(|flight| flight.lane == *lane);
        let lane = match self.spans {
            None => None,
            Some(_) => (0..self.config.depth).find(|lane| !taken(lane)),
        };
        let lane = lane.unwrap_or(0);
        self.flights.push(Flight {
            end,
            step,
            first,
            records,
            bank,
            lane,
        });
        self.span(What::Read { lane }, step, (first, records), end);
        let record_bytes = self.problem.question().layers[layer].record_bytes;
        self.tally.read(self.now, end, records, record_bytes);
    }
}
