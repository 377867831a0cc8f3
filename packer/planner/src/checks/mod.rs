//! Questions of all kinds, and what has to be true of each.

mod arena;
mod forecast;
mod numbers;
mod recurrence;
mod runtime;
mod schedules;
mod search;

use estream_schemas::manifest::ALIGN;
use estream_schemas::plan::Schedule;
use estream_schemas::profile::{Limits, OtherTime, Rate, RecordTime, Service, Storage};

use crate::{GroupSize, LayerSize, Problem, Question, Search, Workload};

/// Numbers that are the same in every run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % end
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    fn count(&mut self, low: usize, high: usize) -> usize {
        usize::try_from(self.between(low as u64, high as u64)).unwrap()
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// All take equally long.
    Equal,
    /// Longer for more bytes.
    BySize,
}

/// A question of small numbers. `routed` percent of the records have routes.
pub(crate) fn question(dice: &mut Dice, reads: Reads, routed: u64) -> Question {
    let (latency_ns, bytes_per_second) = match reads {
        Reads::Equal => (dice.between(0, 60), u64::MAX),
        // A byte a nanosecond.
        Reads::BySize => (dice.between(0, 20), 1_000_000_000),
    };
    let rate = |outstanding, percent| Rate {
        read_bytes: 1,
        outstanding,
        bytes_per_second: bytes_per_second / 100 * percent,
    };
    let equal = dice.chance(60);
    let record_bytes = dice.between(1, 60);
    let records = dice.count(1, 14);
    let layers = (0..dice.count(1, 4)).map(|_| match equal {
        true => LayerSize {
            records,
            record_bytes,
        },
        false => LayerSize {
            records: dice.count(1, 14),
            record_bytes: dice.between(1, 60),
        },
    });
    let layers: Vec<_> = layers.collect();
    let largest = layers.iter().map(|layer| layer.record_bytes).max().unwrap();
    let workloads = (0..dice.count(1, 2)).map(|_| {
        let tokens = dice.between(1, 200);
        let steps = layers.len() * dice.count(1, 2);
        let routes = (0..steps).map(|step| {
            let records = layers[step % layers.len()].records;
            let rows = (0..records).map(|_| match dice.chance(routed) {
                true => dice.between(1, tokens),
                false => 0,
            });
            rows.collect()
        });
        Workload {
            routes: routes.collect(),
            weight: dice.between(1, 3),
            tokens,
        }
    });
    let workloads = workloads.collect();
    let mut groups: Vec<usize> = [1, 2, 3, 4, 8].into();
    groups.remove(dice.count(0, 4));
    groups.rotate_left(dice.count(0, 3));
    let groups = groups.into_iter().map(|group| GroupSize {
        group,
        other_bytes: dice.between(0, 100),
        mapped_bytes: 10,
    });
    let groups = groups.collect();
    Question {
        storage: Storage {
            latency_ns,
            rates: vec![
                rate(1, dice.between(30, 100)),
                rate(2, dice.between(80, 100)),
                rate(3, 100),
            ],
            hot_rates: Vec::new(),
            // Some banks fit, some in three buffers alone, some not at all.
            buffer_bytes: dice.chance(20).then_some(ALIGN + 120),
        },
        service: Service {
            name: "x".to_owned(),
            record_bytes: largest,
            tile_rows: dice.between(1, 32),
            capacity: dice.chance(30).then(|| dice.between(1, 60)),
            other: vec![OtherTime {
                tokens: 100,
                group: None,
                ns: dice.between(0, 200),
            }],
            records: vec![RecordTime {
                rows: 100,
                ns: dice.between(0, 60),
            }],
            dispatch_ns: dice.between(0, 10),
            publish_ns: dice.between(0, 3),
            head_ns: dice.between(0, 30),
        },
        limits: Limits {
            mapping_bytes: dice.chance(20).then_some(700),
            buffers: dice.chance(20).then_some(4),
            ..Limits::default()
        },
        budget_bytes: dice.between(50, 1500),
        region_bytes: largest.div_ceil(3),
        pinned: 0,
        layers,
        groups,
        depths: vec![1, 2, 3],
        search: Search::Nested,
        schedules: Schedule::ALL.into(),
        workloads,
    }
}

/// As [`question`], and whatever fits is looked at.
pub(crate) fn roomy(dice: &mut Dice, reads: Reads, routed: u64) -> Problem {
    let mut question = question(dice, reads, routed);
    question.budget_bytes = u64::MAX;
    question.limits = Limits::default();
    question.storage.buffer_bytes = None;
    Problem::new(question).unwrap()
}
