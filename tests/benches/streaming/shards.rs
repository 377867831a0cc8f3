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
    let bytes = 99_090_432.0 * 8.0 * 2.0;
    let rate = bytes / whole.run().seconds();
    println!(
        "{:<8} {:>9} {:>10} {:>6} {:>9} {:>8}",
        "schedule", "records", "÷ resident", "± %", "arena MB", "bubble %"
    );
    for schedule in [Schedule::Early, Schedule::Ahead] {
        let jobs = [(&whole, 2), (&cut, 4)]
            .map(|(job, banks)| job.at(rate).with(streamed(schedule, (1, 2, banks), TOKENS)));
        let [one, four] = jobs;
        let [resident, one, four] = Job::interleaved(&[whole.clone(), one, four]);
        for (ran, records, arena) in [(&one, "whole", 198.2), (&four, "quarters", 99.1)] {
            println!(
                "{:<8} {records:>9} {:>10.3} {:>6.1} {arena:>9.1} {:>8.2}",
                schedule.name(),
                ran.seconds() / resident.seconds(),
                50.0 * ran.spread(),
                100.0 * ran.median().bubble
            );
        }
        let runs = [one.seconds(), four.seconds()];
        at_most("quarters ÷ whole", runs[1] / runs[0], AS_FAST);
    }
}
