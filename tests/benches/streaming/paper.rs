//! The paper's point: as much reading beside computing as makes on-demand loading lose a third.

use estream_planner::predict;
use estream_schemas::plan::{Schedule, StreamConfig};

use crate::bundles::bundle;
use crate::job::{Experts, Job, Ran, storage, streamed};
use crate::{Setup, at_least, at_most};

/// G, Q and B.
pub(crate) const NUMBERS: (usize, usize, usize) = (8, 2, 3);
/// Bytes of a record of OLMoE.
pub(crate) const RECORD_BYTES: u64 = 3_538_944;
/// The bubble of on-demand loading (paper Fig. 6), and how near it must be.
const BUBBLE: f64 = 0.344;
const NEAR: f64 = 0.01;
/// What the paper's other two schedules leave of it.
const PREFETCH: f64 = 0.214;
const EARLY: f64 = 0.0905;
/// The most that reading across layers may leave.
const AHEAD: f64 = 0.03;
/// How much less memory than with all experts in it (paper §5.6).
const SMALLER: f64 = 3.73;
/// How far above equation 5 the paper's schedule may lie, in bubble.
const ABOVE: f64 = 0.01;

pub(crate) fn run(setup: Setup) {
    for tokens in [512, 1024] {
        point(8, tokens, setup);
    }
}

pub(crate) fn long(setup: Setup) {
    point(2, 4096, Setup { runs: 1, ..setup });
}

fn point(layers: usize, tokens: usize, setup: Setup) {
    let (group, depth, banks) = NUMBERS;
    println!("\n{layers} layers of OLMoE, {tokens} tokens, G = {group}, Q = {depth}, B = {banks}");
    let bundle = bundle("olmoe", layers, 1);
    let job = Job::new(bundle, Experts::Resident, tokens, setup);
    let resident = job.run();
    let (job, on_demand, rate) = at_the_point(&job, &resident);
    println!(
        "storage of {:.0} MB/s, T_io = {:.2} T_exec; experts in memory: {:.2} s ± {:.1} %",
        rate / 1e6,
        on_demand.median().io_ns as f64 / on_demand.median().exec_ns as f64,
        resident.seconds(),
        50.0 * resident.spread()
    );
    head();
    row("resident", &resident, None, &resident);
    for schedule in Schedule::ALL {
        let config = StreamConfig::new(schedule, group, depth, banks, tokens);
        let ran = match schedule {
            Schedule::Resident => continue,
            Schedule::OnDemand => on_demand.clone(),
            _ => job.with(Experts::Streamed(config)).run(),
        };
        let predicted = predict(&on_demand.median().layers(read_ns(rate, depth)), &config);
        // It knows neither which records are needed nor slots of their own.
        let predicted = match schedule {
            Schedule::Compact | Schedule::Ahead => None,
            _ => Some(predicted.bubble()),
        };
        row(schedule.name(), &ran, predicted, &resident);
        let bubble = ran.median().bubble;
        match (schedule, predicted) {
            (Schedule::OnDemand, _) => at_most(
                "distance from the paper's 0.344",
                (bubble - BUBBLE).abs(),
                NEAR,
            ),
            (Schedule::Prefetch, _) => at_most("bubble", bubble, PREFETCH),
            (Schedule::Early, Some(predicted)) => {
                at_most("bubble", bubble, EARLY.max(predicted + ABOVE));
                at_least(
                    "memory of resident ÷ peak",
                    memory(&resident, &ran),
                    SMALLER,
                );
            }
            (Schedule::Ahead, _) => at_most("bubble", bubble, AHEAD),
            _ => {}
        }
    }
}

/// From a guess to the point: on demand, reading and computing take turns, so that the shorter
/// of the two is the bubble.
fn at_the_point(job: &Job, resident: &Ran) -> (Job, Ran, f64) {
    let run = resident.median();
    let bytes = (RECORD_BYTES * run.records()) as f64;
    let ratio = (1.0 - BUBBLE) / BUBBLE;
    let mut rate = bytes / (ratio * resident.seconds());
    let on_demand = streamed(Schedule::OnDemand, NUMBERS, job.tokens);
    loop {
        let job = job.at(rate);
        let ran = job.with(on_demand).run();
        let run = ran.median();
        if (run.bubble - BUBBLE).abs() <= NEAR / 2.0 {
            return (job, ran, rate);
        }
        rate *= run.io_ns as f64 / (ratio * run.exec_ns as f64);
    }
}

/// Time of one read of a group with `depth` under way.
pub(crate) fn read_ns(rate: f64, depth: usize) -> u64 {
    storage(rate).read_ns(RECORD_BYTES * NUMBERS.0 as u64, depth as u64)
}

fn memory(resident: &Ran, ran: &Ran) -> f64 {
    resident.peak_bytes as f64 / ran.peak_bytes as f64
}

fn head() {
    println!(
        "{:<10} {:>10} {:>7} {:>8} {:>9} {:>8} {:>12} {:>10} {:>14}",
        "schedule",
        "÷ resident",
        "± %",
        "bubble %",
        "eq. 5 %",
        "overlap",
        "read ÷ union",
        "peak MB",
        "peak ÷ ceiling"
    );
}

fn row(name: &str, ran: &Ran, predicted: Option<f64>, resident: &Ran) {
    let run = ran.median();
    println!(
        "{name:<10} {:>10.3} {:>7.1} {:>8.2} {:>9} {:>8.3} {:>12.2} {:>10.0} {:>14.3}",
        ran.seconds() / resident.seconds(),
        50.0 * ran.spread(),
        100.0 * run.bubble,
        predicted.map_or("–".to_owned(), |bubble| format!("{:.2}", 100.0 * bubble)),
        run.overlap,
        run.read_ratio(),
        ran.peak_bytes as f64 / 1e6,
        ran.peak_bytes as f64 / ran.ceiling_bytes as f64
    );
}
