//! What a forecast says happens when, against what is predicted.

use estream_schemas::plan::{Schedule, StreamConfig};

use super::{Dice, Reads, roomy};
use crate::{Forecast, Span, What, forecast};

fn spans_of(forecast: &Forecast, wanted: impl Fn(What) -> bool) -> Vec<Span> {
    let spans = forecast.spans.iter().copied();
    spans.filter(|span| wanted(span.what)).collect()
}

/// Errors unless each begins when the one before has ended, or later.
#[track_caller]
fn one_after_another(spans: &[Span]) {
    assert!(
        spans.is_sorted_by(|a, b| a.end_ns <= b.start_ns),
        "{spans:?}"
    );
}

#[test]
fn spans_add_up_to_what_is_predicted() {
    let mut dice = Dice(21);
    for round in 0..600 {
        let reads = [Reads::Equal, Reads::BySize][round % 2];
        let routed = dice.between(0, 100);
        let problem = roomy(&mut dice, reads, routed);
        let question = problem.question();
        let most = question.depths.iter().max().copied().unwrap();
        let (banks, depth) = (dice.count(3, 6), most.min(3));
        for schedule in Schedule::ALL {
            let group = question.groups[0].group;
            let config = StreamConfig::new(schedule, group, depth, banks, 1000);
            for forecast in forecast(&problem, &config).unwrap() {
                let prediction = forecast.prediction;
                let read = spans_of(&forecast, |what| matches!(what, What::Read { .. }));
                assert_eq!(read.len() as u64, prediction.reads);
                let records: usize = read.iter().map(|span| span.records).sum();
                assert_eq!(records as u64, prediction.records_read);
                for lane in 0..depth {
                    one_after_another(&spans_of(&forecast, |what| what == What::Read { lane }));
                }
                let ran = spans_of(&forecast, |what| !matches!(what, What::Read { .. }));
                one_after_another(&ran);
                let ran_ns: u64 = ran.iter().map(|span| span.end_ns - span.start_ns).sum();
                assert_eq!(ran_ns, prediction.times.exec_ns, "{config:?}");
                let records: usize = ran.iter().map(|span| span.records).sum();
                assert_eq!(records as u64, prediction.records_run);
                let end = ran.last().map(|span| span.end_ns);
                assert_eq!(end, Some(prediction.times.total_ns));
            }
        }
    }
}

#[test]
fn the_first_group_waits_for_its_read_from_when_it_is_known_to_be_needed() {
    let problem = super::numbers::drawing();
    let wait = |schedule| {
        let config = StreamConfig::new(schedule, 2, 1, 2, 20);
        forecast(&problem, &config).unwrap()[0].first_group_ns()
    };
    // L = 203 from 50 on, or from 0 on, twice.
    assert_eq!(wait(Schedule::OnDemand), 2 * 203);
    assert_eq!(wait(Schedule::Early), 2 * (203 - 50));
    assert_eq!(wait(Schedule::Resident), 0);
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let problem = super::numbers::drawing();
    for (group, depth, banks, says) in [
        (3, 1, 1, "group (G) is 3, outside 1 to 2"),
        (2, 4, 4, "depth (Q) is 4, outside 1 to 3"),
        (2, 2, 1, "depth (Q, at most B) is 2, outside 1 to 1"),
        (0, 1, 1, "group (G) is 0"),
    ] {
        let config = StreamConfig::new(Schedule::Ahead, group, depth, banks, 20);
        let error = forecast(&problem, &config).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
