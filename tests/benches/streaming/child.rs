//! The side of a measurement that runs a model.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use estream_runtime::reader::{BundleReader, Verify};
use estream_runtime::{
    Doing, Event, LoadOptions, Model, Outcome, Overlap, Request, Sink, Streaming,
};
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};
use estream_tests::schedules::{Span, What};
use rustix::fs::Advice;

use crate::job::{Experts, Job, Ran, Run, kib};
use crate::mapped::Mapped;

/// Before a job, on the command line of a process that does it.
pub(crate) const FLAG: &str = "--job";

/// Results that nobody wants.
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn logits(&mut self, _: usize, _: &[f32]) -> io::Result<()> {
        Ok(())
    }
}

/// Does a job and prints what it took, as JSON.
pub(crate) fn run(job: &str) {
    let job: Job = serde_json::from_str(job).expect("a job");
    let reader = BundleReader::open(&job.bundle).expect("a bundle");
    let experts = match job.experts {
        Experts::Streamed(config) => Some(match &job.storage {
            Some(storage) => streaming(config).throttled(storage.clone()),
            None => streaming(config),
        }),
        Experts::Resident => None,
        // Room for one record, until the map takes over.
        Experts::Mapped => Some(streaming(StreamConfig::new(Schedule::OnDemand, 1, 1, 1, 1))),
    };
    let options = LoadOptions {
        verify: Verify::Never,
        threads: NonZeroUsize::new(job.threads),
        streaming: experts,
        ..LoadOptions::default()
    };
    forget(&job);
    let began = Instant::now();
    let mut model = Model::load(&reader, &options).expect("a model");
    if job.experts == Experts::Mapped {
        model.take_experts_from(Box::new(Mapped::new(&reader)));
    }
    let load_ns = ns(began.elapsed());
    let ids = ids(job.tokens);
    let runs = (0..job.runs).map(|_| {
        if job.experts == Experts::Mapped {
            forget(&job);
        }
        let outcome = model.prefill(&ids, &Request::default(), &mut Nowhere);
        run_of(&outcome.expect("a result"))
    });
    let runs = runs.collect();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ran = Ran {
        load_ns,
        ceiling_bytes: model.memory(job.tokens, None).total_bytes(),
        peak_bytes: (kib(&status, "VmHWM:") + kib(&status, "VmPin:")) << 10,
        fall_bytes: 0,
        runs,
    };
    let text = serde_json::to_string(&ran).expect("what happened is JSON");
    #[expect(clippy::print_stdout, reason = "that is where the other side reads")]
    {
        println!("{text}");
    }
}

/// Different tokens, as a text has them, and the same for every length.
pub(crate) fn ids(tokens: usize) -> Vec<u32> {
    let ids = 0..tokens as u32;
    ids.map(|at| at * 7919 % 30_000).collect()
}

pub(crate) fn streaming(stream: StreamConfig) -> Streaming {
    let row = PlanRow {
        max_tokens: u64::MAX,
        stream,
        hot: None,
        chunk: None,
    };
    Streaming::new(vec![row]).expect("numbers that can be")
}

/// Asks the system to have none of the bundle's experts in memory.
fn forget(job: &Job) {
    for part in fs::read_dir(&job.bundle).expect("a bundle").flatten() {
        let file = fs::File::open(part.path()).expect("a file of the bundle");
        // Pages that were never written out stay.
        file.sync_all().expect("a disk");
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("advice");
    }
}

fn run_of(outcome: &Outcome) -> Run {
    let total_ns = ns(outcome.elapsed);
    let times = Overlap::of(&outcome.events, total_ns);
    let reads = outcome
        .events
        .iter()
        .filter(|event| event.doing == Doing::Read);
    Run {
        total_ns,
        io_ns: times.io_ns,
        exec_ns: times.exec_ns,
        bubble: times.bubble(),
        overlap: times.overlap(),
        records_run: outcome.records_run as usize,
        records_skipped: outcome.records_skipped as usize,
        records_read: reads.map(|event| event.records).sum(),
        spans: outcome.events.iter().filter_map(span).collect(),
        layers: layers(
            &outcome.events,
            outcome.stream.map_or(1, |stream| stream.group),
        ),
    }
}

/// What a picture of the run shows of an event.
fn span(event: &Event) -> Option<Span> {
    let what = match event.doing {
        Doing::Read => What::Read,
        Doing::Experts => What::Experts,
        Doing::Layer | Doing::Head => What::Other,
        _ => return None,
    };
    Some(Span {
        what,
        thread: event.thread,
        start_ns: event.start_ns,
        end_ns: event.end_ns,
    })
}

/// Times of each step: what comes before its experts, and its groups of `group` records in order.
/// What follows the last step is one without experts.
fn layers(events: &[Event], group: usize) -> Vec<(u64, Vec<u64>)> {
    let mut layers: Vec<(u64, BTreeMap<usize, u64>)> = Vec::new();
    for event in events {
        let step = event.step + usize::from(event.doing == Doing::Head);
        if layers.len() <= step {
            layers.resize(step + 1, (0, BTreeMap::new()));
        }
        let ns = event.end_ns - event.start_ns;
        match event.doing {
            Doing::Layer | Doing::Head => layers[step].0 += ns,
            Doing::Experts => *layers[step].1.entry(event.first / group).or_default() += ns,
            _ => {}
        }
    }
    let layers = layers.into_iter();
    layers
        .map(|(other, groups)| (other, groups.into_values().collect()))
        .collect()
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
