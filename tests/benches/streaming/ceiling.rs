//! Memory taken beside memory promised.

use estream_schemas::plan::Schedule;

use crate::bundles::bundle;
use crate::job::{Job, streamed};
use crate::{Setup, at_least, at_most};

/// The share of the ceiling that is used at least, where it was computed for the same prompt.
const TIGHT: f64 = 0.90;

pub(crate) fn run(setup: Setup) {
    println!("\n2 layers of OLMoE: the most memory taken beside the ceiling");
    println!(
        "{:>6} {:<10} {:>3} {:>3} {:>3} {:>10} {:>10} {:>7} {:>22}",
        "tokens",
        "schedule",
        "G",
        "Q",
        "B",
        "ceiling MB",
        "peak MB",
        "share",
        "MemAvailable fell MB"
    );
    let setup = Setup { runs: 1, ..setup };
    let bundle = bundle("olmoe", 2, 1);
    for (tokens, schedule, numbers) in [
        (512, Schedule::Ahead, (8, 2, 3)),
        (2048, Schedule::Ahead, (8, 2, 3)),
        (2048, Schedule::Early, (8, 4, 4)),
        (2048, Schedule::Compact, (1, 2, 2)),
        (2048, Schedule::Early, (64, 2, 2)),
        (4096, Schedule::Ahead, (4, 2, 4)),
    ] {
        let job = Job::new(
            bundle.clone(),
            streamed(schedule, numbers, tokens),
            tokens,
            setup,
        );
        let ran = job.run();
        let share = ran.peak_bytes as f64 / ran.ceiling_bytes as f64;
        let (group, depth, banks) = numbers;
        println!(
            "{tokens:>6} {:<10} {group:>3} {depth:>3} {banks:>3} {:>10.1} {:>10.1} {share:>7.3} {:>22.1}",
            schedule.name(),
            ran.ceiling_bytes as f64 / 1e6,
            ran.peak_bytes as f64 / 1e6,
            ran.fall_bytes as f64 / 1e6
        );
        at_least("peak ÷ ceiling", share, TIGHT);
        at_most("peak ÷ ceiling", share, 1.0);
    }
}
