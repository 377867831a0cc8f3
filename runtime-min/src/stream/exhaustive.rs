//! Every interleaving of loaders, an executor, failures and cancellation, for small requests.

use std::collections::HashSet;

use estream_schemas::plan::{Schedule, StreamConfig, is_pinned};

use super::sequence::{Group, Next, Read, Sequence};

/// Which records of each step have routes.
type Routes = &'static [&'static [bool]];

const X: bool = true;
const O: bool = false;

/// A request in the middle: what the threads hold, and how far the executor is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    sequence: Sequence,
    pinned: usize,
    /// Reads under way, and reads that have returned.
    flying: Vec<Read>,
    returned: Vec<Read>,
    running: Option<Group>,
    step: usize,
    stage: Stage,
    /// Records of this step that were executed.
    executed: Vec<usize>,
    /// (step, record) of everything that was ever asked for.
    asked: Vec<(usize, usize)>,
    /// Asked for before the routes of its step were known, by step.
    early: Vec<usize>,
    failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// In what comes before the routes.
    Before,
    Routed,
    Finished,
}

impl World {
    fn new(config: StreamConfig, layers: Vec<usize>, pinned: usize) -> World {
        let steps = layers.len();
        let mut sequence = Sequence::new(config, layers, 1, pinned);
        sequence.start(0);
        World {
            sequence,
            pinned,
            flying: Vec::new(),
            returned: Vec::new(),
            running: None,
            step: 0,
            stage: Stage::Before,
            executed: Vec::new(),
            asked: Vec::new(),
            early: vec![0; steps],
            failed: false,
        }
    }

    /// Every state that one action of one thread leads to.
    fn successors(&self, routes: Routes, config: &StreamConfig, faults: bool) -> Vec<World> {
        let mut list = Vec::new();
        let mut issue = self.clone();
        if let Some(read) = issue.sequence.next_read() {
            issue.check_read(&read, routes, config);
            issue.flying.push(read);
            list.push(issue);
        }
        for at in 0..self.flying.len() {
            let mut next = self.clone();
            let read = next.flying.remove(at);
            next.sequence.returned();
            next.returned.push(read);
            list.push(next);
        }
        for at in 0..self.returned.len() {
            let mut next = self.clone();
            let read = next.returned.remove(at);
            next.sequence.settle(read, true);
            list.push(next);
            if faults && !self.failed {
                let mut next = self.clone();
                let read = next.returned.remove(at);
                next.sequence.settle(read, false);
                next.sequence.stop();
                next.failed = true;
                list.push(next);
            }
        }
        if faults && !self.failed {
            let mut cancelled = self.clone();
            cancelled.sequence.stop();
            cancelled.failed = true;
            list.push(cancelled);
        }
        list.extend(self.executor(routes));
        list
    }

    fn executor(&self, routes: Routes) -> Option<World> {
        let mut next = self.clone();
        match self.stage {
            Stage::Finished => return None,
            // After a fault it gives back what it has, and ends.
            _ if self.failed => {
                if let Some(group) = next.running.take() {
                    next.sequence.complete(group);
                }
                next.stage = Stage::Finished;
            }
            Stage::Before => {
                next.sequence.route(routes[self.step].to_vec());
                next.stage = Stage::Routed;
            }
            Stage::Routed => match next.running.take() {
                Some(group) => next.sequence.complete(group),
                None => match next.sequence.next_group() {
                    Next::Run(group) => {
                        for (record, binding) in &group.records {
                            let pinned = is_pinned(*record, routes[self.step].len(), self.pinned);
                            assert_eq!(pinned, binding.is_none(), "a slot, unless it is pinned");
                        }
                        let records = group.records.iter().map(|(record, _)| *record);
                        next.executed.extend(records);
                        next.running = Some(group);
                    }
                    // It waits; but its asking may have changed what is read.
                    Next::Wait if next.sequence == self.sequence => return None,
                    Next::Wait => {}
                    Next::Done => {
                        let needed = (0..routes[self.step].len()).filter(|r| routes[self.step][*r]);
                        assert_eq!(
                            self.executed,
                            needed.collect::<Vec<_>>(),
                            "in storage order"
                        );
                        next.executed.clear();
                        next.step += 1;
                        next.stage = match next.step < routes.len() {
                            true => Stage::Before,
                            false => Stage::Finished,
                        };
                        if next.stage == Stage::Before {
                            next.sequence.start(next.step);
                        }
                    }
                },
            },
        }
        Some(next)
    }

    fn check_read(&mut self, read: &Read, routes: Routes, config: &StreamConfig) {
        assert!(self.flying.len() < config.depth, "more reads than Q");
        let known = (read.step, Stage::Routed) == (self.step, self.stage);
        for record in (read.first..).take(read.slots.len()) {
            let owner = (read.step, record);
            let there = is_pinned(record, routes[read.step].len(), self.pinned);
            assert!(!there, "{owner:?} is in memory");
            assert!(!self.asked.contains(&owner), "{owner:?} is read twice");
            self.asked.push(owner);
            if !known {
                self.early[read.step] += 1;
            }
        }
        let needed = &routes[read.step][read.first..][..read.slots.len()];
        match config.schedule {
            Schedule::OnDemand => {
                assert!(
                    self.flying.is_empty() && self.running.is_none(),
                    "nothing overlaps"
                );
                assert!(known);
            }
            Schedule::Prefetch => assert!(known, "nothing is read before routes are known"),
            Schedule::Early => assert_eq!(read.step, self.step, "a layer at a time"),
            Schedule::Compact | Schedule::Ahead => {
                assert!(!known || !needed.contains(&false), "routed records only");
                assert!(self.early[read.step] <= config.early_records);
                if config.schedule == Schedule::Compact {
                    assert_eq!(read.step, self.step);
                } else if read.step > self.step {
                    let records = routes[self.step].len();
                    let mut rest = (0..records).filter(|r| routes[self.step][*r]);
                    let all = rest.all(|record| {
                        is_pinned(record, records, self.pinned)
                            || self.asked.contains(&(self.step, record))
                    });
                    assert!(all, "a record of this layer has no slot yet");
                }
            }
            Schedule::Resident => unreachable!("nothing is read"),
        }
        if config.schedule != Schedule::Compact && config.schedule != Schedule::Ahead && known {
            assert!(needed.contains(&true), "a group nobody needs");
        }
    }
}

/// Goes through every state that can be reached, and returns how many there are.
fn explore(config: StreamConfig, pinned: usize, routes: Routes, faults: bool) -> usize {
    let layers = routes.iter().map(|layer| layer.len()).collect();
    let mut open = vec![World::new(config, layers, pinned)];
    let mut seen: HashSet<World> = open.iter().cloned().collect();
    let mut finished = 0;
    while let Some(world) = open.pop() {
        let successors = world.successors(routes, &config, faults);
        if successors.is_empty() {
            // Nothing can happen any more: then all is done, and every slot is free again
            // but for what was read for nobody.
            assert_eq!(world.stage, Stage::Finished, "{config:?}: everybody waits");
            assert!(!world.sequence.is_reading());
            finished += 1;
        }
        for next in successors {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert!(finished > 0);
    seen.len()
}

const REQUESTS: [Routes; 4] = [
    &[&[X, X, X, X, X], &[X, X, X, X, X]],
    &[&[O, X, O, O, X], &[X, O, O, O, O]],
    &[&[O, O, O, O, O], &[O, O, X, X, O]],
    &[&[X, O, X, O], &[X, X], &[O, O, O, X]],
];

fn streaming() -> impl Iterator<Item = Schedule> {
    let all = Schedule::ALL.into_iter();
    all.filter(|schedule| *schedule != Schedule::Resident)
}

#[test]
fn every_interleaving_ends_with_every_needed_record_executed_once() {
    let mut states = 0;
    for schedule in streaming() {
        for (group, depth, banks) in [(1, 1, 1), (2, 1, 1), (2, 2, 2), (1, 2, 3), (5, 2, 2)] {
            for early_records in [0, 1, 4] {
                for routes in REQUESTS {
                    let config = StreamConfig {
                        schedule,
                        group,
                        depth,
                        banks,
                        early_records,
                    };
                    states += explore(config, 0, routes, false);
                }
            }
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn a_failed_read_or_a_cancellation_at_any_moment_ends_too() {
    for schedule in streaming() {
        for (group, depth, banks) in [(2, 1, 1), (2, 2, 2), (1, 2, 2)] {
            for routes in REQUESTS {
                let config = StreamConfig {
                    schedule,
                    group,
                    depth,
                    banks,
                    early_records: 2,
                };
                explore(config, 0, routes, true);
            }
        }
    }
}

#[test]
fn records_that_are_in_memory_are_executed_in_their_place_and_never_read() {
    for schedule in streaming().filter(|schedule| schedule.is_by_record()) {
        for (group, depth, banks) in [(1, 1, 1), (2, 2, 2)] {
            for early_records in [0, 2] {
                let config = StreamConfig {
                    schedule,
                    group,
                    depth,
                    banks,
                    early_records,
                };
                for routes in REQUESTS {
                    for pinned in [1, 2] {
                        explore(config, pinned, routes, true);
                    }
                    // All are there, so that every state is the executor's: it never waits.
                    let steps: usize = routes.iter().map(|layer| 2 + 2 * layer.len()).sum();
                    assert!(explore(config, 5, routes, false) <= 1 + steps);
                }
            }
        }
    }
}
