//! From computing that hides all reading to reading that nothing can hide.

use estream_planner::predict;
use estream_schemas::plan::Schedule;

use crate::bundles::bundle;
use crate::job::{Experts, Job, Ran, streamed};
use crate::paper::{NUMBERS, RECORD_BYTES, read_ns};
use crate::{Setup, at_most};

const TOKENS: usize = 512;
/// T_io / T_exec.
const BALANCES: [f64; 5] = [0.5, 0.75, 1.0, 1.5, 2.0];
/// How much longer than with experts in memory, at the first of them.
const HIDDEN: f64 = 1.05;

pub(crate) fn run(setup: Setup) {
    println!(
        "\n8 layers of OLMoE, {TOKENS} tokens: reading from half of computing to twice as long"
    );
    let job = Job::new(bundle("olmoe", 8, 1), Experts::Resident, TOKENS, setup);
    let calm = job.run();
    let run = calm.median();
    let bytes = (RECORD_BYTES * run.records()) as f64;
    println!(
        "{:>6} {:>11} {:>11} {:>11} {:>8} {:>8} {:>11} {:>11} {:>8} {:>15}",
        "wanted",
        "T_io/T_exec",
        "early ÷ res",
        "of it T_exec",
        "bubble %",
        "eq. 5 %",
        "ahead ÷ res",
        "of it T_exec",
        "bubble %",
        "on-demand T_exec"
    );
    for balance in BALANCES {
        let rate = bytes / (balance * calm.seconds());
        let [on_demand, early, ahead] = [Schedule::OnDemand, Schedule::Early, Schedule::Ahead]
            .map(|schedule| job.at(rate).with(streamed(schedule, NUMBERS, TOKENS)));
        let [resident, on_demand, early, ahead] =
            Job::interleaved(&[job.clone(), on_demand, early, ahead]);
        let Experts::Streamed(config) = streamed(Schedule::Early, NUMBERS, TOKENS) else {
            unreachable!("it is streamed");
        };
        let layers = on_demand.median().layers(read_ns(rate, config.depth));
        println!(
            "{balance:>6.2} {:>11.2} {:>11.3} {:>11.3} {:>8.2} {:>8.2} {:>11.3} {:>11.3} {:>8.2} {:>15.3}",
            early.median().io_ns as f64 / early.median().exec_ns as f64,
            early.seconds() / resident.seconds(),
            exec(&early) / resident.seconds(),
            100.0 * early.median().bubble,
            100.0 * predict(&layers, &config).bubble(),
            ahead.seconds() / resident.seconds(),
            exec(&ahead) / resident.seconds(),
            100.0 * ahead.median().bubble,
            exec(&on_demand) / resident.seconds()
        );
        if balance == BALANCES[0] {
            at_most(
                "early ÷ resident",
                early.seconds() / resident.seconds(),
                HIDDEN,
            );
        }
    }
}

/// T_exec, in seconds.
fn exec(ran: &Ran) -> f64 {
    ran.median().exec_ns as f64 / 1e9
}
