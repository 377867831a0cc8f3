//! The column for a hot device: planned, stored, followed, simulated.

use std::fs;

use estream_runtime::reader::BundleReader;
use estream_schemas::plan::{Plan, PlanRow};
use estream_tests::{Finished, assert_valid, estream, finish};
use serde_json::{Value, json};

use crate::desk::{Desk, LONGEST, logits, number, rows, run};

const HOT: &str =
    "hot_rates = [{ read_bytes = 16384, outstanding = 1, bytes_per_second = 60000000 }]";
const NUMBERS: [&str; 5] = ["schedule", "group", "depth", "banks", "early_records"];
const PROGRAMS: [&str; 2] = ["estream", "estream-run"];

/// A desk whose device can be hot.
fn warm_desk() -> Desk {
    let desk = Desk::new();
    desk.write("device.toml", &desk.profile(HOT));
    desk
}

fn stream(schedule: &str, [group, depth, banks]: [usize; 3]) -> Value {
    json!({
        "schedule": schedule,
        "group": group,
        "depth": depth,
        "banks": banks,
        "early_records": 1,
    })
}

/// Puts a plan of one row into the bundle.
fn add_plan(desk: &Desk, name: &str, row: &Value) {
    let bundle = desk.bundle();
    let identity = BundleReader::open(&bundle).unwrap().identity();
    let rate = json!({ "read_bytes": 1, "outstanding": 1, "bytes_per_second": 1 });
    let plan = json!({
        "format": "estream-plan",
        "version": 1,
        "bundle": identity.to_string(),
        "profile": { "name": "x", "storage": { "latency_ns": 0, "rates": [rate] } },
        "rows": [row],
    });
    assert_valid("plan", &plan);
    fs::create_dir_all(bundle.join("plans")).unwrap();
    let path = bundle.join(format!("plans/{name}.json"));
    fs::write(path, plan.to_string()).unwrap();
}

/// That a run was streamed so, for this reason.
#[track_caller]
fn ran(done: &Finished, config: &Value, why: &str, hot: bool) {
    let stats = &done.json()["stats"];
    let stream = &stats["stream"];
    for member in NUMBERS {
        assert_eq!(stream[member], config[member], "{member} in {stream}");
    }
    assert_eq!((&stats["plan"], &stream["hot"]), (&json!(why), &json!(hot)));
}

#[test]
fn a_hot_device_has_a_column_of_its_own() {
    let desk = Desk::new();
    assert!(
        rows(&desk.json("--budget 64MiB --tokens 64"))[0]
            .get("hot")
            .is_none()
    );
    desk.write("device.toml", &desk.profile(HOT));
    let answer = desk.json("--budget 64MiB --tokens 2,16,64");
    for row in rows(&answer) {
        let (cold, hot) = (&row["chosen"], &row["hot"]);
        let best = number(&hot["chosen"]["ttft_us"]);
        assert!(best > number(&cold["ttft_us"]), "{row}");
        assert!(number(&hot["cold_ttft_us"]) >= best, "{row}");
        assert!(hot["regret_pct"].as_f64().unwrap() >= 0.0);
        let same = ["schedule", "group", "depth", "banks"];
        let same = same
            .iter()
            .all(|member| cold[*member] == hot["chosen"][*member]);
        assert_eq!(hot["differs"], json!(!same), "{row}");
    }
    let text = desk.plan("--budget 64MiB --tokens 2,16,64").success();
    assert!(String::from_utf8(text.stdout).unwrap().contains("when hot"));
}

#[test]
fn the_stored_column_is_followed_by_a_hot_run_with_the_same_logits() {
    let desk = warm_desk();
    let answer = desk.json("--budget 64MiB --tokens 4,16,64 --store warm");
    let text = fs::read(desk.bundle().join("plans/warm.json")).unwrap();
    let plan: Value = serde_json::from_slice(&text).unwrap();
    assert_valid("plan", &plan);
    let mut differing = 0;
    for (at, (prompt, row)) in [3, 16, LONGEST].into_iter().zip(rows(&answer)).enumerate() {
        let stored = &plan["rows"][at];
        let (cold, hot) = (&stored["stream"], &stored["hot"]);
        for member in NUMBERS {
            assert_eq!(cold[member], row["chosen"][member], "{member}");
            assert_eq!(hot[member], row["hot"]["chosen"][member], "{member}");
        }
        differing += usize::from(cold != hot);
        for program in PROGRAMS {
            let (bits, done) = logits(&desk, program, prompt, &["--plan", "warm"]);
            ran(&done, cold, "plan warm", false);
            let (hot_bits, done) = logits(&desk, program, prompt, &["--plan", "warm", "--hot"]);
            ran(&done, hot, "plan warm, hot", true);
            assert!(hot_bits == bits, "{program}: {prompt} tokens");
        }
    }
    assert!(differing > 0, "{plan}");
    // What profiles without hot rates lead to has no such column.
    desk.write("device.toml", &desk.profile(""));
    desk.json("--budget 64MiB --tokens 4,16,64 --store plain");
    let text = fs::read_to_string(desk.bundle().join("plans/plain.json")).unwrap();
    assert!(!text.contains("hot"), "{text}");
}

#[test]
fn a_hot_run_reads_what_its_column_reads() {
    let desk = Desk::new();
    // Slices of a whole layer, and single records of which those without routes are not read.
    let (cold, hot) = (
        stream("prefetch", [16, 1, 1]),
        stream("prefetch", [1, 1, 2]),
    );
    let row = json!({ "max_tokens": 64, "stream": cold, "hot": hot });
    add_plan(&desk, "two", &row);
    for program in PROGRAMS {
        let (bits, done) = logits(&desk, program, 2, &["--plan", "two"]);
        ran(&done, &cold, "plan two", false);
        let whole = done.json()["stats"]["stream"].clone();
        assert_eq!(number(&whole["read_bytes"]), 48 * desk.slot());
        let (hot_bits, done) = logits(&desk, program, 2, &["--plan", "two", "--hot"]);
        ran(&done, &hot, "plan two, hot", true);
        let routed = done.json()["stats"]["stream"].clone();
        assert_eq!(routed["read_bytes"], routed["routed_bytes"]);
        assert_eq!(routed["routed_bytes"], whole["routed_bytes"]);
        assert!(number(&routed["read_bytes"]) < number(&whole["read_bytes"]));
        assert!(hot_bits == bits);
    }
}

#[test]
fn the_arena_of_a_stored_plan_has_no_more_buffers_than_the_device_takes() {
    let desk = Desk::new();
    // Four records fit into a buffer, and the projections of eight.
    let limit = 4 * desk.slot() + (16 << 10);
    let storage = format!("buffer_bytes = {limit}\n{HOT}");
    let mut refused = 0;
    for most in 1..=8 {
        let profile = desk.profile(&storage);
        desk.write(
            "device.toml",
            &format!("limits = {{ buffers = {most} }}\n{profile}"),
        );
        let done = desk.plan("--budget 64MiB --tokens 2,4,16,64 --store x --force");
        if done.code != 0 {
            // Each row fits alone, hot or not, and they share an arena.
            let said = format!("buffers, more than the {most} of the profile");
            assert!(done.stderr.contains(&said), "{}", done.stderr);
            assert_eq!(done.code, 3);
            refused += 1;
            continue;
        }
        let text = fs::read(desk.bundle().join("plans/x.json")).unwrap();
        let plan: Plan = serde_json::from_slice(&text).unwrap();
        let configs = || plan.rows.iter().flat_map(PlanRow::configs);
        let group = configs().map(|config| config.group).max().unwrap();
        let slots = configs().map(|config| config.slots()).max().unwrap();
        let each = if group <= 4 { 1 } else { 3 };
        let buffers = each * slots.div_ceil(group);
        assert!(buffers <= most, "{buffers} > {most}: {:?}", plan.rows);
    }
    assert!((1..8).contains(&refused), "{refused}");
}

/// A term of the ceiling that a run prints.
fn term(done: &Finished, name: &str) -> u64 {
    let stats = &done.json()["stats"];
    let mut terms = stats["memory"].as_array().unwrap().iter();
    number(&terms.find(|term| term["term"] == json!(name)).unwrap()["bytes"])
}

#[test]
fn a_budget_too_small_for_the_hot_column_is_refused_before_anything_is_read() {
    let desk = Desk::new();
    let (small, large) = (stream("ahead", [1, 1, 2]), stream("ahead", [16, 1, 64]));
    add_plan(&desk, "cold", &json!({ "max_tokens": 64, "stream": small }));
    let both = json!({ "max_tokens": 64, "stream": small, "hot": large });
    add_plan(&desk, "both", &both);
    for program in PROGRAMS {
        let one = run(&desk, program, 4, &["--plan", "cold", "--top=0"]).success();
        fs::remove_file(desk.at("logits")).unwrap();
        let ceiling = number(&one.json()["stats"]["memory_bytes"]);
        let arena = 16 * 64 * desk.slot();
        // What a process takes differs from one to the next, by less than the arena.
        let budget = ceiling + arena / 2;
        assert!(arena / 2 > term(&one, "process"), "{}", one.json());
        let budget = budget.to_string();
        let experts = desk.bundle().join("experts-00001.bin");
        let bytes = fs::read(&experts).unwrap();
        // Whoever reads a record finds that it is not what the manifest says.
        let spoilt: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
        fs::write(&experts, spoilt).unwrap();
        let with = |plan: &str, more: &[&str]| {
            let options = ["--plan", plan, "--budget", &budget, "--top=0"];
            run(&desk, program, 4, &[&options[..], more].concat())
        };
        for more in [&[][..], &["--hot"]] {
            let refused = with("both", more);
            assert_eq!(refused.code, 3, "{}", refused.stderr);
            let said = format!("more than the budget of {budget}");
            assert!(refused.stderr.contains(&said), "{}", refused.stderr);
        }
        // The other one fits, so that it comes to reading.
        assert_eq!(with("cold", &[]).code, 6);
        fs::write(&experts, bytes).unwrap();
        with("cold", &["--hot"]).success();
        fs::remove_file(desk.at("logits")).unwrap();
    }
}

#[test]
fn without_a_hot_column_a_plan_is_followed_as_ever_and_that_is_said() {
    let desk = Desk::new();
    let config = stream("compact", [2, 1, 3]);
    add_plan(
        &desk,
        "plain",
        &json!({ "max_tokens": 64, "stream": config }),
    );
    for (program, says) in [
        ("estream", "(plan plain, no hot column)"),
        ("estream-run", "plan plain has no column for a hot device"),
    ] {
        let (bits, done) = logits(&desk, program, 9, &["--plan", "plain"]);
        assert!(!done.stderr.contains("hot"), "{}", done.stderr);
        let (hot_bits, done) = logits(&desk, program, 9, &["--plan", "plain", "--hot"]);
        ran(&done, &config, "plan plain, no hot column", false);
        assert!(done.stderr.contains(says), "{}", done.stderr);
        assert!(hot_bits == bits);
    }
}

#[test]
fn hot_needs_something_that_differs_when_hot() {
    let desk = warm_desk();
    for program in PROGRAMS {
        for options in [&["--hot"][..], &["--hot", "--schedule", "early"]] {
            let refused = run(&desk, program, 4, options);
            assert_eq!(refused.code, 2, "{}", refused.stderr);
            assert!(refused.stderr.contains("--plan"), "{}", refused.stderr);
        }
    }
    // Imitated storage is as slow as that of a hot device: 60 MB/s for at least a record.
    let device = desk.at("device.toml");
    let throttle = [
        "--throttle",
        device.to_str().unwrap(),
        "--schedule",
        "early",
    ];
    let hot = [&throttle[..], &["--hot", "-Q", "1"]].concat();
    let done = run(&desk, "estream", 4, &hot).success();
    let stats = &done.json()["stats"];
    let least_us = number(&stats["stream"]["read_bytes"]) / 60;
    assert!(number(&stats["stream"]["io_us"]) >= least_us, "{stats}");
}

#[test]
fn a_plan_is_simulated_as_it_was_predicted_hot_or_not() {
    let desk = warm_desk();
    let simulate = |more: &str| {
        let mut command = estream();
        command.current_dir(desk.dir.path());
        command.args(["simulate", "b.estream", "--device", "device.toml", "--json"]);
        finish(command.args(more.split_whitespace()))
    };
    let answer = desk.json("--budget 64MiB --tokens 16,64 --schedule ahead --store warm");
    for (tokens, row) in [16, 64].into_iter().zip(rows(&answer)) {
        for (word, predicted) in [("", &row["chosen"]), ("--hot", &row["hot"]["chosen"])] {
            let line = format!("--plan warm --tokens {tokens} {word}");
            let report = simulate(&line).success().json();
            let simulated = &report["schedules"][0];
            let figures = ["ttft_us", "io_us", "exec_us", "reads", "read_bytes"];
            for member in NUMBERS.iter().chain(&figures) {
                assert_eq!(simulated[*member], predicted[*member], "{line}: {member}");
            }
            assert_eq!(report["hot"], json!(!word.is_empty()));
        }
    }
    for (line, code) in [
        ("--plan warm --schedule early", 2),
        ("--plan warm -G 2", 2),
        ("--plan nobody", 2),
        ("--shape 3x16x4x49152 --plan warm", 2),
    ] {
        let refused = simulate(line);
        assert_eq!(refused.code, code, "{line}: {}", refused.stderr);
    }
    desk.write("device.toml", &desk.profile(""));
    let refused = simulate("--hot");
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("hot_rates"), "{}", refused.stderr);
    // Without such a column it is followed as it is.
    desk.json("--budget 64MiB --tokens 16 --schedule ahead --store plain");
    desk.write("device.toml", &desk.profile(HOT));
    let done = simulate("--plan plain --tokens 16 --hot").success();
    assert!(
        done.stderr.contains("has no column for a hot device"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_hot_device_that_wants_more_reads_does_not_refuse_a_plan_that_fits() {
    let desk = Desk::new();
    let budget = |desk: &Desk| {
        let refused = desk.plan("--budget 1 --tokens 16 --nested");
        assert_eq!(refused.code, 3, "{}", refused.stderr);
        let text = String::from_utf8(refused.stdout).unwrap();
        let number = text
            .split_whitespace()
            .rev()
            .find_map(|word| word.parse::<u64>().ok());
        number.expect("the smallest budget that would do")
    };
    // One read at a time has all the bandwidth while it is cold, four have it when it is hot.
    let cold = desk.profile("").replace(
        "bytes_per_second = 1000000000",
        "bytes_per_second = 600000000",
    );
    desk.write("device.toml", &cold);
    let least = budget(&desk);
    let hot = r#"hot_rates = [
        { read_bytes = 16384, outstanding = 1, bytes_per_second = 100000000 },
        { read_bytes = 16384, outstanding = 4, bytes_per_second = 400000000 },
    ]"#;
    let warm = desk.profile(hot).replace(
        "bytes_per_second = 1000000000",
        "bytes_per_second = 600000000",
    );
    desk.write("device.toml", &warm);
    assert_eq!(budget(&desk), least);
    desk.plan(&format!("--budget {least} --tokens 16 --nested"))
        .success();
}
