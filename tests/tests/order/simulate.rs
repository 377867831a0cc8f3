//! What is simulated is what would be run.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::desk::Desk;

const PROFILE: &str = r#"
name = "a phone"

[storage]
latency_ns = 100000
rates = [
  { read_bytes = 16384, outstanding = 1, bytes_per_second = 500000000 },
  { read_bytes = 16384, outstanding = 2, bytes_per_second = 800000000 },
]

[[services]]
name = "small"
record_bytes = 49152
other = [{ tokens = 16, ns = 200000 }, { tokens = 128, ns = 900000 }]
records = [{ rows = 1, ns = 20000 }, { rows = 32, ns = 90000 }]
head_ns = 300000
"#;

fn simulated(desk: &Desk, rest: &str) -> Value {
    let line = format!("--json simulate a.estream --device phone.toml {rest}");
    desk.estream(&line).success().json()
}

fn row<'a>(report: &'a Value, schedule: &str) -> &'a Value {
    let mut rows = report["schedules"].as_array().unwrap().iter();
    rows.find(|row| row["schedule"] == json!(schedule)).unwrap()
}

#[test]
fn a_simulation_says_of_every_schedule_what_it_would_take() {
    let desk = Desk::new();
    fs::write(desk.at("phone.toml"), PROFILE).unwrap();
    let report = simulated(&desk, "--routes routes.json --tokens 33 -G 4");
    assert_eq!(report["prompts"], json!(1));
    let number = |schedule: &str, name: &str| row(&report, schedule)[name].as_u64().unwrap();
    // Resident: what is computed, and nothing is read.
    assert_eq!(number("resident", "read_bytes"), 0);
    assert_eq!(number("resident", "ttft_us"), number("resident", "exec_us"));
    for (slow, fast) in [
        ("on-demand", "prefetch"),
        ("prefetch", "early"),
        ("early", "resident"),
    ] {
        assert!(number(slow, "ttft_us") >= number(fast, "ttft_us"), "{slow}");
    }
    for schedule in ["on-demand", "prefetch", "early", "compact", "ahead"] {
        let (bytes, records) = (
            number(schedule, "read_bytes"),
            number(schedule, "records_read"),
        );
        assert_eq!(bytes, 49_152 * records);
        assert!((1..=48).contains(&records));
    }
    // The profile has no times of records of another size.
    let other = PROFILE.replace("49152", "49153");
    fs::write(desk.at("other.toml"), other).unwrap();
    let refused = desk.estream("simulate a.estream --device other.toml");
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("\"small\" of 49153 bytes"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_simulated_timeline_is_one_of_perfettos_and_ends_when_the_table_says() {
    let desk = Desk::new();
    fs::write(desk.at("phone.toml"), PROFILE).unwrap();
    let report = simulated(&desk, "--schedule ahead --tokens 64 --timeline t.json");
    let timeline: Value = serde_json::from_slice(&fs::read(desk.at("t.json")).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    let of = |name: &str| {
        events
            .iter()
            .filter(|event| event["name"] == json!(name))
            .count()
    };
    let row = row(&report, "ahead");
    assert_eq!(of("read") as u64, row["reads"].as_u64().unwrap());
    assert_eq!((of("layer"), of("head")), (3, 1));
    let ends = events.iter().filter(|event| event["ph"] == json!("X"));
    let ends = ends.map(|event| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap());
    let end = ends.fold(0.0, f64::max);
    assert!(
        (end - row["ttft_us"].as_f64().unwrap()).abs() <= 1.0,
        "{end}"
    );
}

#[test]
fn a_prediction_stands_beside_what_was_measured() {
    let desk = Desk::new();
    fs::write(desk.at("phone.toml"), PROFILE).unwrap();
    let run = "--json run a.estream --ids-file t33 --stats --schedule prefetch -G 4 -Q 1 -B 2";
    let stats = desk.estream(run).success();
    fs::write(desk.at("stats.json"), &stats.stdout).unwrap();
    let report = simulated(&desk, "--measured stats.json --routes routes.json");
    let (predicted, measured) = (&report["schedules"][0], &report["measured"]);
    assert_eq!(predicted["schedule"], json!("prefetch"));
    // The routes are those of the run, and so are the decisions: only times are those of another device.
    for same in [
        "group",
        "depth",
        "banks",
        "reads",
        "records_read",
        "read_bytes",
    ] {
        assert_eq!(predicted[same], measured[same], "{same}");
    }
    assert_eq!(measured["ttft_us"], stats.json()["stats"]["ttft_us"]);
    let refused = desk.estream("simulate a.estream --device phone.toml --measured routes.json");
    assert_eq!(refused.code, 4, "{}", refused.stderr);
}

#[test]
fn pinned_records_are_not_read() {
    let desk = Desk::new();
    fs::write(desk.at("phone.toml"), PROFILE).unwrap();
    let read = |rest: &str| {
        let report = simulated(&desk, &format!("--routes routes.json --tokens 33 {rest}"));
        let rows = report["schedules"].as_array().unwrap();
        let bytes = rows.iter().map(|row| row["read_bytes"].as_u64().unwrap());
        bytes.collect::<Vec<_>>()
    };
    // Of all schedules, those that can leave records out: compact and ahead.
    let [none, some, all] = ["--pin 0", "--pin 5", "--pin 16"].map(read);
    assert_eq!((none.len(), some.len()), (6, 2));
    assert!(
        some.iter().all(|bytes| *bytes > 0 && *bytes < none[4]),
        "{some:?}, {none:?}"
    );
    assert_eq!(all, [0, 0]);
    let refused =
        desk.estream("simulate a.estream --device phone.toml --pin 2 --schedule prefetch");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("pinned"), "{}", refused.stderr);

    // Of a run, too.
    let run = "--json run a.estream --ids-file t33 --stats --schedule compact --pin 16";
    let stats = desk.estream(run).success();
    fs::write(desk.at("stats.json"), &stats.stdout).unwrap();
    let report = simulated(&desk, "--measured stats.json --routes routes.json");
    assert_eq!(report["pinned"], json!(16));
    for row in [&report["schedules"][0], &report["measured"]] {
        assert_eq!((&row["reads"], &row["read_bytes"]), (&json!(0), &json!(0)));
    }
}

#[test]
fn a_plan_is_simulated_for_prompts_of_one_row() {
    let desk = Desk::new();
    fs::write(desk.at("phone.toml"), PROFILE).unwrap();
    let inspected = desk.estream("--json inspect a.estream").success().json();
    let stream = |group: usize| json!({ "schedule": "compact", "group": group, "depth": 1, "banks": 3, "early_records": 2 });
    let rate = json!({ "read_bytes": 1, "outstanding": 1, "bytes_per_second": 1 });
    let plan = json!({
        "format": "estream-plan",
        "version": 1,
        "bundle": inspected["identity"],
        "profile": { "name": "x", "storage": { "latency_ns": 0, "rates": [rate] } },
        "pinned": 3,
        "rows": [
            { "max_tokens": 16, "stream": stream(1) },
            { "max_tokens": 64, "stream": stream(4), "chunk": 32 },
        ],
    });
    fs::create_dir_all(desk.at("a.estream/plans")).unwrap();
    fs::write(desk.at("a.estream/plans/two.json"), plan.to_string()).unwrap();
    let line = "simulate a.estream --device phone.toml --plan two --routes routes.json";
    let refused = desk.estream(line);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("several rows"),
        "{}",
        refused.stderr
    );
    for (tokens, group, cut) in [(5, 1, false), (33, 4, true)] {
        let done = desk
            .estream(&format!("--json {line} --tokens {tokens}"))
            .success();
        assert_eq!(done.stderr.contains("pieces of 32"), cut, "{}", done.stderr);
        let report = done.json();
        assert_eq!(report["pinned"], json!(3));
        assert_eq!(report["schedules"].as_array().unwrap().len(), 1);
        let row = row(&report, "compact");
        assert_eq!(
            (&row["group"], &row["early_records"]),
            (&json!(group), &json!(2))
        );
    }
    // Pins of one's own replace the plan's, as in a run.
    let own = desk
        .estream(&format!("--json {line} --tokens 33 --pin 16"))
        .success();
    assert_eq!(own.json()["schedules"][0]["read_bytes"], json!(0));
    let timeline = desk.estream(&format!("{line} --tokens 33 --timeline t.json"));
    timeline.success();
    assert!(desk.at("t.json").exists());
}

#[test]
fn orders_are_compared_on_routes_that_they_were_not_derived_from() {
    let desk = Desk::new();
    fs::write(desk.at("phone.toml"), PROFILE).unwrap();
    record_windows(
        &desk,
        "train.json",
        "In the beginning God created the heaven and the earth. And the earth was without form, and void.",
    );
    record_windows(
        &desk,
        "other.json",
        "And he that was dead came forth, bound hand and foot with graveclothes: and his face was bound.",
    );
    let report = simulated(
        &desk,
        "--routes other.json --train train.json --schedule compact -G 2 --exhaustive",
    );
    let orders = report["orders"][0]["orders"].as_array().unwrap();
    let names: Vec<&str> = orders
        .iter()
        .map(|order| order["name"].as_str().unwrap())
        .collect();
    let expected = [
        "stored",
        "frequency",
        "coactivation",
        "coactivation, arranged",
    ];
    assert_eq!(names, expected);
    assert!(orders[0].get("ttft_change").is_none());
    for order in &orders[1..] {
        let of = |name: &str| order["ttft_change"][name].as_f64().unwrap();
        assert!(
            of("low") <= of("mean") && of("mean") <= of("high"),
            "{order}"
        );
    }
    let text = desk
        .estream("simulate a.estream --device phone.toml --routes other.json --train train.json");
    let text = String::from_utf8(text.success().stdout).unwrap();
    assert!(
        text.contains("frequency") && text.contains(" % ["),
        "{text}"
    );
}

fn record_windows(desk: &Desk, name: &str, text: &str) {
    fs::write(desk.at("text"), text).unwrap();
    desk.estream(&format!(
        "routes a.estream --text-file text --window 6 -o {name}"
    ))
    .success();
}

#[test]
fn a_shape_is_simulated_without_a_bundle() {
    let desk = Desk::new();
    fs::write(desk.at("phone.toml"), PROFILE).unwrap();
    let line = "--json simulate --shape 3x16x4x49152 --device phone.toml --tokens 16";
    let report = desk.estream(line).success().json();
    assert_eq!(report["schedules"].as_array().unwrap().len(), 6);
    for line in [
        "simulate --device phone.toml",
        "simulate a.estream --shape 3x16x4x49152 --device phone.toml",
        "simulate --shape 3x16x17x49152 --device phone.toml",
        "simulate --shape 3x16x4x49152 --device gone.toml",
        "simulate --shape 3x16x4x49152 --device phone.toml -G 2 -Q 3 -B 2",
        "simulate --shape 3x16x4x49152 --device phone.toml --timeline t.json",
        "simulate --shape 3x16x4x49152 --device phone.toml --order-by id",
    ] {
        let finished = desk.estream(line);
        assert_eq!(finished.code, 2, "{line}: {}", finished.stderr);
    }
    assert!(!Path::new(&desk.at("t.json")).exists());
}
