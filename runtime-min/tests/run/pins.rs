//! Experts that stay in memory while others stream change no bit, and are read once.

use std::num::NonZeroUsize;
use std::path::Path;

use estream_runtime::reader::{BundleReader, Verify};
use estream_runtime::{Choice, Doing, LoadOptions, Model, Pin, Positions, RunError};
use estream_schemas::plan::{Schedule, StreamConfig, is_pinned};

use crate::rows::{Rows, load};
use crate::streams::{config, ids, run, streaming};
use crate::toy::{EXPERTS, LAYERS, Packing, Toy};

fn options(stream: StreamConfig, pin: Pin) -> Result<LoadOptions, RunError> {
    Ok(LoadOptions {
        threads: NonZeroUsize::new(1),
        streaming: Some(streaming(stream).pinned(pin)?),
        ..LoadOptions::default()
    })
}

fn open(bundle: &Path, stream: StreamConfig, pinned: usize) -> Model {
    let reader = BundleReader::open(bundle).unwrap();
    let options = options(stream, Pin::Records(pinned)).unwrap();
    Model::load(&reader, &options).unwrap()
}

#[test]
fn records_that_stay_change_no_bit_and_are_never_read_again() {
    let toy = Toy::new();
    let cut = Packing {
        shards: 2,
        order: vec![2, 0, 3, 1],
        tiles: true,
    };
    for packing in [Packing::default(), cut] {
        let dir = toy.bundle(&packing);
        let records = EXPERTS * packing.shards;
        let ids = ids(20);
        let all = Rows::of(&mut load(dir.path(), 2), &ids, Positions::All).bits();
        for schedule in [Schedule::Compact, Schedule::Ahead] {
            for numbers in [(1, 1, 1), (2, 2, 3), (8, 2, 2)] {
                for pinned in [1, 3, records, records + 1] {
                    let mut model = open(dir.path(), config(schedule, numbers), pinned);
                    let mut runs_pinned = 0;
                    for chunk in [20, 6] {
                        let (rows, outcome) = run(&mut model, &ids, chunk).unwrap();
                        assert!(rows.bits() == all, "{schedule:?}, {numbers:?}, {pinned}");
                        for event in outcome.events.iter().filter(|e| e.doing == Doing::Read) {
                            let mut read = event.first..event.first + event.records;
                            assert!(!read.any(|record| is_pinned(record, records, pinned)));
                        }
                        assert!(outcome.records_pinned <= outcome.records_run);
                        if pinned >= records {
                            assert_eq!(outcome.records_pinned, outcome.records_run);
                        }
                        runs_pinned += outcome.records_pinned;
                    }
                    assert!(runs_pinned > 0);
                }
            }
        }
    }
}

#[test]
fn where_all_stay_no_request_touches_the_file() {
    let dir = Toy::new().bundle(&Packing::default());
    let mut model = open(dir.path(), config(Schedule::Ahead, (1, 1, 1)), EXPERTS);
    let expected = run(&mut model, &ids(20), 20).unwrap().0.bits();
    std::fs::write(dir.path().join("experts-00001.bin"), "").unwrap();
    let again = run(&mut model, &ids(20), 20).unwrap().0.bits();
    assert!(again == expected);
}

#[test]
fn what_stays_is_compared_with_its_digest_when_it_is_loaded() {
    let dir = Toy::new().bundle(&Packing::default());
    let file = dir.path().join("experts-00001.bin");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let reader = BundleReader::open(dir.path()).unwrap();
    let mut options = options(config(Schedule::Ahead, (1, 1, 1)), Pin::Records(1)).unwrap();
    let error = Model::load(&reader, &options).unwrap_err().to_string();
    assert!(
        error.contains("record 0") && error.contains("digest"),
        "{error}"
    );
    options.verify = Verify::Never;
    Model::load(&reader, &options).unwrap();
}

#[test]
fn schedules_that_read_slices_refuse_pins_by_name() {
    for schedule in [Schedule::OnDemand, Schedule::Prefetch, Schedule::Early] {
        let error = options(config(schedule, (2, 2, 2)), Pin::Records(1)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(schedule.name()) && text.contains("--pin"),
            "{text}"
        );
        options(config(schedule, (2, 2, 2)), Pin::Records(0)).unwrap();
    }
}

#[test]
fn max_pins_fill_the_budget_and_go_no_further() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let experts = &reader.bundle().manifest().experts;
    let one_each = LAYERS as u64 * experts.slot_bytes;
    let mut options = options(config(Schedule::Ahead, (1, 1, 1)), Pin::Max).unwrap();
    let error = Model::load(&reader, &options).unwrap_err();
    assert!(matches!(error, RunError::PinsWithoutBudget), "{error}");
    options.expected = Some((20, None));
    options.budget_bytes = Some(u64::MAX);
    let model = Model::load(&reader, &options).unwrap();
    assert_eq!(model.pinned(), EXPERTS);
    let memory = model.memory(20, None);
    assert_eq!(memory.pinned_bytes, EXPERTS as u64 * one_each);
    // What the process has by itself changes from moment to moment, so that the numbers of pins
    // differ, but never what they are held to.
    let floor = memory.total_bytes() - memory.pinned_bytes;
    let mut some = 0;
    for step in 0..64 {
        let budget = floor + step * one_each / 2;
        options.budget_bytes = Some(budget);
        match Model::load(&reader, &options) {
            Ok(model) => {
                let ceiling = model.memory(20, None).total_bytes();
                assert!(ceiling <= budget);
                assert!(model.pinned() == EXPERTS || ceiling + one_each > budget);
                some += model.pinned();
            }
            Err(RunError::Budget { terms, .. }) => assert!(terms.contains("pinned 0"), "{terms}"),
            Err(other) => panic!("{other}"),
        }
    }
    assert!(some > 0);
}

#[test]
fn a_plan_says_what_stays_and_its_profile_how_large_a_buffer_may_be() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let bundle = reader.identity();
    std::fs::create_dir(dir.path().join("plans")).unwrap();
    let load = |buffer_bytes: u64, pin: Option<Pin>| {
        let storage = format!(r#"{{"latency_ns":0,"rates":[],"buffer_bytes":{buffer_bytes}}}"#);
        let stream = r#"{"schedule":"ahead","group":2,"depth":2,"banks":3,"early_records":1}"#;
        let text = format!(
            r#"{{"format":"estream-plan","version":1,"bundle":"{bundle}","pinned":3,
                "profile":{{"name":"x","storage":{storage}}},
                "rows":[{{"max_tokens":64,"stream":{stream}}}]}}"#
        );
        std::fs::write(dir.path().join("plans/x.json"), text).unwrap();
        let choice = Choice {
            plan: Some("x".into()),
            pin,
            ..Choice::default()
        };
        let options = LoadOptions {
            streaming: choice.resolve(&reader)?.streaming,
            ..LoadOptions::default()
        };
        Model::load(&reader, &options)
    };
    assert_eq!(load(3 << 14, None).unwrap().pinned(), 3);
    assert_eq!(load(3 << 14, Some(Pin::Records(1))).unwrap().pinned(), 1);
    let error = load((3 << 14) - 1, None).unwrap_err();
    assert!(matches!(error, RunError::Buffer { .. }), "{error}");
}
