//! A plan made from a profile that is measured here, beside trying everything.

use std::fs;
use std::path::Path;

use estream_planner::{GroupSize, LayerSize, Problem, Question, Search, Workload, explain, plan};
use estream_runtime::measure::RoutedRows;
use estream_runtime::reader::{BundleReader, Verify};
use estream_runtime::{LoadOptions, Model, Request};
use estream_schemas::manifest::ExpertLayer;
use estream_schemas::plan::Schedule;
use estream_schemas::profile::{Limits, Profile, Rate, Sources, Storage};
use estream_tests::{estream, finish};

use crate::bundles::bundle;
use crate::child::{Nowhere, ids, streaming};
use crate::job::{Experts, Job, streamed};
use crate::paper::RECORD_BYTES;
use crate::{Setup, at_most};

const LAYERS: usize = 3;
const LENGTHS: [usize; 2] = [64, 1024];
/// What is tried, as far as Q ≤ B and the largest budget go.
const GROUPS: [usize; 4] = [1, 2, 4, 8];
const DEPTHS: [usize; 3] = [1, 2, 4];
const BANKS: [usize; 4] = [1, 2, 4, 8];
/// Records that an arena may hold.
const BUDGETS: [usize; 4] = [4, 8, 16, 32];
/// How much slower a plan may be than the best that was tried: the paper's worst (§5.5).
const REGRET: f64 = 1.0345;

/// A configuration that was tried.
struct Tried {
    numbers: (usize, usize, usize),
    seconds: f64,
}

impl Tried {
    fn records(&self) -> usize {
        let (group, _, banks) = self.numbers;
        group * banks
    }
}

pub(crate) fn run(setup: Setup) {
    println!(
        "\n{LAYERS} layers of OLMoE, `early`: plans from a profile of this machine beside every (G, Q, B) of a sweep"
    );
    let bundle = bundle("olmoe", LAYERS, 1);
    let resident = Job::new(bundle.clone(), Experts::Resident, LENGTHS[1], setup);
    let storage = flash(&resident);
    let profile = measured(&bundle, &storage, setup);
    for tokens in LENGTHS {
        length(&profile, &storage, &resident, tokens);
    }
}

/// Storage with which 1,024 tokens read as long as they compute, and a third longer one at a time.
#[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
fn flash(job: &Job) -> Storage {
    let ran = job.run();
    let bytes = (RECORD_BYTES * ran.median().records()) as f64;
    let full = bytes / ran.seconds();
    let rate = |outstanding, share: f64| Rate {
        read_bytes: RECORD_BYTES,
        outstanding,
        bytes_per_second: (share * full) as u64,
    };
    Storage {
        latency_ns: 100_000,
        rates: vec![rate(1, 0.75), rate(2, 1.0)],
        hot_rates: Vec::new(),
        buffer_bytes: None,
    }
}

/// What `estream profile measure` says of this machine with that storage.
fn measured(bundle: &Path, storage: &Storage, setup: Setup) -> Profile {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("streaming");
    let [stated, found] = ["stated.json", "found.json"].map(|name| dir.join(name));
    let profile = Profile {
        name: "stated".to_owned(),
        device: None,
        storage: storage.clone(),
        budget_bytes: None,
        limits: Limits::default(),
        services: Vec::new(),
        sources: Sources::default(),
    };
    let text = serde_json::to_string(&profile).expect("a profile is JSON");
    fs::write(&stated, text).expect("a file");
    // That of an earlier run.
    let _ = fs::remove_file(&found);
    let lengths = LENGTHS.map(|tokens| tokens.to_string()).join(",");
    let groups = GROUPS.map(|group| group.to_string()).join(",");
    let mut measure = estream();
    measure.args(["profile", "measure", "--verify", "never", "--on"]);
    measure.arg(bundle).arg("--throttle").arg(&stated);
    measure.args(["--tokens", &lengths, "-G", &groups]);
    measure.args(["--threads", &setup.threads.to_string()]);
    measure.args(["--runs", &setup.runs.to_string(), "-o"]);
    let talk = finish(measure.arg(&found)).success().stderr;
    println!("{}", talk.lines().last().unwrap_or_default());
    let text = fs::read(&found).expect("a profile");
    serde_json::from_slice(&text).expect("a profile")
}

/// The question of one length, of which the budget is still open.
fn question(profile: &Profile, bundle: &Path, tokens: usize) -> Question {
    let reader = BundleReader::open(bundle).expect("a bundle");
    let experts = &reader.bundle().manifest().experts;
    let Experts::Streamed(config) = streamed(Schedule::Early, (1, 1, 1), tokens) else {
        unreachable!("it is streamed");
    };
    let options = LoadOptions {
        verify: Verify::Never,
        streaming: Some(streaming(config)),
        ..LoadOptions::default()
    };
    let mut model = Model::load(&reader, &options).expect("a model");
    let mut routes = RoutedRows::new(experts);
    let ran = model.prefill_observed(&ids(tokens), &Request::default(), &mut Nowhere, &mut routes);
    ran.expect("a result");
    let size = |layer: &ExpertLayer| LayerSize {
        records: layer.records() as usize,
        record_bytes: layer.record_bytes,
    };
    // The budget is that of the arena alone.
    let groups = GROUPS.map(|group| GroupSize {
        group,
        other_bytes: 0,
        mapped_bytes: 0,
    });
    Question {
        storage: profile.storage.clone(),
        service: profile.services[0].clone(),
        limits: profile.limits,
        budget_bytes: 0,
        layers: experts.layers.iter().map(size).collect(),
        region_bytes: RECORD_BYTES / 3,
        pinned: 0,
        groups: groups.into(),
        depths: DEPTHS.into(),
        search: Search::Full,
        schedules: vec![Schedule::Early],
        workloads: vec![Workload {
            weight: 1,
            tokens: tokens as u64,
            routes: routes.rows,
        }],
    }
}

fn length(profile: &Profile, storage: &Storage, resident: &Job, tokens: usize) {
    let open = question(profile, &resident.bundle, tokens);
    let seconds = |numbers: (usize, usize, usize)| {
        let job = Job {
            storage: Some(storage.clone()),
            tokens,
            ..resident.with(streamed(Schedule::Early, numbers, tokens))
        };
        job.run().seconds()
    };
    let largest = BUDGETS[BUDGETS.len() - 1];
    let mut tried = Vec::new();
    for group in GROUPS {
        for depth in DEPTHS {
            for banks in BANKS {
                if depth <= banks && group * banks <= largest {
                    let numbers = (group, depth, banks);
                    tried.push(Tried {
                        numbers,
                        seconds: seconds(numbers),
                    });
                }
            }
        }
    }
    println!(
        "\n{tokens} tokens\n{:>8} {:>12} {:>12} {:>11} {:>12} {:>7} {:>15}",
        "records", "plan G,Q,B", "predicted s", "measured s", "best tried", "s", "measured ÷ best"
    );
    let mut worst: f64 = 1.0;
    for records in BUDGETS {
        let problem = Problem::new(Question {
            budget_bytes: RECORD_BYTES * records as u64,
            ..open.clone()
        });
        let problem = problem.expect("a question that can be answered");
        let choice = plan(&problem).expect("a plan");
        let config = choice.chosen.config;
        let numbers = (config.group, config.depth, config.banks);
        let known = tried.iter().find(|of| of.numbers == numbers);
        let measured = known.map_or_else(|| seconds(numbers), |of| of.seconds);
        let fitting = tried.iter().filter(|of| of.records() <= records);
        let best = fitting.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let best = best.expect("something fits");
        let regret = measured / best.seconds;
        worst = worst.max(regret);
        println!(
            "{records:>8} {:>12} {:>12.3} {measured:>11.3} {:>12} {:>7.3} {regret:>15.3}",
            name(numbers),
            choice.chosen.mean_ns as f64 / 1e9,
            name(best.numbers),
            best.seconds
        );
        if records == largest {
            errors(&tried, |numbers| {
                let explained = explain(&problem, &choice, Schedule::Early, numbers);
                explained.predicted.map(|of| of.mean_ns as f64 / 1e9)
            });
        }
    }
    at_most("measured ÷ best, at worst", worst, REGRET);
}

/// How far predictions are from what was tried.
fn errors(tried: &[Tried], predicted: impl Fn((usize, usize, usize)) -> Option<f64>) {
    let ratios = tried.iter().filter_map(|of| {
        let ratio = predicted(of.numbers)? / of.seconds;
        Some((ratio, of.numbers))
    });
    let mut ratios: Vec<_> = ratios.collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [low, middle, high] = [0, ratios.len() / 2, ratios.len() - 1].map(|at| ratios[at]);
    println!(
        "  predicted ÷ measured of {} configurations: {:.3} ({}) to {:.3} ({}), median {:.3}",
        ratios.len(),
        low.0,
        name(low.1),
        high.0,
        name(high.1),
        middle.0
    );
}

fn name((group, depth, banks): (usize, usize, usize)) -> String {
    format!("{group},{depth},{banks}")
}
