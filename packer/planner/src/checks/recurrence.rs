//! Equation 5 against what happens tick by tick, and the other models against equation 5.

use estream_schemas::plan::{Schedule, StreamConfig};

use super::{Dice, Reads, roomy};
use crate::evaluate::Lane;
use crate::recurrence::{Group, Layer, predict};
use crate::simulate::simulate;
use crate::times::{ReadTimes, Request};
use crate::{Predicted, Problem};

/// The end of the request where every nanosecond is looked at: reader k mod Q does read k into
/// bank k mod B, or, with a queue, whichever reader has nothing to do.
fn ticks(layers: &[Layer], depth: usize, banks: usize, queue: bool) -> u64 {
    let groups: Vec<(usize, Group)> = layers
        .iter()
        .enumerate()
        .flat_map(|(layer, of)| of.groups.iter().map(move |group| (layer, *group)))
        .collect();
    // Until when each reader reads, and what it reads next.
    let mut readers: Vec<(u64, usize)> = (0..depth).map(|reader| (0, reader)).collect();
    let mut queued = 0;
    let mut landed = vec![None; groups.len()];
    // The read that a bank waits to be rid of.
    let mut tenants: Vec<Option<usize>> = vec![None; banks];
    let mut executed = 0;
    let (mut layer, mut known, mut busy) = (0, layers[0].other_ns, layers[0].other_ns);
    let mut running: Option<usize> = None;
    for now in 0.. {
        if busy <= now
            && let Some(group) = running.take()
        {
            tenants[group % banks] = None;
            executed += 1;
        }
        while busy <= now && running.is_none() {
            match groups.get(executed) {
                Some((of, group)) if *of == layer => {
                    let here = landed[executed].is_some_and(|end| end <= now);
                    if !here || now < known {
                        break;
                    }
                    running = Some(executed);
                    busy = now + group.run_ns;
                }
                _ if layer + 1 == layers.len() => return now,
                _ => {
                    layer += 1;
                    known = now + layers[layer].other_ns;
                    busy = known;
                }
            }
        }
        for (reader, (until, next)) in readers.iter_mut().enumerate() {
            let read = if queue { queued } else { *next };
            let Some((of, group)) = groups.get(read) else {
                continue;
            };
            if *until > now || *of > layer || tenants[read % banks].is_some() {
                continue;
            }
            assert!(queue || read % depth == reader);
            tenants[read % banks] = Some(read);
            *until = now + group.read_ns;
            landed[read] = Some(*until);
            *next += depth;
            queued += 1;
        }
    }
    unreachable!("time does not end")
}

fn layers(dice: &mut Dice, read_ns: Option<u64>) -> Vec<Layer> {
    let layers = (0..dice.count(1, 3)).map(|_| Layer {
        other_ns: dice.between(1, 60),
        groups: (0..dice.count(0, 7))
            .map(|_| Group {
                read_ns: read_ns.unwrap_or_else(|| dice.between(1, 40)),
                run_ns: dice.between(1, 40),
            })
            .collect(),
    });
    layers.collect()
}

#[test]
fn equation_5_is_what_happens_when_readers_and_banks_take_turns() {
    let mut dice = Dice(1);
    for _ in 0..3000 {
        let layers = layers(&mut dice, None);
        let banks = dice.count(1, 5);
        let depth = dice.count(1, banks);
        let config = StreamConfig::new(Schedule::Early, 1, depth, banks, 1000);
        let expected = ticks(&layers, depth, banks, false);
        let total_ns = predict(&layers, &config).total_ns;
        assert_eq!(total_ns, expected, "{layers:?} {config:?}");
    }
}

#[test]
fn a_queue_of_reads_is_the_same_when_they_take_equally_long() {
    let mut dice = Dice(2);
    let mut differs = 0;
    for _ in 0..3000 {
        let banks = dice.count(1, 5);
        let depth = dice.count(1, banks);
        let read_ns = dice.between(1, 40);
        let equal = layers(&mut dice, Some(read_ns));
        let config = StreamConfig::new(Schedule::Early, 1, depth, banks, 1000);
        let expected = ticks(&equal, depth, banks, true);
        assert_eq!(predict(&equal, &config).total_ns, expected);
        let other = layers(&mut dice, None);
        let queued = ticks(&other, depth, banks, true);
        differs += usize::from(predict(&other, &config).total_ns != queued);
    }
    // Else the test above would show nothing about turns.
    assert!(differs > 20, "{differs}");
}

/// The groups of a request that have routes, as equation 5 has them.
fn groups(problem: &Problem, request: &Request, group: usize, depth: usize) -> Vec<Layer> {
    let steps = request.steps.iter().enumerate().map(|(at, step)| {
        let layer = problem.question().layers[request.layer(at)];
        let slices = (0..step.records()).step_by(group).filter_map(|first| {
            let end = step.records().min(first + group);
            (step.routed(first, end) > 0).then(|| Group {
                read_ns: problem.read_ns(layer, end - first, depth),
                run_ns: step.run(first, end) + request.dispatch_ns,
            })
        });
        Layer {
            other_ns: request.other_ns,
            groups: slices.collect(),
        }
    });
    steps.collect()
}

/// What the simulation says of a request.
fn simulated(problem: &Problem, request: &Request, config: &StreamConfig) -> Predicted {
    let depth = match config.schedule {
        Schedule::OnDemand => 1,
        _ => config.depth,
    };
    let times = ReadTimes::new(problem, config.group, depth);
    let least = request.least_ns(config.group);
    let (outcome, prediction) =
        simulate(problem, request, &times, config, (&least, u64::MAX), None);
    assert_eq!(outcome.total_ns, Some(prediction.times.total_ns));
    prediction.times
}

#[test]
fn the_search_predicts_early_by_equation_5_where_all_is_routed() {
    let mut dice = Dice(3);
    for _ in 0..1000 {
        let problem = roomy(&mut dice, Reads::BySize, 100);
        let banks = dice.count(1, 6);
        let depth = dice.count(1, banks.min(3));
        for (schedule, size, _) in problem.lanes() {
            if schedule != Schedule::Early {
                continue;
            }
            let lane = Lane::new(&problem, schedule, size, depth);
            let evaluated = lane.evaluate(banks);
            for (request, prediction) in problem.requests.iter().zip(&evaluated.predictions) {
                let groups = groups(&problem, request, size.group, depth);
                let mut expected = predict(&groups, &evaluated.config);
                expected.exec_ns += request.head_ns;
                expected.total_ns += request.head_ns;
                assert_eq!(prediction.times, expected);
                assert_eq!(prediction.records_read, prediction.records_run);
            }
        }
    }
}

#[test]
fn the_simulation_is_equation_5_where_that_says_all() {
    let mut dice = Dice(4);
    for _ in 0..1000 {
        let problem = roomy(&mut dice, Reads::Equal, 70);
        let banks = dice.count(1, 6);
        let depth = dice.count(1, banks.min(3));
        for (schedule, size, _) in problem.lanes() {
            if !matches!(
                schedule,
                Schedule::OnDemand | Schedule::Prefetch | Schedule::Resident
            ) {
                continue;
            }
            let config = problem.plain(schedule, &size, depth, banks);
            for request in &problem.requests {
                let groups = groups(&problem, request, size.group, depth);
                let expected = predict(&groups, &config);
                let times = simulated(&problem, request, &config);
                assert_eq!(times.total_ns, expected.total_ns + request.head_ns);
                assert_eq!(times.io_ns, expected.io_ns);
                if schedule != Schedule::Resident {
                    assert_eq!(times.exec_ns, expected.exec_ns + request.head_ns);
                }
            }
        }
    }
}

#[test]
fn early_is_simulated_as_it_is_predicted_whether_or_not_all_is_routed() {
    let mut dice = Dice(5);
    let mut wasted = 0;
    for _ in 0..2000 {
        let routed = dice.between(0, 100);
        let problem = roomy(&mut dice, Reads::Equal, routed);
        let banks = dice.count(1, 6);
        let depth = dice.count(1, banks.min(3));
        for size in &problem.question().groups {
            let lane = Lane::new(&problem, Schedule::Early, *size, depth);
            let evaluated = lane.evaluate(banks);
            for (request, prediction) in problem.requests.iter().zip(&evaluated.predictions) {
                let times = simulated(&problem, request, &evaluated.config);
                assert_eq!(
                    times, prediction.times,
                    "{:?} {problem:?}",
                    evaluated.config
                );
                wasted += usize::from(prediction.records_read > prediction.records_run);
            }
        }
    }
    assert!(wasted > 1000, "{wasted}");
}
