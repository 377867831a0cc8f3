//! What streaming costs and saves, as ratios of one run.
//!
//!     cargo bench -p estream-tests --bench streaming [-- SECTION …] [--threads N] [--runs N]
//!
//! | section | model | what it shows |
//! |---|---|---|
//! | `paper` | OLMoE, 8 layers | every schedule at the balance of paper Fig. 6, beside equation 5: 1,024 tokens |
//! | `shorter` | the same | 512 tokens |
//! | `balance` | the same | T_io / T_exec from 0.5 to 2, measured beside equation 5 |
//! | `long` | OLMoE, 2 layers | 4,096 tokens |
//! | `short` | Qwen3, 4 layers | 16 to 4,096 tokens, against experts in memory and mapped ones |
//! | `shards` | Mixtral, 2 layers | records cut in four against whole ones |
//! | `ceiling` | OLMoE, 2 layers | memory taken beside memory promised |
//! | `planned` | OLMoE, Qwen3 and LFM2, 2 layers with experts each | plans from a profile measured here, beside every (G, Q, B) of a sweep |
//!
//! Shapes are the published ones, weights are random, and routers spread as real ones do.
//! Every measurement is a process of its own, and those that are compared take turns: what else the
//! machine does meets all of them. Of their runs the median counts. Bundles take minutes to make and are kept under `target/tmp`.
//! A line that ends in `met` or `MISSED` compares a figure with its bar.
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

mod balance;
mod bundles;
mod ceiling;
mod child;
mod job;
mod mapped;
mod paper;
mod planned;
mod shards;
mod short;

use std::env;
use std::process::ExitCode;

/// How to measure.
#[derive(Clone, Copy, Debug)]
struct Setup {
    threads: usize,
    runs: usize,
}

type Section = (&'static str, fn(Setup));

const SECTIONS: [Section; 8] = [
    ("paper", paper::run),
    ("shorter", paper::shorter),
    ("balance", balance::run),
    ("long", paper::long),
    ("short", short::run),
    ("shards", shards::run),
    ("ceiling", ceiling::run),
    ("planned", planned::run),
];

fn main() -> ExitCode {
    let mut setup = Setup {
        threads: std::thread::available_parallelism().map_or(1, |threads| threads.get()),
        runs: 3,
    };
    let mut wanted = Vec::new();
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse().ok());
        match arg.as_str() {
            child::FLAG => {
                child::run(&args.next().expect("a job"));
                return ExitCode::SUCCESS;
            }
            // What cargo adds.
            "--bench" => {}
            "--threads" => setup.threads = number().expect("--threads takes a number"),
            "--runs" => setup.runs = number().expect("--runs takes a number"),
            _ => wanted.push(arg),
        }
    }
    let unknown = |name: &&String| !SECTIONS.iter().any(|(section, _)| section == name);
    if let Some(name) = wanted.iter().find(unknown) {
        let names = SECTIONS.map(|(name, _)| name).join(", ");
        println!("there is no section {name:?}; there are {names}");
        return ExitCode::from(2);
    }
    for (name, section) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            section(setup);
        }
    }
    ExitCode::SUCCESS
}

/// Prints a figure beside the most it may be.
fn at_most(what: &str, value: f64, bar: f64) {
    println!(
        "  {what}: {value:.4}, at most {bar:.3}: {}",
        verdict(value <= bar)
    );
}

/// Prints a figure beside the least it may be.
fn at_least(what: &str, value: f64, bar: f64) {
    println!(
        "  {what}: {value:.3}, at least {bar:.3}: {}",
        verdict(value >= bar)
    );
}

fn verdict(met: bool) -> &'static str {
    match met {
        true => "met",
        false => "MISSED",
    }
}
