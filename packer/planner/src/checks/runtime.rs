//! The simulation against the runtime's own decisions: its state is driven here by the same times.

#[path = "../../../../runtime-min/src/stream/residency.rs"]
#[expect(dead_code, reason = "not all of the runtime's is used here")]
mod residency;
#[path = "../../../../runtime-min/src/stream/sequence.rs"]
#[expect(dead_code, reason = "not all of the runtime's is used here")]
mod sequence;

use estream_schemas::plan::{Schedule, StreamConfig};

use self::sequence::{Group, Next, Read, Sequence};
use super::{Dice, Reads, roomy};
use crate::Problem;
use crate::simulate::simulate;
use crate::times::{ReadTimes, Request};

/// What the executor does until when.
enum Doing {
    Other(u64),
    Run(u64, Group),
    Nothing,
}

/// End, reads and records that are read, as the runtime decides.
fn driven(problem: &Problem, request: &Request, config: &StreamConfig) -> (u64, u64, u64) {
    let depth = match config.schedule {
        Schedule::OnDemand => 1,
        _ => config.depth,
    };
    let sizes = &problem.question().layers;
    let records = sizes.iter().map(|layer| layer.records).collect();
    let chunks = request.steps.len() / sizes.len();
    let pinned = problem.question().pinned;
    let mut sequence = Sequence::new(*config, records, chunks, pinned);
    let mut flights: Vec<(u64, Read)> = Vec::new();
    let (mut reads, mut records_read, mut now, mut step) = (0, 0, 0, 0);
    sequence.start(0);
    let mut doing = Doing::Other(request.other_ns);
    loop {
        while let Some(at) = flights.iter().position(|(end, _)| *end <= now) {
            sequence.returned();
            let (_, read) = flights.remove(at);
            sequence.settle(read, true);
        }
        loop {
            doing = match doing {
                Doing::Other(end) if end <= now => {
                    let routes = &request.steps[step];
                    let records = 0..routes.records();
                    sequence.route(records.map(|record| routes.is_routed(record)).collect());
                    Doing::Nothing
                }
                Doing::Run(end, group) if end <= now => {
                    sequence.complete(group);
                    Doing::Nothing
                }
                Doing::Nothing => match sequence.next_group() {
                    Next::Run(group) => {
                        let runs = group.records.iter();
                        let runs = runs.map(|(at, _)| request.steps[step].run(*at, at + 1));
                        let run_ns = runs.sum::<u64>() + request.dispatch_ns;
                        Doing::Run(now + run_ns, group)
                    }
                    Next::Wait => break,
                    Next::Done if step + 1 == request.steps.len() => {
                        return (now + request.head_ns, reads, records_read);
                    }
                    Next::Done => {
                        step += 1;
                        sequence.start(step);
                        Doing::Other(now + request.other_ns)
                    }
                },
                busy => {
                    doing = busy;
                    break;
                }
            };
        }
        while let Some(read) = sequence.next_read() {
            let layer = sizes[sequence.layer(read.step)];
            reads += 1;
            records_read += read.slots.len() as u64;
            let read_ns = problem.read_ns(layer, read.slots.len(), depth);
            flights.push((now + read_ns, read));
        }
        let landing = flights.iter().map(|(end, _)| *end);
        let ending = match doing {
            Doing::Other(end) | Doing::Run(end, _) => Some(end),
            Doing::Nothing => None,
        };
        now = landing.chain(ending).min().expect("somebody is busy");
    }
}

#[test]
fn the_simulation_decides_as_the_runtime_does() {
    let mut dice = Dice(13);
    for round in 0..1500 {
        let reads = [Reads::Equal, Reads::BySize][round % 2];
        let routed = dice.between(0, 100);
        let problem = roomy(&mut dice, reads, routed);
        let banks = dice.count(1, 6);
        let depth = dice.count(1, banks.min(3));
        for (schedule, size, _) in problem.lanes() {
            if schedule == Schedule::Resident {
                continue;
            }
            let mut config = problem.plain(schedule, &size, depth, banks);
            config.early_records = dice.count(0, config.slots());
            let under_way = if schedule == Schedule::OnDemand {
                1
            } else {
                depth
            };
            let times = ReadTimes::new(&problem, size.group, under_way);
            for request in &problem.requests {
                compare(&problem, request, &times, &config);
            }
        }
    }
}

/// Records that are read.
fn compare(problem: &Problem, request: &Request, times: &ReadTimes, config: &StreamConfig) -> u64 {
    let least = request.least_ns(config.group);
    let least = (&least[..], u64::MAX);
    let simulated = simulate(problem, request, times, config, least, None).1;
    let simulated = (
        simulated.times.total_ns,
        simulated.reads,
        simulated.records_read,
    );
    let expected = driven(problem, request, config);
    assert_eq!(simulated, expected, "{config:?} {problem:?}");
    expected.2
}

#[test]
fn the_simulation_leaves_out_what_is_pinned_as_the_runtime_does() {
    let mut dice = Dice(16);
    let (mut fewer, mut none) = (0, 0);
    for round in 0..1500 {
        let reads = [Reads::Equal, Reads::BySize][round % 2];
        let routed = dice.between(0, 100);
        let mut question = roomy(&mut dice, reads, routed).question().clone();
        question
            .schedules
            .retain(|schedule| schedule.is_by_record());
        let plain = Problem::new(question.clone()).unwrap();
        question.pinned = dice.count(1, 16);
        let pinned = Problem::new(question).unwrap();
        let banks = dice.count(1, 6);
        let depth = dice.count(1, banks.min(3));
        for (schedule, size, _) in pinned.lanes() {
            let mut config = pinned.plain(schedule, &size, depth, banks);
            config.early_records = dice.count(0, config.slots());
            let times = ReadTimes::new(&pinned, size.group, depth);
            for (request, same) in pinned.requests.iter().zip(&plain.requests) {
                let read = compare(&pinned, request, &times, &config);
                let all = compare(&plain, same, &times, &config);
                fewer += usize::from(read < all);
                none += usize::from(read == 0 && all > 0);
            }
        }
    }
    assert!(fewer > 1000 && none > 100, "{fewer}, {none}");
}

#[test]
fn what_reads_slices_cannot_leave_records_out() {
    let mut question = roomy(&mut Dice(17), Reads::Equal, 100).question().clone();
    question.pinned = 1;
    let error = Problem::new(question).unwrap_err().to_string();
    assert!(
        error.contains("records are pinned, which resident"),
        "{error}"
    );
}
