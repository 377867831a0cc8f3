//! Short prompts, which need few of many experts, and where reading them stops paying.

use estream_schemas::plan::Schedule;

use crate::bundles::bundle;
use crate::job::{Experts, Job, Ran, streamed};
use crate::{Setup, at_most};

const LENGTHS: [usize; 7] = [16, 64, 256, 512, 1024, 2048, 4096];
const NUMBERS: (usize, usize, usize) = (8, 2, 4);
/// Bytes read over bytes needed, at the shortest.
const UNION: f64 = 1.15;
/// How much slower than `early` at any length.
const NEVER: f64 = 1.01;

pub(crate) fn run(setup: Setup) {
    let (group, depth, banks) = NUMBERS;
    println!(
        "\n4 layers of Qwen3, 128 experts, G = {group}, Q = {depth}, B = {banks}; times over those of `early`, \
         all from a cold start but `warm`, which has its experts in memory"
    );
    println!(
        "{:>6} {:>7} {:>9} {:>12} {:>12} {:>8} {:>7} {:>7} {:>6} {:>9} {:>9}",
        "tokens",
        "union %",
        "early s",
        "early r/u",
        "compact r/u",
        "compact",
        "ahead",
        "warm",
        "mapped",
        "resident",
        "± %"
    );
    let bundle = bundle("qwen3moe", 4, 1);
    for tokens in LENGTHS {
        let job = Job::new(bundle.clone(), Experts::Resident, tokens, setup);
        let [early, compact, ahead] = [Schedule::Early, Schedule::Compact, Schedule::Ahead]
            .map(|schedule| job.with(streamed(schedule, NUMBERS, tokens)));
        let mapped = job.with(Experts::Mapped);
        let [early, compact, ahead, resident, mapped] =
            Job::interleaved(&[early, compact, ahead, job, mapped]);
        let run = early.median();
        let over = |seconds: f64| seconds / early.seconds();
        let load = |ran: &Ran| ran.load_ns as f64 / 1e9;
        let ratio = compact.median().read_ratio();
        println!(
            "{tokens:>6} {:>7.0} {:>9.3} {:>12.2} {:>12.2} {:>8.3} {:>7.3} {:>7.3} {:>6.3} {:>9.3} {:>9.1}",
            100.0 * run.union(),
            early.seconds(),
            run.read_ratio(),
            ratio,
            over(compact.seconds()),
            over(ahead.seconds()),
            over(resident.seconds()),
            over(mapped.seconds()),
            // What is not an expert is loaded by all of them.
            over(resident.seconds() + load(&resident) - load(&early)),
            50.0 * early.spread()
        );
        if tokens == LENGTHS[0] {
            at_most("compact, bytes read ÷ bytes needed", ratio, UNION);
        }
        at_most("compact ÷ early", over(compact.seconds()), NEVER);
    }
}
