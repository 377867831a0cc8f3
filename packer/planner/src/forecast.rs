//! A configuration that somebody names, run forward.

use estream_schemas::plan::{NoConfig, Schedule, StreamConfig};

use crate::evaluate::Prediction;
use crate::problem::Problem;
use crate::simulate::simulate;
use crate::times::{ReadTimes, Request};

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Its numbers.
    pub prediction: Prediction,
    /// What happens when, in the order in which it begins.
    pub spans: Vec<Span>,
}

/// What goes on for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub what: What,
    /// The step: a layer with experts, of a pass.
    pub step: usize,
    /// The first record, counted in storage order.
    pub first: usize,
    /// How many are read, or executed.
    pub records: usize,
    /// Nanoseconds since the request began.
    pub start_ns: u64,
    /// The same, at the end.
    pub end_ns: u64,
}

/// What goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// What comes before a step's experts is computed.
    Other,
    /// A group is executed.
    Group,
    /// What comes after the last step is computed.
    Head,
    /// Records are read, and published.
    Read {
        /// By which of the Q that read at a time.
        lane: usize,
    },
}

impl Forecast {
    /// How long the executor waits, from the moment that a step's routes are known until its first group
    /// runs, over all steps: what the time to the first useful group has in it beside T^ne.
    pub fn first_group_ns(&self) -> u64 {
        let (mut sum, mut known) = (0, None);
        for span in &self.spans {
            match span.what {
                What::Other => known = Some(span.end_ns),
                What::Group => sum += known.take().map_or(0, |known| span.start_ns - known),
                What::Head | What::Read { .. } => {}
            }
        }
        sum
    }
}

/// What happens with a configuration to each workload of a problem, by the simulation for all schedules
/// (`early` too, whose recurrence differs from it where reads do not take equally long). Whether it fits the
/// budget is not asked.
///
/// # Errors
/// If its numbers cannot be, or G or Q is larger than any the question has.
pub fn forecast(problem: &Problem, config: &StreamConfig) -> Result<Vec<Forecast>, NoConfig> {
    config.check()?;
    let question = problem.question();
    let groups = question.groups.iter().map(|size| size.group);
    let within = |what, value, most: Option<usize>| match most {
        Some(high) if value <= high => Ok(()),
        most => Err(NoConfig {
            what,
            value,
            low: 1,
            high: most.unwrap_or(0),
        }),
    };
    // The times of these are known to fit.
    within("group (G)", config.group, groups.max())?;
    within(
        "depth (Q)",
        config.depth,
        question.depths.iter().max().copied(),
    )?;
    let under_way = match config.schedule {
        Schedule::OnDemand => 1,
        _ => config.depth,
    };
    let times = ReadTimes::new(problem, config.group, under_way);
    let requests = problem.requests.iter();
    let of = |request: &Request| {
        let mut spans = Vec::new();
        let least = request.least_ns(config.group);
        let (_, prediction) = simulate(
            problem,
            request,
            &times,
            config,
            (&least, u64::MAX),
            Some(&mut spans),
        );
        Forecast { prediction, spans }
    };
    Ok(requests.map(of).collect())
}
