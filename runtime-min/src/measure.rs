//! Measures what a [`Profile`] says of this machine and a bundle (paper §3.4): storage by reads of the
//! bundle's own records, everything else by requests that stream, one way for each candidate G.
//!
//! Nothing is measured twice to be thrown away: a request gives the times of its layers, of every record
//! that ran, and its memory.

mod points;
mod routes;
mod samples;

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use estream_schemas::manifest::Experts;
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};
use estream_schemas::profile::{
    Limits, OtherTime, Profile, RecordTime, Service, Source, Sources, Storage as StorageProfile,
};

pub use self::routes::RoutedRows;
use self::samples::Samples;
pub(crate) use self::samples::Times;
use crate::error::RunError;
use crate::memory::{Memory, forget_peak, peak_bytes};
use crate::model::{LoadOptions, Model};
use crate::reader::{BundleReader, Verify};
use crate::request::{Request, Sink};
use crate::stream::{Streaming, rates};

/// Hears what was found, a line at a time.
pub type Tell<'a> = &'a mut dyn FnMut(fmt::Arguments<'_>);

/// Q and B of the requests that are measured: the least with which a group is read while another one runs
/// and a third one waits.
const DEPTH: usize = 2;
const BANKS: usize = 3;
/// Candidates and lengths: their product is the points that a profile may have of one kind.
const MAX_GROUPS: usize = 64;
const MAX_LENGTHS: usize = 16;
/// The largest G that is measured unassked, and the largest arena.
const MOST: usize = 8;
const MOST_BYTES: u64 = 1 << 30;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Measure {
    /// What the profile is to be called.
    pub name: String,
    /// Lengths of prompts.
    pub tokens: Vec<usize>,
    /// Candidates for G; powers of two up to 8, half of a layer and an arena of 1 GiB, if there are none.
    pub groups: Vec<usize>,
    /// Requests of each length with each G.
    pub runs: NonZeroUsize,
    /// How models are loaded. By default records are always compared with their digests, as in the first
    /// request of a process. A budget leaves those candidates out that do not keep within it, and is that of
    /// the profile.
    pub load: LoadOptions,
    /// Storage to imitate.
    pub throttle: Option<StorageProfile>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The device, without [`Measured::sources`].
    pub profile: Profile,
    /// Memory of each G with each length, in the order in which they were measured.
    pub memory: Vec<Footprint>,
    /// Whether storage was imitated.
    pub is_imitated: bool,
    /// Why not every read went past the page cache, if so: then rates are none of the storage.
    pub io_why: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
    /// One request of the longest prompt: the median of all.
    pub prefill: Duration,
}

/// Memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// G.
    pub group: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// What it was computed to take at most.
    pub ceiling_bytes: u64,
    /// The arena's part of that.
    pub arena_bytes: u64,
    /// The most that the process had since the model was loaded, where the system says so.
    pub peak_bytes: Option<u64>,
}

impl Footprint {
    /// M_other(G) of paper equation 6: the ceiling without the arena.
    pub fn other_bytes(&self) -> u64 {
        self.ceiling_bytes - self.arena_bytes
    }
}

impl Default for Measure {
    fn default() -> Measure {
        Measure {
            name: "measured".to_owned(),
            tokens: vec![64, 512],
            groups: Vec::new(),
            runs: const { NonZeroUsize::new(3).unwrap() },
            load: LoadOptions {
                verify: Verify::Always,
                ..LoadOptions::default()
            },
            throttle: None,
        }
    }
}

impl Measured {
    /// Where the figures of the profile come from. A map is what a small runner can do without.
    pub fn sources(&self) -> Sources {
        let reads = match (self.is_imitated, &self.io_why) {
            (true, _) => "measured on imitated storage".to_owned(),
            (false, Some(why)) => format!("measured through the page cache: {why}"),
            (false, None) => "measured by direct reads of a bundle's records".to_owned(),
        };
        let reads = Source {
            assumed: self.is_imitated || self.io_why.is_some(),
            text: reads,
        };
        let requests = Source {
            text: "measured by requests with every G, medians".to_owned(),
            assumed: false,
        };
        let figures = [
            ("storage.latency_ns", &reads),
            ("storage.rates", &reads),
            ("services.other", &requests),
            ("services.records", &requests),
            ("services.dispatch_ns", &requests),
            ("services.publish_ns", &requests),
            ("services.head_ns", &requests),
        ];
        let figures = figures.map(|(figure, source)| (figure.to_owned(), source.clone()));
        Sources(figures.into())
    }
}

impl fmt::Display for Measured {
    /// What it cost, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (elapsed, prefill) = (micros(self.elapsed), micros(self.prefill));
        // Spelling floats would take a percent of the runner.
        let tenths = elapsed.saturating_mul(10) / prefill.max(1);
        let (whole, tenth) = (tenths / 10, tenths % 10);
        let (elapsed, prefill) = (elapsed / 1000, prefill / 1000);
        write!(
            f,
            "measured in {elapsed} ms: {whole}.{tenth} times a prefill of the longest prompt, {prefill} ms"
        )
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (other, ceiling) = (self.other_bytes(), self.ceiling_bytes);
        write!(f, "ceiling {ceiling} bytes, {other} without the arena")?;
        match self.peak_bytes {
            Some(peak) => write!(f, ", peak {peak}"),
            None => Ok(()),
        }
    }
}

/// Measures; `tell` hears of each figure when it is there.
///
/// # Errors
/// If the bundle has no experts or `what` has no lengths, prompts or groups that can be, if no candidate
/// keeps within the budget, and as [`Model::load`] and [`Model::prefill`].
pub fn measure(
    reader: &BundleReader,
    what: &Measure,
    tell: Tell<'_>,
) -> Result<Measured, RunError> {
    let began = Instant::now();
    let manifest = reader.bundle().manifest();
    let experts = &manifest.experts;
    let (tokens, groups) = check(reader, what)?;
    let mut samples = Samples::new(experts, tokens.len());
    let mut other: Vec<Vec<OtherTime>> = vec![Vec::new(); tokens.len()];
    let mut memory: Vec<Footprint> = Vec::new();
    let mut left_out = None;
    let longest = tokens.last().copied().unwrap_or(1);
    for group in groups.iter().copied() {
        let is_counted = forget_peak();
        let options = options(what, group, longest)?;
        let mut model = match Model::load(reader, &options) {
            Err(error @ (RunError::Budget { .. } | RunError::Buffer { .. })) => {
                tell(format_args!("G = {group} is left out: {error}"));
                left_out = Some(error);
                continue;
            }
            loaded => loaded?,
        };
        for (at, count) in tokens.iter().copied().enumerate() {
            let ids = prompt(count, model.vocab());
            let (mut others, mut ceiling) = (Times::default(), Memory::default());
            for _ in 0..what.runs.get() {
                let mut routes = RoutedRows::new(experts);
                let request = Request::default();
                let outcome = model.prefill_observed(&ids, &request, &mut Nowhere, &mut routes)?;
                others.add(samples.add(at, group, &outcome, &routes.rows));
                ceiling = outcome.memory;
            }
            let ns = others.median();
            other[at].push(OtherTime {
                tokens: count as u64,
                group: Some(group as u64),
                ns,
            });
            let footprint = Footprint {
                group,
                tokens: count,
                ceiling_bytes: ceiling.total_bytes(),
                arena_bytes: ceiling.expert_bytes,
                peak_bytes: peak_bytes().filter(|_| is_counted),
            };
            tell(format_args!(
                "G = {group}, {count} tokens: T^ne {} µs a layer; {footprint}",
                ns / 1000
            ));
            memory.push(footprint);
        }
    }
    if memory.is_empty() {
        return Err(left_out.unwrap_or(RunError::Internal("nothing was measured")));
    }
    let service = Service {
        name: manifest.model.family.clone(),
        record_bytes: experts.slot_bytes,
        tile_rows: 1,
        capacity: None,
        other: other.into_iter().flatten().collect(),
        records: points::of(samples.executions()),
        dispatch_ns: samples.dispatch.median(),
        publish_ns: samples.publish.median(),
        head_ns: samples.head.median(),
    };
    for RecordTime { rows, ns } in &service.records {
        tell(format_args!("a record of {rows} rows: {} µs", ns / 1000));
    }
    tell(format_args!(
        "dispatch {} µs, publish {} µs, head {} µs",
        service.dispatch_ns / 1000,
        service.publish_ns / 1000,
        service.head_ns / 1000
    ));
    let fits = |group: &usize| memory.iter().any(|of| of.group == *group);
    let groups: Vec<usize> = groups.into_iter().filter(fits).collect();
    let room = what.load.budget_bytes.unwrap_or(u64::MAX);
    let found = rates::find(reader, what.throttle.as_ref(), (&groups, room), tell)?;
    Ok(Measured {
        profile: Profile {
            name: what.name.clone(),
            device: None,
            storage: found.storage,
            budget_bytes: what.load.budget_bytes,
            limits: Limits::default(),
            services: vec![service],
            sources: Sources::default(),
        },
        memory,
        is_imitated: what.throttle.is_some(),
        io_why: found.io_why,
        elapsed: began.elapsed(),
        prefill: Duration::from_nanos(samples.longest.median()),
    })
}

/// The lengths and the candidates, ascending and none twice.
fn check(reader: &BundleReader, what: &Measure) -> Result<(Vec<usize>, Vec<usize>), RunError> {
    let manifest = reader.bundle().manifest();
    let experts = &manifest.experts;
    let refuse = |why: String| Err(RunError::Measure(why));
    let most = most_records(experts);
    if most == 0 {
        return refuse("the bundle has no experts".to_owned());
    }
    let tokens = ascending(&what.tokens);
    if tokens.is_empty() || tokens.len() > MAX_LENGTHS {
        return refuse(format!(
            "{} lengths of prompts; name 1 to {MAX_LENGTHS}",
            tokens.len()
        ));
    }
    let context = manifest.program.context;
    match (tokens.first(), tokens.last()) {
        (Some(0), _) => return Err(RunError::EmptyPrompt),
        (_, Some(&tokens)) if tokens as u64 > context => {
            return Err(RunError::TooLong { tokens, context });
        }
        _ => {}
    }
    let groups = match &*what.groups {
        [] => candidates(experts, most),
        groups => ascending(groups),
    };
    if groups.len() > MAX_GROUPS {
        return refuse(format!(
            "{} candidates for G; name {MAX_GROUPS} at most",
            groups.len()
        ));
    }
    match groups.iter().find(|group| !(1..=most).contains(*group)) {
        Some(group) => refuse(format!(
            "G = {group}; the largest layer has {most} records, name 1 to {most}"
        )),
        None => Ok((tokens, groups)),
    }
}

/// Records of the largest layer, of those with the largest records.
fn most_records(experts: &Experts) -> usize {
    let layers = experts.layers.iter();
    let layers = layers.filter(|layer| layer.record_bytes == experts.slot_bytes);
    let most = layers.map(|layer| layer.records()).max();
    usize::try_from(most.unwrap_or(0)).unwrap_or(usize::MAX)
}

fn candidates(experts: &Experts, most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |group| Some(2 * group));
    let arena = |group: usize| experts.slot_bytes.saturating_mul((BANKS * group) as u64);
    let fits = |group: &usize| *group <= MOST.min(most / 2) && arena(*group) <= MOST_BYTES;
    powers
        .take_while(|group| *group == 1 || fits(group))
        .collect()
}

/// Ascending, none twice; a sort is 5 KB of the runner.
fn ascending(numbers: &[usize]) -> Vec<usize> {
    let mut all = Vec::new();
    for number in numbers {
        if let Err(at) = all.binary_search(number) {
            all.insert(at, *number);
        }
    }
    all
}

fn options(what: &Measure, group: usize, longest: usize) -> Result<LoadOptions, RunError> {
    let row = PlanRow {
        max_tokens: u64::MAX,
        stream: StreamConfig::new(Schedule::Early, group, DEPTH, BANKS, longest),
        hot: None,
        chunk: None,
    };
    let streaming = Streaming::new(vec![row])?;
    Ok(LoadOptions {
        streaming: Some(match &what.throttle {
            Some(storage) => streaming.throttled(storage.clone()),
            None => streaming,
        }),
        expected: Some((longest, None)),
        ..what.load.clone()
    })
}

/// Different tokens, as a text has them.
fn prompt(tokens: usize, vocab: usize) -> Vec<u32> {
    let ids = (0..tokens).map(|at| at.wrapping_mul(7919) % vocab.max(1));
    ids.map(|id| u32::try_from(id).unwrap_or(0)).collect()
}

/// Results that nobody wants.
struct Nowhere;

impl Sink for Nowhere {
    fn logits(&mut self, _: usize, _: &[f32]) -> io::Result<()> {
        Ok(())
    }
}
