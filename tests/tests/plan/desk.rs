//! A bundle, a profile, and `estream plan` on both.

use std::fs;
use std::path::PathBuf;

use estream_tests::{Finished, compile, estream, estream_run, finish, fixture, manifest};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const LONGEST: usize = 64;

/// A bundle, and a profile of a device that computes about as long as it reads.
pub(crate) struct Desk {
    pub(crate) dir: TempDir,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        let dir = tempfile::tempdir().unwrap();
        compile(&fixture("olmoe"), &dir.path().join("b.estream"), &[]);
        let desk = Desk { dir };
        desk.write("device.toml", &desk.profile(""));
        desk
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn bundle(&self) -> PathBuf {
        self.at("b.estream")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    /// Reads of one record take 0.1 ms, of several at a time not much longer; `storage` is more of
    /// that table.
    pub(crate) fn profile(&self, storage: &str) -> String {
        let slot = self.slot();
        format!(
            r#"
            name = "bench"
            [storage]
            latency_ns = 20000
            rates = [
              {{ read_bytes = 16384, outstanding = 1, bytes_per_second = 600000000 }},
              {{ read_bytes = 16384, outstanding = 2, bytes_per_second = 1000000000 }},
            ]
            {storage}
            [[services]]
            name = "olmoe"
            record_bytes = {slot}
            dispatch_ns = 5000
            other = [{{ tokens = 1, ns = 50000 }}, {{ tokens = 64, ns = 900000 }}]
            records = [{{ rows = 1, ns = 20000 }}, {{ rows = 64, ns = 400000 }}]
            "#
        )
    }

    pub(crate) fn slot(&self) -> u64 {
        number(&manifest(&self.bundle())["experts"]["slot_bytes"])
    }

    /// The smallest budget for prompts of these lengths.
    pub(crate) fn least(&self, tokens: &str) -> u64 {
        let refused = self.plan(&format!("--budget 1MiB --tokens {tokens} --json"));
        number(&refused.json()["plans"][0]["refused"]["least_budget_bytes"])
    }

    /// `estream plan` on the bundle and `device.toml`.
    pub(crate) fn plan(&self, more: &str) -> Finished {
        let mut command = estream();
        command.current_dir(self.dir.path());
        command.args(["plan", "b.estream", "--device", "device.toml"]);
        finish(
            command
                .args(["--threads", "2"])
                .args(more.split_whitespace()),
        )
    }

    pub(crate) fn json(&self, more: &str) -> Value {
        self.plan(&format!("{more} --json")).success().json()
    }
}

pub(crate) fn rows(answer: &Value) -> &Vec<Value> {
    answer["plans"][0]["rows"].as_array().unwrap()
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// A run of a prompt, with statistics and a file of logits.
pub(crate) fn run(desk: &Desk, program: &str, prompt: usize, options: &[&str]) -> Finished {
    let mut command = match program {
        "estream" => estream(),
        _ => estream_run(),
    };
    if program == "estream" {
        command.arg("run");
    }
    let ids: Vec<String> = (0..prompt).map(|at| (at * 7 % 500).to_string()).collect();
    command.arg(desk.bundle());
    command.arg("--logits").arg(desk.at("logits"));
    command.args(["--threads", "2", "--all-positions", "--json", "--stats"]);
    command
        .arg(format!("--ids={}", ids.join(",")))
        .args(options);
    finish(&mut command)
}

/// The file of logits that `options` lead to.
pub(crate) fn logits(
    desk: &Desk,
    program: &str,
    prompt: usize,
    options: &[&str],
) -> (Vec<u8>, Finished) {
    let done = run(desk, program, prompt, options).success();
    let out = desk.at("logits");
    let bytes = fs::read(&out).unwrap();
    fs::remove_file(&out).unwrap();
    (bytes, done)
}
