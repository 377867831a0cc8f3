//! Plans made from a profile that is measured here, beside trying everything.

use std::fs;
use std::path::Path;

use estream_runtime::measure::RoutedRows;
use estream_runtime::reader::{BundleReader, Verify};
use estream_runtime::{LoadOptions, Model, Request};
use estream_schemas::plan::Schedule;
use estream_schemas::profile::{Limits, Profile, Rate, Sources, Storage};
use estream_tests::sweep::{
    BUDGETS, Length, Numbers, Rates, Sweep, Swept, Tried, choice, predicted, slower,
};
use estream_tests::{estream, finish};

use crate::bundles::bundle;
use crate::child::{Nowhere, ids, streaming};
use crate::job::{Experts, Job, Ran, keep, machine, streamed};
use crate::{Setup, at_least, at_most};

/// Shapes, and as many of their layers as have two with experts.
const MODELS: [(&str, usize); 3] = [("olmoe", 2), ("qwen3moe", 2), ("lfm2moe", 4)];
const LENGTHS: [usize; 2] = [64, 1024];
/// What is tried, as far as Q ≤ B and the largest budget go.
const GROUPS: [usize; 4] = [1, 2, 4, 8];
const DEPTHS: [usize; 2] = [1, 2];
const BANKS: [usize; 4] = [1, 2, 4, 8];
/// How much slower a plan may be than the best that was tried: the paper's worst (§5.5).
const REGRET: f64 = 0.0345;
/// How far a ceiling may be above the memory that was taken.
const ABOVE: f64 = 1.11;

pub(crate) fn run(setup: Setup) {
    println!("\n`early`: plans from a profile of this machine beside a sweep over (G, Q, B)");
    let models = MODELS.map(|(shape, layers)| model(shape, layers, setup));
    let sweep = Sweep {
        machine: machine(setup.threads),
        models: models.into(),
    };
    keep("sweep.json", &sweep);
}

fn model(shape: &str, layers: usize, setup: Setup) -> Swept {
    let bundle = bundle(shape, layers, 1);
    let reader = BundleReader::open(&bundle).expect("a bundle");
    let experts = &reader.bundle().manifest().experts;
    let first = &experts.layers[0];
    let longest = LENGTHS[LENGTHS.len() - 1];
    let resident = Job::new(bundle.clone(), Experts::Resident, longest, setup);
    let storage = flash(&resident, first.record_bytes);
    let profile = measured(&bundle, &storage, setup);
    let mut swept = Swept {
        model: shape.to_owned(),
        layers: experts.layers.len(),
        records: first.records() as usize,
        region_bytes: (first.up.offset - first.gate.offset)
            .max(first.down.offset - first.up.offset),
        profile,
        lengths: Vec::new(),
    };
    println!(
        "\n{shape}, {} layers of {} records of {} bytes",
        swept.layers, swept.records, first.record_bytes
    );
    for tokens in LENGTHS {
        let job = Job {
            tokens,
            ..resident.clone()
        };
        let length = length(&swept, &job, &storage);
        told(&swept, &length);
        swept.lengths.push(length);
    }
    swept
}

/// Storage with which the longest prompt reads as long as it computes, and a third longer one at a time.
#[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
fn flash(job: &Job, record_bytes: u64) -> Storage {
    let ran = job.run();
    let bytes = (record_bytes * ran.median().records()) as f64;
    let full = bytes / ran.seconds();
    let rate = |outstanding, share: f64| Rate {
        read_bytes: record_bytes,
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
    let list = |numbers: &[usize]| {
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        numbers.join(",")
    };
    let mut measure = estream();
    measure.args(["profile", "measure", "--verify", "never", "--on"]);
    measure.arg(bundle).arg("--throttle").arg(&stated);
    measure.args(["--tokens", &list(&LENGTHS), "-G", &list(&GROUPS)]);
    measure.args(["--threads", &setup.threads.to_string()]);
    measure.args(["--runs", &setup.runs.to_string(), "-o"]);
    let talk = finish(measure.arg(&found)).success().stderr;
    println!("{}", talk.lines().last().unwrap_or_default());
    let text = fs::read(&found).expect("a profile");
    serde_json::from_slice(&text).expect("a profile")
}

/// Rows of each record, by layer.
fn routes(bundle: &Path, tokens: usize) -> Vec<Vec<u64>> {
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
    routes.rows
}

/// All there is to try.
fn all() -> Vec<Numbers> {
    let mut all = Vec::new();
    for group in GROUPS {
        for depth in DEPTHS {
            let banks = BANKS.into_iter().filter(|banks| depth <= *banks);
            all.extend(banks.map(|banks| Numbers {
                group,
                depth,
                banks,
            }));
        }
    }
    all.retain(|numbers| numbers.records() <= BUDGETS[BUDGETS.len() - 1]);
    all
}

/// Runs them, one after another, and that as often as each is to run.
fn tried(job: &Job, storage: &Storage, all: &[Numbers]) -> Vec<Tried> {
    let jobs: Vec<Job> = all
        .iter()
        .map(|numbers| Job {
            storage: Some(storage.clone()),
            ..job.with(streamed(Schedule::Early, numbers.tuple(), job.tokens))
        })
        .collect();
    let rans = Job::in_turn(&jobs);
    let tried = |(ran, numbers): (Ran, &Numbers)| Tried {
        numbers: *numbers,
        total_ns: ran.runs.iter().map(|run| run.total_ns).collect(),
        peak_bytes: ran.peak_bytes,
        ceiling_bytes: ran.ceiling_bytes,
    };
    rans.into_iter().zip(all).map(tried).collect()
}

fn length(swept: &Swept, job: &Job, storage: &Storage) -> Length {
    let mut length = Length {
        tokens: job.tokens,
        routes: routes(&job.bundle, job.tokens),
        tried: Vec::new(),
        hot: Vec::new(),
    };
    // The planner knows what is tried, and may choose what lies between.
    length.tried = tried(job, storage, &all());
    let plans = |length: &Length, rates| {
        let mut plans: Vec<Numbers> = Vec::new();
        for records in BUDGETS {
            let problem = swept.problem(length, records, rates);
            let numbers = Numbers::of(&choice(&problem).chosen);
            if !plans.contains(&numbers) {
                plans.push(numbers);
            }
        }
        plans
    };
    let mut cold = plans(&length, Rates::Cold);
    let mut hot = plans(&length, Rates::Hot);
    hot.extend(
        cold.iter()
            .filter(|numbers| !hot.contains(numbers))
            .copied()
            .collect::<Vec<_>>(),
    );
    cold.retain(|numbers| length.of(*numbers).is_none());
    length.tried.extend(tried(job, storage, &cold));
    let mut slow = storage.clone();
    for rate in &mut slow.rates {
        rate.bytes_per_second = slower(rate.bytes_per_second);
    }
    length.hot = tried(job, &slow, &hot);
    length
}

/// Prints what the plans are worth.
fn told(swept: &Swept, length: &Length) {
    println!(
        "\n{} tokens\n{:>8} {:>12} {:>12} {:>11} {:>12} {:>7} {:>15} {:>6} {:>10}",
        length.tokens,
        "records",
        "plan G,Q,B",
        "predicted s",
        "measured s",
        "best tried",
        "s",
        "measured ÷ best",
        "± %",
        "hot ÷ best"
    );
    for records in BUDGETS {
        let verdict = swept.verdict(length, records);
        println!(
            "{records:>8} {:>12} {:>12.3} {:>11.3} {:>12} {:>7.3} {:>15.4} {:>6.2} {:>10.4}",
            verdict.plan.to_string(),
            verdict.predicted,
            verdict.measured,
            verdict.best.to_string(),
            verdict.best_seconds,
            verdict.regret(),
            50.0 * verdict.spread,
            verdict.cold_when_hot
        );
        at_most(
            "measured ÷ best",
            verdict.regret(),
            1.0 + REGRET.max(2.0 * verdict.spread),
        );
    }
    let problem = swept.problem(length, BUDGETS[BUDGETS.len() - 1], Rates::Cold);
    let choice = choice(&problem);
    let mut ratios: Vec<(f64, Numbers)> = length
        .tried
        .iter()
        .filter_map(|tried| {
            let seconds = predicted(&problem, &choice, tried.numbers)?;
            Some((seconds / tried.seconds(), tried.numbers))
        })
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [low, middle, high] = [0, ratios.len() / 2, ratios.len() - 1].map(|at| ratios[at]);
    println!(
        "  predicted ÷ measured of {} configurations: {:.3} ({}) to {:.3} ({}), median {:.3}",
        ratios.len(),
        low.0,
        low.1,
        high.0,
        high.1,
        middle.0
    );
    let above = length
        .tried
        .iter()
        .map(|tried| tried.ceiling_bytes as f64 / tried.peak_bytes as f64);
    let [least, most] = above.fold([f64::MAX, 0.0], |[least, most], of| {
        [of.min(least), of.max(most)]
    });
    at_least("ceiling ÷ peak", least, 1.0);
    at_most("ceiling ÷ peak", most, ABOVE);
}
