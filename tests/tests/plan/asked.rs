//! What is asked of the planner, and what becomes of the answer.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use estream_runtime::reader::BundleReader;
use estream_runtime::{Footprint, LoadOptions, Memory, Model, Streaming};
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};
use estream_tests::{assert_valid, compile, estream, files, finish, fixture};
use serde_json::{Value, json};

use crate::desk::{Desk, LONGEST, logits, number, rows};

#[test]
fn a_stored_plan_is_followed_and_gives_the_logits_of_a_resident_model() {
    let desk = Desk::new();
    let answer = desk.json("--budget 64MiB --tokens 4,16,64 --store mine");
    assert!(
        answer["stored"]
            .as_str()
            .unwrap()
            .ends_with("plans/mine.json")
    );
    let text = fs::read(desk.bundle().join("plans/mine.json")).unwrap();
    let plan: Value = serde_json::from_slice(&text).unwrap();
    assert_valid("plan", &plan);
    assert_eq!(plan["bundle"], answer["identity"]);
    assert_eq!(plan["profile"]["budget_bytes"], json!(64 << 20));
    for (at, (prompt, row)) in [3, 16, LONGEST].into_iter().zip(rows(&answer)).enumerate() {
        let config = &plan["rows"][at]["stream"];
        for member in ["schedule", "group", "depth", "banks", "early_records"] {
            assert_eq!(config[member], row["chosen"][member], "{member}");
        }
        for program in ["estream", "estream-run"] {
            let (planned, done) = logits(&desk, program, prompt, &["--plan", "mine"]);
            let stream = &done.json()["stats"]["stream"];
            for member in ["schedule", "group", "depth", "banks"] {
                assert_eq!(
                    stream[member], config[member],
                    "{program}: {member} in {stream}"
                );
            }
            let (resident, _) = logits(&desk, program, prompt, &["--schedule", "resident"]);
            assert!(planned == resident, "{program}: {prompt} tokens");
        }
    }
}

/// Every file of the bundle.
fn all(desk: &Desk) -> BTreeMap<String, Vec<u8>> {
    files(&desk.bundle())
}

#[test]
fn storing_a_plan_adds_a_file_and_changes_no_byte() {
    let desk = Desk::new();
    let before = all(&desk);
    desk.plan("--budget 64MiB --tokens 16 --store one")
        .success();
    let mut with_one = all(&desk);
    let one = with_one.remove("plans/one.json").unwrap();
    assert!(with_one == before, "something else changed");

    // The name is the profile's file where none is given.
    desk.plan("--budget 32MiB --tokens 8,32 --store").success();
    let mut with_two = all(&desk);
    assert!(with_two.remove("plans/device.json").is_some());
    assert!(with_two.remove("plans/one.json").unwrap() == one);
    assert!(with_two == before);

    let before = all(&desk);
    let refused = desk.plan("--budget 32MiB --tokens 32 --store one");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("--force"), "{}", refused.stderr);
    assert!(all(&desk) == before);
    desk.plan("--budget 32MiB --tokens 32 --store one --force")
        .success();
    let mut after = all(&desk);
    assert!(after.remove("plans/one.json").unwrap() != one);
    let mut before = before;
    before.remove("plans/one.json");
    assert!(after == before);

    let verified = finish(estream().arg("verify").arg(desk.bundle())).success();
    assert_eq!(verified.stderr, "", "a plan is no stray");
}

#[test]
fn the_same_question_has_the_same_plan() {
    let desk = Desk::new();
    let store = "--budget 64MiB --tokens 4,64 --store x --force";
    desk.plan(store).success();
    let first = all(&desk);
    desk.plan(store).success();
    assert!(all(&desk) == first);
}

#[test]
fn what_is_no_place_for_a_plan_is_refused() {
    let desk = Desk::new();
    let before = all(&desk);
    for name in ["a/b", ".hidden", "..", "ä", "a*"] {
        let refused = desk.plan(&format!("--budget 64MiB --store {name}"));
        assert_eq!(refused.code, 2, "{name}: {}", refused.stderr);
        assert!(
            refused.stderr.contains("name of a plan"),
            "{}",
            refused.stderr
        );
    }
    let refused = desk.plan("--budget 32MiB,64MiB --store x");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--budget"), "{}", refused.stderr);
    assert_eq!(desk.plan("--budget 64MiB --force").code, 2);
    assert!(all(&desk) == before);

    // A link may lead anywhere.
    let plans = desk.bundle().join("plans");
    fs::create_dir(&plans).unwrap();
    desk.write("elsewhere", "mine");
    std::os::unix::fs::symlink(desk.at("elsewhere"), plans.join("x.json")).unwrap();
    let refused = desk.plan("--budget 64MiB --store x --force");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert_eq!(fs::read(desk.at("elsewhere")).unwrap(), b"mine");
    fs::remove_file(plans.join("x.json")).unwrap();
    fs::remove_dir(&plans).unwrap();
    std::os::unix::fs::symlink(desk.dir.path(), &plans).unwrap();
    let refused = desk.plan("--budget 64MiB --store x");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(!desk.at("x.json").exists());
}

#[test]
fn what_does_not_fit_is_told_with_every_inequality_and_the_smallest_budget_does() {
    let desk = Desk::new();
    let refused = desk.plan("--budget 1MiB --tokens 4,64 --json");
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    let answer = refused.json();
    let why = &answer["plans"][0]["refused"];
    let inequalities = why["inequalities"].as_array().unwrap();
    let text = |line: &Value| line["text"].as_str().unwrap().to_owned();
    let failing: Vec<String> = inequalities
        .iter()
        .filter(|line| line["holds"] == false)
        .map(text)
        .filter(|text| text.contains("M_max"))
        .collect();
    // G of 1, 2, 4, 8 and 16, and Q from 1 to 4.
    assert_eq!(failing.len(), 5 * 4, "{inequalities:?}");
    assert!(failing.iter().all(|text| text.contains("> 1048576")));
    let least = number(&why["least_budget_bytes"]);
    let text = desk.plan("--budget 1MiB --tokens 4,64");
    assert_eq!(text.code, 3);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(&format!("would do: {least} bytes")), "{text}");

    let below = least - 1;
    assert_eq!(
        desk.plan(&format!("--budget {below} --tokens 4,64")).code,
        3
    );
    let answer = desk.json(&format!("--budget {least} --tokens 4,64 --store tight"));
    for row in rows(&answer) {
        assert!(number(&row["chosen"]["memory_bytes"]) <= least);
    }
    // And a run keeps within it.
    let budget = least.to_string();
    let (_, done) = logits(
        &desk,
        "estream-run",
        LONGEST,
        &["--plan", "tight", "--budget", &budget],
    );
    assert!(number(&done.json()["stats"]["memory_bytes"]) <= least);
}

#[test]
fn of_several_budgets_the_larger_is_never_slower_and_one_that_is_too_small_is_told() {
    let desk = Desk::new();
    let tight = desk.least("4,64") + 2 * desk.slot();
    let answer = desk.plan(&format!(
        "--budget {tight},1MiB,1.5GiB --tokens 4,64 --json"
    ));
    assert_eq!(answer.code, 3, "{}", answer.stderr);
    assert!(
        answer.stderr.contains("ms"),
        "the time is told: {}",
        answer.stderr
    );
    let answer = answer.json();
    let plans = answer["plans"].as_array().unwrap();
    let budgets: Vec<u64> = plans
        .iter()
        .map(|plan| number(&plan["budget_bytes"]))
        .collect();
    assert_eq!(budgets, [1 << 20, tight, 3 << 29]);
    assert!(plans[0]["refused"].is_object() && plans[1].get("refused").is_none());
    for at in 0..2 {
        let ttft = |plan: &Value| number(&plan["rows"][at]["chosen"]["ttft_us"]);
        assert!(ttft(&plans[2]) < ttft(&plans[1]));
    }
}

#[test]
fn the_frontier_has_the_choice_on_it_and_every_other_one_has_a_reason() {
    let desk = Desk::new();
    let budget = desk.least("16,64") + 5 * desk.slot();
    let asked = format!("--budget {budget} --tokens 16,64 --pareto --explain 4,1,2");
    let answer = desk.json(&asked);
    for row in rows(&answer) {
        let frontier = row["pareto"].as_array().unwrap();
        assert!(frontier.len() > 1);
        for pair in frontier.windows(2) {
            assert!(number(&pair[0]["memory_bytes"]) <= number(&pair[1]["memory_bytes"]));
            assert!(number(&pair[0]["ttft_us"]) >= number(&pair[1]["ttft_us"]));
        }
        let mut within = frontier.iter();
        let within = within.rfind(|one| number(&one["memory_bytes"]) <= budget);
        assert_eq!(within.unwrap()["ttft_us"], row["chosen"]["ttft_us"]);
        let reasons = row["explained"].as_array().unwrap();
        let named: Vec<bool> = ["early", "compact", "ahead"]
            .iter()
            .zip(reasons)
            .map(|(name, reason)| {
                let text = reason["reason"].as_str().unwrap();
                text.starts_with(&format!("{name}, G = 4, Q = 1, B = 2: "))
            })
            .collect();
        assert_eq!(named, [true; 3], "{reasons:?}");
    }
    let odd = desk.json("--budget 64MiB --tokens 16 --schedule early --explain 3,1,2");
    let reason = rows(&odd)[0]["explained"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("G = 3 is none of [1, 2, 4, 8, 16]"),
        "{reason}"
    );
    assert_eq!(desk.plan("--budget 64MiB --explain 3,1").code, 2);
}

#[test]
fn a_profile_without_times_of_such_records_says_what_is_missing() {
    let desk = Desk::new();
    let with = |device: &str| {
        let mut command = estream();
        command.current_dir(desk.dir.path());
        finish(command.args(["plan", "b.estream", "--budget", "64MiB", "--device", device]))
    };
    for (device, code, says) in [
        ("ufs4-phone", 3, "it has no [[services]] at all"),
        ("oneplus-15", 3, "Qwen3-30B-A3B (2654208 bytes)"),
        ("nowhere", 2, "oneplus-15"),
        ("b.estream", 2, "no file"),
        ("b.estream/manifest.json", 4, "profile check"),
    ] {
        let refused = with(device);
        assert_eq!(refused.code, code, "{device}: {}", refused.stderr);
        assert!(
            refused.stderr.contains(says),
            "{device}: {}",
            refused.stderr
        );
        assert!(refused.stdout.is_empty());
    }
    for (more, says) in [
        ("", "--budget"),
        ("--budget 64MiB --service other", "olmoe (49152 bytes)"),
        ("--budget 64MiB --tokens 0", "at least one token"),
        ("--budget 64MiB --tokens 5000", "4096 positions"),
    ] {
        let refused = desk.plan(more);
        assert_eq!(refused.code, 2, "{more}: {}", refused.stderr);
        assert!(refused.stderr.contains(says), "{more}: {}", refused.stderr);
    }
}

#[test]
fn a_bank_is_never_larger_than_a_buffer_may_be() {
    let desk = Desk::new();
    // Three buffers of two regions, and what aligns them.
    let most = 2 * desk.slot() / 3 + (16 << 10);
    desk.write(
        "device.toml",
        &desk.profile(&format!("buffer_bytes = {most}")),
    );
    let done = desk
        .plan("--budget 64MiB --tokens 4,64 --store small --json")
        .success();
    assert!(
        done.stderr.contains("G of 4 and more is left out"),
        "{}",
        done.stderr
    );
    for row in rows(&done.json()) {
        assert!(number(&row["chosen"]["group"]) <= 2, "{row}");
    }
    logits(&desk, "estream-run", LONGEST, &["--plan", "small"]);
}

#[test]
fn a_plan_is_resident_for_all_prompts_or_for_none() {
    let desk = Desk::new();
    let mixed = desk.plan("--budget 64MiB --tokens 4,128 --schedule resident,early --store x");
    assert_eq!(mixed.code, 2, "{}", mixed.stderr);
    assert!(mixed.stderr.contains("loaded one way"), "{}", mixed.stderr);
    assert!(!desk.bundle().join("plans").exists());

    let answer = desk.json("--budget 64MiB --tokens 4,64 --schedule resident --store x");
    for row in rows(&answer) {
        assert_eq!(row["chosen"]["read_bytes"], json!(0), "{row}");
    }
    let (planned, done) = logits(&desk, "estream-run", 4, &["--plan", "x"]);
    assert!(done.json()["stats"].get("stream").is_none());
    let (streamed, _) = logits(&desk, "estream-run", 4, &["--schedule", "early"]);
    assert!(planned == streamed);
}

/// The ceiling of a loaded model, but for the process.
fn loaded(reader: &BundleReader, streaming: Option<Streaming>, tokens: usize) -> Memory {
    let options = LoadOptions {
        threads: NonZeroUsize::new(3),
        streaming,
        ..LoadOptions::default()
    };
    let model = Model::load(reader, &options).unwrap();
    Memory {
        process_bytes: 0,
        ..model.memory(tokens, None)
    }
}

fn footprint(bundle: &Path) {
    let reader = BundleReader::open(bundle).unwrap();
    let footprint = Footprint::new(&reader, NonZeroUsize::new(3).unwrap()).unwrap();
    let stream = StreamConfig::new(Schedule::Early, 3, 2, 4, 100);
    let row = PlanRow {
        max_tokens: 1,
        stream,
        hot: None,
        chunk: None,
    };
    let streaming = Streaming::new(vec![row]).unwrap();
    for streaming in [None, Some(streaming)] {
        for tokens in [1, 33] {
            let before = footprint.memory(streaming.as_ref(), tokens, None).unwrap();
            assert_eq!(before, loaded(&reader, streaming.clone(), tokens));
            assert!(before.expert_bytes > 0 && before.resident_bytes > 0);
        }
    }
}

#[test]
fn the_ceiling_that_is_known_without_weights_is_that_of_the_loaded_model() {
    let dir = tempfile::tempdir().unwrap();
    for family in ["olmoe", "deepseek2", "lfm2moe"] {
        let bundle = dir.path().join(family);
        compile(&fixture(family), &bundle, &[]);
        footprint(&bundle);
    }
}
