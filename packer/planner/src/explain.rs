//! Why a configuration was not chosen.

use std::fmt;

use estream_schemas::plan::{Schedule, StreamConfig};

use crate::evaluate::{Evaluated, Lane};
use crate::feasible::{Inequality, Rule};
use crate::problem::Problem;
use crate::search::Choice;

/// What is known of a configuration beside the one that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The configuration.
    pub config: StreamConfig,
    /// What is wrong with its numbers, if they are none to choose from.
    pub outside: Option<String>,
    /// Every inequality with its numbers.
    pub inequalities: Vec<Inequality>,
    /// What is predicted of it, if its numbers can be; also where it does not fit.
    pub predicted: Option<Evaluated>,
    /// Nanoseconds by which it is slower than the chosen one, on average.
    pub slower_ns: Option<i128>,
    /// Q₀.
    pub depth: usize,
    /// Bytes by which its arena is larger than the chosen one's.
    pub larger_bytes: Option<i128>,
}

/// Says of (G, Q, B) why `choice` is another one.
pub fn explain(
    problem: &Problem,
    choice: &Choice,
    schedule: Schedule,
    (group, depth, banks): (usize, usize, usize),
) -> Explained {
    let config = StreamConfig::new(schedule, group, depth, banks, problem.tokens);
    let question = problem.question();
    let size = problem.size_of(group);
    let outside = match (&size, question.depths.contains(&depth)) {
        (None, _) => {
            let groups: Vec<_> = question.groups.iter().map(|size| size.group).collect();
            Some(format!("G = {group} is none of {groups:?}"))
        }
        (_, false) => Some(format!("Q = {depth} is none of {:?}", question.depths)),
        _ => config.check().err().map(|error| error.to_string()),
    };
    let mut explained = Explained {
        config,
        inequalities: size.map_or_else(Vec::new, |size| problem.inequalities(&config, &size)),
        predicted: None,
        slower_ns: None,
        larger_bytes: None,
        depth: choice.depth,
        outside,
    };
    if let (Some(size), None) = (size, &explained.outside) {
        let evaluated = Lane::new(problem, schedule, size, depth).evaluate(banks);
        let chosen = &choice.chosen;
        let more = |this: u64, that: u64| Some(i128::from(this) - i128::from(that));
        explained.slower_ns = more(evaluated.mean_ns, chosen.mean_ns);
        explained.larger_bytes = more(evaluated.arena_bytes, chosen.arena_bytes);
        explained.predicted = Some(evaluated);
    }
    explained
}

impl fmt::Display for Explained {
    /// The first reason, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = |inequality: &&Inequality| !inequality.holds();
        let failed = self.inequalities.iter().find(failed);
        let config = &self.config;
        let reason = match (&self.outside, failed, self.slower_ns, self.larger_bytes) {
            (Some(outside), ..) => outside.clone(),
            (_, Some(failed), ..) if failed.rule == Rule::Banks => {
                format!("{failed}; more banks are never used")
            }
            (_, Some(failed), ..) => failed.to_string(),
            (.., Some(slower), _) if slower > 0 => format!("{slower} ns slower"),
            (.., Some(slower), _) if slower < 0 => format!(
                "{} ns faster, but only Q = {} is looked at",
                -slower, self.depth
            ),
            (.., Some(larger)) if larger > 0 => {
                format!("as fast, but its arena is {larger} bytes larger")
            }
            _ => "as fast and as small".to_owned(),
        };
        let (schedule, group) = (config.schedule.name(), config.group);
        let (depth, banks) = (config.depth, config.banks);
        write!(
            f,
            "{schedule}, G = {group}, Q = {depth}, B = {banks}: {reason}"
        )
    }
}
