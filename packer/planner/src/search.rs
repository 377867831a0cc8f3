//! The nested search of paper equations 9 and 10.

use std::cmp::Reverse;
use std::fmt;

use estream_schemas::plan::Schedule;

use crate::early::Scratch;
use crate::evaluate::{Evaluated, Lane};
use crate::feasible::Inequality;
use crate::problem::{GroupSize, Problem, Search};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The configuration that takes the least time; of equal ones the one with the smaller arena,
    /// then with the larger G, then of the schedule that was named first, then with the smaller Q.
    pub chosen: Evaluated,
    /// The best of another schedule, G or Q, by the same order.
    pub runner_up: Option<Evaluated>,
    /// Q₀.
    pub depth: usize,
    /// What holds of the chosen one.
    pub inequalities: Vec<Inequality>,
}

/// Nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Infeasible {
    /// Of every G with the fewest banks, whether or not it holds.
    pub inequalities: Vec<Inequality>,
    /// The least M_max with which something could; none if a device's limits forbid all.
    pub budget_bytes: Option<u64>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no configuration fits:")?;
        for inequality in &self.inequalities {
            write!(f, "\n  {inequality}")?;
        }
        match self.budget_bytes {
            Some(bytes) => write!(f, "\nthe smallest budget that would do is {bytes} bytes"),
            None => f.write_str("\nno budget would do: the limits of the device forbid it"),
        }
    }
}

/// Paper equations 9 and 10 at Q₀, or at every Q with [`Search::Full`], over all schedules:
///
/// ```text
/// B*(g) ∈ argmin { Σ_w T(w; g, Q₀, b) : Q₀ ≤ b ≤ B_max(g) }
/// G*    ∈ argmin { Σ_w T(w; g, Q₀, B*(g)) : B_max(g) ≥ Q₀ }
/// ```
///
/// Sums are weighted. The result is that of evaluating every (G, B), or every (G, Q, B).
///
/// # Errors
/// If no B of any G is feasible.
pub fn plan(problem: &Problem) -> Result<Choice, Infeasible> {
    let mut lanes = Vec::new();
    for (at, (schedule, size, depth)) in problem.lanes().into_iter().enumerate() {
        let most = problem.max_banks(schedule, &size);
        if most >= depth {
            lanes.push((at, most, Lane::new(problem, schedule, size, depth)));
        }
    }
    // The two best are wanted. Those that may be best are evaluated first, so that for the others
    // it shows soon that they are not.
    lanes.sort_by_key(|(_, _, lane)| lane.least());
    let mut best: Vec<Found<'_>> = Vec::new();
    for (at, most, lane) in &lanes {
        let limit = best.get(1).map_or(u128::MAX, |second| second.key.0 + 1);
        if let Some((cost, banks)) = best_banks(lane, *most, limit) {
            let arena = problem.arena_bytes(&lane.config(banks));
            let key = (cost, arena, Reverse(lane.size.group), *at);
            let place = best.partition_point(|other| other.key < key);
            best.insert(place, Found { key, lane, banks });
            best.truncate(2);
        }
    }
    let Some(Found { lane, banks, .. }) = best.first() else {
        return Err(infeasible(problem));
    };
    Ok(Choice {
        chosen: lane.evaluate(*banks),
        runner_up: best.get(1).map(|found| found.lane.evaluate(found.banks)),
        depth: problem.depth(),
        inequalities: problem.inequalities(&lane.config(*banks), &lane.size),
    })
}

/// The best B of a schedule, G and Q.
struct Found<'a> {
    /// What it is compared by: cost, arena, the larger G, and its place among the lanes.
    key: (u128, u128, Reverse<usize>, usize),
    lane: &'a Lane<'a>,
    banks: usize,
}

impl Problem {
    /// Every schedule with every G and every Q that is looked at; what is resident is not read.
    pub(crate) fn lanes(&self) -> Vec<(Schedule, GroupSize, usize)> {
        let question = self.question();
        let mut depths = match question.search {
            Search::Nested => vec![self.depth()],
            Search::Full => question.depths.clone(),
        };
        depths.sort_unstable();
        depths.dedup();
        let mut lanes = Vec::new();
        for schedule in &question.schedules {
            let depths = match schedule {
                Schedule::Resident => &[1],
                _ => &depths[..],
            };
            for size in &question.groups {
                lanes.extend(depths.iter().map(|depth| (*schedule, *size, *depth)));
            }
        }
        lanes
    }
}

/// B* from Q to `most`, with its cost, if that is below `limit`: the smallest of those that cost least.
fn best_banks(lane: &Lane<'_>, most: usize, limit: u128) -> Option<(u128, usize)> {
    let (mut limit, mut best) = (limit, None);
    if lane.least() >= limit {
        return None;
    }
    let scratch = &mut lane.scratch()[..];
    if lane.schedule == Schedule::Early {
        let all = lane.cost(most, u128::MAX, scratch);
        let sum = all.sum?;
        if !all.wasted {
            return (sum < limit).then(|| (sum, fewest(lane, most, sum, scratch)));
        }
    }
    for banks in lane.depth..=most {
        let cost = lane.cost(banks, limit, scratch);
        if let Some(sum) = cost.sum {
            best = Some((sum, banks));
            limit = sum;
            // With more banks nothing would be different.
            if !cost.held {
                break;
            }
        }
        if limit <= lane.least() {
            break;
        }
    }
    best
}

/// The fewest banks that cost `sum`, as `most` do. Nothing is read in vain with so many banks, so
/// with fewer, which read later, nothing is either; then equation 5 has only maxima and sums of what
/// a smaller B makes no earlier, and the cost never grows with B.
fn fewest(lane: &Lane<'_>, most: usize, sum: u128, scratch: &mut [Scratch]) -> usize {
    let (mut low, mut high) = (lane.depth, most);
    while low < high {
        let middle = low + (high - low) / 2;
        match lane.cost(middle, sum + 1, scratch).sum {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    low
}

fn infeasible(problem: &Problem) -> Infeasible {
    let mut inequalities = Vec::new();
    let mut budget_bytes: Option<u64> = None;
    for (schedule, size, depth) in problem.lanes() {
        let config = problem.plain(schedule, &size, depth, depth);
        for inequality in problem.inequalities(&config, &size) {
            // Schedules that differ in nothing else have the same ones.
            let known = inequalities
                .iter()
                .any(|other: &Inequality| other.to_string() == inequality.to_string());
            if !known {
                inequalities.push(inequality);
            }
        }
        let least = problem.least_budget(schedule, &size, depth);
        budget_bytes = budget_bytes.into_iter().chain(least).min();
    }
    Infeasible {
        inequalities,
        budget_bytes,
    }
}
