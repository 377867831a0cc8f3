//! What `estream profile measure` writes is a profile: it can be imitated, and planned with.

use std::fs;
use std::path::{Path, PathBuf};

use estream_planner::{GroupSize, LayerSize, Problem, Question, Search, Workload, plan};
use estream_runtime::reader::BundleReader;
use estream_schemas::plan::Schedule;
use estream_schemas::profile::Profile;
use estream_tests::{Finished, compile, estream, estream_run, finish, fixture};
use tempfile::TempDir;

/// 20 MB a second, and twice that two at a time.
const STORAGE: &str = r#"
name = "slow"
[storage]
latency_ns = 2000000
rates = [
  { read_bytes = 1, outstanding = 1, bytes_per_second = 20000000 },
  { read_bytes = 1, outstanding = 2, bytes_per_second = 40000000 },
]
"#;

fn bundle() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.estream");
    compile(&fixture("olmoe"), &bundle, &["--recipe", "q4_0"]);
    fs::write(dir.path().join("slow.toml"), STORAGE).unwrap();
    (dir, bundle)
}

fn measure(dir: &Path, bundle: &Path, more: &[&str]) -> Finished {
    let mut command = estream();
    command.args(["profile", "measure", "--tokens", "4,40", "--runs", "1"]);
    command.arg("--on").arg(bundle);
    command.arg("--throttle").arg(dir.join("slow.toml"));
    finish(command.args(more))
}

#[test]
fn a_profile_can_be_planned_with() {
    let (dir, bundle) = bundle();
    let done = measure(dir.path(), &bundle, &["--json", "--name", "here"]).success();
    let profile: Profile = serde_json::from_value(done.json()).unwrap();
    assert_eq!(profile.name, "here");
    let says = |what: &str| assert!(done.stderr.contains(what), "{what}: {}", done.stderr);
    says("note: read a block of 4096 bytes");
    says("note: G = 4, 40 tokens: T^ne");
    says("times a prefill of the longest prompt");

    let reader = BundleReader::open(&bundle).unwrap();
    let experts = &reader.bundle().manifest().experts;
    let layers = experts.layers.iter().map(|layer| LayerSize {
        records: layer.records() as usize,
        record_bytes: layer.record_bytes,
    });
    let layers: Vec<_> = layers.collect();
    let service = profile.services[0].clone();
    let mut groups: Vec<_> = service.other.iter().filter_map(|at| at.group).collect();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups, [1, 2, 4, 8]);
    let problem = Problem::new(Question {
        storage: profile.storage.clone(),
        region_bytes: service.record_bytes / 3,
        pinned: 0,
        budget_bytes: 12 * service.record_bytes,
        limits: profile.limits,
        groups: groups
            .iter()
            .map(|group| GroupSize {
                group: *group as usize,
                other_bytes: 0,
                mapped_bytes: 0,
            })
            .collect(),
        depths: vec![1, 2, 4],
        search: Search::Nested,
        schedules: vec![Schedule::Early],
        workloads: vec![Workload {
            weight: 1,
            tokens: 40,
            routes: layers.iter().map(|of| vec![10; of.records]).collect(),
        }],
        layers,
        service,
    });
    let choice = plan(&problem.unwrap()).unwrap();
    // One at a time has half of the bandwidth.
    assert!(choice.depth > 1, "{:?}", profile.storage);
}

#[test]
fn a_file_is_toml_or_json_and_is_not_replaced() {
    let (dir, bundle) = bundle();
    for name in ["found.toml", "found.json"] {
        let path = dir.path().join(name);
        let file = path.to_str().unwrap();
        let done = measure(dir.path(), &bundle, &["-G", "2", "-o", file]).success();
        assert!(done.stdout.is_empty());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.starts_with('{'), name.ends_with("json"), "{text}");
        // What was written is a profile: it can be imitated.
        let mut run = estream();
        run.arg("run").arg(&bundle).args(["--ids", "1,2,3"]);
        finish(run.arg("--throttle").arg(&path)).success();
        let again = measure(dir.path(), &bundle, &["-o", file]);
        assert_eq!(again.code, 2, "{}", again.stderr);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    let printed = measure(dir.path(), &bundle, &["-G", "2", "--quiet"]).success();
    assert_eq!(printed.stderr, "");
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.contains("[[services]]"), "{text}");
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    let (dir, bundle) = bundle();
    fs::write(dir.path().join("there"), "mine").unwrap();
    let before = fs::read_dir(dir.path()).unwrap().count();
    for (output, code) in [("nowhere/o.toml", 5), ("there/o.toml", 5), ("there", 2)] {
        let output = dir.path().join(output);
        // So many requests that nobody would wait for the end of them.
        let options = ["--tokens", "40", "--runs", "1000000", "-o"];
        let mut host = estream();
        host.args(["profile", "measure", "--on"]).arg(&bundle);
        let mut device = estream_run();
        device.arg("profile").arg(&bundle);
        for mut command in [host, device] {
            let done = finish(command.args(options).arg(&output));
            assert_eq!(done.code, code, "{}", done.stderr);
            assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        }
    }
    assert_eq!(fs::read(dir.path().join("there")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
}
