//! What is chosen, against looking at everything.

use std::cmp::Reverse;

use estream_schemas::plan::Schedule;

use super::{Dice, Reads, question, roomy};
use crate::evaluate::{Evaluated, Lane};
use crate::feasible::Rule;
use crate::search::Infeasible;
use crate::{Candidate, Problem, Search, Survey, explain, plan, survey};

/// Σ weight · total.
fn cost(problem: &Problem, evaluated: &Evaluated) -> u128 {
    let all = problem.requests.iter().zip(&evaluated.predictions);
    let cost = all.map(|(request, prediction)| {
        u128::from(request.weight) * u128::from(prediction.times.total_ns)
    });
    cost.sum()
}

/// Every configuration that holds, in the order of preference, with its place among the schedules.
fn exhaustive(problem: &Problem) -> Vec<Evaluated> {
    let mut all = Vec::new();
    for (at, (schedule, size, depth)) in problem.lanes().into_iter().enumerate() {
        let lane = Lane::new(problem, schedule, size, depth);
        for banks in 1..=problem.most_banks(schedule, size.group) + 2 {
            let inequalities = problem.inequalities(&lane.config(banks), &size);
            if inequalities.iter().all(|inequality| inequality.holds()) {
                if schedule == Schedule::Resident && banks > 1 {
                    continue;
                }
                let evaluated = lane.evaluate(banks);
                let cost = cost(problem, &evaluated);
                let arena = evaluated.arena_bytes;
                all.push(((cost, arena, Reverse(size.group), at), evaluated));
            }
        }
    }
    all.sort_by_key(|(key, _)| *key);
    all.into_iter().map(|(_, evaluated)| evaluated).collect()
}

/// Configurations of the same schedule, G and Q.
fn alike(one: &Evaluated, other: &Evaluated) -> bool {
    let lane = |of: &Evaluated| (of.config.schedule, of.config.group, of.config.depth);
    lane(one) == lane(other)
}

#[test]
fn the_choice_is_that_of_looking_at_everything() {
    let mut dice = Dice(6);
    let (mut feasible, mut infeasible) = (0, 0);
    for round in 0..600 {
        let reads = [Reads::Equal, Reads::BySize][round % 2];
        let routed = [100, dice.between(1, 100)][round / 2 % 2];
        let mut question = question(&mut dice, reads, routed);
        question.search = [Search::Nested, Search::Full][round / 4 % 2];
        if round % 3 == 0 {
            question.schedules = vec![Schedule::ALL[round / 3 % 6]];
        }
        let problem = Problem::new(question).unwrap();
        let all = exhaustive(&problem);
        match plan(&problem) {
            Ok(choice) => {
                feasible += 1;
                assert_eq!(choice.chosen, all[0], "{problem:?}");
                let other = all.iter().find(|other| !alike(other, &all[0]));
                assert_eq!(choice.runner_up.as_ref(), other);
                assert!(
                    choice
                        .inequalities
                        .iter()
                        .all(|inequality| inequality.holds())
                );
            }
            Err(error) => {
                infeasible += 1;
                assert!(all.is_empty(), "{error}");
                smallest_budget(&problem, &error);
            }
        }
    }
    assert!(
        feasible > 100 && infeasible > 30,
        "{feasible}, {infeasible}"
    );
}

/// With the budget that is named something is possible, and with a byte less nothing.
fn smallest_budget(problem: &Problem, error: &Infeasible) {
    let at = |budget_bytes| {
        let mut question = problem.question().clone();
        question.budget_bytes = budget_bytes;
        plan(&Problem::new(question).unwrap())
    };
    assert!(
        error
            .inequalities
            .iter()
            .any(|inequality| !inequality.holds())
    );
    match error.budget_bytes {
        Some(bytes) => {
            assert!(at(bytes).is_ok());
            assert_eq!(at(bytes - 1).unwrap_err().budget_bytes, Some(bytes));
        }
        None => assert!(at(u64::MAX).is_err()),
    }
}

#[test]
fn no_bound_ends_an_evaluation_that_is_within_it() {
    let mut dice = Dice(7);
    for _ in 0..300 {
        let routed = dice.between(0, 100);
        let problem = roomy(&mut dice, Reads::BySize, routed);
        for (schedule, size, depth) in problem.lanes() {
            let lane = Lane::new(&problem, schedule, size, depth);
            let banks = depth.max(dice.count(1, 5));
            let mut scratch = lane.scratch();
            let sum = cost(&problem, &lane.evaluate(banks));
            assert!(lane.least() <= sum);
            for (limit, expected) in [(u128::MAX, Some(sum)), (sum + 1, Some(sum)), (sum, None)] {
                assert_eq!(lane.cost(banks, limit, &mut scratch).sum, expected);
            }
        }
    }
}

#[test]
fn nothing_is_better_than_the_frontier_in_memory_and_time() {
    let mut dice = Dice(8);
    for _ in 0..200 {
        let routed = dice.between(20, 100);
        let problem = roomy(&mut dice, Reads::BySize, routed);
        let Survey { all, frontier } = survey(&problem);
        assert!(frontier.is_sorted_by(|a, b| {
            a.memory_bytes < b.memory_bytes && cost(&problem, a) > cost(&problem, b)
        }));
        for other in exhaustive(&problem) {
            let covered = frontier.iter().any(|point| {
                point.memory_bytes <= other.memory_bytes
                    && cost(&problem, point) <= cost(&problem, &other)
            });
            assert!(covered, "{other:?}");
        }
        // The quickest point is what is chosen, but where ties are about the arena alone.
        let choice = plan(&problem).unwrap();
        let quickest = frontier.last().unwrap();
        assert_eq!(cost(&problem, quickest), cost(&problem, &choice.chosen));
        // What is on the frontier, chosen or next is one of all, and all are what they would be alone.
        let of = |evaluated: &Evaluated| Candidate {
            config: evaluated.config,
            memory_bytes: evaluated.memory_bytes,
            mean_ns: evaluated.mean_ns,
        };
        let known = exhaustive(&problem);
        let known: Vec<Candidate> = known.iter().map(of).collect();
        assert!(all.iter().all(|candidate| known.contains(candidate)));
        let found = frontier.iter().chain([&choice.chosen]);
        for one in found.chain(&choice.runner_up) {
            assert!(all.contains(&of(one)), "{one:?}");
        }
    }
}

#[test]
fn every_other_configuration_has_a_reason() {
    let mut dice = Dice(9);
    for _ in 0..100 {
        let mut question = question(&mut dice, Reads::BySize, 80);
        question.schedules = vec![Schedule::Early, Schedule::Compact];
        let problem = Problem::new(question).unwrap();
        let Ok(choice) = plan(&problem) else { continue };
        for schedule in [Schedule::Early, Schedule::Compact] {
            for (group, depth, banks) in (0..10)
                .flat_map(|group| (0..4).map(move |depth| (group, depth)))
                .flat_map(|(group, depth)| (0..16).map(move |banks| (group, depth, banks)))
            {
                let explained = explain(&problem, &choice, schedule, (group, depth, banks));
                let text = explained.to_string();
                let failed = explained.inequalities.iter().find(|one| !one.holds());
                match (&explained.outside, failed) {
                    (Some(outside), _) => assert!(text.ends_with(outside)),
                    (None, Some(failed)) => {
                        let extra = failed.rule == Rule::Banks;
                        assert!(text.contains("does not hold"), "{text}");
                        assert_eq!(text.contains("never used"), extra);
                    }
                    (None, None) if explained.config == choice.chosen.config => {
                        assert!(text.ends_with("as fast and as small"), "{text}");
                    }
                    (None, None) => {
                        let slower = explained.slower_ns.unwrap();
                        let larger = explained.larger_bytes.unwrap();
                        let sum = cost(&problem, explained.predicted.as_ref().unwrap());
                        let least = cost(&problem, &choice.chosen);
                        assert!(depth != choice.depth || sum >= least);
                        assert_eq!(slower > 0, text.contains("ns slower"));
                        assert_eq!(slower < 0, text.contains("faster"));
                        assert_eq!(slower == 0 && larger > 0, text.contains("larger"));
                    }
                }
            }
        }
    }
}
