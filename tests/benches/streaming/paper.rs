//! The paper's point: as much reading beside computing as makes on-demand loading lose a third.

use estream_planner::predict;
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_tests::schedules::{Schedules, Shown};

use crate::bundles::bundle;
use crate::job::{Experts, Job, Ran, Run, keep, machine, storage, streamed};
use crate::{Setup, at_least, at_most};

/// G, Q and B.
pub(crate) const NUMBERS: (usize, usize, usize) = (8, 2, 3);
/// Bytes of a record of OLMoE.
pub(crate) const RECORD_BYTES: u64 = 3_538_944;
/// The bubble of on-demand loading (paper Fig. 6), and how near it must be.
const BUBBLE: f64 = 0.344;
const NEAR: f64 = 0.01;
const LAYERS: usize = 8;
/// How often storage is made faster or slower to get there.
const GUESSES: usize = 3;
/// Its place among the schedules.
const ON_DEMAND: usize = 1;
const _: () = assert!(matches!(Schedule::ALL[ON_DEMAND], Schedule::OnDemand));
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
    point(LAYERS, 1024, setup);
}

pub(crate) fn shorter(setup: Setup) {
    point(LAYERS, 512, setup);
}

pub(crate) fn long(setup: Setup) {
    point(2, 4096, Setup { runs: 1, ..setup });
}

#[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
fn point(layers: usize, tokens: usize, setup: Setup) {
    let (group, depth, banks) = NUMBERS;
    println!("\n{layers} layers of OLMoE, {tokens} tokens, G = {group}, Q = {depth}, B = {banks}");
    let job = Job::new(bundle("olmoe", layers, 1), Experts::Resident, tokens, setup);
    let configs =
        Schedule::ALL.map(|schedule| StreamConfig::new(schedule, group, depth, banks, tokens));
    let (mut rate, mut rans) = (guess(&job), None);
    for _ in 0..GUESSES {
        let jobs = configs.map(|config| match config.schedule {
            Schedule::Resident => job.clone(),
            _ => job.at(rate).with(Experts::Streamed(config)),
        });
        let all = Job::interleaved(&jobs);
        let there = (all[ON_DEMAND].median().bubble - BUBBLE).abs() <= NEAR;
        let next = adjusted(rate, all[ON_DEMAND].median());
        println!(
            "with storage of {:.0} MB/s on-demand has a bubble of {:.2} %",
            rate / 1e6,
            100.0 * all[ON_DEMAND].median().bubble
        );
        rans = Some((rate, all));
        if there {
            break;
        }
        rate = next;
    }
    let (rate, rans) = rans.expect("it ran");
    let (resident, on_demand) = (&rans[0], rans[ON_DEMAND].median());
    println!(
        "storage of {:.0} MB/s, T_io = {:.2} T_exec; experts in memory: {:.2} s",
        rate / 1e6,
        on_demand.io_ns as f64 / on_demand.exec_ns as f64,
        resident.seconds(),
    );
    head();
    let mut shown = Vec::new();
    for (config, ran) in configs.iter().zip(&rans) {
        let schedule = config.schedule;
        // On demand there is one read at a time.
        let depth = if schedule == Schedule::OnDemand {
            1
        } else {
            depth
        };
        let predicted = match schedule {
            Schedule::OnDemand | Schedule::Prefetch | Schedule::Early => {
                Some(predict(&on_demand.layers(read_ns(rate, depth)), config).bubble())
            }
            // It knows neither which records are needed nor slots of their own.
            _ => None,
        };
        row(schedule.name(), ran, predicted, resident);
        shown.push(Shown {
            schedule: schedule.name().to_owned(),
            total_ns: ran.median().total_ns,
            io_ns: ran.median().io_ns,
            exec_ns: ran.median().exec_ns,
            predicted,
            // Without storage there is nothing to see.
            spans: match schedule {
                Schedule::Resident => Vec::new(),
                _ => ran.median().spans.clone(),
            },
        });
        let bubble = ran.median().bubble;
        match (schedule, predicted) {
            (Schedule::OnDemand, _) => {
                at_most(
                    "distance from the paper's 0.344",
                    (bubble - BUBBLE).abs(),
                    NEAR,
                );
            }
            (Schedule::Prefetch, _) => at_most("bubble", bubble, PREFETCH),
            (Schedule::Early, Some(predicted)) => {
                at_most("bubble", bubble, EARLY.max(predicted + ABOVE));
                // With fewer layers there is less that need not be in memory.
                if layers == LAYERS {
                    at_least("memory of resident ÷ peak", memory(resident, ran), SMALLER);
                }
            }
            (Schedule::Ahead, _) => at_most("bubble", bubble, AHEAD),
            _ => {}
        }
    }
    let schedules = Schedules {
        machine: machine(setup.threads),
        model: "olmoe".to_owned(),
        layers,
        tokens,
        numbers: [group, depth, banks],
        bytes_per_second: rate as u64,
        resident_ns: resident.median().total_ns,
        runs: shown,
    };
    keep(&format!("schedules-{layers}-{tokens}.json"), &schedules);
}

/// Storage about as fast as the point asks for. On demand, reading and computing take turns, so that the
/// shorter of the two is the bubble.
fn guess(job: &Job) -> f64 {
    let resident = job.run();
    let bytes = (RECORD_BYTES * resident.median().records()) as f64;
    let rate = bytes * BUBBLE / (1.0 - BUBBLE) / resident.seconds();
    let on_demand = streamed(Schedule::OnDemand, NUMBERS, job.tokens);
    let [on_demand] = Job::interleaved(&[job.at(rate).with(on_demand)]);
    adjusted(rate, on_demand.median())
}

/// Storage that has the wanted bubble, if computing takes as long as in `run`.
fn adjusted(rate: f64, run: &Run) -> f64 {
    rate * run.io_ns as f64 * BUBBLE / (1.0 - BUBBLE) / run.exec_ns as f64
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
