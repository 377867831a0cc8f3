//! What planning at Q₀ from one prompt's routes costs, compared with the best (G, Q, B) of another.
//!
//!     cargo run --release -p estream-planner --example regret [SCHEDULE [DEVICES [full]]]
//!
//! For each of the paper's models, a number of made-up devices, six lengths of prompt and three budgets,
//! a plan is made with the routes of one prompt, at Q₀ or, with `full`, at the best Q. How much slower is it than the best of all (G, Q, B) within
//! the budget, all of them tried, for that prompt and for another of the same length?

#[path = "../benches/setting/mod.rs"]
mod setting;

use estream_planner::{Choice, Problem, Search, explain, plan};
use estream_schemas::plan::Schedule;

use self::setting::{DEVICE, Device, MODELS, question};

/// Layers of the prompt that judges; their popular experts are elsewhere.
const OTHER_PROMPT: usize = 1000;

/// Lengths of prompts.
const TOKENS: [u64; 6] = [16, 256, 512, 1024, 2048, 4096];

/// Devices around the one of the paper: latency, bandwidth, how much of it one read gets, how fast
/// rows are computed, and what a submission takes, each of them even over its range.
fn device(number: u64) -> Device {
    let mut state = number;
    let mut between = |low: u64, high: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        low + (state >> 33) % (high - low + 1)
    };
    if number == 0 {
        return DEVICE;
    }
    let peak = between(1_500, 4_500) * 1_000_000;
    let alone = between(40, 100);
    // What is missing halves with every further read.
    let rates = [1, 2, 4, 8].map(|parts| peak / 100 * (100 - (100 - alone) / parts));
    Device {
        latency_ns: between(50, 300) * 1000,
        rates,
        row_ps: between(300, 3000),
        dispatch_ns: between(10, 150) * 1000,
    }
}

/// How much slower than the best (G, Q, B) within the budget the configuration of a plan is.
fn regret(problem: &Problem, schedule: Schedule, planned: &Choice) -> f64 {
    let question = problem.question();
    let time = |numbers| {
        let explained = explain(problem, planned, schedule, numbers);
        let fits = explained.inequalities.iter().all(|one| one.holds());
        let evaluated = explained.predicted.filter(|_| fits);
        evaluated.map_or(u64::MAX, |evaluated| evaluated.mean_ns)
    };
    let config = planned.chosen.config;
    let planned_ns = time((config.group, config.depth, config.banks));
    let most = question.layers.iter().map(|layer| layer.records).max();
    let mut best_ns = planned_ns;
    for size in &question.groups {
        for depth in &question.depths {
            for banks in *depth..=2 * most.unwrap_or(1).div_ceil(size.group) {
                best_ns = best_ns.min(time((size.group, *depth, banks)));
            }
        }
    }
    planned_ns as f64 / best_ns as f64 - 1.0
}

/// Regrets of plans for the prompt that they were made for and for another.
#[derive(Default)]
struct Regrets {
    own: Vec<f64>,
    other: Vec<f64>,
    refused: usize,
}

impl Regrets {
    #[expect(clippy::print_stdout, reason = "an example prints what it finds")]
    fn print(&mut self, name: &str) {
        print!("{name:<18} {:>5} {:>7}", self.own.len(), self.refused);
        for regrets in [&mut self.own, &mut self.other] {
            regrets.sort_by(f64::total_cmp);
            for at in [regrets.len() / 2, regrets.len().saturating_sub(1)] {
                let percent = 100.0 * regrets.get(at).copied().unwrap_or(0.0);
                print!(" {percent:>8.2}%");
            }
        }
        println!();
    }

    fn take(&mut self, one: &Result<(f64, f64), ()>) {
        match one {
            Ok((own, other)) => {
                self.own.push(*own);
                self.other.push(*other);
            }
            Err(()) => self.refused += 1,
        }
    }
}

#[expect(clippy::print_stdout, reason = "an example prints what it finds")]
fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "early".to_owned());
    let schedule = Schedule::ALL.into_iter().find(|one| one.name() == name);
    let schedule = schedule.expect("the name of a schedule");
    let devices = args
        .next()
        .map_or(4, |count| count.parse().expect("a number of devices"));
    let search = match args.next().as_deref() {
        Some("full") => Search::Full,
        _ => Search::Nested,
    };
    println!("{name}, {devices} devices           own prompt           another one");
    println!(
        "{:<18} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "", "cases", "refused", "median", "worst", "median", "worst"
    );
    let mut by_tokens: Vec<_> = TOKENS.map(|tokens| (tokens, Regrets::default())).into();
    let mut all = Regrets::default();
    for model in &MODELS {
        let mut of_model = Regrets::default();
        for number in 0..devices {
            for (tokens, of_tokens) in &mut by_tokens {
                // Two records, and as much as a tenth of a layer or half of one.
                let layer_bytes = model.experts as u64 * model.record_bytes;
                for extra_bytes in [0, layer_bytes / 10, layer_bytes / 2] {
                    let of = |prompt| {
                        let device = device(number);
                        let mut question = question(model, &device, *tokens, (schedule, prompt));
                        question.search = search;
                        question.budget_bytes = (1 << 30) + 2 * model.record_bytes + extra_bytes;
                        Problem::new(question).expect("a problem")
                    };
                    let (own, other) = (of(0), of(OTHER_PROMPT));
                    let regrets = plan(&own).map_err(|_| ()).map(|choice| {
                        let of = |problem| regret(problem, schedule, &choice);
                        (of(&own), of(&other))
                    });
                    for regretful in [&mut of_model, of_tokens, &mut all] {
                        regretful.take(&regrets);
                    }
                }
            }
        }
        of_model.print(model.name);
    }
    for (tokens, regrets) in &mut by_tokens {
        regrets.print(&format!("{tokens} tokens"));
    }
    all.print("all");
}
