//! Every order in which loaders and an executor can take the lock and wake each other, by loom:
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p estream-runtime --lib --release orders
//!
//! What [`exhaustive`](super::exhaustive) shows for the decisions, this shows for the threads around them:
//! nobody sleeps through a wake-up, and a slot's bytes are those of its record.

use std::sync::atomic::{AtomicUsize, Ordering};

use estream_schemas::plan::{Schedule, StreamConfig};
use loom::sync::Arc;
use loom::thread;

use super::arena::{Regions, Slot, Spans};
use super::pins::Pins;
use super::pipeline::{Cancel, Check, Pipeline};
use super::sequence::Sequence;
use super::storage::Storage;
use super::timeline::Recorder;
use crate::reader::ReadError;

/// A record of layer l is filled with 16·l + its place.
struct Numbers {
    /// The read that fails, counted from 1; 0 for none.
    fails: usize,
    reads: AtomicUsize,
}

impl Storage for Numbers {
    fn read(
        &self,
        layer: usize,
        first: u64,
        slots: &mut [[&mut [u8]; 3]],
    ) -> Result<(), ReadError> {
        let read = 1 + self.reads.fetch_add(1, Ordering::Relaxed);
        for (record, slot) in (first..).zip(slots.iter_mut()) {
            for region in slot {
                region.fill((16 * layer as u64 + record) as u8);
            }
        }
        match read == self.fails {
            true => Err(ReadError::NotFound {
                path: "flash".into(),
            }),
            false => Ok(()),
        }
    }
}

struct Anything;

impl Check for Anything {
    fn check(&self, _: usize, _: usize, _: Regions<'_>) -> Result<(), ReadError> {
        Ok(())
    }
}

fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// One request of two layers of two records, all but one of which have routes.
fn request(schedule: Schedule, loaders: usize, fails: usize) {
    let config = StreamConfig {
        schedule,
        group: 1,
        depth: 1,
        banks: 2,
        early_records: 1,
    };
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let slots = (0..2).map(|_| &mut *Box::leak(vec![0u8; 4].into_boxed_slice()));
        let slots = slots.map(Slot::Whole);
        let pipeline = Arc::new(Pipeline::new(
            Sequence::new(config, vec![2, 2], 1, 0),
            slots.collect(),
            leaked(Numbers {
                fails,
                reads: AtomicUsize::new(0),
            }),
            leaked(Anything),
            leaked([Spans::of([1, 1, 2]); 2]),
            leaked(Pins::default()),
            leaked(Recorder::new(100).unwrap()),
        ));
        let threads: Vec<_> = (0..loaders)
            .map(|thread| {
                let pipeline = Arc::clone(&pipeline);
                thread::spawn(move || pipeline.load(thread + 1))
            })
            .collect();
        let outcome = execute(&pipeline);
        pipeline.close();
        for thread in threads {
            thread.join().unwrap();
        }
        match fails {
            0 => assert_eq!(outcome, Some(vec![(0, 0), (0, 1), (1, 1)])),
            // Unless the failed record was read for nobody.
            _ => assert!(outcome.is_none_or(|ran| ran.len() == 3)),
        }
    });
}

/// Runs the request; none if a read failed.
fn execute(pipeline: &Pipeline<'static>) -> Option<Vec<(usize, usize)>> {
    let cancel = Cancel::default();
    let mut ran = Vec::new();
    for (step, routed) in [[true, true], [false, true]].into_iter().enumerate() {
        pipeline.start(step);
        pipeline.route(routed.to_vec());
        while let Some(bound) = pipeline.next(step, &cancel).ok()? {
            for (record, regions) in bound.records() {
                assert_eq!(
                    regions.concat(),
                    [(16 * step + record) as u8; 4],
                    "{step}, {record}"
                );
                ran.push((step, record));
            }
            pipeline.complete(bound);
        }
    }
    Some(ran)
}

#[test]
fn every_order_of_one_loader_and_an_executor_ends_right() {
    for schedule in [
        Schedule::OnDemand,
        Schedule::Prefetch,
        Schedule::Early,
        Schedule::Compact,
        Schedule::Ahead,
    ] {
        request(schedule, 1, 0);
    }
}

#[test]
fn every_order_of_two_loaders_ends_right() {
    for schedule in [Schedule::Early, Schedule::Ahead] {
        request(schedule, 2, 0);
    }
}

#[test]
fn a_read_that_fails_ends_the_request_in_every_order() {
    for fails in [1, 2] {
        request(Schedule::Ahead, 1, fails);
    }
}
