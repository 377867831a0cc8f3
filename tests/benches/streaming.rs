//! What streaming costs and saves, as ratios of one run.
//!
//!     cargo bench -p estream-tests --bench streaming
//!
//! Experts of OLMoE's real shape, storage as slow as the paper's point (on demand, a third of
//! the time nothing but reading happens), and every schedule in a process of its own, beside
//! what the recurrence of the paper predicts. Bundles are kept under `target/tmp`, because they take minutes to make.
//! `--layers N`, `--tokens N` and `--threads N` make it shorter.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use estream_planner::{Group, Layer, predict};
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_tests::{estream, estream_run, finish, xtask};
use serde_json::{Value, json};

/// G, Q and B of the paper's point.
const NUMBERS: (usize, usize, usize) = (8, 2, 3);
/// The bubble of on-demand loading there (paper Fig. 6), and how near it must be.
const BUBBLE: f64 = 0.344;
const NEAR: f64 = 0.01;

struct Setup {
    layers: usize,
    tokens: Vec<usize>,
    threads: usize,
}

fn main() {
    let flag = |name: &str| {
        let mut args = env::args().skip_while(move |arg| arg != name);
        args.nth(1).and_then(|value| value.parse::<usize>().ok())
    };
    let setup = Setup {
        layers: flag("--layers").unwrap_or(8),
        tokens: flag("--tokens").map_or_else(|| vec![512, 1024], |tokens| vec![tokens]),
        threads: flag("--threads").unwrap_or(2),
    };
    let bundle = bundle("olmoe", setup.layers);
    for tokens in &setup.tokens {
        schedules(&bundle, *tokens, &setup);
    }
}

/// A bundle of so many layers of a real shape, made once.
fn bundle(shape: &str, layers: usize) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("streaming");
    let bundle = dir.join(format!("{shape}-{layers}.estream"));
    if !bundle.join("manifest.json").is_file() {
        let source = dir.join(format!("{shape}-{layers}"));
        let _ = fs::remove_dir_all(&source);
        let layers = layers.to_string();
        let mut synth = xtask();
        synth.args(["synth", "--shape", shape, "--layers", &layers, "-o"]);
        finish(synth.arg(&source)).success();
        let mut compile = estream();
        compile.args(["compile", "--quiet", "--recipe", "q4_0", "--force", "-o"]);
        finish(compile.arg(&bundle).arg(&source)).success();
        fs::remove_dir_all(&source).expect("the checkpoint is not needed any more");
    }
    bundle
}

/// What one run of a prompt took.
struct Ran {
    prefill_us: f64,
    peak_bytes: u64,
    stats: Value,
}

impl Ran {
    fn stream(&self, field: &str) -> f64 {
        self.stats["stream"][field].as_f64().unwrap_or(0.0)
    }
}

fn run(bundle: &Path, tokens: usize, setup: &Setup, flags: &[&str]) -> Ran {
    let ids = env::temp_dir().join(format!("estream-bench-{}.ids", std::process::id()));
    let list: Vec<String> = (0..tokens)
        .map(|i| (i * 7919 % 50_000).to_string())
        .collect();
    fs::write(&ids, list.join(" ")).expect("a file of ids");
    let mut command = estream_run();
    command.arg(bundle).arg("--ids-file").arg(&ids);
    command.args(["--json", "--stats", "--top", "1", "--verify", "never"]);
    command.args(["--threads", &setup.threads.to_string()]);
    let mut child = command
        .args(flags)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the runner");
    let peak_bytes = peak(&mut child);
    let output = child.wait_with_output().expect("an answer");
    assert!(output.status.success(), "{flags:?}");
    let _ = fs::remove_file(&ids);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let stats = report["stats"].clone();
    Ran {
        prefill_us: stats["prefill_us"].as_f64().unwrap_or(0.0),
        peak_bytes,
        stats,
    }
}

/// The most memory `child` has had resident by its end.
fn peak(child: &mut Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().expect("a child").is_none() {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        peak_kib = kib.unwrap_or(0).max(peak_kib);
        std::thread::sleep(Duration::from_millis(5));
    }
    peak_kib << 10
}

/// A profile of storage so fast, in a file.
fn profile(bytes_per_second: f64) -> PathBuf {
    let path = env::temp_dir().join(format!("estream-bench-{}.json", std::process::id()));
    #[expect(clippy::cast_possible_truncation, reason = "a rate of bytes")]
    #[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
    let rate = bytes_per_second as u64;
    let profile = json!({
        "name": "bench",
        "storage": {
            "latency_ns": 100_000,
            "rates": [{ "read_bytes": 1 << 20, "outstanding": 1, "bytes_per_second": rate }],
        },
    });
    fs::write(&path, profile.to_string()).expect("a profile");
    path
}

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn schedules(bundle: &Path, tokens: usize, setup: &Setup) {
    let (group, depth, banks) = NUMBERS;
    let numbers = [group, depth, banks].map(|number| number.to_string());
    let streamed = |schedule: Schedule, throttle: &Path| {
        let [group, depth, banks] = numbers.each_ref().map(String::as_str);
        let throttle = throttle.to_str().expect("a path in UTF-8");
        let flags = [
            "--schedule",
            schedule.name(),
            "-G",
            group,
            "-Q",
            depth,
            "-B",
            banks,
            "--throttle",
            throttle,
        ];
        run(bundle, tokens, setup, &flags)
    };
    println!(
        "\n{} layers of OLMoE, {tokens} tokens, G = {group}, Q = {depth}, B = {banks}",
        setup.layers
    );
    let resident = run(bundle, tokens, setup, &["--schedule", "resident"]);

    // From a guess to the paper's point: on demand, reading and computing take turns, so the
    // shorter of the two is the bubble.
    let record_bytes = 3_538_944.0;
    let bytes = record_bytes * 64.0 * setup.layers as f64;
    let ratio = (1.0 - BUBBLE) / BUBBLE;
    let mut rate = bytes / (ratio * resident.prefill_us / 1e6);
    let mut throttle = profile(rate);
    let mut on_demand = streamed(Schedule::OnDemand, &throttle);
    for _ in 0..4 {
        if (on_demand.stream("bubble") - BUBBLE).abs() <= NEAR {
            break;
        }
        let (io, exec) = (on_demand.stream("io_us"), on_demand.stream("exec_us"));
        rate *= io / (ratio * exec);
        throttle = profile(rate);
        on_demand = streamed(Schedule::OnDemand, &throttle);
    }
    let exec_us = on_demand.stream("exec_us");
    println!(
        "storage of {:.0} MB/s: on demand, T_io = {:.2} T_exec; resident takes {:.2} s",
        rate / 1e6,
        on_demand.stream("io_us") / exec_us,
        resident.prefill_us / 1e6
    );
    println!(
        "{:<10} {:>11} {:>8} {:>10} {:>8} {:>10} {:>11} {:>10}",
        "schedule",
        "÷ resident",
        "bubble",
        "predicted",
        "overlap",
        "read/union",
        "peak ÷ res.",
        "ceiling"
    );
    let layers = model(&on_demand, setup, group, rate);
    for schedule in Schedule::ALL {
        let ran = match schedule {
            Schedule::Resident => run(bundle, tokens, setup, &["--schedule", "resident"]),
            Schedule::OnDemand => streamed(schedule, &throttle),
            _ => streamed(schedule, &throttle),
        };
        let config = StreamConfig::new(schedule, group, depth, banks, tokens);
        let ceiling = ran.stats["memory_bytes"].as_f64().unwrap_or(0.0);
        println!(
            "{:<10} {:>11.3} {:>7.2}% {:>9.2}% {:>7.1}% {:>10.2} {:>11.3} {:>9.1}%",
            schedule.name(),
            ran.prefill_us / resident.prefill_us,
            100.0 * ran.stream("bubble"),
            100.0 * predict(&layers, &config).bubble(),
            100.0 * ran.stream("overlap"),
            ran.stream("read_ratio"),
            ran.peak_bytes as f64 / resident.peak_bytes as f64,
            100.0 * ran.peak_bytes as f64 / ceiling
        );
    }
}

/// The times of a run as the recurrence takes them: what is no expert's is shared by the layers.
fn model(on_demand: &Ran, setup: &Setup, group: usize, rate: f64) -> Vec<Layer> {
    let ns = |us: f64| Duration::from_secs_f64(us.max(0.0) / 1e6).as_nanos();
    let ns = |us: f64| u64::try_from(ns(us)).unwrap_or(u64::MAX);
    let experts_us = on_demand.stream("experts_us");
    let other_us = on_demand.stream("exec_us") - experts_us;
    let layers = setup.layers as f64;
    let groups = 64usize.div_ceil(group);
    let read_us = 1e6 * 3_538_944.0 * group as f64 / rate;
    let one = Group {
        // With Q under way each takes Q times as long.
        read_ns: ns(read_us * NUMBERS.1 as f64),
        run_ns: ns(experts_us / layers / groups as f64),
    };
    let layer = Layer {
        other_ns: ns(other_us / layers),
        groups: vec![one; groups],
    };
    vec![layer; setup.layers]
}
