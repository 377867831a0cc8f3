//! Numbers that were worked out by hand.

use estream_schemas::plan::Schedule;
use estream_schemas::profile::{Limits, OtherTime, Rate, RecordTime, Service, Storage};

use crate::{GroupSize, LayerSize, Problem, Question, Search, Workload, plan};

/// Two layers of 4 records of 100 bytes, 10 rows each. A byte takes a nanosecond however many are read.
fn question() -> Question {
    let rate = |outstanding| Rate {
        read_bytes: 1,
        outstanding,
        bytes_per_second: 1_000_000_000,
    };
    let size = |group| GroupSize {
        group,
        other_bytes: 1000,
        mapped_bytes: 300,
    };
    Question {
        storage: Storage {
            latency_ns: 0,
            rates: vec![rate(1), rate(2), rate(3)],
            hot_rates: Vec::new(),
            buffer_bytes: None,
        },
        service: Service {
            name: "x".to_owned(),
            record_bytes: 100,
            tile_rows: 1,
            capacity: None,
            other: vec![OtherTime {
                tokens: 20,
                group: None,
                ns: 50,
            }],
            records: vec![RecordTime { rows: 10, ns: 30 }],
            dispatch_ns: 7,
            publish_ns: 3,
            head_ns: 11,
        },
        limits: Limits::default(),
        budget_bytes: 10_000,
        region_bytes: 40,
        pinned: 0,
        layers: vec![
            LayerSize {
                records: 4,
                record_bytes: 100,
            };
            2
        ],
        groups: vec![size(2)],
        depths: vec![1, 2, 3],
        search: Search::Nested,
        schedules: vec![Schedule::Early],
        workloads: vec![Workload {
            weight: 1,
            tokens: 20,
            routes: vec![vec![10; 4]; 2],
        }],
    }
}

fn problem(change: impl FnOnce(&mut Question)) -> Problem {
    let mut question = question();
    change(&mut question);
    Problem::new(question).unwrap()
}

/// The problem whose times were drawn.
pub(crate) fn drawing() -> Problem {
    problem(|_| ())
}

#[test]
fn a_request_takes_what_a_drawing_says() {
    // L = 203, X = 67: read 0–203, run 203–270; read 203–406, run 406–473. Twice, and the head.
    let choice = plan(&problem(|_| ())).unwrap();
    assert_eq!(choice.depth, 1);
    assert_eq!(choice.chosen.mean_ns, 473 + 473 + 11);
    let config = choice.chosen.config;
    // With one bank the second read would begin at 270.
    assert_eq!((config.group, config.depth, config.banks), (2, 1, 2));
    assert_eq!(
        (choice.chosen.arena_bytes, choice.chosen.memory_bytes),
        (400, 1400)
    );
    let prediction = choice.chosen.predictions[0];
    assert_eq!((prediction.reads, prediction.records_read), (4, 8));
    assert_eq!((prediction.bytes_read, prediction.records_run), (800, 8));
    assert_eq!(prediction.times.exec_ns, 2 * (50 + 2 * 67) + 11);
    assert_eq!(prediction.times.io_ns, 4 * 203);
}

#[test]
fn rows_beyond_the_capacity_of_an_invocation_take_another() {
    // 10 rows are 4, 4 and 2: 30 + 30 + 20. So X = 7 + 2 · 80 and L = 203 as above.
    let limited = problem(|question| {
        let point = |(rows, ns)| RecordTime { rows, ns };
        question.service.records = [(2, 20), (10, 60)].map(point).into();
        question.service.capacity = Some(4);
    });
    let choice = plan(&limited).unwrap();
    assert_eq!(choice.chosen.mean_ns, 573 + 573 + 11);
    let times = choice.chosen.predictions[0].times;
    assert_eq!(times.exec_ns, 2 * (50 + 2 * 167) + 11);
}

#[test]
fn a_depth_is_enough_from_95_percent_of_the_best_bandwidth_of_every_group_on() {
    let depth = |rates: [u64; 3], latency_ns, groups: &[usize]| {
        let problem = problem(|question| {
            for (rate, percent) in question.storage.rates.iter_mut().zip(rates) {
                rate.bytes_per_second = percent * 10_000_000;
            }
            question.storage.latency_ns = latency_ns;
            let size = question.groups[0];
            let sizes = groups.iter().map(|group| GroupSize {
                group: *group,
                ..size
            });
            question.groups = sizes.collect();
        });
        problem.depth()
    };
    assert_eq!(depth([95, 100, 100], 0, &[1, 2]), 1);
    assert_eq!(depth([94, 100, 100], 0, &[1, 2]), 2);
    assert_eq!(depth([90, 94, 100], 0, &[1, 2]), 3);
    // Of 2,000 bytes, a latency of 100 leaves 1 − 100/2100 = 95.2 % with one read, 2,000/2,050 with two and
    // 2,000/2,033 with three; 95.2 : 98.4 is enough. Of 1,000 bytes 90.9 : 96.8 is not.
    assert_eq!(depth([100; 3], 100, &[20]), 1);
    assert_eq!(depth([100; 3], 100, &[10]), 2);
    assert_eq!(depth([100; 3], 100, &[10, 20]), 2);
}

#[test]
fn inequalities_have_the_numbers_of_the_device() {
    let problem = problem(|question| {
        question.budget_bytes = 1399;
        question.limits = Limits {
            mapping_bytes: Some(700),
            buffers: Some(5),
            alignment_bytes: Some(64),
            ..Limits::default()
        };
        question.storage.buffer_bytes = Some(16_484);
    });
    let size = problem.size_of(2).unwrap();
    let config = problem.plain(Schedule::Ahead, &size, 3, 2);
    let texts = problem.inequalities(&config, &size);
    // A slot is 128 bytes. Beside what aligns it a buffer has 100, too few for two records of as many, and
    // enough for two projections of 40: so each bank is three buffers.
    assert_eq!(
        texts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "G = 2, B = 2: Q ≤ B does not hold: 3 > 2",
            "G = 2, B = 2: B ≤ ⌈records / G⌉ holds: 2 ≤ 4",
            "G = 2, B = 2: B·G·W_e + M_other(G) ≤ M_max does not hold: 2·2·128 + 1000 = 1512 > 1399",
            "G = 2, B = 2: B·G·W_e + mapped ≤ mapping limit does not hold: 2·2·128 + 300 = 812 > 700",
            "G = 2, B = 2: a bank, or a projection of it, ≤ buffer holds: 2·40 + 16384 = 16464 ≤ 16484",
            "G = 2, B = 2: buffers of the arena ≤ buffers does not hold: 6 > 5",
        ]
    );
    let banks = |schedule| problem.max_banks(schedule, &size);
    assert_eq!([Schedule::Early, Schedule::Ahead].map(banks), [1, 1]);
    assert_eq!(problem.most_banks(Schedule::Early, 2), 2);
}

#[test]
fn what_is_infeasible_names_the_smallest_budget() {
    let problem = problem(|question| question.budget_bytes = 1000);
    let error = plan(&problem).unwrap_err();
    assert_eq!(error.budget_bytes, Some(1200));
    assert_eq!(
        error.to_string(),
        "no configuration fits:
  G = 2, B = 1: Q ≤ B holds: 1 ≤ 1
  G = 2, B = 1: B ≤ ⌈records / G⌉ holds: 1 ≤ 2
  G = 2, B = 1: B·G·W_e + M_other(G) ≤ M_max does not hold: 1·2·100 + 1000 = 1200 > 1000
the smallest budget that would do is 1200 bytes"
    );
}

#[test]
fn everything_that_is_wrong_with_a_question_is_told_at_once() {
    let mut question = question();
    question.depths.clear();
    question.groups.push(question.groups[0]);
    question.workloads[0].routes[1] = vec![21, 0, 0];
    let error = Problem::new(question.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing can be planned: there are no depths; G = 2 is there twice; step 1 of workload 0 has routes of 3 \
         records, the layer has 4; step 1 of workload 0 routes 21 rows of 20 tokens to one record"
    );
    question = self::question();
    question.service.record_bytes = 99;
    let error = Problem::new(question).unwrap_err().to_string();
    assert!(
        error.contains("are of records of 99 bytes, the largest here has 100"),
        "{error}"
    );
}

#[test]
fn times_and_sizes_that_leave_64_bits_are_refused() {
    for change in [
        |question: &mut Question| question.service.other[0].ns = u64::MAX,
        |question: &mut Question| question.service.records[0].ns = u64::MAX / 4,
        |question: &mut Question| question.service.dispatch_ns = u64::MAX,
        |question: &mut Question| question.service.head_ns = u64::MAX,
        |question: &mut Question| question.storage.latency_ns = u64::MAX - 1,
        |question: &mut Question| question.groups[0].group = 1 << 16,
        |question: &mut Question| {
            question.layers[0].record_bytes = u64::MAX;
            question.service.record_bytes = u64::MAX;
        },
    ] {
        let mut question = question();
        change(&mut question);
        // Either it is refused or it can be computed.
        match Problem::new(question) {
            Err(error) => assert!(error.to_string().contains("64 bits"), "{error}"),
            Ok(problem) => drop(plan(&problem)),
        }
    }
}
