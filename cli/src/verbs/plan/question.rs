//! What is asked of the planner: a bundle's sizes, a device's times, and made-up routes.

use std::num::NonZeroUsize;

use estream_planner::{GroupSize, LayerSize, Problem, Question, Search, Workload, expected_routes};
use estream_runtime::reader::BundleReader;
use estream_runtime::{Footprint, Memory, RunError, Streaming};
use estream_schemas::exit::Exit;
use estream_schemas::manifest::{ExpertLayer, Manifest};
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};
use estream_schemas::profile::{Profile, Service, Storage};
use estream_schemas::program::Op;

use crate::failure::Failure;

/// Where routes come from.
pub(super) const ROUTES: &str = "expected";
/// How uneven experts are: the s of the planner's made-up routes (docs/cost-model.md).
const SKEW: u32 = 2;
/// Lengths of prompts where none are asked for.
const TOKENS: [u64; 4] = [16, 128, 1024, 4096];
/// Rows of a plan.
const MAX_ROWS: usize = 64;
/// Records of a group that are tried: powers of two up to this.
const MAX_GROUP: usize = 64;
/// Reads at a time that are tried.
const DEPTHS: [usize; 4] = [1, 2, 3, 4];
const MOST_DEPTH: usize = 4;
/// Banks that a plan may have.
const MOST_BANKS: usize = 1 << 16;
/// What a process takes before it has loaded a model: the runner about 3 MiB, `estream` itself about 12. A
/// constant, so that the same question has the same answer.
pub(super) const PROCESS_BYTES: u64 = 16 << 20;

/// What the user wants to know.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// Lengths of prompts; none for the usual ones.
    pub(super) tokens: Vec<u64>,
    pub(super) schedules: Vec<Schedule>,
    pub(super) search: Search,
    pub(super) service: Option<&'a str>,
    pub(super) threads: NonZeroUsize,
}

/// All of a question but the prompt and the budget.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub(super) reader: &'a BundleReader,
    pub(super) profile: &'a Profile,
    pub(super) service: &'a Service,
    /// Ascending.
    pub(super) tokens: Vec<u64>,
    footprint: Footprint,
    layers: Vec<Layer>,
    groups: Vec<GroupSize>,
    /// Why some G are not looked at, if there are such.
    left_out: Option<String>,
    schedules: Vec<Schedule>,
    search: Search,
}

/// A layer with experts.
#[derive(Clone, Copy, Debug)]
struct Layer {
    size: LayerSize,
    experts: usize,
    shards: usize,
    top_k: usize,
}

impl<'a> Setting<'a> {
    /// Errors if the bundle and the profile do not go together.
    pub(super) fn new(
        reader: &'a BundleReader,
        profile: &'a Profile,
        asked: &Asked<'_>,
    ) -> Result<Setting<'a>, Failure> {
        let manifest = reader.bundle().manifest();
        let mut setting = Setting {
            reader,
            profile,
            service: service(profile, asked.service, manifest)?,
            tokens: tokens(&asked.tokens, manifest.program.context)?,
            footprint: Footprint::new(reader, asked.threads)?,
            layers: layers(manifest)?,
            groups: Vec::new(),
            left_out: None,
            schedules: asked.schedules.clone(),
            search: asked.search,
        };
        setting.add_groups()?;
        Ok(setting)
    }

    /// What the user should know of how it is planned.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "routes are made up: experts of falling popularity, s = {SKEW} (docs/cost-model.md)"
        )];
        let assumed: Vec<&str> = self.profile.sources.assumed().collect();
        if !assumed.is_empty() {
            let (name, assumed) = (&self.profile.name, assumed.join(", "));
            notes.push(format!(
                "profile {name} assumes, nobody measured: {assumed}"
            ));
        }
        notes.extend(self.left_out.iter().cloned());
        notes
    }

    /// Whether the profile says how fast a hot device reads.
    pub(super) fn is_known_hot(&self) -> bool {
        !self.profile.storage.hot_rates.is_empty()
    }

    /// The question for prompts of `tokens` tokens.
    pub(super) fn problem(
        &self,
        tokens: u64,
        budget_bytes: u64,
        is_hot: bool,
    ) -> Result<Problem, Failure> {
        let cold = || self.profile.storage.clone();
        let storage: Storage = match is_hot {
            true => self.profile.storage.when_hot().unwrap_or_else(cold),
            false => cold(),
        };
        let routes = self.layers.iter().enumerate();
        let routes = routes.map(|(index, layer)| layer.routes(tokens, index));
        let workload = Workload {
            weight: 1,
            tokens,
            routes: routes.collect(),
        };
        let region = |layer: &ExpertLayer| region_bytes(layer).into_iter().max().unwrap_or(0);
        let layers = self.reader.bundle().manifest().experts.layers.iter();
        let question = Question {
            storage,
            service: self.service.clone(),
            limits: self.profile.limits,
            budget_bytes,
            layers: self.layers.iter().map(|layer| layer.size).collect(),
            region_bytes: layers.map(region).max().unwrap_or(0),
            pinned: 0,
            groups: self.groups.clone(),
            depths: DEPTHS.to_vec(),
            // What is best for the hot device may not depend on how the cold one is searched: a Q₀ that asks for
            // more memory would refuse what fits.
            search: if is_hot { Search::Full } else { self.search },
            schedules: self.schedules.clone(),
            workloads: vec![workload],
        };
        Problem::new(question).map_err(|malformed| Failure::new(Exit::Invalid, malformed))
    }

    /// The ceiling of a model that is loaded with these rows, for the longest prompt, and the buffers of its
    /// arena.
    pub(super) fn loaded(&self, rows: Vec<PlanRow>) -> Result<(u64, u64), RunError> {
        let resident = |config: &StreamConfig| config.schedule == Schedule::Resident;
        let is_resident = rows.iter().flat_map(PlanRow::configs).all(resident);
        let streaming = match is_resident {
            true => None,
            false => Some(self.streaming(rows)?),
        };
        let memory = self.memory(streaming.as_ref())?;
        let buffers = streaming.map(|streaming| self.footprint.buffers(&streaming));
        Ok((memory.total_bytes(), buffers.transpose()?.unwrap_or(0)))
    }

    fn streaming(&self, rows: Vec<PlanRow>) -> Result<Streaming, RunError> {
        let buffer_bytes = self.profile.storage.buffer_bytes;
        Ok(Streaming::new(rows)?.limited(buffer_bytes))
    }

    /// Memory is that of the longest prompt: the arena is allocated once, for all of them.
    fn memory(&self, streaming: Option<&Streaming>) -> Result<Memory, RunError> {
        let longest = self.tokens.last().copied().unwrap_or(1);
        let longest = usize::try_from(longest).unwrap_or(usize::MAX);
        Ok(Memory {
            process_bytes: PROCESS_BYTES,
            ..self.footprint.memory(streaming, longest, None)?
        })
    }

    /// Every G that is tried, with M_other(G): the ceiling without the arena's slots, with as many banks
    /// and readers as can be of use.
    fn add_groups(&mut self) -> Result<(), Failure> {
        let records = self.layers.iter().map(|layer| layer.size.records).max();
        let records = records.unwrap_or(1);
        let slot_bytes = self.reader.bundle().manifest().experts.slot_bytes;
        for group in (0..).map(|power| 1 << power) {
            if group > records.min(MAX_GROUP) {
                break;
            }
            let banks = (2 * records.div_ceil(group)).clamp(MOST_DEPTH, MOST_BANKS);
            let row = PlanRow {
                max_tokens: u64::MAX,
                stream: StreamConfig::new(Schedule::Ahead, group, MOST_DEPTH, banks, 0),
                hot: None,
                chunk: None,
            };
            let streaming = self.streaming(vec![row])?;
            match self.memory(Some(&streaming)) {
                Ok(memory) => {
                    let slots = slot_bytes.saturating_mul((group * banks) as u64);
                    let other_bytes = memory.total_bytes().saturating_sub(slots);
                    let unmapped = memory.process_bytes.saturating_add(memory.stack_bytes);
                    self.groups.push(GroupSize {
                        group,
                        other_bytes,
                        mapped_bytes: other_bytes.saturating_sub(unmapped),
                    });
                }
                // A bank of more records is larger still.
                Err(error @ RunError::Buffer { .. }) if !self.groups.is_empty() => {
                    self.left_out = Some(format!("G of {group} and more is left out: {error}"));
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Layer {
    /// Routed rows of each record; those of an expert's shards are the same.
    fn routes(&self, tokens: u64, index: usize) -> Vec<u64> {
        let of_experts = expected_routes((self.experts, self.top_k), tokens, SKEW, index);
        let of_experts = of_experts.into_iter();
        of_experts
            .flat_map(|rows| std::iter::repeat_n(rows, self.shards))
            .collect()
    }
}

/// A checked bundle's regions follow one another, padding included.
fn region_bytes(layer: &ExpertLayer) -> [u64; 3] {
    let (up, down) = (layer.up.offset, layer.down.offset);
    [up, down - up, layer.record_bytes - down]
}

fn layers(manifest: &Manifest) -> Result<Vec<Layer>, Failure> {
    let layers = manifest.experts.layers.iter().map(|layer| {
        // A checked bundle has its counts within bounds, and a router before its experts.
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let ops = usize::try_from(layer.layer).ok();
        let ops = ops.and_then(|layer| manifest.program.layers.get(layer));
        let top_k = ops.into_iter().flatten().find_map(|op| match op {
            Op::Router { form, .. } => Some(form.top_k),
            _ => None,
        });
        Layer {
            size: LayerSize {
                records: count(layer.records()),
                record_bytes: layer.record_bytes,
            },
            experts: count(layer.experts),
            shards: count(layer.shards),
            top_k: count(top_k.unwrap_or(1)),
        }
    });
    let layers: Vec<Layer> = layers.collect();
    match layers.is_empty() {
        false => Ok(layers),
        true => Err(cannot(
            "the bundle has no experts, so there is nothing to plan",
        )),
    }
}

/// The times of records as large as the bundle's.
fn service<'a>(
    profile: &'a Profile,
    wanted: Option<&str>,
    manifest: &Manifest,
) -> Result<&'a Service, Failure> {
    let device = &profile.name;
    let record_bytes = manifest.experts.slot_bytes;
    let known: Vec<String> = profile
        .services
        .iter()
        .map(|service| format!("{} ({} bytes)", service.name, service.record_bytes))
        .collect();
    let known = match known.is_empty() {
        true => "it has no [[services]] at all".to_owned(),
        false => format!("it has those of {}", known.join(", ")),
    };
    let how = "measure them on the device with estream profile measure, or write a [[services]] by hand \
               as docs/cost-model.md has it";
    if let Some(name) = wanted {
        return match profile.service(name) {
            None => Err(Failure::usage(format!(
                "profile {device} has no times of {name:?}: {known}"
            ))),
            Some(service) if service.record_bytes != record_bytes => Err(cannot(format!(
                "the times of {name} are of records of {} bytes, the largest of this bundle has \
                 {record_bytes}; {how}",
                service.record_bytes
            ))),
            Some(service) => Ok(service),
        };
    }
    let fits = |service: &&Service| service.record_bytes == record_bytes;
    let fitting: Vec<&Service> = profile.services.iter().filter(fits).collect();
    match fitting.as_slice() {
        [service] => Ok(service),
        [] => Err(cannot(format!(
            "profile {device} does not say how long the device computes for records of {record_bytes} \
             bytes: {known}; {how}"
        ))),
        several => {
            let names: Vec<&str> = several.iter().map(|service| &*service.name).collect();
            Err(Failure::usage(format!(
                "profile {device} has several times of records of {record_bytes} bytes; name one with \
                 --service: {}",
                names.join(", ")
            )))
        }
    }
}

fn tokens(asked: &[u64], context: u64) -> Result<Vec<u64>, Failure> {
    let mut tokens = match asked {
        [] => {
            let usual = TOKENS.into_iter().filter(|tokens| *tokens <= context);
            usual.collect()
        }
        asked => asked.to_vec(),
    };
    if tokens.is_empty() {
        tokens.push(context.max(1));
    }
    tokens.sort_unstable();
    tokens.dedup();
    if tokens[0] == 0 {
        return Err(Failure::usage(
            "--tokens 0: a prompt has at least one token",
        ));
    }
    if let Some(long) = tokens.iter().find(|tokens| **tokens > context) {
        return Err(Failure::usage(format!(
            "--tokens {long}: the model was made for {context} positions"
        )));
    }
    match tokens.len() {
        0..=MAX_ROWS => Ok(tokens),
        count => Err(Failure::usage(format!(
            "{count} lengths of prompts are more than the {MAX_ROWS} of a plan"
        ))),
    }
}

fn cannot(why: impl Into<String>) -> Failure {
    Failure::new(Exit::CannotRun, anyhow::Error::msg(why.into()))
}
