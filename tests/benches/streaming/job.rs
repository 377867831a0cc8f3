//! One measurement: what is asked of a process of its own, and what it says.

use std::env;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use estream_planner::Layer;
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_schemas::profile::{Rate, Storage};
use estream_tests::schedules::Span;
use serde::{Deserialize, Serialize};

use crate::Setup;
use crate::child::FLAG;

/// Where experts are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Experts {
    /// In memory, all of them.
    Resident,
    /// In the mapped file, which is not in the page cache when a run begins.
    Mapped,
    /// On their way through an arena.
    Streamed(StreamConfig),
}

/// What to measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) bundle: PathBuf,
    pub(crate) experts: Experts,
    pub(crate) tokens: usize,
    pub(crate) threads: usize,
    pub(crate) runs: usize,
    /// Storage to imitate, or the machine's own.
    pub(crate) storage: Option<Storage>,
}

/// What a process did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ran {
    /// Time to load the model.
    pub(crate) load_ns: u64,
    /// The most memory it said it would take.
    pub(crate) ceiling_bytes: u64,
    /// The most it had, pinned pages included.
    pub(crate) peak_bytes: u64,
    /// How much less was available on the machine meanwhile.
    #[serde(default)]
    pub(crate) fall_bytes: u64,
    /// Its runs, the fastest first.
    pub(crate) runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) total_ns: u64,
    pub(crate) io_ns: u64,
    pub(crate) exec_ns: u64,
    pub(crate) bubble: f64,
    pub(crate) overlap: f64,
    pub(crate) records_run: usize,
    pub(crate) records_skipped: usize,
    pub(crate) records_read: usize,
    /// What was read and computed when.
    pub(crate) spans: Vec<Span>,
    /// By layer: what comes before its experts, and each group of them.
    pub(crate) layers: Vec<(u64, Vec<u64>)>,
}

impl Job {
    pub(crate) fn new(bundle: PathBuf, experts: Experts, tokens: usize, setup: Setup) -> Job {
        Job {
            bundle,
            experts,
            tokens,
            threads: setup.threads,
            runs: setup.runs,
            storage: None,
        }
    }

    /// The same with other experts.
    pub(crate) fn with(&self, experts: Experts) -> Job {
        Job {
            experts,
            ..self.clone()
        }
    }

    /// The same on storage of so many bytes a second.
    pub(crate) fn at(&self, bytes_per_second: f64) -> Job {
        Job {
            storage: Some(storage(bytes_per_second)),
            ..self.clone()
        }
    }

    /// As [`Job::in_turn`].
    pub(crate) fn interleaved<const N: usize>(jobs: &[Job; N]) -> [Ran; N] {
        let all = Job::in_turn(jobs);
        all.try_into().expect("as many as there are jobs")
    }

    /// Does all of `jobs`, one after another, and again for each of their runs: what else the machine
    /// does comes and goes, and so meets all of them.
    pub(crate) fn in_turn(jobs: &[Job]) -> Vec<Ran> {
        let rounds = jobs.iter().map(|job| job.runs).max().unwrap_or(1);
        let once = |job: &Job| {
            Job {
                runs: 1,
                ..job.clone()
            }
            .run()
        };
        let mut all: Vec<Ran> = jobs.iter().map(once).collect();
        for _ in 1..rounds {
            for (ran, job) in all.iter_mut().zip(jobs) {
                ran.join(once(job));
            }
        }
        all
    }

    /// Does it.
    pub(crate) fn run(&self) -> Ran {
        let job = serde_json::to_string(self).expect("a job is JSON");
        let program = env::current_exe().expect("this program");
        let before = available_bytes();
        let mut child = Command::new(program)
            .args([FLAG, &job])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        // It says more than a pipe holds.
        let mut pipe = child.stdout.take().expect("a pipe");
        let answer = std::thread::spawn(move || {
            let mut answer = Vec::new();
            pipe.read_to_end(&mut answer).map(|_| answer)
        });
        let mut least = before;
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            least = least.min(available_bytes());
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{self:?}");
        let answer = answer.join().expect("a thread").expect("an answer");
        let mut ran: Ran = serde_json::from_slice(&answer).expect("JSON");
        ran.sort();
        ran.fall_bytes = before - least;
        ran
    }
}

/// Storage of so many bytes a second, however many reads are under way; 0.1 ms until a read's first.
#[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
pub(crate) fn storage(bytes_per_second: f64) -> Storage {
    Storage {
        latency_ns: 100_000,
        rates: vec![Rate {
            read_bytes: 1,
            outstanding: 1,
            bytes_per_second: bytes_per_second as u64,
        }],
        hot_rates: Vec::new(),
        buffer_bytes: None,
    }
}

fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib(&text, "MemAvailable:") << 10
}

/// The number after `key` in a file of `/proc`; 0 if there is none.
pub(crate) fn kib(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

pub(crate) fn streamed(
    schedule: Schedule,
    (group, depth, banks): (usize, usize, usize),
    tokens: usize,
) -> Experts {
    Experts::Streamed(StreamConfig::new(schedule, group, depth, banks, tokens))
}

impl Ran {
    fn sort(&mut self) {
        self.runs.sort_by_key(|run| run.total_ns);
    }

    /// Takes the runs of another process that did the same.
    fn join(&mut self, other: Ran) {
        self.load_ns = self.load_ns.min(other.load_ns);
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.fall_bytes = self.fall_bytes.max(other.fall_bytes);
        self.runs.extend(other.runs);
        self.sort();
    }

    /// The run in the middle.
    pub(crate) fn median(&self) -> &Run {
        &self.runs[self.runs.len() / 2]
    }

    /// Its time, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.median().total_ns as f64 / 1e9
    }

    /// How far the runs lie apart, as a share of the median.
    pub(crate) fn spread(&self) -> f64 {
        let [first, last] =
            [self.runs.first(), self.runs.last()].map(|run| run.map_or(0, |run| run.total_ns));
        (last - first) as f64 / self.median().total_ns as f64
    }
}

impl Run {
    /// Records of all layers.
    pub(crate) fn records(&self) -> u64 {
        (self.records_run + self.records_skipped) as u64
    }

    /// The share of them that had routes.
    pub(crate) fn union(&self) -> f64 {
        self.records_run as f64 / self.records() as f64
    }

    /// Bytes read over bytes needed, where all records are of one size.
    pub(crate) fn read_ratio(&self) -> f64 {
        self.records_read as f64 / self.records_run as f64
    }

    /// What the recurrence takes, if each read of a group takes `read_ns`.
    pub(crate) fn layers(&self, read_ns: u64) -> Vec<Layer> {
        let layer = |(other_ns, groups): &(u64, Vec<u64>)| Layer {
            other_ns: *other_ns,
            groups: groups
                .iter()
                .map(|run_ns| estream_planner::Group {
                    read_ns,
                    run_ns: *run_ns,
                })
                .collect(),
        };
        self.layers.iter().map(layer).collect()
    }
}

/// Keeps what was measured, as JSON.
pub(crate) fn keep(name: &str, measured: &impl Serialize) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("streaming")
        .join(name);
    let text = serde_json::to_string(measured).expect("what was measured is JSON");
    fs::write(&path, text + "\n").expect("a file");
    println!("kept in {}", path.display());
}

/// What the machine calls its processor, and how many threads compute.
pub(crate) fn machine(threads: usize) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    let name = name.map_or("unknown", |(_, name)| name.trim());
    format!("{name}, {threads} threads")
}
