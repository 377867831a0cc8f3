//! A profile that is measured says what storage does, is one that a parser takes, and has everything
//! that planning needs.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;

use estream_runtime::measure::{Measure, Measured, RoutedRows, measure};
use estream_runtime::reader::BundleReader;
use estream_runtime::{LoadOptions, Model, Request, RunError};
use estream_schemas::profile::{Profile, Rate, Storage};

use crate::rows::Rows;
use crate::streams::ids;
use crate::toy::{EXPERTS, LAYERS, Packing, TOP_K, Toy};

/// Three matrices of 32 × 64 f32, each padded to 16 KiB.
const RECORD_BYTES: u64 = 3 * 16 * 1024;
/// Bytes a second, and half of those of two reads at a time.
const SLOW: u64 = 4_000_000;

fn storage() -> Storage {
    let rate = |outstanding, bytes_per_second| Rate {
        read_bytes: RECORD_BYTES,
        outstanding,
        bytes_per_second,
    };
    Storage {
        latency_ns: 10_000_000,
        rates: vec![rate(1, SLOW), rate(2, 2 * SLOW)],
        hot_rates: Vec::new(),
        buffer_bytes: None,
    }
}

fn what() -> Measure {
    Measure {
        tokens: vec![3, 24, 3],
        groups: vec![2, 1],
        runs: NonZeroUsize::MIN,
        load: LoadOptions {
            threads: NonZeroUsize::new(1),
            ..Measure::default().load
        },
        throttle: Some(storage()),
        ..Measure::default()
    }
}

fn of(bundle: &Path, what: &Measure) -> Result<Measured, RunError> {
    measure(&BundleReader::open(bundle).unwrap(), what, &mut |_| ())
}

#[test]
fn storage_is_measured_as_fast_as_it_is() {
    let dir = Toy::new().bundle(&Packing::default());
    let storage = of(dir.path(), &what()).unwrap().profile.storage;
    let sizes: Vec<_> = storage
        .rates
        .iter()
        .map(|rate| (rate.read_bytes, rate.outstanding))
        .collect();
    let (one, two) = (RECORD_BYTES, 2 * RECORD_BYTES);
    assert_eq!(
        sizes,
        [(one, 1), (one, 2), (one, 4), (two, 1), (two, 2), (two, 4)]
    );
    for rate in &storage.rates {
        let stated = self::storage();
        let stated = stated.bytes_per_second(rate.read_bytes, rate.outstanding);
        let found = rate.bytes_per_second as f64 / stated as f64;
        assert!((0.8..1.2).contains(&found), "{rate:?}: {found}");
    }
    let latency = storage.latency_ns as f64 / 1e7;
    assert!((0.8..1.2).contains(&latency), "{latency}");
}

#[test]
fn a_profile_that_was_measured_has_all_parts_and_reads_back() {
    let toy = Toy::new();
    let dir = toy.bundle(&Packing::default());
    let measured = of(dir.path(), &what()).unwrap();
    let profile = &Profile {
        sources: measured.sources(),
        ..measured.profile.clone()
    };
    let text = serde_json::to_string(profile).unwrap();
    assert_eq!(&serde_json::from_str::<Profile>(&text).unwrap(), profile);
    let [service] = &profile.services[..] else {
        panic!("{profile:?}");
    };
    assert_eq!(service.record_bytes, RECORD_BYTES);
    let points: Vec<_> = service
        .other
        .iter()
        .map(|point| (point.tokens, point.group))
        .collect();
    assert_eq!(
        points,
        [(3, Some(1)), (3, Some(2)), (24, Some(1)), (24, Some(2))]
    );
    assert!(service.other.iter().all(|point| point.ns > 0));
    assert!(service.records.iter().all(|point| point.ns > 0));
    assert!(service.publish_ns > 0, "records are compared with digests");
    assert!(service.head_ns > 0);
    let assumed: Vec<_> = profile.sources.assumed().collect();
    assert_eq!(assumed, ["storage.latency_ns", "storage.rates"]);
    let of: Vec<_> = measured
        .memory
        .iter()
        .map(|of| (of.group, of.tokens, of.arena_bytes))
        .collect();
    let arena = |group: u64| 3 * group * RECORD_BYTES + 16 * 1024;
    assert_eq!(
        of,
        [
            (1, 3, arena(1)),
            (1, 24, arena(1)),
            (2, 3, arena(2)),
            (2, 24, arena(2))
        ]
    );
    for of in &measured.memory {
        assert!(of.other_bytes() > 0);
        assert!(of.peak_bytes.is_none_or(|peak| peak > of.arena_bytes));
    }
    assert!(measured.prefill > std::time::Duration::ZERO);
    assert!(measured.elapsed > measured.prefill);
    assert!(measured.to_string().contains("times a prefill"));
}

#[test]
fn rows_are_counted_by_record_in_storage_order() {
    let toy = Toy::new();
    let order: Vec<u64> = (0..EXPERTS as u64).rev().collect();
    let tokens = ids(24);
    let mut by_order = BTreeMap::new();
    for (name, packing) in [
        ("plain", Packing::default()),
        (
            "reversed shards",
            Packing {
                shards: 2,
                order,
                ..Packing::default()
            },
        ),
    ] {
        let dir = toy.bundle(&packing);
        let reader = BundleReader::open(dir.path()).unwrap();
        let mut model = Model::load(&reader, &LoadOptions::default()).unwrap();
        let mut routes = RoutedRows::new(&reader.bundle().manifest().experts);
        let request = Request {
            chunk: NonZeroUsize::new(16),
            ..Request::default()
        };
        let outcome = model.prefill_observed(&tokens, &request, &mut Rows::default(), &mut routes);
        let run = outcome.unwrap().records_run;
        assert_eq!(routes.rows.len(), 2 * LAYERS);
        let routed = routes.rows.iter().flatten().filter(|rows| **rows > 0);
        assert_eq!(routed.count() as u64, run);
        let pass = |chunk: usize| &routes.rows[chunk * LAYERS..][..LAYERS];
        for (chunk, tokens) in [(0, 16), (1, 8)] {
            for rows in pass(chunk) {
                let sum: u64 = rows.iter().sum();
                assert_eq!(sum, (tokens * TOP_K * packing.shards) as u64, "{name}");
            }
        }
        by_order.insert(name, routes.rows);
    }
    for (plain, shards) in by_order["plain"].iter().zip(&by_order["reversed shards"]) {
        let twice: Vec<u64> = plain.iter().rev().flat_map(|rows| [*rows; 2]).collect();
        assert_eq!(&twice, shards);
    }
}

#[test]
fn what_cannot_be_measured_is_refused_before_it_takes_time() {
    let dir = Toy::new().bundle(&Packing::default());
    let refused = |what: Measure| of(dir.path(), &what).unwrap_err().to_string();
    let groups = |groups: Vec<usize>| Measure { groups, ..what() };
    let tokens = |tokens: Vec<usize>| Measure { tokens, ..what() };
    for (what, says) in [
        (groups(vec![0]), "G = 0;"),
        (
            groups(vec![1, EXPERTS + 1]),
            "the largest layer has 4 records",
        ),
        (groups((1..=65).collect()), "65 candidates"),
        (tokens(Vec::new()), "0 lengths"),
        (tokens((1..=17).collect()), "17 lengths"),
        (tokens(vec![0, 3]), "the prompt is empty"),
        (tokens(vec![usize::MAX]), "made for 64 positions"),
    ] {
        let error = refused(what);
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn candidates_that_do_not_fit_are_left_out() {
    let dir = Toy::new().bundle(&Packing::default());
    let with = |budget: u64, buffer: u64| Measure {
        groups: vec![1, EXPERTS],
        load: LoadOptions {
            budget_bytes: Some(budget),
            ..what().load
        },
        throttle: Some(Storage {
            buffer_bytes: Some(buffer),
            ..storage()
        }),
        ..what()
    };
    // A bank of one record, and 16 KiB to align it.
    let bank = RECORD_BYTES + 16 * 1024;
    let mut told = Vec::new();
    let reader = BundleReader::open(dir.path()).unwrap();
    let measured = measure(&reader, &with(1 << 30, bank), &mut |line| {
        told.push(line.to_string());
    });
    let measured = measured.unwrap();
    assert!(measured.memory.iter().all(|of| of.group == 1));
    assert_eq!(measured.profile.budget_bytes, Some(1 << 30));
    assert_eq!(measured.profile.storage.buffer_bytes, Some(bank));
    let left_out = told.iter().find(|line| line.contains("is left out"));
    assert!(
        left_out.is_some_and(|line| line.starts_with("G = 4")),
        "{told:?}"
    );
    let error = of(dir.path(), &with(1, bank)).unwrap_err();
    assert!(
        matches!(error, RunError::Budget { .. } | RunError::Buffer { .. }),
        "{error}"
    );
}

#[test]
fn the_program_prints_a_profile_or_writes_it() {
    let dir = Toy::new().bundle(&Packing::default());
    let file = dir.path().join("profile.json");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_estream-run"));
        command.arg("profile").args(args).output().unwrap()
    };
    let bundle = dir.path().to_str().unwrap();
    let options = [
        "--tokens", "3,24", "-G", "2", "--runs", "1", "--name", "toy",
    ];
    let args = [&[bundle][..], &options].concat();
    let printed = run(&args);
    let talk = String::from_utf8(printed.stderr).unwrap();
    assert_eq!(printed.status.code(), Some(0), "{talk}");
    assert!(talk.contains("G = 2, 24 tokens: T^ne"), "{talk}");
    let profile: Profile = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(profile.name, "toy");
    assert_eq!(profile.services[0].other.len(), 2);
    let with_file = [&args[..], &["-o", file.to_str().unwrap()]].concat();
    let written = run(&with_file);
    assert_eq!(
        (written.status.code(), &written.stdout[..]),
        (Some(0), &b""[..])
    );
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap().name, "toy");
    let cases: [(&[&str], i32); 6] = [
        (&with_file, 2),
        (&[], 2),
        (&[bundle, "--tokens", ""], 2),
        (&[bundle, "--runs", "0"], 2),
        (&["/nowhere/at/all"], 2),
        (&["--help"], 0),
    ];
    for (args, code) in cases {
        assert_eq!(run(args).status.code(), Some(code), "{args:?}");
    }
}
