//! What a plan says, as it is printed.

use std::path::{Path, PathBuf};

use estream_planner::{Evaluated, Explained, Inequality, Survey};
use estream_schemas::digest::Digest;
use estream_schemas::plan::StreamConfig;
use serde::Serialize;

use super::{Hot, Planned, Table};
use crate::paths;

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    #[serde(serialize_with = "paths::one")]
    pub(super) bundle: &'a Path,
    pub(super) identity: Digest,
    pub(super) device: &'a str,
    pub(super) service: &'a str,
    pub(super) routes: &'static str,
    pub(super) assumed: Vec<&'a str>,
    pub(super) plans: Vec<BudgetReport>,
    #[serde(serialize_with = "paths::maybe")]
    pub(super) stored: Option<PathBuf>,
    #[serde(serialize_with = "paths::maybe")]
    pub(super) svg: Option<&'a Path>,
}

/// What is best within a budget.
#[derive(Debug, Serialize)]
pub(super) struct BudgetReport {
    pub(super) budget_bytes: u64,
    /// By length of the prompt; none if nothing fits.
    pub(super) rows: Vec<RowReport>,
    /// Why nothing fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<Refused>,
}

/// Nothing fits.
#[derive(Debug, Serialize)]
pub(super) struct Refused {
    pub(super) inequalities: Vec<Line>,
    /// The least that would do; null if the device's limits forbid all.
    pub(super) least_budget_bytes: Option<u64>,
}

/// What is told where somebody asks for it.
#[derive(Debug)]
pub(super) struct Extras<'a> {
    /// What there is, whatever the budget.
    pub(super) survey: Option<&'a Survey>,
    /// Of other numbers, why they were not chosen.
    pub(super) explained: Vec<Explained>,
}

/// What is best for a length of prompt.
#[derive(Debug, Serialize)]
pub(super) struct RowReport {
    pub(super) tokens: u64,
    pub(super) chosen: Predicted,
    pub(super) runner_up: Option<Predicted>,
    /// Q₀.
    pub(super) q0: usize,
    pub(super) inequalities: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hot: Option<HotReport>,
    /// How many configurations there are, whatever the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) configurations: Option<usize>,
    /// Those that none is better than in memory and time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pareto: Vec<Predicted>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) explained: Vec<Reason>,
}

/// The same on a hot device.
#[derive(Debug, Serialize)]
pub(super) struct HotReport {
    pub(super) chosen: Predicted,
    /// The configuration is another one.
    pub(super) differs: bool,
    /// The plan for a device that is not hot, on one that is.
    pub(super) cold_ttft_us: u64,
    /// How much slower that is.
    pub(super) regret_pct: f64,
}

/// A configuration and what is predicted of it.
#[derive(Debug, Serialize)]
pub(super) struct Predicted {
    #[serde(flatten)]
    pub(super) config: StreamConfig,
    pub(super) ttft_us: u64,
    pub(super) bubble: f64,
    pub(super) io_us: u64,
    pub(super) exec_us: u64,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    pub(super) records_read: u64,
    pub(super) records_run: u64,
    pub(super) arena_bytes: u64,
    /// The arena and all else.
    pub(super) memory_bytes: u64,
}

/// An inequality with its numbers.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) holds: bool,
    pub(super) text: String,
}

/// Why a configuration was not chosen.
#[derive(Debug, Serialize)]
pub(super) struct Reason {
    pub(super) reason: String,
    pub(super) predicted: Option<Predicted>,
    pub(super) inequalities: Vec<Line>,
}

impl BudgetReport {
    pub(super) fn new<'b>(
        budget_bytes: u64,
        table: &Table,
        extras: &dyn Fn(&Planned) -> Extras<'b>,
    ) -> BudgetReport {
        match table {
            Ok(planned) => BudgetReport {
                budget_bytes,
                rows: planned
                    .iter()
                    .map(|planned| RowReport::new(planned, &extras(planned)))
                    .collect(),
                refused: None,
            },
            Err(infeasible) => BudgetReport {
                budget_bytes,
                rows: Vec::new(),
                refused: Some(Refused {
                    inequalities: lines(&infeasible.inequalities),
                    least_budget_bytes: infeasible.budget_bytes,
                }),
            },
        }
    }
}

impl RowReport {
    fn new(planned: &Planned, extras: &Extras<'_>) -> RowReport {
        let choice = &planned.choice;
        let frontier = extras.survey.iter().flat_map(|survey| &survey.frontier);
        RowReport {
            tokens: planned.tokens,
            chosen: Predicted::new(&choice.chosen),
            runner_up: choice.runner_up.as_ref().map(Predicted::new),
            q0: choice.depth,
            inequalities: lines(&choice.inequalities),
            hot: planned.hot.as_ref().map(|hot| HotReport::new(hot, planned)),
            configurations: extras.survey.map(|survey| survey.all.len()),
            pareto: frontier.map(Predicted::new).collect(),
            explained: extras.explained.iter().map(Reason::new).collect(),
        }
    }
}

impl HotReport {
    fn new(hot: &Hot, planned: &Planned) -> HotReport {
        let best_ns = hot.choice.chosen.mean_ns;
        let cold = hot.cold.predicted.as_ref();
        let cold_ns = cold.map_or(best_ns, |cold| cold.mean_ns);
        HotReport {
            chosen: Predicted::new(&hot.choice.chosen),
            differs: hot.choice.chosen.config != planned.choice.chosen.config,
            cold_ttft_us: micros(cold_ns),
            regret_pct: 100.0 * (cold_ns as f64 / best_ns.max(1) as f64 - 1.0),
        }
    }
}

impl Predicted {
    fn new(evaluated: &Evaluated) -> Predicted {
        // There is one workload a question.
        let prediction = evaluated.predictions.first().copied().unwrap_or_default();
        Predicted {
            config: evaluated.config,
            ttft_us: micros(evaluated.mean_ns),
            bubble: prediction.times.bubble(),
            io_us: micros(prediction.times.io_ns),
            exec_us: micros(prediction.times.exec_ns),
            reads: prediction.reads,
            read_bytes: prediction.bytes_read,
            records_read: prediction.records_read,
            records_run: prediction.records_run,
            arena_bytes: evaluated.arena_bytes,
            memory_bytes: evaluated.memory_bytes,
        }
    }
}

impl Reason {
    fn new(explained: &Explained) -> Reason {
        Reason {
            reason: explained.to_string(),
            predicted: explained.predicted.as_ref().map(Predicted::new),
            inequalities: lines(&explained.inequalities),
        }
    }
}

fn lines(inequalities: &[Inequality]) -> Vec<Line> {
    let line = |inequality: &Inequality| Line {
        holds: inequality.holds(),
        text: inequality.to_string(),
    };
    inequalities.iter().map(line).collect()
}

fn micros(ns: u64) -> u64 {
    ns / 1000
}
