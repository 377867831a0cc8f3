//! What a configuration costs.

use estream_schemas::plan::{Schedule, StreamConfig};

use crate::early::{Scratch, Slices};
use crate::problem::{GroupSize, Problem};
use crate::recurrence::Predicted;
use crate::simulate::simulate;
use crate::times::{ReadTimes, Request};

/// What is predicted of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Its times; the total is the time to first token.
    pub times: Predicted,
    /// Reads.
    pub reads: u64,
    /// Records that are read.
    pub records_read: u64,
    /// Records that have routes.
    pub records_run: u64,
    /// Bytes that are read.
    pub bytes_read: u64,
}

/// A configuration and what is predicted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluated {
    /// The configuration.
    pub config: StreamConfig,
    /// Bytes of the arena; of all experts for `resident`.
    pub arena_bytes: u64,
    /// The arena and M_other(G).
    pub memory_bytes: u64,
    /// Time to first token, the mean over the workloads by weight.
    pub mean_ns: u64,
    /// Of each workload.
    pub predictions: Vec<Prediction>,
}

/// What evaluating a configuration showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The end of the request, unless the bound was met before.
    pub(crate) total_ns: Option<u64>,
    /// More banks could change something.
    pub(crate) held: bool,
    /// Something without routes was read, in an evaluation without a memory of others.
    pub(crate) wasted: bool,
}

/// What evaluating a configuration for all workloads showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Σ weight · total, unless the limit was met before.
    pub(crate) sum: Option<u128>,
    pub(crate) held: bool,
    pub(crate) wasted: bool,
}

/// One schedule and G at one Q: what does not depend on B.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    problem: &'a Problem,
    pub(crate) schedule: Schedule,
    pub(crate) size: GroupSize,
    pub(crate) depth: usize,
    model: Model,
    /// Lower bounds of the cost from each workload on.
    least: Vec<u128>,
}

#[derive(Debug)]
enum Model {
    /// The recurrence.
    Early(Vec<Slices>),
    /// The simulation, with lower bounds from each step on.
    Simulated(ReadTimes, Vec<Vec<u64>>),
}

impl<'a> Lane<'a> {
    pub(crate) fn new(
        problem: &'a Problem,
        schedule: Schedule,
        size: GroupSize,
        depth: usize,
    ) -> Lane<'a> {
        let requests = problem.requests.iter();
        let (model, firsts): (Model, Vec<u64>) = match schedule {
            Schedule::Early => {
                let slices = |request| Slices::new(problem, request, size.group, depth);
                let slices: Vec<Slices> = requests.map(slices).collect();
                let firsts = slices.iter().map(|slices| slices.least_ns[0]).collect();
                (Model::Early(slices), firsts)
            }
            _ => {
                let least: Vec<_> = requests
                    .map(|request| request.least_ns(size.group))
                    .collect();
                let firsts = least.iter().map(|least| least[0]).collect();
                let under_way = match schedule {
                    Schedule::OnDemand => 1,
                    _ => depth,
                };
                let times = ReadTimes::new(problem, size.group, under_way);
                (Model::Simulated(times, least), firsts)
            }
        };
        let mut least = vec![0];
        for (request, first) in problem.requests.iter().zip(firsts).rev() {
            least.push(least[least.len() - 1] + weighted(request, first));
        }
        least.reverse();
        Lane {
            problem,
            schedule,
            size,
            depth,
            model,
            least,
        }
    }

    /// No B costs less.
    pub(crate) fn least(&self) -> u128 {
        self.least[0]
    }

    /// What evaluations of this lane, and of no other, leave to each other.
    pub(crate) fn scratch(&self) -> Vec<Scratch> {
        self.problem
            .requests
            .iter()
            .map(|_| Scratch::default())
            .collect()
    }

    pub(crate) fn config(&self, banks: usize) -> StreamConfig {
        let (group, tokens) = (self.size.group, self.problem.tokens);
        StreamConfig::new(self.schedule, group, self.depth, banks, tokens)
    }

    /// Σ weight · total, if that is below `limit`.
    pub(crate) fn cost(&self, banks: usize, limit: u128, scratch: &mut [Scratch]) -> Cost {
        let config = self.config(banks);
        let mut cost = Cost {
            sum: None,
            held: false,
            wasted: false,
        };
        let mut sum = 0;
        for (at, request) in self.problem.requests.iter().enumerate() {
            let Some(left) = limit.checked_sub(sum + self.least[at + 1]) else {
                return cost;
            };
            // weight · total < left  ⇔  total < ⌈left / weight⌉
            let bound = left.div_ceil(u128::from(request.weight));
            let bound = u64::try_from(bound).unwrap_or(u64::MAX);
            let outcome = match &self.model {
                Model::Early(slices) => {
                    let scratch = &mut scratch[at];
                    slices[at].walk(self.depth, banks, bound, scratch, |_, _, _| {})
                }
                Model::Simulated(times, least) => {
                    let least = (&least[at][..], bound);
                    simulate(self.problem, request, times, &config, least, None).0
                }
            };
            cost.held |= outcome.held;
            cost.wasted |= outcome.wasted;
            let Some(total_ns) = outcome.total_ns else {
                return cost;
            };
            sum += weighted(request, total_ns);
        }
        cost.sum = Some(sum);
        cost
    }

    /// All that is predicted with so many banks.
    pub(crate) fn evaluate(&self, banks: usize) -> Evaluated {
        let config = self.config(banks);
        let requests = self.problem.requests.iter().enumerate();
        let predictions: Vec<Prediction> = requests
            .map(|(at, request)| match &self.model {
                Model::Early(slices) => {
                    let numbers = (self.size.group, self.depth, banks);
                    slices[at].prediction(self.problem, request, numbers)
                }
                Model::Simulated(times, least) => {
                    let least = (&least[at][..], u64::MAX);
                    simulate(self.problem, request, times, &config, least, None).1
                }
            })
            .collect();
        let all = self.problem.requests.iter().zip(&predictions);
        let sum: u128 = all
            .map(|(request, prediction)| weighted(request, prediction.times.total_ns))
            .sum();
        let bytes = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        Evaluated {
            config,
            arena_bytes: bytes(self.problem.arena_bytes(&config)),
            memory_bytes: self.memory_bytes(banks),
            mean_ns: self.mean_ns(sum),
            predictions,
        }
    }

    /// The arena and M_other(G).
    pub(crate) fn memory_bytes(&self, banks: usize) -> u64 {
        let arena = self.problem.arena_bytes(&self.config(banks));
        let memory = arena + u128::from(self.size.other_bytes);
        u64::try_from(memory).unwrap_or(u64::MAX)
    }

    /// The mean time of workloads that cost `sum`.
    pub(crate) fn mean_ns(&self, sum: u128) -> u64 {
        let weights = self.problem.requests.iter();
        let weights: u128 = weights.map(|request| u128::from(request.weight)).sum();
        u64::try_from(sum / weights.max(1)).unwrap_or(u64::MAX)
    }
}

fn weighted(request: &Request, total_ns: u64) -> u128 {
    u128::from(request.weight) * u128::from(total_ns)
}

/// Reads, counted in the order in which they start.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    prediction: Prediction,
    /// The start of the last one.
    started: u64,
    /// The end of those that end last.
    covered: u64,
}

impl Tally {
    /// A read from `start` to `end`.
    pub(crate) fn read(&mut self, start: u64, end: u64, records: usize, record_bytes: u64) {
        debug_assert!(start >= self.started, "reads begin in order");
        self.started = start;
        self.prediction.times.io_ns += end.saturating_sub(start.max(self.covered));
        self.covered = self.covered.max(end);
        self.prediction.reads += 1;
        self.prediction.records_read += records as u64;
        let bytes = record_bytes.saturating_mul(records as u64);
        self.prediction.bytes_read = self.prediction.bytes_read.saturating_add(bytes);
    }

    /// Of a request that takes so long. What is still being read at its end is not counted in T_io
    /// beyond it.
    pub(crate) fn finish(mut self, request: &Request, exec_ns: u64, total_ns: u64) -> Prediction {
        let routed = request
            .steps
            .iter()
            .map(|step| step.routed(0, step.records()));
        self.prediction.records_run = routed.sum::<usize>() as u64;
        let times = &mut self.prediction.times;
        times.io_ns -= self.covered.saturating_sub(total_ns);
        times.exec_ns = exec_ns;
        times.total_ns = total_ns;
        self.prediction
    }
}
