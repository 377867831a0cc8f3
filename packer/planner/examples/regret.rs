//! What planning at Q₀ from one prompt's routes costs, compared with the best (G, Q, B) of another.
//!
//!     cargo run --release -p estream-planner --example regret [SCHEDULE [DEVICES [full] [hot]]]
//!
//! For each of the paper's models, a number of made-up devices, six lengths of prompt and three budgets,
//! a plan is made with the routes of one prompt, at Q₀ or, with `full`, at the best Q. How much slower is it than the best of all (G, Q, B) within
//! the budget, all of them tried, for that prompt and for another of the same length?
//!
//! With `hot` the device that judges reads at 0.67 times its bandwidth, and two plans are judged: the one for the
//! device that is not hot, and the one of the plan's column for a hot one.

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

/// Bandwidth of a hot device, in percent of that of one that is not.
const HOT_PERCENT: u64 = 67;

/// The same device when it is hot.
fn heated(device: Device) -> Device {
    Device {
        rates: device.rates.map(|rate| rate / 100 * HOT_PERCENT),
        ..device
    }
}

/// What a configuration of these numbers takes, if it fits. `any` is a choice of the same problem.
fn time(
    (problem, any): (&Problem, &Choice),
    schedule: Schedule,
    numbers: (usize, usize, usize),
) -> Option<u64> {
    let explained = explain(problem, any, schedule, numbers);
    let fits = explained.inequalities.iter().all(|one| one.holds());
    let evaluated = explained.predicted.filter(|_| fits);
    evaluated.map(|evaluated| evaluated.mean_ns)
}

/// What the best (G, Q, B) within the budget takes; all are tried.
fn best(judge: (&Problem, &Choice), schedule: Schedule) -> u64 {
    let question = judge.0.question();
    let mut best_ns = u64::MAX;
    for size in &question.groups {
        for depth in &question.depths {
            // More banks do not fit where fewer do not.
            let all =
                (*depth..).map_while(|banks| time(judge, schedule, (size.group, *depth, banks)));
            best_ns = best_ns.min(all.min().unwrap_or(u64::MAX));
        }
    }
    best_ns
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

    fn take(&mut self, one: Option<[f64; 2]>) {
        match one {
            Some([own, other]) => {
                self.own.push(own);
                self.other.push(other);
            }
            None => self.refused += 1,
        }
    }
}

/// The regrets of one way to plan, by model, by length of prompt, and of all.
struct Table {
    title: &'static str,
    /// Plans for a hot device.
    is_hot: bool,
    rows: Vec<(String, Regrets)>,
}

impl Table {
    fn new(title: &'static str, is_hot: bool) -> Table {
        let models = MODELS.iter().map(|model| model.name.to_owned());
        let lengths = TOKENS.iter().map(|tokens| format!("{tokens} tokens"));
        let rows = models.chain(lengths).chain(["all".to_owned()]);
        Table {
            title,
            is_hot,
            rows: rows.map(|name| (name, Regrets::default())).collect(),
        }
    }

    /// Takes the regret of a plan for this model and length down.
    fn take(&mut self, model: usize, length: usize, regrets: Option<[f64; 2]>) {
        let all = MODELS.len() + TOKENS.len();
        for row in [model, MODELS.len() + length, all] {
            self.rows[row].1.take(regrets);
        }
    }

    #[expect(clippy::print_stdout, reason = "an example prints what it finds")]
    fn print(&mut self) {
        println!(
            "\n{:<33} {:>17} {:>19}",
            self.title, "own prompt", "another one"
        );
        println!(
            "{:<18} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9}",
            "", "cases", "refused", "median", "worst", "median", "worst"
        );
        for (name, regrets) in &mut self.rows {
            regrets.print(name);
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
    let words: Vec<String> = args.collect();
    let said = |word: &str| words.iter().any(|said| said == word);
    let search = match said("full") {
        true => Search::Full,
        false => Search::Nested,
    };
    let is_hot = said("hot");
    let mut tables = match is_hot {
        false => vec![Table::new("", false)],
        true => vec![
            Table::new("cold plan", false),
            Table::new("hot column", true),
        ],
    };
    println!("{name}, {devices} devices");
    let lengths = || TOKENS.into_iter().enumerate();
    for (at, model) in MODELS.iter().enumerate() {
        // Two records, and as much as a tenth of a layer or half of one.
        let layer_bytes = model.experts as u64 * model.record_bytes;
        let extra = [0, layer_bytes / 10, layer_bytes / 2];
        for number in 0..devices {
            for (length, tokens) in lengths() {
                for extra_bytes in extra {
                    let of = |prompt, is_hot: bool, search| {
                        let device = match is_hot {
                            true => heated(device(number)),
                            false => device(number),
                        };
                        let mut question = question(model, &device, tokens, (schedule, prompt));
                        question.search = search;
                        question.budget_bytes = (1 << 30) + 2 * model.record_bytes + extra_bytes;
                        Problem::new(question).expect("a problem")
                    };
                    let judges = [0, OTHER_PROMPT].map(|prompt| {
                        let problem = of(prompt, is_hot, Search::Full);
                        let any = plan(&problem).expect("two records fit");
                        let best_ns = best((&problem, &any), schedule);
                        (problem, any, best_ns)
                    });
                    for table in &mut tables {
                        let planned = plan(&of(0, table.is_hot, search)).ok();
                        let regrets = planned.map(|planned| {
                            let config = planned.chosen.config;
                            let numbers = (config.group, config.depth, config.banks);
                            judges.each_ref().map(|(problem, any, best_ns)| {
                                let planned_ns = time((problem, any), schedule, numbers);
                                let planned_ns = planned_ns.expect("it fits the same budget");
                                planned_ns as f64 / *best_ns as f64 - 1.0
                            })
                        });
                        table.take(at, length, regrets);
                    }
                }
            }
        }
    }
    tables.iter_mut().for_each(Table::print);
}
