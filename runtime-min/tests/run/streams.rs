//! Experts that pass through an arena give the bits of experts that stay, and faults end
//! one request only.

use std::num::NonZeroUsize;
use std::path::Path;

use estream_runtime::reader::{BundleReader, Verify};
use estream_runtime::{
    Doing, Event, LoadOptions, Model, Outcome, Positions, Request, RunError, Streaming,
};
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};

use crate::rows::{Rows, load};
use crate::toy::{EXPERTS, LAYERS, Packing, Toy, VOCAB};

pub(crate) fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 7 + i * i) % VOCAB as u32).collect()
}

pub(crate) fn config(
    schedule: Schedule,
    (group, depth, banks): (usize, usize, usize),
) -> StreamConfig {
    StreamConfig::new(schedule, group, depth, banks, 1000)
}

pub(crate) fn streaming(stream: StreamConfig) -> Streaming {
    let row = PlanRow {
        max_tokens: 1,
        stream,
        hot: None,
        chunk: None,
    };
    Streaming::new(vec![row]).unwrap()
}

pub(crate) fn open(bundle: &Path, stream: StreamConfig, verify: Verify) -> Result<Model, RunError> {
    open_with(bundle, streaming(stream), verify)
}

pub(crate) fn open_with(
    bundle: &Path,
    streaming: Streaming,
    verify: Verify,
) -> Result<Model, RunError> {
    let reader = BundleReader::open(bundle)?;
    let options = LoadOptions {
        threads: NonZeroUsize::new(1),
        streaming: Some(streaming),
        verify,
        ..LoadOptions::default()
    };
    Model::load(&reader, &options)
}

pub(crate) fn run(
    model: &mut Model,
    ids: &[u32],
    chunk: usize,
) -> Result<(Rows, Outcome), RunError> {
    let mut rows = Rows::default();
    let request = Request {
        positions: Positions::All,
        hidden: true,
        chunk: NonZeroUsize::new(chunk),
        kept_bytes: 0,
        hot: false,
    };
    let outcome = model.prefill(ids, &request, &mut rows)?;
    Ok((rows, outcome))
}

pub(crate) const STREAMING: [Schedule; 5] = [
    Schedule::OnDemand,
    Schedule::Prefetch,
    Schedule::Early,
    Schedule::Compact,
    Schedule::Ahead,
];

#[test]
fn every_schedule_has_the_bits_of_experts_that_stay() {
    let toy = Toy::new();
    for packing in [
        Packing::default(),
        Packing {
            shards: 2,
            order: vec![2, 0, 3, 1],
            tiles: true,
        },
    ] {
        let dir = toy.bundle(&packing);
        for count in [1, 3, 64] {
            let ids = ids(count);
            let all = Rows::of(&mut load(dir.path(), 2), &ids, Positions::All).bits();
            for schedule in STREAMING {
                for numbers in [
                    (1, 1, 1),
                    (1, 2, 3),
                    (2, 1, 2),
                    (3, 2, 2),
                    (8, 1, 1),
                    (8, 2, 2),
                ] {
                    let stream = config(schedule, numbers);
                    let mut model = open(dir.path(), stream, Verify::FirstUse).unwrap();
                    for chunk in [64, 5] {
                        let (rows, outcome) = run(&mut model, &ids, chunk).unwrap();
                        assert!(rows.bits() == all, "{stream:?}, {count} in {chunk}s");
                        assert_eq!(outcome.stream, Some(stream));
                    }
                }
            }
        }
    }
}

#[test]
fn the_papers_coarser_ways_are_numbers_of_the_same_code() {
    let dir = Toy::new().bundle(&Packing::default());
    let ids = ids(40);
    let all = Rows::of(&mut load(dir.path(), 1), &ids, Positions::All).bits();
    // One record at a time; two layers in turn; a place for every layer.
    for numbers in [(1, 1, 3), (EXPERTS, 2, 2), (EXPERTS, 2, LAYERS)] {
        for schedule in STREAMING {
            let mut model = open(dir.path(), config(schedule, numbers), Verify::Always).unwrap();
            let (rows, outcome) = run(&mut model, &ids, 40).unwrap();
            assert!(rows.bits() == all, "{schedule:?}, {numbers:?}");
            let events = outcome.events.iter();
            let reads: Vec<&Event> = events.filter(|event| event.doing == Doing::Read).collect();
            assert!(reads.iter().all(|read| read.records <= numbers.0));
            if schedule == Schedule::Early {
                assert_eq!(reads.len(), LAYERS * EXPERTS.div_ceil(numbers.0));
            }
        }
    }
}

#[test]
fn one_buffer_one_a_bank_and_three_a_bank_give_the_same_bits() {
    let toy = Toy::new();
    for shards in [1, 2] {
        let packing = Packing {
            shards,
            ..Packing::default()
        };
        let dir = toy.bundle(&packing);
        let reader = BundleReader::open(dir.path()).unwrap();
        let ids = ids(20);
        let all = Rows::of(&mut load(dir.path(), 1), &ids, Positions::All).bits();
        // Records are three regions of one page of 16 KiB each.
        let page = 16 << 10;
        for schedule in STREAMING {
            let mut memory = Vec::new();
            for limit in [None, Some(7 * page), Some(7 * page - 1), Some(3 * page)] {
                let stream = streaming(config(schedule, (2, 2, 3))).limited(limit);
                let options = LoadOptions {
                    threads: NonZeroUsize::new(1),
                    streaming: Some(stream),
                    verify: Verify::Always,
                    ..LoadOptions::default()
                };
                let mut model = Model::load(&reader, &options).unwrap();
                for chunk in [20, 7] {
                    let (rows, _) = run(&mut model, &ids, chunk).unwrap();
                    assert!(rows.bits() == all, "{schedule:?}, {limit:?}");
                }
                memory.push(model.memory(20, None).expert_bytes / page);
            }
            // Alignment takes a page of each buffer.
            assert_eq!(memory, [18 + 1, 18 + 3, 18 + 9, 18 + 9]);
        }
    }
}

#[test]
fn a_buffer_one_byte_too_large_is_refused_before_a_weight_is_read() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    std::fs::write(dir.path().join("resident.bin"), "").unwrap();
    let limited = streaming(config(Schedule::Ahead, (2, 2, 3))).limited(Some(3 * 16384 - 1));
    let options = LoadOptions {
        streaming: Some(limited),
        ..LoadOptions::default()
    };
    let error = Model::load(&reader, &options).unwrap_err();
    assert!(matches!(error, RunError::Buffer { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("2 · 16384 + 16384 = 49152"), "{text}");
    assert!(text.contains("-G 1"), "{text}");
}

#[test]
fn a_flipped_byte_is_found_before_it_is_used_and_the_next_request_is_unharmed() {
    let toy = Toy::new();
    for schedule in STREAMING {
        let dir = toy.bundle(&Packing::default());
        let file = dir.path().join("experts-00001.bin");
        let whole = std::fs::read(&file).unwrap();
        let stream = config(schedule, (2, 2, 2));
        let mut model = open(dir.path(), stream, Verify::Always).unwrap();
        let expected = run(&mut model, &ids(20), 20).unwrap().0.bits();
        let mut broken = whole.clone();
        *broken.last_mut().unwrap() ^= 1;
        std::fs::write(&file, &broken).unwrap();
        let error = run(&mut model, &ids(20), 20).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("experts-00001.bin") && text.contains("digest"),
            "{text}"
        );
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        let error = run(&mut model, &ids(20), 20).unwrap_err().to_string();
        assert!(error.contains("truncated"), "{error}");
        std::fs::write(&file, &whole).unwrap();
        let again = run(&mut model, &ids(20), 20).unwrap().0.bits();
        assert!(again == expected, "{schedule:?}");
    }
}

#[test]
fn a_cancelled_request_ends_and_the_next_one_runs() {
    let dir = Toy::new().bundle(&Packing::default());
    let mut model = open(
        dir.path(),
        config(Schedule::Ahead, (1, 1, 1)),
        Verify::Never,
    )
    .unwrap();
    let cancel = model.canceller();
    cancel.cancel();
    let error = run(&mut model, &ids(20), 20).unwrap_err();
    assert!(matches!(error, RunError::Cancelled), "{error}");
    cancel.reset();
    run(&mut model, &ids(20), 20).unwrap();
}

#[test]
fn a_budget_one_byte_below_the_ceiling_is_refused_before_a_weight_is_read() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let stream = config(Schedule::Ahead, (1, 1, 2));
    let mut options = LoadOptions {
        threads: NonZeroUsize::new(1),
        streaming: Some(streaming(stream)),
        expected: Some((20, None)),
        ..LoadOptions::default()
    };
    let ceiling = Model::load(&reader, &options).unwrap().memory(20, None);
    // What the process has by itself changes from moment to moment.
    let floor = ceiling.total_bytes() - ceiling.process_bytes;
    std::fs::write(dir.path().join("resident.bin"), "").unwrap();
    options.budget_bytes = Some(floor - 1);
    let error = Model::load(&reader, &options).unwrap_err();
    let RunError::Budget {
        ceiling, budget, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(*ceiling >= floor && *budget == floor - 1);
    assert!(error.to_string().contains("experts "), "{error}");
}

#[test]
fn the_most_rows_of_a_pass_are_those_of_the_plan_unless_asked_otherwise() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let stream = config(Schedule::Ahead, (2, 2, 2));
    let row = |max_tokens, chunk| PlanRow {
        max_tokens,
        stream,
        hot: None,
        chunk,
    };
    let options = LoadOptions {
        threads: NonZeroUsize::new(1),
        streaming: Some(Streaming::new(vec![row(20, None), row(40, Some(16))]).unwrap()),
        ..LoadOptions::default()
    };
    let mut model = Model::load(&reader, &options).unwrap();
    let whole = NonZeroUsize::new(40);
    assert!(model.memory(40, None).total_bytes() < model.memory(40, whole).total_bytes());
    for (tokens, chunk, chunks) in [(20, None, 1), (40, None, 3), (40, whole, 1)] {
        let request = Request {
            chunk,
            ..Request::default()
        };
        let ids = ids(tokens);
        let outcome = model.prefill(&ids, &request, &mut Rows::default()).unwrap();
        assert_eq!(outcome.chunks, chunks, "{tokens}, {chunk:?}");
        assert_eq!(outcome.memory, model.memory(ids.len(), chunk));
    }
}

#[test]
fn a_plan_that_streams_some_prompts_only_is_refused() {
    let row = |max_tokens, schedule| PlanRow {
        max_tokens,
        stream: config(schedule, (2, 2, 2)),
        hot: None,
        chunk: None,
    };
    let rows = vec![row(20, Schedule::Ahead), row(40, Schedule::Resident)];
    let error = Streaming::new(rows).unwrap_err();
    assert!(matches!(error, RunError::PartlyResident), "{error}");
}

#[test]
fn rows_of_a_plan_may_need_more_or_fewer_slots() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let row = |max_tokens, schedule, numbers| PlanRow {
        max_tokens,
        stream: config(schedule, numbers),
        hot: None,
        chunk: None,
    };
    for schedule in STREAMING {
        let rows = vec![
            row(10, schedule, (1, 1, 2)),
            row(20, Schedule::Early, (2, 2, 3)),
            row(40, schedule, (2, 1, 1)),
        ];
        let options = LoadOptions {
            threads: NonZeroUsize::new(1),
            streaming: Some(Streaming::new(rows).unwrap()),
            ..LoadOptions::default()
        };
        let mut model = Model::load(&reader, &options).unwrap();
        for tokens in [8, 20, 40, 8] {
            let ids = ids(tokens);
            let all = Rows::of(&mut load(dir.path(), 1), &ids, Positions::All).bits();
            let (rows, _) = run(&mut model, &ids, ids.len()).unwrap();
            assert!(rows.bits() == all, "{schedule:?}, {tokens}");
        }
    }
}
