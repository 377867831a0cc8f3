//! A plan as a picture: memory and time of every configuration, and what is chosen.

use estream_planner::{Candidate, Choice, Evaluated, Survey};
use estream_plot::{Axis, Chart, Line, Mark, Point, Series, Tone, Unit, panels};

use super::Table;
use super::question::Setting;
use crate::pictures::{config, name_of, size};
use crate::tables::grouped;

/// A panel for each length of prompt.
pub(super) fn picture(
    setting: &Setting<'_>,
    surveys: &[Survey],
    budgets: &[u64],
    tables: &[Table],
) -> String {
    let lengths = setting.tokens.iter().zip(surveys).enumerate();
    let charts: Vec<Chart> = lengths
        .map(|(at, (tokens, survey))| {
            let next = rows(at, tables).filter_map(|choice| choice.runner_up.as_ref());
            let next = marks("next best", Mark::Diamond, Tone::Black, next.map(point));
            let fastest = survey.frontier.last().map(point);
            let fastest = marks("the fastest of all", Mark::Cross, Tone::Black, fastest);
            let chosen = rows(at, tables).map(|choice| point(&choice.chosen));
            let chosen = marks("chosen within a budget", Mark::Star, Tone::Next, chosen);
            let mut series = of_all(survey).to_vec();
            series.extend([
                next,
                Series {
                    // A star may stand on it.
                    radius: Some(12.0),
                    ..fastest
                },
                chosen,
            ]);
            series.extend(limits(survey, budgets, surveys));
            Chart {
                title: format!("{} tokens", grouped(*tokens)),
                x: axis("memory", Unit::Bytes),
                y: axis("time to first token", Unit::Nanoseconds),
                series,
            }
        })
        .collect();
    let (bundle, device) = (name_of(setting.reader.path()), &setting.profile.name);
    let title = format!("{bundle} on {device}, times of {}", setting.service.name);
    panels(&title, &charts)
}

fn axis(label: &str, unit: Unit) -> Axis {
    Axis {
        label: label.to_owned(),
        unit,
        ..Axis::default()
    }
}

/// What does not depend on a budget.
fn of_all(survey: &Survey) -> [Series; 2] {
    let frontier = survey.frontier.iter().map(point);
    [
        Series {
            radius: Some(1.8),
            ..marks(
                "every configuration",
                Mark::Circle,
                Tone::Grey,
                survey.all.iter().map(candidate),
            )
        },
        Series {
            line: Line::Steps,
            radius: Some(2.4),
            ..marks(
                "least time for the memory",
                Mark::Circle,
                Tone::Next,
                frontier,
            )
        },
    ]
}

fn marks(name: &str, mark: Mark, tone: Tone, points: impl IntoIterator<Item = Point>) -> Series {
    Series {
        name: name.to_owned(),
        tone,
        mark,
        points: points.into_iter().collect(),
        ..Series::default()
    }
}

/// What was chosen within each budget for a length of prompt.
fn rows(at: usize, tables: &[Table]) -> impl Iterator<Item = &Choice> {
    let tables = tables.iter().filter_map(|table| table.as_ref().ok());
    tables.filter_map(move |rows| Some(&rows.get(at)?.choice))
}

/// A line for each budget. One that leaves nothing or everything is not worth the room up to it: it is in
/// the legend alone.
fn limits(survey: &Survey, budgets: &[u64], surveys: &[Survey]) -> Vec<Series> {
    let range = |survey: &Survey| {
        let memory = || survey.all.iter().map(|one| one.memory_bytes);
        memory().min().zip(memory().max())
    };
    let here = range(survey);
    let all: Vec<(u64, u64)> = surveys.iter().filter_map(range).collect();
    let time = survey.frontier.last().map_or(1, |fastest| fastest.mean_ns);
    let limit = |budget: &u64| {
        let place = match all.is_empty() {
            false if all.iter().all(|(least, _)| budget < least) => ", less than any takes",
            false if all.iter().all(|(_, most)| budget > most) => ", more than any takes",
            _ => "",
        };
        let is_here = here.is_some_and(|(least, most)| (least..=most).contains(budget));
        let point = is_here.then(|| Point::new(*budget as f64, time as f64));
        Series {
            name: format!("budget of {}{place}", size(*budget)),
            line: Line::Upright,
            points: point.into_iter().collect(),
            ..Series::default()
        }
    };
    budgets.iter().map(limit).collect()
}

fn point(evaluated: &Evaluated) -> Point {
    candidate(&Candidate {
        config: evaluated.config,
        memory_bytes: evaluated.memory_bytes,
        mean_ns: evaluated.mean_ns,
    })
}

fn candidate(candidate: &Candidate) -> Point {
    Point {
        x: candidate.memory_bytes as f64,
        y: candidate.mean_ns as f64,
        title: config(&candidate.config),
    }
}
