//! Data of the kinds that are drawn.

use estream_plot::{
    Axis, Bars, Chart, HeatMap, HeatRow, Lane, Line, Mark, Point, Scale, Series, Span, Timeline,
    Tone, Track, Unit, chart, heat_map, panels, spans,
};

/// Numbers that are the same in every run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    /// From 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }
}

/// Memory and time of some configurations, with a frontier, the fastest and what is chosen.
pub(crate) fn frontier(name: &str, count: u64, seed: u64) -> Chart {
    let mut dice = Dice(seed);
    let all: Vec<Point> = (0..count)
        .map(|index| {
            let memory = 4e8 + 3e9 * dice.share();
            let time = 4e17 / memory + 1e9 * dice.share();
            Point {
                title: format!("G = {index}"),
                ..Point::new(memory.round(), time.round())
            }
        })
        .collect();
    let mut sorted = all.clone();
    sorted.sort_by(|a, b| a.x.total_cmp(&b.x));
    let mut least = f64::INFINITY;
    sorted.retain(|point| {
        let better = point.y < least;
        least = least.min(point.y);
        better
    });
    let fastest = sorted.last().cloned();
    let chosen: Vec<Point> = sorted.iter().step_by(2).cloned().collect();
    let series = |name: &str, tone, line, mark, points| Series {
        name: name.to_owned(),
        tone,
        line,
        mark,
        radius: None,
        points,
    };
    Chart {
        title: name.to_owned(),
        x: axis("memory", Unit::Bytes, Scale::Linear),
        y: axis("time to first token", Unit::Nanoseconds, Scale::Linear),
        series: vec![
            series("configurations", Tone::Grey, Line::None, Mark::Circle, all),
            series(
                "least time for the memory",
                Tone::Next,
                Line::Steps,
                Mark::None,
                sorted,
            ),
            series(
                "limit",
                Tone::Next,
                Line::Upright,
                Mark::None,
                chosen.iter().skip(1).take(1).cloned().collect(),
            ),
            series("chosen", Tone::Next, Line::None, Mark::Star, chosen),
            series(
                "the fastest",
                Tone::Black,
                Line::None,
                Mark::Cross,
                fastest.into_iter().collect(),
            ),
        ],
    }
}

pub(crate) fn axis(label: &str, unit: Unit, scale: Scale) -> Axis {
    Axis {
        label: label.to_owned(),
        unit,
        scale,
        ticks: Vec::new(),
    }
}

/// Lines by name over lengths of prompts.
pub(crate) fn lines(title: &str, unit: Unit, names: &[&str]) -> Chart {
    let lengths = [16.0, 128.0, 1024.0, 4096.0];
    let marks = [Mark::Circle, Mark::Square, Mark::Diamond, Mark::Triangle];
    let series = names.iter().enumerate().map(|(index, name)| Series {
        name: (*name).to_owned(),
        line: Line::Straight,
        mark: marks[index % marks.len()],
        points: lengths
            .map(|length| Point::new(length, length * (2e6 + 3e5 * index as f64)))
            .to_vec(),
        ..Series::default()
    });
    Chart {
        title: title.to_owned(),
        x: Axis {
            ticks: lengths.to_vec(),
            ..axis("prompt", Unit::Named("tokens".to_owned()), Scale::Log)
        },
        y: axis("what it takes", unit, Scale::Log),
        series: series.collect(),
    }
}

/// Reading and computing, in turn or at the same time.
pub(crate) fn timeline(steps: u64) -> Timeline {
    let lane = |name: &str, class: &str, offset: u64, of: &[(u64, u64)]| Lane {
        name: name.to_owned(),
        bars: vec![Bars {
            class: class.to_owned(),
            spans: of
                .iter()
                .map(|(start, end)| Span {
                    start_ns: 1000 * (start + offset),
                    end_ns: 1000 * (end + offset),
                })
                .collect(),
        }],
    };
    let each = |from: u64, to: u64, period: u64| -> Vec<(u64, u64)> {
        (0..steps)
            .map(|step| (step * period + from, step * period + to))
            .collect()
    };
    let track = |name: &str, bubble: &str, offset: u64, period: u64| Track {
        name: name.to_owned(),
        caption: format!("bubble {bubble} %"),
        lanes: vec![
            lane("read", "read", 0, &each(0, 190, period)),
            lane("execute", "experts", offset, &each(0, 100, period)),
        ],
    };
    Timeline {
        title: "OLMoE, 1,024 tokens".to_owned(),
        tracks: vec![
            track("on demand", "34.4", 190, 290),
            track("early", "9.1", 190, 200),
        ],
    }
}

/// How much each of `columns` is used in each of `rows`; of every third row the last is not known.
pub(crate) fn usage(rows: u64, columns: u64) -> HeatMap {
    let mut dice = Dice(7);
    let rows = (0..rows).map(|row| HeatRow {
        name: row.to_string(),
        values: (0..columns)
            .map(|column| {
                let is_known = row % 3 != 0 || column + 1 < columns;
                is_known.then(|| 100.0 * dice.share() / (1 + column) as f64)
            })
            .collect(),
    });
    HeatMap {
        title: "OLMoE, 300 prompts".to_owned(),
        columns: "expert".to_owned(),
        rows_label: "layer".to_owned(),
        values_label: "tokens (%)".to_owned(),
        rows: rows.collect(),
    }
}

/// Every kind of picture, in several sizes.
pub(crate) fn all() -> Vec<(&'static str, String)> {
    let many: Vec<String> = (0..40).map(|index| format!("schedule {index}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let models = ["OLMoE", "LFM2.5", "Qwen3", "Mixtral", "DeepSeek"];
    let some = |count: usize| -> Vec<Chart> {
        let models = models.iter().zip(1..).take(count);
        models
            .map(|(model, seed)| frontier(model, 60, seed))
            .collect()
    };
    let names = ["on-demand", "early", "ahead"];
    vec![
        ("one", chart(&frontier("OLMoE", 200, 3))),
        (
            "two",
            panels(
                "Schedules",
                &[
                    lines("TTFT", Unit::Nanoseconds, &names),
                    lines("bytes read", Unit::Bytes, &names),
                ],
            ),
        ),
        ("three", panels("", &some(3))),
        ("four", panels("Latency and memory", &some(4))),
        ("five", panels("Latency and memory", &some(5))),
        ("many", chart(&lines("many", Unit::Plain, &many))),
        ("time", spans(&timeline(6))),
        ("long time", spans(&timeline(5000))),
        ("map", heat_map(&usage(3, 16))),
        ("large map", heat_map(&usage(48, 128))),
        ("wide map", heat_map(&usage(2, 4096))),
        ("high map", heat_map(&usage(1024, 3))),
        ("one cell", heat_map(&usage(1, 2))),
    ]
}
