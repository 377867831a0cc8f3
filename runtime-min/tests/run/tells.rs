//! What a run tells of itself: records and bytes in its statistics, and the timeline as a
//! file, from which every schedule can be told from the others.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use estream_runtime::stats::{LayerStats, Stats, StreamStats};
use estream_runtime::{Model, Observer, Outcome, Place, Request, write_trace};
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_schemas::profile::{Rate, Storage};
use serde_json::Value;

use crate::rows::Rows;
use crate::streams::{STREAMING, config, ids, open, run, streaming};
use crate::toy::{EXPERTS, LAYERS, Packing, TOP_K, Toy};

/// Three matrices of 32 × 64 f32, each padded to 16 KiB.
const RECORD_BYTES: u64 = 3 * 16 * 1024;

fn stats(model: &Model, outcome: &Outcome) -> Stats {
    Stats::new(model, outcome, Duration::ZERO, "")
}

fn records(stream: &StreamStats) -> [u64; 4] {
    [
        stream.records_read,
        stream.records_in_time,
        stream.records_late,
        stream.records_wasted,
    ]
}

#[test]
fn every_record_that_was_read_was_in_time_late_or_wasted() {
    let toy = Toy::new();
    let dir = toy.bundle(&Packing {
        shards: 2,
        ..Packing::default()
    });
    let layer_records = 2 * EXPERTS as u64;
    for schedule in STREAMING {
        for numbers in [(1, 1, 1), (2, 1, 2), (3, 2, 2), (8, 2, 2)] {
            let mut model =
                open(dir.path(), config(schedule, numbers), Default::default()).unwrap();
            for (tokens, chunk) in [(1, 1), (3, 3), (64, 64), (64, 20)] {
                let (_, outcome) = run(&mut model, &ids(tokens), chunk).unwrap();
                let told = stats(&model, &outcome);
                let stream = told.stream.as_ref().unwrap();
                let what = format!("{schedule:?} {numbers:?}, {tokens} in {chunk}s: {stream:?}");
                let [read, in_time, late, wasted] = records(stream);
                assert_eq!(in_time + late + wasted, read, "{what}");
                // Nothing stays from request to request, so what is executed was read.
                assert_eq!(in_time + late, outcome.records_run, "{what}");
                assert_eq!(stream.read_bytes, read * RECORD_BYTES, "{what}");
                let routed_bytes = outcome.records_run * RECORD_BYTES;
                assert_eq!(stream.routed_bytes, routed_bytes, "{what}");
                let ratio = read as f64 / outcome.records_run as f64;
                assert!((stream.read_ratio - ratio).abs() < 1e-12, "{what}");
                let chunks = outcome.chunks as f64;
                match outcome.chunks {
                    1 => assert_eq!(stream.reads_per_record.to_bits(), 1f64.to_bits(), "{what}"),
                    _ => assert!((1.5..=chunks).contains(&stream.reads_per_record), "{what}"),
                }
                match schedule {
                    Schedule::OnDemand => assert_eq!(in_time, 0, "{what}"),
                    Schedule::Compact | Schedule::Ahead if tokens == 1 => {
                        let early = stream.config.early_records as u64;
                        assert!(wasted <= LAYERS as u64 * early.min(layer_records), "{what}");
                    }
                    _ => {}
                }
                layers_add_up(&told, &outcome, &what);
            }
        }
    }
}

/// What layers tell is what the whole tells.
fn layers_add_up(told: &Stats, outcome: &Outcome, what: &str) {
    let stream = told.stream.as_ref().unwrap();
    let places = told.layers.iter().map(|layer| (layer.chunk, layer.layer));
    let expected =
        (0..outcome.chunks).flat_map(|chunk| (0..LAYERS as u64).map(move |l| (chunk, l)));
    assert!(places.eq(expected), "{what}: {:?}", told.layers);
    let sum = |of: fn(&LayerStats) -> u64| told.layers.iter().map(of).sum::<u64>();
    assert_eq!(
        sum(|layer| layer.records_routed),
        told.records_run,
        "{what}"
    );
    assert_eq!(
        sum(|layer| layer.records_read),
        stream.records_read,
        "{what}"
    );
    assert_eq!(
        sum(|layer| layer.records_late),
        stream.records_late,
        "{what}"
    );
    assert_eq!(
        sum(|layer| layer.records_wasted),
        stream.records_wasted,
        "{what}"
    );
    assert_eq!(sum(|layer| layer.read_bytes), stream.read_bytes, "{what}");
    // Every one is rounded down to a microsecond, and a layer has two.
    let near = |sum: u64, whole: u64| sum.abs_diff(whole) <= 2 * told.layers.len() as u64 + 2;
    let experts_us = sum(|layer| layer.experts_us);
    assert!(near(experts_us, stream.experts_us), "{what}");
    assert!(near(sum(|layer| layer.wait_us), stream.wait_us), "{what}");
    let computes_us = sum(|layer| layer.before_us) + experts_us + told.head_us;
    assert!(near(computes_us, stream.exec_us), "{what}");
    assert!(stream.exec_us + stream.wait_us <= told.ttft_us, "{what}");
}

#[test]
fn experts_that_stay_tell_of_layers_too() {
    let dir = Toy::new().bundle(&Packing::default());
    let mut model = crate::rows::load(dir.path(), 1);
    let (_, outcome) = run(&mut model, &ids(1), 1).unwrap();
    let told = stats(&model, &outcome);
    assert!(told.stream.is_none());
    let layers: Vec<_> = told.layers.iter().collect();
    assert_eq!(layers.len(), LAYERS);
    for layer in layers {
        assert_eq!(
            (layer.records_routed, layer.records_read),
            (TOP_K as u64, 0)
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_memory_that_was_measured_stands_beside_the_ceiling() {
    let dir = Toy::new().bundle(&Packing::default());
    let path = dir.path().to_str().unwrap();
    let told = runner(&[path, "--ids", "1,2,3", "--json", "--stats"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let stats = &told["stats"];
    let terms = stats["memory"].as_array().unwrap();
    let process = terms.iter().find(|term| term["term"] == "process").unwrap();
    let [peak, process, ceiling] = [
        &stats["peak"]["bytes"],
        &process["bytes"],
        &stats["memory_bytes"],
    ]
    .map(|bytes| bytes.as_u64().unwrap());
    // It is rounded up, and stands for the process before the model was loaded.
    assert!(process > 0 && process.is_multiple_of(8 << 20), "{process}");
    assert!(0 < peak && peak <= ceiling, "{peak} {ceiling}");
    let ratio = stats["peak"]["ratio"].as_f64().unwrap();
    assert!((ratio - peak as f64 / ceiling as f64).abs() < 1e-12);
    assert!(stats["ttft_us"].as_u64().unwrap() > 0);
    let text = runner(&[path, "--ids", "1,2,3", "--stats"]).stderr;
    let text = String::from_utf8(text).unwrap();
    for word in ["measured", "TTFT", "T_total", "in time", "late", "wasted"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

fn runner(args: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_estream-run"));
    let output = command.args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    output
}

/// An interval of a timeline's file, in nanoseconds.
#[derive(Debug)]
struct Span {
    name: String,
    /// Process and thread.
    track: (u64, u64),
    step: usize,
    first: usize,
    records: usize,
    start: u64,
    end: u64,
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn holds(&self, record: usize) -> bool {
        (self.first..self.first + self.records).contains(&record)
    }
}

/// A timeline that was read from its file.
struct Timeline(Vec<Span>);

impl Timeline {
    fn read(path: &Path) -> Timeline {
        let text = std::fs::read(path).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let spans = events.filter(|event| event["ph"] == "X").map(|event| {
            let whole = |value: &Value| value.as_u64().unwrap();
            let count = |field: &str| usize::try_from(whole(&event["args"][field])).unwrap();
            // Three decimals of a microsecond.
            let us = |field: &str| event[field].as_f64().unwrap();
            let ns = |field| Duration::from_secs_f64(us(field) / 1e6).as_nanos() as u64;
            Span {
                name: event["name"].as_str().unwrap().to_owned(),
                track: (whole(&event["pid"]), whole(&event["tid"])),
                step: count("step"),
                first: count("first"),
                records: count("records"),
                start: ns("ts"),
                end: ns("ts") + ns("dur"),
            }
        });
        Timeline(spans.collect())
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Span> {
        self.0.iter().filter(move |span| span.name == name)
    }

    /// When the routes of a step were known.
    fn routed(&self, step: usize) -> u64 {
        let mut before = self.of("layer").filter(|span| span.step == step);
        before.next().unwrap().end
    }

    /// When the loaders of a step had been told its routes.
    fn knows(&self, step: usize) -> u64 {
        let spans = self.of("wait").chain(self.of("experts"));
        let starts = spans
            .filter(|span| span.step == step)
            .map(|span| span.start);
        starts.min().unwrap()
    }

    fn is_run(&self, step: usize, record: usize) -> bool {
        let mut runs = self.of("experts").filter(|span| span.step == step);
        runs.any(|span| span.holds(record))
    }

    /// What holds of a schedule however fast anything is.
    fn is_of(&self, config: &StreamConfig) {
        let schedule = config.schedule;
        for read in self.of("read") {
            let routed = self.routed(read.step);
            let mut computes = self.0.iter().filter(|span| {
                ["layer", "experts", "head"].contains(&span.name.as_str()) && span.meets(read)
            });
            match schedule {
                Schedule::Resident => panic!("{read:?}"),
                Schedule::OnDemand => assert!(computes.next().is_none(), "{read:?}"),
                Schedule::Prefetch => assert!(read.start >= routed, "{read:?}"),
                Schedule::Early => {}
                Schedule::Compact | Schedule::Ahead => {
                    // More than the early records is read only once routes are known, and of
                    // those none after the executor has begun to wait or to run.
                    let records = read.first..read.first + read.records;
                    let taken = self
                        .slots()
                        .find(|slot| slot.step == read.step && slot.first == read.first);
                    let knows = taken.unwrap().start >= self.knows(read.step);
                    if knows || records.end > config.early_records {
                        let mut records = records;
                        let runs = records.all(|record| self.is_run(read.step, record));
                        assert!(runs, "{read:?}");
                    }
                }
            }
            let ahead = self
                .of("experts")
                .any(|run| run.step < read.step && run.end > read.start);
            assert!(
                !ahead || schedule == Schedule::Ahead,
                "{schedule:?} {read:?}"
            );
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Span> {
        self.0.iter().filter(|span| span.track.0 == 2)
    }

    /// A slot has one record at a time, from before it is read until it was run.
    fn has_slots(&self, config: &StreamConfig) {
        let slots: Vec<&Span> = self.slots().collect();
        for (at, slot) in slots.iter().enumerate() {
            assert!(
                slot.track.1 < config.slots() as u64 && slot.records == 1,
                "{slot:?}"
            );
            assert_eq!(slot.name, format!("record {}", slot.first));
            let mut others = slots[at + 1..]
                .iter()
                .filter(|other| other.track == slot.track);
            assert!(others.all(|other| !other.meets(slot)), "{slot:?}");
            let of = |name| {
                let mut spans = self.of(name).filter(|span: &&Span| span.step == slot.step);
                spans.find(|span| span.holds(slot.first))
            };
            let read = of("read").unwrap();
            assert!(
                slot.start <= read.start && read.end <= slot.end,
                "{slot:?}, {read:?}"
            );
            if let Some(run) = of("experts") {
                assert!(
                    run.end <= slot.end && slot.start <= run.start,
                    "{slot:?}, {run:?}"
                );
            }
        }
        let read: usize = self.of("read").map(|read| read.records).sum();
        assert_eq!(slots.len(), read);
    }
}

/// Makes what comes before the routes take longer than the start of a read.
struct Slow;

impl Observer for Slow {
    fn after_op(&mut self, place: Place, op: usize, _: &str, _: &[f32]) {
        if matches!((place, op), (Place::Layer(_), 0)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Storage whose reads take at least so long.
fn storage(latency_ns: u64) -> Storage {
    Storage {
        latency_ns,
        rates: vec![Rate {
            read_bytes: 1,
            outstanding: 1,
            bytes_per_second: 1 << 40,
        }],
        hot_rates: Vec::new(),
        buffer_bytes: None,
    }
}

/// With storage and a start of every layer that take their time, what a schedule may do it does.
#[test]
fn the_file_of_a_timeline_shows_what_each_schedule_is() {
    let toy = Toy::new();
    let dir = toy.bundle(&Packing::default());
    for schedule in STREAMING {
        let stream = StreamConfig {
            early_records: 1,
            ..config(schedule, (4, 2, 2))
        };
        let slow = streaming(stream).throttled(storage(40_000_000));
        let mut model = crate::streams::open_with(dir.path(), slow, Default::default()).unwrap();
        for tokens in [64, 1] {
            let (mut rows, request) = (Rows::default(), Request::default());
            let outcome = model
                .prefill_observed(&ids(tokens), &request, &mut rows, &mut Slow)
                .unwrap();
            let path = dir
                .path()
                .join(format!("{}-{tokens}.json", schedule.name()));
            let mut file = std::fs::File::create_new(&path).unwrap();
            write_trace(&outcome.events, &mut file).unwrap();
            let timeline = Timeline::read(&path);
            timeline.is_of(&stream);
            timeline.has_slots(&stream);

            let early = timeline
                .of("read")
                .filter(|read| read.start < timeline.routed(read.step));
            let early: Vec<usize> = early.map(|read| read.records).collect();
            match schedule {
                Schedule::Early => assert_eq!(early, [EXPERTS; LAYERS]),
                Schedule::Compact => assert_eq!(early, [1; LAYERS]),
                Schedule::Ahead => {
                    assert_eq!(early, [1; LAYERS]);
                    // A single read brings the rest of a layer that has routes everywhere, so
                    // that the other loader is free: the next layer's first record comes while this layer's last one is run.
                    let ahead = timeline.of("read").find(|read| read.step == 1).unwrap();
                    let last = timeline
                        .of("experts")
                        .filter(|run| run.step == 0)
                        .last()
                        .unwrap();
                    assert!(tokens == 1 || ahead.start < last.end, "{ahead:?}, {last:?}");
                }
                _ => assert!(early.is_empty(), "{early:?}"),
            }
            let told = stats(&model, &outcome);
            let [read, in_time, late, wasted] = records(told.stream.as_ref().unwrap());
            let run = timeline.of("experts").count() as u64;
            assert_eq!((in_time + late, wasted), (run, read - run), "{schedule:?}");
            match schedule {
                Schedule::OnDemand => assert_eq!((in_time, late), (0, run)),
                Schedule::Prefetch => assert!(late > 0),
                _ => {}
            }
            let waits: Vec<&Span> = timeline.of("wait").collect();
            let awaited = |run: &&Span| {
                let mut waits = waits.iter().filter(|wait| wait.step == run.step);
                waits.any(|wait| wait.holds(run.first))
            };
            assert!(late <= timeline.of("experts").filter(awaited).count() as u64);
        }
    }
}

#[test]
fn the_runner_writes_the_same_file() {
    let dir = Toy::new().bundle(&Packing::default());
    let bundle = dir.path().to_str().unwrap();
    for schedule in Schedule::ALL {
        let path = dir.path().join(schedule.name());
        let file = path.to_str().unwrap();
        for ids in ["1", "1,2,3,4,5,6,7,8,9"] {
            let flags = [
                "--schedule",
                schedule.name(),
                "-G",
                "2",
                "-Q",
                "2",
                "-B",
                "2",
            ];
            let given = [bundle, "--ids", ids, "--timeline", file];
            let flags = match schedule {
                Schedule::Resident => &flags[..2],
                _ => &flags[..],
            };
            runner(&[&given, flags].concat());
            let timeline = Timeline::read(&path);
            let stream = StreamConfig::new(schedule, 2, 2, 2, 9);
            timeline.is_of(&stream);
            timeline.has_slots(&stream);
            assert_eq!(
                timeline.of("read").next().is_none(),
                schedule == Schedule::Resident
            );
            assert!(timeline.of("experts").count() >= LAYERS * TOP_K);
            assert_eq!(timeline.of("head").count(), 1);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
