//! Plans of a bundle can be seen, and outlive its being made again.

use std::fs;
use std::path::PathBuf;

use estream_tests::{Finished, compile, estream, finish, fixture};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Desk {
    dir: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::tempdir().unwrap();
        compile(&fixture("olmoe"), &dir.path().join("b.estream"), &[]);
        Desk { dir }
    }

    fn plan(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("b.estream/plans/{name}.json"))
    }

    fn estream(&self, line: &str) -> Finished {
        let mut command = estream();
        command.current_dir(self.dir.path());
        finish(command.args(line.split_whitespace()))
    }

    fn identity(&self) -> String {
        let report = self.estream("inspect b.estream --json").success().json();
        report["identity"].as_str().unwrap().to_owned()
    }

    /// Stores a plan of two rows for `bundle`, whose spelling is no tool's.
    fn store(&self, name: &str, bundle: &str) -> Vec<u8> {
        let stream = json!({
            "schedule": "ahead", "group": 2, "depth": 1, "banks": 2, "early_records": 1
        });
        let rate = json!({ "read_bytes": 1, "outstanding": 1, "bytes_per_second": 1 });
        let plan = json!({
            "format": "estream-plan",
            "version": 1,
            "bundle": bundle,
            "profile": { "name": "x", "storage": { "latency_ns": 0, "rates": [rate] } },
            "rows": [
                { "max_tokens": 16, "stream": stream },
                { "max_tokens": 128, "stream": stream },
            ],
        });
        let text = format!("  {plan}\n\n").into_bytes();
        fs::create_dir_all(self.plan(name).parent().unwrap()).unwrap();
        fs::write(self.plan(name), &text).unwrap();
        text
    }
}

/// A bundle with a plan for it, one for another and one that is none.
fn three() -> (Desk, Vec<u8>) {
    let desk = Desk::new();
    let good = desk.store("phone", &desk.identity());
    desk.store("other", &"7".repeat(64));
    fs::write(desk.plan("spoilt"), "{").unwrap();
    (desk, good)
}

fn named<'a>(report: &'a Value, name: &str) -> &'a Value {
    let plans = report["plans"].as_array().unwrap();
    plans.iter().find(|plan| plan["name"] == name).unwrap()
}

#[test]
fn plans_are_listed_with_what_can_be_done_with_them() {
    let (desk, _) = three();
    let identity = desk.identity();
    for verb in ["inspect", "verify"] {
        let report = desk.estream(&format!("{verb} b.estream --json")).success();
        let report = report.json();
        assert_eq!(report["plans"].as_array().unwrap().len(), 3);
        let phone = named(&report, "phone");
        assert_eq!(phone["made_for"], identity);
        assert_eq!(phone["is_for_this"], true);
        assert_eq!(phone["max_tokens"], json!([16, 128]));
        assert_eq!(phone["problem"], Value::Null);
        let other = named(&report, "other");
        assert_eq!(other["made_for"], "7".repeat(64));
        assert_eq!(other["is_for_this"], false);
        assert!(
            other["problem"]
                .as_str()
                .unwrap()
                .contains("it was made for")
        );
        let spoilt = named(&report, "spoilt");
        assert_eq!(spoilt["made_for"], Value::Null);
        assert!(spoilt["problem"].is_string());
    }
    let text = String::from_utf8(desk.estream("inspect b.estream").success().stdout).unwrap();
    let line = text.lines().find(|line| line.contains("phone")).unwrap();
    for word in ["16, 128", "this one", "yes"] {
        assert!(line.contains(word), "{line}");
    }
    let none = Desk::new();
    let text = String::from_utf8(none.estream("inspect b.estream").success().stdout).unwrap();
    assert!(!text.contains("plan"), "{text}");
}

#[test]
fn a_plan_that_cannot_be_followed_is_told_and_is_no_fault_of_the_bundle() {
    let (desk, _) = three();
    let done = desk.estream("verify b.estream").success();
    for plan in ["other.json", "spoilt.json"] {
        let notes = done.stderr.lines();
        let note = notes.filter(|line| line.starts_with("note: ") && line.contains(plan));
        assert_eq!(note.count(), 1, "{}", done.stderr);
    }
    assert!(!done.stderr.contains("phone"), "{}", done.stderr);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("plan phone: can be followed"), "{text}");
    assert!(!text.contains("other"), "{text}");
}

#[test]
fn a_plan_that_is_not_there_is_told_with_those_that_are() {
    let (desk, _) = three();
    let refused = desk.estream("run b.estream --ids 1,2 --plan phon");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    for name in ["\"phon\"", "other, phone, spoilt"] {
        assert!(refused.stderr.contains(name), "{}", refused.stderr);
    }
    desk.estream("run b.estream --ids 1,2 --plan phone")
        .success();
    let none = Desk::new();
    let refused = none.estream("run b.estream --ids 1,2 --plan phone");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("it has none"), "{}", refused.stderr);
}

#[test]
fn a_bundle_that_is_made_again_keeps_its_plans_and_another_says_how_many_are_gone() {
    let (desk, good) = three();
    let source = fixture("olmoe").display().to_string();
    let done = desk.estream(&format!("compile {source} -o b.estream --force --json"));
    let done = done.success();
    assert_eq!(done.json()["plans"], json!({ "kept": 1, "gone": 2 }));
    assert!(
        done.stderr.contains("2 plans of the replaced"),
        "{}",
        done.stderr
    );
    assert_eq!(fs::read(desk.plan("phone")).unwrap(), good);
    assert!(!desk.plan("other").exists());
    desk.estream("run b.estream --ids 1,2 --plan phone")
        .success();

    let line = format!("compile {source} -o b.estream --layout pair --force --json");
    let done = desk.estream(&line).success();
    assert_eq!(done.json()["plans"], json!({ "kept": 0, "gone": 1 }));
    assert!(
        done.stderr.contains("a plan of the replaced"),
        "{}",
        done.stderr
    );
    assert!(!desk.plan("phone").exists());

    let done = desk.estream(&format!("compile {source} -o b.estream --force --json"));
    assert_eq!(done.json()["plans"], json!({ "kept": 0, "gone": 0 }));
    assert!(!done.stderr.contains("of the replaced"), "{}", done.stderr);

    // The order it has already: the same bundle.
    desk.store("phone", &desk.identity());
    fs::write(desk.dir.path().join("ids"), "1,2,3,4").unwrap();
    desk.estream("routes b.estream --ids-file ids -o routes.json")
        .success();
    desk.estream("relayout b.estream -o c.estream --layout direct")
        .success();
    let line = "reorder c.estream --routes routes.json --order-by id -o b.estream --force --json";
    let done = desk.estream(line).success();
    assert_eq!(done.json()["plans"], json!({ "kept": 1, "gone": 0 }));
    desk.estream("run b.estream --ids 1,2 --plan phone")
        .success();
}
