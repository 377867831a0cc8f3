//! Profiles: those that come with the program, and what is said of others.

use std::fs;

use estream_tests::{Finished, assert_valid, estream, finish};
use serde_json::Value;

fn profile(arguments: &[&str]) -> Finished {
    finish(estream().arg("profile").args(arguments))
}

fn strings(value: &Value) -> Vec<&str> {
    let strings = value.as_array().unwrap().iter();
    strings.map(|string| string.as_str().unwrap()).collect()
}

#[test]
fn profiles_that_come_with_the_program_are_whole_and_say_where_they_are_from() {
    let listed = profile(&["list", "--json"]).success().json();
    let listed = listed["profiles"].as_array().unwrap();
    assert!(listed.len() >= 2);
    for known in listed {
        let name = known["profile"].as_str().unwrap();
        let shown = profile(&["show", name, "--json"]).success().json();
        assert_valid("profile", &shown["profile"]);
        let text = profile(&["show", name]).success().stdout;
        assert_eq!(
            String::from_utf8(text).unwrap(),
            shown["text"].as_str().unwrap()
        );
        let checked = profile(&["check", name, "--json"]).success().json();
        for nothing in ["problems", "unsourced"] {
            assert!(strings(&checked[nothing]).is_empty(), "{checked}");
        }
        assert_eq!(checked["assumed"], known["assumed"]);
        let needed = checked["missing"].as_array().unwrap().iter();
        let needed = needed
            .filter(|missing| missing["is_needed"] == true)
            .count();
        let services = known["services"].as_array().unwrap();
        assert_eq!(needed, usize::from(services.is_empty()), "{checked}");
    }
    assert_eq!(profile(&["show", "nothing"]).code, 2);
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("odd.toml");
    fs::write(
        &file,
        r#"
        title = "no name, and a member too many"
        budget_bytes = "2GiB"
        device = 7
        [storage]
        rates = [
          { read_bytes = 1, outstanding = 1, bytes_per_second = 0 },
          { read_bytes = 1, outstanding = 1 },
        ]
        hot_rates = [{ read_bytes = 1, outstanding = 0, bytes_per_second = 1 }]
        [limits]
        alignment_bytes = 12
        buffers = -1
        [[services]]
        name = "x"
        record_bytes = 1
        other = [{ tokens = 2, ns = 1 }, { tokens = 1, ns = 1.5 }]
        records = [{ rows = 2, ns = 1 }, { rows = 2, ns = 1 }]
        [sources]
        "limits.buffers" = { text = "a header" }
        "limits.buffer" = { text = "a slip" }
        "#,
    )
    .unwrap();
    let path = file.to_str().unwrap();
    let done = profile(&["check", path, "--json"]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    let checked = done.json();
    let problems = strings(&checked["problems"]);
    let starts = [
        "name: it is missing",
        "title: unknown field",
        "budget_bytes: invalid type",
        "device: it is no table",
        "storage.latency_ns: it is missing",
        "storage.rates[1].bytes_per_second: it is missing",
        "storage.rates: rates are none, or one of them has a 0",
        "storage.hot_rates: rates are none, or one of them has a 0",
        "limits.alignment_bytes: alignment_bytes is no power of two",
        "limits.buffers: invalid value",
        "services[0].other[1].ns: invalid type",
        "services[0].records: records is empty, or its rows do not ascend",
        "sources.limits.buffer: sources: \"limits.buffer\" is no figure",
    ];
    for start in starts {
        let found = problems.iter().any(|problem| problem.starts_with(start));
        assert!(found, "{start}: {problems:#?}");
    }
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    let text = String::from_utf8(profile(&["check", path]).stdout).unwrap();
    assert!(text.contains("13 things are wrong"), "{text}");
    assert!(text.contains("without a source: "), "{text}");
    let unsourced = [
        "budget_bytes",
        "limits.alignment_bytes",
        "services.other",
        "services.records",
        "storage.hot_rates",
        "storage.rates",
    ];
    assert_eq!(strings(&checked["unsourced"]), unsourced);
}

#[test]
fn a_text_that_is_no_profile_at_all_is_one_thing() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("a.toml", "name = "),
        ("a.json", "{\"name\": "),
        ("b.json", "[]"),
        (
            "c.json",
            r#"{"name":"x","name":"y","storage":{"latency_ns":0,"rates":[{"read_bytes":1,"outstanding":1,"bytes_per_second":1}]}}"#,
        ),
    ] {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        let done = profile(&["check", file.to_str().unwrap(), "--json"]);
        assert_eq!(done.code, 1, "{name}: {}", done.stderr);
        assert_eq!(strings(&done.json()["problems"]).len(), 1, "{name}");
    }
    let deep = dir.path().join("deep.json");
    fs::write(&deep, "[".repeat(1 << 19)).unwrap();
    assert_eq!(profile(&["check", deep.to_str().unwrap()]).code, 1);
    let large = dir.path().join("large.toml");
    fs::write(&large, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert_eq!(profile(&["check", large.to_str().unwrap()]).code, 4);
}

#[test]
fn storage_of_a_profile_that_comes_with_the_program_is_imitated_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.estream");
    estream_tests::compile(&estream_tests::fixture("olmoe"), &bundle, &[]);
    let run = |throttle: &str| {
        let mut command = estream();
        command.arg("run").arg(&bundle).args(["--ids", "1,2"]);
        finish(command.args(["--throttle", throttle]))
    };
    run("ufs4-phone").success();
    let refused = run("ufs4-phones");
    assert_eq!(refused.code, 2);
    let known = "nvme-laptop, oneplus-15, ufs4-phone";
    assert!(refused.stderr.contains(known), "{}", refused.stderr);
}
