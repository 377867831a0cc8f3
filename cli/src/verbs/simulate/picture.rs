//! What is simulated as pictures: schedules by length of prompt, and what happens when.

use estream_planner::{Forecast, What};
use estream_plot::{
    Axis, Bars, Chart, Lane, Line, Mark, Point, Scale, Series, Span, Timeline, Track, Unit, panels,
    spans,
};
use estream_schemas::plan::{Schedule, StreamConfig};

use super::{Args, Report, Row};
use crate::pictures::{config, millis, name_of};
use crate::tables::grouped;

/// Times of which one is this many times the other are on a logarithmic axis.
const FAR: u64 = 8;

/// What is simulated, and where.
pub(super) fn place(args: &Args, report: &Report) -> String {
    let model = match (&args.bundle, &args.shape) {
        (Some(bundle), _) => name_of(bundle),
        (None, Some(shape)) => shape.to_string(),
        (None, None) => String::new(),
    };
    format!("{model} on {}, times of {}", report.device, report.service)
}

/// Time to first token and bytes read by length of prompt, a line for each schedule.
pub(super) fn lengths(place: &str, rows: &[Row]) -> String {
    let mut lengths: Vec<u64> = rows.iter().map(|row| row.tokens).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let times = || rows.iter().map(|row| row.ttft_us.max(1));
    let (least, most) = (times().min().unwrap_or(1), times().max().unwrap_or(1));
    let time = Axis {
        label: "time to first token".to_owned(),
        unit: Unit::Nanoseconds,
        scale: match most / least < FAR {
            true => Scale::Linear,
            false => Scale::Log,
        },
        ..Axis::default()
    };
    let bytes = Axis {
        label: "bytes read".to_owned(),
        unit: Unit::Bytes,
        ..Axis::default()
    };
    let charts = [
        chart(time, rows, &lengths, |row| 1e3 * row.ttft_us as f64),
        chart(bytes, rows, &lengths, |row| row.read_bytes as f64),
    ];
    panels(place, &charts)
}

fn chart(y: Axis, rows: &[Row], lengths: &[u64], of: impl Fn(&Row) -> f64) -> Chart {
    let series = Schedule::ALL.into_iter().map(|schedule| {
        let rows = rows.iter().filter(|row| row.config.schedule == schedule);
        let point = |row: &Row| Point {
            x: row.tokens as f64,
            y: of(row),
            title: config(&row.config),
        };
        Series {
            name: schedule.name().to_owned(),
            line: Line::Straight,
            mark: mark(schedule),
            radius: Some(match schedule {
                Schedule::Resident => 7.0,
                _ => 4.0,
            }),
            points: rows.map(point).collect(),
            ..Series::default()
        }
    });
    Chart {
        title: y.label.clone(),
        x: Axis {
            label: "prompt".to_owned(),
            unit: Unit::Named("tokens".to_owned()),
            scale: Scale::Log,
            ticks: lengths.iter().map(|length| *length as f64).collect(),
        },
        y,
        series: series.filter(|series| !series.points.is_empty()).collect(),
    }
}

fn mark(schedule: Schedule) -> Mark {
    match schedule {
        Schedule::Resident => Mark::Star,
        Schedule::OnDemand => Mark::Circle,
        Schedule::Prefetch => Mark::Square,
        Schedule::Early => Mark::Diamond,
        Schedule::Compact => Mark::Triangle,
        Schedule::Ahead => Mark::Cross,
    }
}

/// What happens when to a prompt of `tokens` tokens, one schedule below the other.
pub(super) fn timeline(place: &str, tokens: u32, forecasts: &[(StreamConfig, Forecast)]) -> String {
    let tracks = forecasts
        .iter()
        .map(|(config, forecast)| track(config, forecast));
    spans(&Timeline {
        title: format!("{place}: {} tokens", grouped(u64::from(tokens))),
        tracks: tracks.collect(),
    })
}

fn track(by: &StreamConfig, forecast: &Forecast) -> Track {
    let bars = |class: &str, is: &dyn Fn(What) -> bool| Bars {
        class: class.to_owned(),
        spans: forecast
            .spans
            .iter()
            .filter(|span| is(span.what))
            .map(|span| Span {
                start_ns: span.start_ns,
                end_ns: span.end_ns,
            })
            .collect(),
    };
    let readers = forecast.spans.iter().filter_map(|span| match span.what {
        What::Read { lane } => Some(lane + 1),
        What::Other | What::Group | What::Head => None,
    });
    let readers = readers.max().unwrap_or(0);
    let mut lanes: Vec<Lane> = (0..readers)
        .map(|reader| Lane {
            name: match readers {
                1 => "I/O".to_owned(),
                _ => format!("I/O {}", reader + 1),
            },
            bars: vec![bars("reading", &|what| what == What::Read { lane: reader })],
        })
        .collect();
    lanes.push(Lane {
        name: "executor".to_owned(),
        bars: vec![
            bars("attention, router", &|what| what == What::Other),
            bars("experts", &|what| what == What::Group),
            bars("head", &|what| what == What::Head),
        ],
    });
    let times = &forecast.prediction.times;
    Track {
        name: config(by),
        caption: format!(
            "bubble {:.1} %, T_io {}, T_exec {}, TTFT {}",
            100.0 * times.bubble(),
            millis(times.io_ns),
            millis(times.exec_ns),
            millis(times.total_ns)
        ),
        lanes,
    }
}
