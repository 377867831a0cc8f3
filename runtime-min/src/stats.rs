//! What a run took, in numbers: all of them are pure functions of its timeline, but for memory.

use std::time::Duration;

use estream_schemas::plan::StreamConfig;
use serde::Serialize;

use crate::memory::peak_bytes;
use crate::stream::{Counts, Doing, Overlap, Step, Tally};
use crate::{Column, Model, Outcome};

/// What a run took.
#[derive(Debug, Serialize)]
pub struct Stats {
    /// Name of the backend.
    pub backend: &'static str,
    /// Threads it computed with.
    pub threads: usize,
    /// Pieces the prompt was cut into, each of which went through the experts.
    pub chunks: usize,
    /// How experts were streamed, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamStats>,
    /// Why so.
    pub plan: String,
    /// Records that had routes.
    pub records_run: u64,
    /// Records that had none.
    pub records_skipped: u64,
    /// Time to read the bundle, in microseconds.
    pub load_us: u64,
    /// Time to first token, T_total: from the checked prompt to the last result, in microseconds.
    pub ttft_us: u64,
    /// The part of it after the last experts of a chunk, the head with it.
    pub head_us: u64,
    /// What makes up the memory ceiling.
    pub memory: Vec<Term>,
    /// The ceiling.
    pub memory_bytes: u64,
    /// The most memory the process has had by now, where the system says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    /// Each layer with experts, of each chunk.
    pub layers: Vec<LayerStats>,
}

/// One term of the memory ceiling.
#[derive(Debug, Serialize)]
pub struct Term {
    /// What takes it.
    pub term: &'static str,
    /// How much.
    pub bytes: u64,
}

/// Memory as measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Peak {
    /// VmHWM and VmPin of the process.
    pub bytes: u64,
    /// The same over the ceiling.
    pub ratio: f64,
}

/// What streaming took.
#[derive(Debug, Serialize)]
pub struct StreamStats {
    /// The schedule and its numbers.
    #[serde(flatten)]
    pub config: StreamConfig,
    /// They are those of the plan's column for a hot device.
    pub hot: bool,
    /// Records of each layer that stay in memory.
    pub pinned: usize,
    /// How files were read.
    pub io: &'static str,
    /// Why not all of them past the page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_why: Option<String>,
    /// Reads issued.
    pub reads: usize,
    /// Records they brought.
    pub records_read: u64,
    /// Of those, executed and there before the executor waited for them.
    pub records_in_time: u64,
    /// Of those, executed and there only while the executor waited for them.
    pub records_late: u64,
    /// Of those, not executed.
    pub records_wasted: u64,
    /// Record reads over different records read: 1 unless chunks read some again.
    pub reads_per_record: f64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes of the records that had routes.
    pub routed_bytes: u64,
    /// Bytes read, over those; records that stay are read by no request.
    pub read_ratio: f64,
    /// Times the executor waited for a record.
    pub waits: usize,
    /// How long it waited, in microseconds.
    pub wait_us: u64,
    /// T_io: some read was outstanding, in microseconds.
    pub io_us: u64,
    /// T_exec: the executor computed, in microseconds.
    pub exec_us: u64,
    /// The part of it that ran experts.
    pub experts_us: u64,
    /// 1 − max(T_io, T_exec) / T_total.
    pub bubble: f64,
    /// |T_io ∩ T_exec| / T_io.
    pub overlap: f64,
}

/// What a layer with experts took, in one chunk. Times are in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LayerStats {
    /// The chunk, counted from 0.
    pub chunk: usize,
    /// The layer's place in the program.
    pub layer: u64,
    /// What comes before the experts, since those of the layer before: attention, router.
    pub before_us: u64,
    /// The experts.
    pub experts_us: u64,
    /// Waiting for them.
    pub wait_us: u64,
    /// Bytes read for the layer, whenever that was.
    pub read_bytes: u64,
    /// Records that had routes.
    pub records_routed: u64,
    /// Records read.
    pub records_read: u64,
    /// Of those, executed and there only while the executor waited for them.
    pub records_late: u64,
    /// Of those, not executed.
    pub records_wasted: u64,
}

impl Stats {
    /// The statistics of a pass over a model that took `load` to read, streamed as it was
    /// because of `plan`.
    pub fn new(model: &Model, outcome: &Outcome, load: Duration, plan: &str) -> Stats {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (backend, threads) = model.backend();
        let terms = outcome.memory.terms().into_iter();
        let memory_bytes = outcome.memory.total_bytes();
        let tally = Tally::of(&outcome.events, &outcome.layers);
        Stats {
            backend,
            threads,
            chunks: outcome.chunks,
            stream: outcome
                .stream
                .map(|config| StreamStats::new(model, config, outcome, &tally)),
            plan: outcome.column.why(plan),
            records_run: outcome.records_run,
            records_skipped: outcome.records_skipped,
            load_us: micros(load),
            ttft_us: micros(outcome.elapsed),
            head_us: span_us(outcome, Doing::Head),
            memory: terms.map(|(term, bytes)| Term { term, bytes }).collect(),
            memory_bytes,
            peak: peak_bytes().map(|bytes| Peak {
                bytes,
                ratio: ratio(bytes, memory_bytes),
            }),
            layers: tally.steps.iter().map(LayerStats::new).collect(),
        }
    }
}

impl StreamStats {
    /// How files were read and, in brackets, why so.
    pub fn io_text(&self) -> String {
        match &self.io_why {
            Some(why) => format!("{} io ({why})", self.io),
            None => format!("{} io", self.io),
        }
    }

    fn new(model: &Model, config: StreamConfig, outcome: &Outcome, tally: &Tally) -> StreamStats {
        let count = |doing| {
            let events = outcome.events.iter();
            events.filter(|event| event.doing == doing).count()
        };
        let total_ns = u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX);
        let times = Overlap::of(&outcome.events, total_ns);
        let Counts {
            routed_bytes,
            read,
            read_bytes,
            in_time,
            late,
            wasted,
            ..
        } = tally.total();
        StreamStats {
            config,
            hot: outcome.column == Column::Hot,
            pinned: model.pinned(),
            io: model.io_mode().name(),
            io_why: model.io_why(),
            reads: count(Doing::Read),
            records_read: read,
            records_in_time: in_time,
            records_late: late,
            records_wasted: wasted,
            reads_per_record: ratio(read, tally.distinct),
            read_bytes,
            routed_bytes,
            read_ratio: ratio(read_bytes, routed_bytes),
            waits: count(Doing::Wait),
            wait_us: span_us(outcome, Doing::Wait),
            io_us: times.io_ns / 1000,
            exec_us: times.exec_ns / 1000,
            experts_us: span_us(outcome, Doing::Experts),
            bubble: times.bubble(),
            overlap: times.overlap(),
        }
    }
}

impl LayerStats {
    fn new(step: &Step) -> LayerStats {
        let counts = step.counts;
        LayerStats {
            chunk: step.chunk,
            layer: step.layer,
            before_us: step.before_ns / 1000,
            experts_us: step.experts_ns / 1000,
            wait_us: step.wait_ns / 1000,
            read_bytes: counts.read_bytes,
            records_routed: counts.routed,
            records_read: counts.read,
            records_late: counts.late,
            records_wasted: counts.wasted,
        }
    }
}

/// How long the intervals of one kind are together.
fn span_us(outcome: &Outcome, doing: Doing) -> u64 {
    let events = outcome.events.iter().filter(|event| event.doing == doing);
    let spans = events.map(|event| event.end_ns - event.start_ns);
    spans.sum::<u64>() / 1000
}

/// 0 of nothing.
fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}
