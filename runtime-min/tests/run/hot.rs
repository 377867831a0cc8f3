//! A request of a hot device follows the plan's column for that, in the same model and with the same bits.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use estream_runtime::reader::BundleReader;
use estream_runtime::stats::Stats;
use estream_runtime::{
    Column, Doing, LoadOptions, Memory, Model, Outcome, Pin, Positions, Request, RunError,
    Streaming,
};
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};
use estream_schemas::profile::{Rate, Storage};

use crate::rows::{Rows, load};
use crate::streams::{STREAMING, config, ids, streaming};
use crate::toy::{Packing, Toy};

const TOKENS: u32 = 20;

fn row(stream: StreamConfig, hot: Option<StreamConfig>) -> PlanRow {
    PlanRow {
        max_tokens: 1,
        stream,
        hot,
        chunk: None,
    }
}

fn both(stream: StreamConfig, hot: StreamConfig) -> Streaming {
    Streaming::new(vec![row(stream, Some(hot))]).unwrap()
}

fn options(streaming: Streaming) -> LoadOptions {
    LoadOptions {
        threads: NonZeroUsize::new(1),
        streaming: Some(streaming),
        expected: Some((TOKENS as usize, None)),
        ..LoadOptions::default()
    }
}

fn open(bundle: &Path, streaming: Streaming) -> Model {
    let reader = BundleReader::open(bundle).unwrap();
    Model::load(&reader, &options(streaming)).unwrap()
}

fn run(model: &mut Model, hot: bool) -> (Vec<u32>, Outcome) {
    let mut rows = Rows::default();
    let request = Request {
        positions: Positions::All,
        hidden: true,
        hot,
        ..Request::default()
    };
    let outcome = model.prefill(&ids(TOKENS), &request, &mut rows).unwrap();
    (rows.bits(), outcome)
}

fn largest_read(outcome: &Outcome) -> usize {
    let reads = outcome.events.iter().filter(|e| e.doing == Doing::Read);
    reads.map(|read| read.records).max().unwrap()
}

#[test]
fn requests_of_one_model_are_hot_or_not_with_the_same_bits() {
    let dir = Toy::new().bundle(&Packing::default());
    let all = Rows::of(&mut load(dir.path(), 2), &ids(TOKENS), Positions::All).bits();
    for schedule in STREAMING {
        let cold = config(schedule, (1, 1, 2));
        for hot in STREAMING {
            let hot = config(hot, (3, 2, 3));
            for (stream, other) in [(cold, hot), (hot, cold)] {
                let mut model = open(dir.path(), both(stream, other));
                for is_hot in [false, true, true, false] {
                    let (bits, outcome) = run(&mut model, is_hot);
                    let (column, ran) = match is_hot {
                        true => (Column::Hot, other),
                        false => (Column::Cold, stream),
                    };
                    assert!(bits == all, "{ran:?}");
                    assert_eq!((outcome.column, outcome.stream), (column, Some(ran)));
                    // Every expert has tokens, so that groups are full.
                    assert_eq!(largest_read(&outcome), ran.group, "{ran:?}");
                }
            }
        }
    }
}

/// What a model that is loaded so can take.
fn memory(bundle: &Path, streaming: Streaming) -> Memory {
    Memory {
        process_bytes: 0,
        ..open(bundle, streaming).memory(TOKENS as usize, None)
    }
}

#[test]
fn the_arena_and_the_ceiling_hold_either_column() {
    let dir = Toy::new().bundle(&Packing::default());
    let small = config(Schedule::Compact, (1, 1, 2));
    // More slots, and more threads that load.
    let large = config(Schedule::Early, (2, 3, 4));
    let alone = [small, large].map(|stream| memory(dir.path(), streaming(stream)));
    let slot = 3 * 64 * 64 * 4;
    assert_eq!(alone[1].expert_bytes - alone[0].expert_bytes, 6 * slot);
    assert!(alone[1].stack_bytes > alone[0].stack_bytes);
    for (stream, hot) in [(small, large), (large, small), (large, large)] {
        assert_eq!(memory(dir.path(), both(stream, hot)), alone[1]);
    }
    // The slots of one column and the reads of the other.
    let wide = config(Schedule::Ahead, (4, 1, 3));
    let mixed = memory(dir.path(), both(large, wide));
    let of_wide = memory(dir.path(), streaming(wide));
    assert_eq!(mixed.expert_bytes, of_wide.expert_bytes);
    assert_eq!(mixed.stack_bytes, alone[1].stack_bytes);
}

#[test]
fn a_budget_too_small_for_the_hot_column_is_refused_before_a_weight_is_read() {
    let dir = Toy::new().bundle(&Packing::default());
    let small = config(Schedule::Compact, (1, 1, 2));
    let large = config(Schedule::Compact, (4, 1, 2));
    let [cold, hot] = [streaming(small), both(small, large)]
        .map(|streaming| memory(dir.path(), streaming).total_bytes());
    assert!(cold < hot);
    let reader = BundleReader::open(dir.path()).unwrap();
    for file in ["resident.bin", "experts-00001.bin"] {
        std::fs::write(dir.path().join(file), "").unwrap();
    }
    let mut options = options(both(small, large));
    options.budget_bytes = Some(hot - 1);
    match Model::load(&reader, &options).unwrap_err() {
        RunError::Budget {
            ceiling, budget, ..
        } => assert!(ceiling >= hot && budget == hot - 1),
        other => panic!("{other}"),
    }
    // What fits is read, and nothing is there.
    options.budget_bytes = None;
    let error = Model::load(&reader, &options).unwrap_err();
    assert!(matches!(error, RunError::Read(_)), "{error}");
}

#[test]
fn without_a_hot_column_a_hot_request_is_one_like_any_other_and_says_so() {
    let dir = Toy::new().bundle(&Packing::default());
    let stream = config(Schedule::Ahead, (2, 2, 2));
    let told = |model: &Model, outcome: &Outcome| {
        let stats = Stats::new(model, outcome, Duration::ZERO, "plan x");
        (stats.plan, stats.stream.map(|stream| stream.hot))
    };
    let mut model = open(dir.path(), streaming(stream));
    let (bits, outcome) = run(&mut model, true);
    assert_eq!(outcome.stream, Some(stream));
    assert_eq!(outcome.column, Column::NoHot);
    let says = told(&model, &outcome);
    assert_eq!(says, ("plan x, no hot column".to_owned(), Some(false)));
    let (same, outcome) = run(&mut model, false);
    assert!(bits == same);
    let says = told(&model, &outcome);
    assert_eq!(says, ("plan x".to_owned(), Some(false)));

    let mut model = open(dir.path(), both(stream, config(Schedule::Early, (1, 1, 1))));
    let (_, outcome) = run(&mut model, true);
    let says = told(&model, &outcome);
    assert_eq!(says, ("plan x, hot".to_owned(), Some(true)));

    // What is resident does not stream, whatever the weather.
    let mut resident = load(dir.path(), 1);
    let (_, outcome) = run(&mut resident, true);
    assert_eq!((outcome.column, outcome.stream), (Column::Cold, None));
    let says = told(&resident, &outcome);
    assert_eq!(says, ("plan x".to_owned(), None));
}

#[test]
fn a_hot_column_that_cannot_be_is_refused_as_any_other() {
    let stream = config(Schedule::Ahead, (2, 2, 2));
    let with = |hot| Streaming::new(vec![row(stream, Some(hot))]);
    let error = with(config(Schedule::Ahead, (2, 3, 2))).unwrap_err();
    assert!(matches!(error, RunError::Stream(_)), "{error}");
    let error = with(config(Schedule::Resident, (1, 1, 1))).unwrap_err();
    assert!(matches!(error, RunError::PartlyResident), "{error}");
    let early = with(config(Schedule::Early, (2, 2, 2))).unwrap();
    let error = early.pinned(Pin::Records(1)).unwrap_err();
    assert!(
        matches!(error, RunError::Pins { schedule: "early" }),
        "{error}"
    );
    // Three pages of 16 KiB hold two projections, and no three.
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let limited = |hot| options(both(stream, hot).limited(Some(3 << 14)));
    let fits = limited(config(Schedule::Ahead, (2, 1, 3)));
    Model::load(&reader, &fits).unwrap();
    let error = Model::load(&reader, &limited(config(Schedule::Ahead, (3, 1, 1)))).unwrap_err();
    assert!(
        matches!(error, RunError::Buffer { group: 3, .. }),
        "{error}"
    );
}

#[test]
fn imitated_storage_is_hot_when_the_request_is() {
    let dir = Toy::new().bundle(&Packing::default());
    let rate = |bytes_per_second| {
        vec![Rate {
            read_bytes: 1,
            outstanding: 1,
            bytes_per_second,
        }]
    };
    let (fast, slow) = (1 << 40, 8_000_000);
    for (rates, hot_rates, is_hot) in [(fast, slow, true), (slow, fast, false)] {
        let storage = Storage {
            latency_ns: 0,
            rates: rate(rates),
            hot_rates: rate(hot_rates),
            buffer_bytes: None,
        };
        // One read at a time: reads take as long as all of their bytes do.
        let streaming = streaming(config(Schedule::Early, (2, 1, 2))).throttled(storage);
        let mut model = open(dir.path(), streaming);
        let (_, outcome) = run(&mut model, is_hot);
        let stats = Stats::new(&model, &outcome, Duration::ZERO, "");
        let read_bytes = stats.stream.unwrap().read_bytes;
        let least = Duration::from_nanos(read_bytes * 1_000_000_000 / slow);
        assert!(least > Duration::from_millis(40));
        assert!(
            outcome.elapsed >= least,
            "{:?} for {least:?}",
            outcome.elapsed
        );
    }
}
