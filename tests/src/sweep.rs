//! Configurations that were run, beside what the planner says of them.
//!
//! A sweep is data: what was asked, what the device was measured to do, and what every run took. All that is said of it
//! is computed from that again.

use std::fmt;

use estream_planner::{
    Choice, Evaluated, GroupSize, LayerSize, Problem, Question, Search, Workload, explain, plan,
};
use estream_schemas::plan::Schedule;
use estream_schemas::profile::{Limits, Profile};
use serde::{Deserialize, Serialize};

/// How much of its bandwidth a hot device has.
pub const HOT: f64 = 0.67;
/// Records that an arena may have at most: the budgets.
pub const BUDGETS: [usize; 4] = [4, 8, 16, 32];

/// Models that were swept on one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sweep {
    /// Its processor, and how many threads computed.
    pub machine: String,
    /// By shape.
    pub models: Vec<Swept>,
}

/// A model and its runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Swept {
    /// Whose shape it has.
    pub model: String,
    /// Its layers with experts.
    pub layers: usize,
    /// Records of each.
    pub records: usize,
    /// Bytes of a record's largest projection.
    pub region_bytes: u64,
    /// What was measured of the device.
    pub profile: Profile,
    /// By length of the prompt.
    pub lengths: Vec<Length>,
}

/// Runs of one prompt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Length {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Rows of each record, by layer.
    pub routes: Vec<Vec<u64>>,
    /// With the storage of the profile.
    pub tried: Vec<Tried>,
    /// With [`HOT`] of its bandwidth.
    pub hot: Vec<Tried>,
}

/// A configuration that was run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// G, Q and B.
    pub numbers: Numbers,
    /// What its runs took, the fastest first.
    pub total_ns: Vec<u64>,
    /// The most memory it had.
    pub peak_bytes: u64,
    /// The most it said it would have.
    pub ceiling_bytes: u64,
}

/// G, Q and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// Records of a group.
    pub group: usize,
    /// Reads at a time.
    pub depth: usize,
    /// Banks of the arena.
    pub banks: usize,
}

impl Numbers {
    /// Those of a configuration.
    pub fn of(evaluated: &Evaluated) -> Numbers {
        let config = &evaluated.config;
        Numbers {
            group: config.group,
            depth: config.depth,
            banks: config.banks,
        }
    }

    /// Records of the arena.
    pub fn records(self) -> usize {
        self.group * self.banks
    }

    /// As functions take them.
    pub fn tuple(self) -> (usize, usize, usize) {
        (self.group, self.depth, self.banks)
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.group, self.depth, self.banks)
    }
}

impl Tried {
    /// The run in the middle, in seconds.
    pub fn seconds(&self) -> f64 {
        self.total_ns[self.total_ns.len() / 2] as f64 / 1e9
    }

    /// How far its runs lie apart, as a share of the one in the middle.
    pub fn spread(&self) -> f64 {
        let last = self.total_ns.len() - 1;
        (self.total_ns[last] - self.total_ns[0]) as f64 / 1e9 / self.seconds()
    }
}

impl Sweep {
    /// Every prompt of every model.
    pub fn all(&self) -> impl Iterator<Item = (&Swept, &Length)> {
        let models = self.models.iter();
        models.flat_map(|swept| swept.lengths.iter().map(move |length| (swept, length)))
    }
}

impl Length {
    /// The G that were tried, ascending.
    pub fn groups(&self) -> Vec<usize> {
        distinct(self.tried.iter().map(|tried| tried.numbers.group))
    }

    /// What took less time than everything that took no more memory, by memory.
    pub fn pareto(&self) -> Vec<&Tried> {
        let mut all: Vec<&Tried> = self.tried.iter().collect();
        all.sort_by_key(|tried| (tried.peak_bytes, tried.total_ns.clone()));
        let mut least = f64::INFINITY;
        all.retain(|tried| {
            let faster = tried.seconds() < least;
            least = least.min(tried.seconds());
            faster
        });
        all
    }

    /// The runs of a configuration, if there are any.
    pub fn of(&self, numbers: Numbers) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.numbers == numbers)
    }

    /// The fastest of those whose arena has at most so many records.
    pub fn best(&self, records: usize) -> Option<&Tried> {
        let fitting = self.tried.iter();
        let fitting = fitting.filter(|tried| tried.numbers.records() <= records);
        fitting.min_by(|a, b| a.seconds().total_cmp(&b.seconds()))
    }
}

impl Swept {
    /// The prompt of so many tokens.
    pub fn length(&self, tokens: usize) -> Option<&Length> {
        self.lengths.iter().find(|length| length.tokens == tokens)
    }

    /// What the planner is asked: the paper's schedule for a prompt of `length`, with an arena of at most so many
    /// records. Without other memory, a budget is that of the arena.
    ///
    /// # Panics
    /// If the sweep makes no sense.
    pub fn problem(&self, length: &Length, records: usize, storage: Rates) -> Problem {
        let service = self.profile.services[0].clone();
        let depths = length.tried.iter().map(|tried| tried.numbers.depth);
        let size = LayerSize {
            records: self.records,
            record_bytes: service.record_bytes,
        };
        let mut stored = self.profile.storage.clone();
        if let Rates::Hot = storage {
            for rate in &mut stored.rates {
                rate.bytes_per_second = slower(rate.bytes_per_second);
            }
        }
        let question = Question {
            storage: stored,
            limits: Limits::default(),
            budget_bytes: service.record_bytes * records as u64,
            layers: vec![size; self.layers],
            region_bytes: self.region_bytes,
            pinned: 0,
            groups: length
                .groups()
                .into_iter()
                .map(|group| GroupSize {
                    group,
                    other_bytes: 0,
                    mapped_bytes: 0,
                })
                .collect(),
            depths: distinct(depths),
            search: Search::Full,
            schedules: vec![Schedule::Early],
            workloads: vec![Workload {
                weight: 1,
                tokens: length.tokens as u64,
                routes: length.routes.clone(),
            }],
            service,
        };
        Problem::new(question).expect("a question that can be answered")
    }
}

/// What a plan turned out to be worth.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// The plan.
    pub plan: Numbers,
    /// What was predicted of it, in seconds.
    pub predicted: f64,
    /// What it took, in seconds.
    pub measured: f64,
    /// The fastest that was tried, and its seconds.
    pub best: Numbers,
    /// What it took, in seconds.
    pub best_seconds: f64,
    /// How far the runs of the two lie apart, as a share: the larger one.
    pub spread: f64,
    /// What the plan takes on the hot device, over what the plan for the hot device takes there.
    pub cold_when_hot: f64,
}

impl Verdict {
    /// What it took over the fastest that was tried.
    pub fn regret(&self) -> f64 {
        self.measured / self.best_seconds
    }
}

impl Swept {
    /// What the plan for an arena of at most so many records is worth.
    ///
    /// # Panics
    /// If the plan was not run.
    pub fn verdict(&self, length: &Length, records: usize) -> Verdict {
        let chosen = |rates| choice(&self.problem(length, records, rates)).chosen;
        let [cold, hot] = [Rates::Cold, Rates::Hot].map(chosen);
        let plan = Numbers::of(&cold);
        let unknown = |numbers: Numbers| -> &Tried {
            panic!("{numbers} was chosen and never run: measure again")
        };
        let measured = length.of(plan).unwrap_or_else(|| unknown(plan));
        let best = length.best(records).expect("something fits");
        let on_hot = |numbers| {
            let tried = length.hot.iter().find(|tried| tried.numbers == numbers);
            tried.unwrap_or_else(|| unknown(numbers)).seconds()
        };
        Verdict {
            plan,
            predicted: cold.mean_ns as f64 / 1e9,
            measured: measured.seconds(),
            best: best.numbers,
            best_seconds: best.seconds(),
            spread: measured.spread().max(best.spread()),
            cold_when_hot: on_hot(plan) / on_hot(Numbers::of(&hot)),
        }
    }
}

/// Which rates storage has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rates {
    /// Those that were measured.
    Cold,
    /// [`HOT`] of them.
    Hot,
}

/// [`HOT`] of a bandwidth.
#[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
pub fn slower(bytes_per_second: u64) -> u64 {
    (bytes_per_second as f64 * HOT) as u64
}

/// The plan of a problem.
///
/// # Panics
/// If nothing fits.
pub fn choice(problem: &Problem) -> Choice {
    plan(problem).expect("something fits")
}

/// What is predicted of a configuration, in seconds; none where the planner would not look at it.
pub fn predicted(problem: &Problem, choice: &Choice, numbers: Numbers) -> Option<f64> {
    let explained = explain(problem, choice, Schedule::Early, numbers.tuple());
    explained.predicted.map(|of| of.mean_ns as f64 / 1e9)
}

fn distinct(values: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut values: Vec<usize> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}
