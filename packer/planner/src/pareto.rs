//! What more or less memory would do.

use std::cmp::Reverse;

use crate::evaluate::{Evaluated, Lane};
use crate::problem::Problem;

/// Every configuration that is looked at and that none is better than in memory and time: memory ascends and
/// time falls. The budget does not count, the limits of the device do. Of equal ones the one with the larger G.
pub fn pareto(problem: &Problem) -> Vec<Evaluated> {
    let mut open = problem.question().clone();
    open.budget_bytes = u64::MAX;
    let Ok(open) = Problem::new(open) else {
        // It is the problem that was there, but for a number that no check looks at.
        return Vec::new();
    };
    let mut all = Vec::new();
    let mut lanes = Vec::new();
    for (schedule, size, depth) in open.lanes() {
        let lane = Lane::new(&open, schedule, size, depth);
        let mut scratch = lane.scratch();
        // Banks that change nothing only take memory.
        for banks in lane.depth..=open.max_banks(schedule, &size) {
            let cost = lane.cost(banks, u128::MAX, &mut scratch);
            if let Some(sum) = cost.sum {
                let arena = open.arena_bytes(&lane.config(banks));
                let memory = arena + u128::from(size.other_bytes);
                all.push((memory, sum, Reverse(size.group), lanes.len(), banks));
            }
            if !cost.held {
                break;
            }
        }
        lanes.push(lane);
    }
    all.sort_unstable();
    let mut least = u128::MAX;
    all.retain(|(_, sum, ..)| {
        let better = *sum < least;
        least = least.min(*sum);
        better
    });
    let evaluate = |(_, _, _, lane, banks): (_, _, _, usize, _)| lanes[lane].evaluate(banks);
    all.into_iter().map(evaluate).collect()
}
