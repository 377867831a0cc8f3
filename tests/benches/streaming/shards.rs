//! Records as large as Mixtral's, whole and cut in four.

use estream_schemas::plan::Schedule;

use crate::bundles::bundle;
use crate::job::{Experts, Job, streamed};
use crate::{Setup, at_most};

const TOKENS: usize = 256;
/// How much longer records cut in four may take, in half the arena.
const AS_FAST: f64 = 1.02;

pub(crate) fn run(setup: Setup) {
    println!("\n2 layers of Mixtral, {TOKENS} tokens, reading as long as computing; G = 1, Q = 2");
    let [whole, cut] = [1, 4].map(|shards| {
        Job::new(
            bundle("mixtral", 2, shards),
            Experts::Resident,
            TOKENS,
            setup,
        )
    });
    let resident = whole.run();
    let bytes = 99_090_432.0 * 8.0 * 2.0;
    let rate = bytes / resident.seconds();
    println!(
        "{:<8} {:>11} {:>10} {:>6} {:>10} {:>8}",
        "schedule", "records", "÷ resident", "± %", "arena MB", "bubble %"
    );
    for schedule in [Schedule::Early, Schedule::Ahead] {
        let runs = [(&whole, "whole", 2), (&cut, "quarters", 4)].map(|(job, name, banks)| {
            let ran = job
                .at(rate)
                .with(streamed(schedule, (1, 2, banks), TOKENS))
                .run();
            let arena = banks as f64 * 99.090_432 / if name == "whole" { 1.0 } else { 4.0 };
            println!(
                "{:<8} {name:>11} {:>10.3} {:>6.1} {arena:>10.0} {:>8.2}",
                schedule.name(),
                ran.seconds() / resident.seconds(),
                50.0 * ran.spread(),
                100.0 * ran.median().bubble
            );
            ran.seconds()
        });
        at_most("quarters ÷ whole", runs[1] / runs[0], AS_FAST);
    }
}
