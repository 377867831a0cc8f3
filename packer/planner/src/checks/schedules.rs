//! What one schedule promises over another, and where it does not.

use estream_schemas::plan::Schedule;

use super::{Dice, Reads, roomy};
use crate::Problem;
use crate::evaluate::{Lane, Prediction};

/// Calls `each` with what is predicted of every request with both schedules and some (G, Q, B).
fn compare(
    problem: &Problem,
    dice: &mut Dice,
    schedules: [Schedule; 2],
    mut each: impl FnMut(usize, usize, [Prediction; 2]),
) {
    let banks = dice.count(1, 6);
    let depth = dice.count(1, banks.min(3));
    for size in &problem.question().groups {
        let [one, other] = schedules.map(|schedule| {
            let lane = Lane::new(problem, schedule, *size, depth);
            lane.evaluate(banks).predictions
        });
        let requests = problem.requests.iter().zip(one.into_iter().zip(other));
        for (request, (one, other)) in requests {
            each(size.group, request.steps.len(), [one, other]);
        }
    }
}

/// After the first step, reads of different lengths can end a step at another moment, with more or
/// less of what was read in vain still under way.
#[test]
fn compact_never_reads_more_than_early_in_one_step_or_where_reads_take_equally_long() {
    let mut dice = Dice(10);
    let mut fewer = 0;
    for round in 0..2000 {
        let reads = [Reads::Equal, Reads::BySize][round % 2];
        let routed = dice.between(0, 100);
        let problem = roomy(&mut dice, reads, routed);
        let schedules = [Schedule::Early, Schedule::Compact];
        compare(
            &problem,
            &mut dice,
            schedules,
            |_, steps, [early, compact]| {
                if steps == 1 || reads == Reads::Equal {
                    assert!(compact.records_read <= early.records_read, "{problem:?}");
                    fewer += usize::from(compact.records_read < early.records_read);
                }
            },
        );
    }
    assert!(fewer > 500, "{fewer}");
}

/// Where a read is one record and none is in vain, both read the same in the same order, one of
/// them without waiting for the layer before.
#[test]
fn ahead_is_never_slower_than_compact_where_reads_are_the_same() {
    let mut dice = Dice(11);
    let mut faster = 0;
    for _ in 0..2000 {
        let problem = roomy(&mut dice, Reads::Equal, 100);
        let schedules = [Schedule::Compact, Schedule::Ahead];
        compare(
            &problem,
            &mut dice,
            schedules,
            |group, _, [compact, ahead]| {
                if group == 1 {
                    let (compact, ahead) = (compact.times.total_ns, ahead.times.total_ns);
                    assert!(ahead <= compact, "{problem:?}");
                    faster += usize::from(ahead < compact);
                }
            },
        );
    }
    assert!(faster > 50, "{faster}");
}

/// Ahead may read what turns out to be in vain, and fills slots as they come, so that its reads and
/// groups can be smaller. That is why a search looks at both.
#[test]
fn ahead_is_seldom_slower_than_compact_where_they_are_not() {
    let mut dice = Dice(12);
    let (mut faster, mut slower) = (0, 0);
    for _ in 0..2000 {
        let routed = dice.between(20, 100);
        let problem = roomy(&mut dice, Reads::BySize, routed);
        let schedules = [Schedule::Compact, Schedule::Ahead];
        compare(&problem, &mut dice, schedules, |_, _, [compact, ahead]| {
            let (compact, ahead) = (compact.times.total_ns, ahead.times.total_ns);
            faster += usize::from(ahead < compact);
            slower += usize::from(ahead > compact);
        });
    }
    assert!(slower > 0 && faster > 20 * slower, "{faster}, {slower}");
}
