//! What more or less memory would do.

use std::cmp::Reverse;

use estream_schemas::plan::StreamConfig;

use crate::evaluate::{Evaluated, Lane};
use crate::problem::Problem;

/// Memory and time of all that is looked at. The budget does not count, the limits of the device do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Every configuration, but those with banks that change nothing and only take memory.
    pub all: Vec<Candidate>,
    /// Those that none is better than in memory and time: memory ascends and time falls. Of equal ones the one with
    /// the larger G.
    pub frontier: Vec<Evaluated>,
}

/// A configuration with what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The configuration.
    pub config: StreamConfig,
    /// The arena and M_other(G).
    pub memory_bytes: u64,
    /// Time to first token, the mean over the workloads by weight.
    pub mean_ns: u64,
}

/// Looks at everything.
pub fn survey(problem: &Problem) -> Survey {
    let mut open = problem.question().clone();
    open.budget_bytes = u64::MAX;
    let Ok(open) = Problem::new(open) else {
        // It is the problem that was there, but for a number that no check looks at.
        return Survey {
            all: Vec::new(),
            frontier: Vec::new(),
        };
    };
    let mut costs = Vec::new();
    let mut lanes = Vec::new();
    for (schedule, size, depth) in open.lanes() {
        let lane = Lane::new(&open, schedule, size, depth);
        let mut scratch = lane.scratch();
        for banks in lane.depth..=open.max_banks(schedule, &size) {
            let cost = lane.cost(banks, u128::MAX, &mut scratch);
            if let Some(sum) = cost.sum {
                let memory = lane.memory_bytes(banks);
                costs.push((memory, sum, Reverse(size.group), lanes.len(), banks));
            }
            if !cost.held {
                break;
            }
        }
        lanes.push(lane);
    }
    let candidate = |(memory_bytes, sum, _, lane, banks): &(_, _, _, usize, _)| {
        let lane: &Lane<'_> = &lanes[*lane];
        Candidate {
            config: lane.config(*banks),
            memory_bytes: *memory_bytes,
            mean_ns: lane.mean_ns(*sum),
        }
    };
    let all = costs.iter().map(candidate).collect();
    costs.sort_unstable();
    let mut least = u128::MAX;
    costs.retain(|(_, sum, ..)| {
        let better = *sum < least;
        least = least.min(*sum);
        better
    });
    let evaluate = |(_, _, _, lane, banks): (_, _, _, usize, _)| lanes[lane].evaluate(banks);
    Survey {
        all,
        frontier: costs.into_iter().map(evaluate).collect(),
    }
}
