//! Draws what was measured, and says what it comes to.
//!
//!     cargo run -p estream-tests --example figures [-- --check]
//!
//! Everything is computed from `docs/measured/*.json`, which `cargo bench -p estream-tests --bench streaming -- paper
//! planned` leaves under `target/tmp/streaming`. With `--check` nothing is written, and it is an error if something would change.
#![expect(clippy::print_stderr, reason = "it says what it does")]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use estream_plot::{
    Axis, Bars, Chart, Lane, Line, Mark, Point, Series, Span, Timeline, Tone, Track, Unit, panels,
    spans,
};
use estream_tests::schedules::{Schedules, Shown, What};
use estream_tests::sweep::{
    BUDGETS, HOT, Length, Numbers, Rates, Sweep, Swept, Tried, choice, predicted,
};
use serde::de::DeserializeOwned;

fn main() -> ExitCode {
    let check = env::args().skip(1).any(|arg| arg == "--check");
    let sweep: Sweep = measured("sweep.json");
    let schedules: Schedules = measured("schedules.json");
    let frontier = |tokens| {
        let charts: Vec<Chart> = sweep
            .models
            .iter()
            .filter_map(|swept| Some(frontier(swept, swept.length(tokens)?)))
            .collect();
        panels(
            &format!("{tokens} tokens: time and memory of every (G, Q, B)"),
            &charts,
        )
    };
    let mut stale = false;
    for (name, text) in [
        ("measured/schedules.svg", spans(&timeline(&schedules))),
        ("measured/frontier-64.svg", frontier(64)),
        ("measured/frontier-1024.svg", frontier(1024)),
        ("measured.md", page(&sweep, &schedules)),
    ] {
        let path = docs().join(name);
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        if check {
            eprintln!("docs/{name} is not what its data says; run this without --check");
            stale = true;
        } else {
            fs::write(&path, text).expect("a file");
            eprintln!("wrote docs/{name}");
        }
    }
    ExitCode::from(u8::from(stale))
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn measured<T: DeserializeOwned>(name: &str) -> T {
    let path = docs().join("measured").join(name);
    let text = fs::read(&path).unwrap_or_else(|error| panic!("docs/measured/{name}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("docs/measured/{name}: {error}"))
}

/// Paper Fig. 6: what is read and what is computed when.
fn timeline(schedules: &Schedules) -> Timeline {
    let [group, depth, banks] = schedules.numbers;
    let track = |shown: &Shown| {
        let bars = |class: &str, what| Bars {
            class: class.to_owned(),
            spans: shown
                .spans
                .iter()
                .filter(|span| span.what == what)
                .map(|span| Span {
                    start_ns: span.start_ns,
                    end_ns: span.end_ns,
                })
                .collect(),
        };
        let lane = |name: &str, bars| Lane {
            name: name.to_owned(),
            bars,
        };
        Track {
            name: shown.schedule.clone(),
            caption: format!("bubble {:.1} %", 100.0 * shown.bubble()),
            lanes: vec![
                lane("storage", vec![bars("reading", What::Read)]),
                lane(
                    "executor",
                    vec![
                        bars("everything else", What::Other),
                        bars("experts", What::Experts),
                    ],
                ),
            ],
        }
    };
    let streamed = schedules.runs.iter();
    let streamed = streamed.filter(|shown| shown.schedule != "resident");
    Timeline {
        title: format!(
            "{} tokens through {} layers of {}, G = {group}, Q = {depth}, B = {banks}",
            schedules.tokens,
            schedules.layers,
            title(&schedules.model)
        ),
        tracks: streamed.map(track).collect(),
    }
}

/// Paper Fig. 10: all that was tried, what nothing beats, and what is chosen.
fn frontier(swept: &Swept, length: &Length) -> Chart {
    let point = |tried: &Tried| Point {
        x: tried.peak_bytes as f64,
        y: tried.seconds() * 1e9,
        title: format!("G, Q, B = {}", tried.numbers),
    };
    let series = |name: &str, line, mark, points| Series {
        name: name.to_owned(),
        line,
        mark,
        points,
        ..Series::default()
    };
    let groups = length.groups();
    let tried = groups.into_iter().map(|group| {
        let tried = length.tried.iter();
        let tried = tried.filter(|tried| tried.numbers.group == group);
        series(
            &format!("G = {group}"),
            Line::None,
            Mark::Circle,
            tried.map(point).collect(),
        )
    });
    let mut all: Vec<Series> = tried.collect();
    all.push(Series {
        tone: Tone::Grey,
        ..series(
            "nothing smaller is faster",
            Line::Steps,
            Mark::None,
            length.pareto().into_iter().map(point).collect(),
        )
    });
    let best = BUDGETS[BUDGETS.len() - 1];
    let best = length.best(best).map(point);
    all.push(Series {
        tone: Tone::Black,
        ..series(
            "fastest",
            Line::None,
            Mark::Cross,
            best.into_iter().collect(),
        )
    });
    let picks = BUDGETS.map(|records| {
        let plan = swept.verdict(length, records).plan;
        let tried = length.of(plan).map(point);
        tried.map(|point| Point {
            title: format!("{records} records: {}", point.title),
            ..point
        })
    });
    all.push(series(
        "plan of a budget",
        Line::None,
        Mark::Star,
        picks.into_iter().flatten().collect(),
    ));
    Chart {
        title: title(&swept.model).to_owned(),
        x: Axis {
            label: "most memory".to_owned(),
            unit: Unit::Bytes,
            ..Axis::default()
        },
        y: Axis {
            label: "time to first token".to_owned(),
            unit: Unit::Nanoseconds,
            ..Axis::default()
        },
        series: all,
    }
}

/// The name of a shape's model.
fn title(model: &str) -> &str {
    match model {
        "olmoe" => "OLMoE",
        "qwen3moe" => "Qwen3-30B",
        "lfm2moe" => "LFM2",
        other => other,
    }
}

const INTRODUCTION: &str = "\
# What was measured

This page and its pictures are written by `cargo run -p estream-tests --example figures` from the runs in
[`measured/`](measured); `.ci/run` checks that they are what the runs say. To measure again, which takes an hour of a quiet machine:

    cargo bench -p estream-tests --bench streaming -- paper planned

and move `target/tmp/streaming/sweep.json` and `schedules-8-1024.json` (as `schedules.json`) here.

Models have the published shapes but few layers, random weights, and routers that spread as real ones do. Storage is imitated with
`--throttle`: reads really happen, and end no earlier than the stated bandwidth allows. Every run is a process of its own, and all that are compared take turns.
Nothing here was measured on a phone.
";

fn page(sweep: &Sweep, schedules: &Schedules) -> String {
    let mut page = INTRODUCTION.to_owned();
    schedules_section(&mut page, schedules).expect("text");
    sweep_section(&mut page, sweep).expect("text");
    page
}

fn schedules_section(page: &mut String, schedules: &Schedules) -> std::fmt::Result {
    let [group, depth, banks] = schedules.numbers;
    let on_demand = schedules
        .runs
        .iter()
        .find(|shown| shown.schedule == "on-demand");
    let balance = on_demand.map_or(0.0, |shown| shown.io_ns as f64 / shown.exec_ns as f64);
    writeln!(
        page,
        "\n## Schedules\n\n{} tokens through {} layers of {}'s shape on {}: G = {group}, Q = {depth}, B = {banks}, storage of {:.0} MB/s, \
         with which reading takes {balance:.2} times as long as computing. That is the balance of paper Fig. 6, where loading on demand has a bubble of 34.41 %, \
         prefetching after routing 21.36 %, and starting early 9.05 %.\n\n![schedules](measured/schedules.svg)\n\n\
         | schedule | time ÷ resident | bubble % | equation 5 % | T_io s | T_exec s |\n|---|---|---|---|---|---|",
        schedules.tokens,
        schedules.layers,
        title(&schedules.model),
        schedules.machine,
        schedules.bytes_per_second as f64 / 1e6
    )?;
    for shown in &schedules.runs {
        writeln!(
            page,
            "| `{}` | {:.3} | {:.2} | {} | {:.3} | {:.3} |",
            shown.schedule,
            shown.total_ns as f64 / schedules.resident_ns as f64,
            100.0 * shown.bubble(),
            shown
                .predicted
                .map_or("–".to_owned(), |bubble| format!("{:.2}", 100.0 * bubble)),
            shown.io_ns as f64 / 1e9,
            shown.exec_ns as f64 / 1e9
        )?;
    }
    Ok(())
}

fn sweep_section(page: &mut String, sweep: &Sweep) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Plans beside a sweep\n\n{}. Schedule `early`, arenas of at most 4, 8, 16 and 32 records. Storage is such that the longer prompt reads about \
         as long as it computes with two reads under way, and a third longer with one; the shorter prompt then does little but read. \
         The profile was measured on that storage by `estream profile measure`, the plan is the planner's from that profile and the prompt's routes, and *best* is the fastest of all \
         that were tried within the budget.\n\n![1,024 tokens](measured/frontier-1024.svg)\n\n![64 tokens](measured/frontier-64.svg)\n\n\
         | model | tokens | records | plan G,Q,B | predicted s | measured s | best G,Q,B | s | measured ÷ best | runs lie apart by % |\n\
         |---|---|---|---|---|---|---|---|---|---|",
        sweep.machine
    )?;
    for (swept, length) in sweep.all() {
        for records in BUDGETS {
            let verdict = swept.verdict(length, records);
            writeln!(
                page,
                "| {} | {} | {records} | {} | {:.3} | {:.3} | {} | {:.3} | {:.4} | {:.1} |",
                title(&swept.model),
                length.tokens,
                verdict.plan,
                verdict.predicted,
                verdict.measured,
                verdict.best,
                verdict.best_seconds,
                verdict.regret(),
                100.0 * verdict.spread
            )?;
        }
    }
    writeln!(
        page,
        "\nHow far the model and the ceiling are from what was measured, over all configurations that were tried:\n\n\
         | model | tokens | tried | predicted ÷ measured: least | median | most | ceiling ÷ peak: least | most |\n|---|---|---|---|---|---|---|---|"
    )?;
    for (swept, length) in sweep.all() {
        let most = BUDGETS[BUDGETS.len() - 1];
        let problem = swept.problem(length, most, Rates::Cold);
        let choice = choice(&problem);
        let predicted =
            |tried: &Tried| Some(predicted(&problem, &choice, tried.numbers)? / tried.seconds());
        let time = sorted(length.tried.iter().filter_map(predicted));
        let ceiling = |tried: &Tried| tried.ceiling_bytes as f64 / tried.peak_bytes as f64;
        let memory = sorted(length.tried.iter().map(ceiling));
        writeln!(
            page,
            "| {} | {} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
            title(&swept.model),
            length.tokens,
            length.tried.len(),
            time[0],
            time[time.len() / 2],
            time[time.len() - 1],
            memory[0],
            memory[memory.len() - 1]
        )?;
    }
    writeln!(
        page,
        "\n## A device that became hot\n\nThe same at {HOT} of the bandwidth: what the plan for the cold device took there, over what the plan for the hot one took.\n\n\
         | model | tokens | records | cold plan | hot plan | cold ÷ hot |\n|---|---|---|---|---|---|"
    )?;
    for (swept, length) in sweep.all() {
        for records in BUDGETS {
            let verdict = swept.verdict(length, records);
            let hot = choice(&swept.problem(length, records, Rates::Hot));
            writeln!(
                page,
                "| {} | {} | {records} | {} | {} | {:.4} |",
                title(&swept.model),
                length.tokens,
                verdict.plan,
                Numbers::of(&hot.chosen),
                verdict.cold_when_hot
            )?;
        }
    }
    Ok(())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}
