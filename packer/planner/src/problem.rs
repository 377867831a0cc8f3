//! What a plan is made from.

use estream_schemas::limits::{MAX_EXPERTS, MAX_LAYERS, MAX_SHARDS};
use estream_schemas::plan::Schedule;
use estream_schemas::profile::{Limits, Service, Storage};

use crate::times::Request;

/// Records of a group, reads at a time, banks: the bound of a plan.
const MAX_COUNT: usize = 1 << 16;
/// Weight of a workload.
const MAX_WEIGHT: u64 = 1 << 32;

/// A device, a bundle and what is asked of them; [`Problem::new`] says whether they fit.
#[derive(Clone, Debug)]
pub struct Question {
    /// Where experts are read from.
    pub storage: Storage,
    /// How long the device computes.
    pub service: Service,
    /// What an accelerator can take.
    pub limits: Limits,
    /// M_max of paper equation 6.
    pub budget_bytes: u64,
    /// Layers with experts, in order.
    pub layers: Vec<LayerSize>,
    /// Bytes of the largest projection of a record, which is what a buffer holds at least.
    pub region_bytes: u64,
    /// Records of each layer that are never read, spread as [`is_pinned`](estream_schemas::plan::is_pinned) does;
    /// their bytes are part of M_other.
    pub pinned: usize,
    /// G that are supported (𝒢), and what each needs.
    pub groups: Vec<GroupSize>,
    /// Q that are supported (𝒬).
    pub depths: Vec<usize>,
    /// Which of them are looked at.
    pub search: Search,
    /// Schedules to choose from; of two that are equal, the first is taken.
    pub schedules: Vec<Schedule>,
    /// What is asked, and how often.
    pub workloads: Vec<Workload>,
}

/// Which Q are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// Q₀ alone: the paper's nested search.
    #[default]
    Nested,
    /// All of them: equation 6 itself. Where memory is short a smaller Q can be better than one that
    /// has enough bandwidth, because it leaves a bank for what is executed.
    Full,
}

/// Size of a layer with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSize {
    /// Its records: experts times shards.
    pub records: usize,
    /// Bytes of each.
    pub record_bytes: u64,
}

/// A candidate for G.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSize {
    /// G.
    pub group: usize,
    /// M_other(G): all memory but the arena.
    pub other_bytes: u64,
    /// The part of it that an accelerator has mapped.
    pub mapped_bytes: u64,
}

/// A kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// How often, compared with the others.
    pub weight: u64,
    /// Tokens of a pass.
    pub tokens: u64,
    /// Routed rows of each record in storage order, by step: layer after layer, pass after pass. The
    /// shards of an expert have the same rows.
    pub routes: Vec<Vec<u64>>,
}

/// What is wrong with a question, all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing can be planned: {}", .0.join("; "))]
pub struct Malformed(pub Vec<String>);

/// A question that can be answered: its lists are not empty and agree with each other, and no sum of
/// its times leaves 64 bits.
#[derive(Clone, Debug)]
pub struct Problem {
    question: Question,
    pub(crate) requests: Vec<Request>,
    /// Bytes between slots: W_e, rounded up to the alignment.
    pub(crate) slot_bytes: u64,
    /// Records of the largest layer.
    pub(crate) most_records: usize,
    /// Bytes of all records.
    pub(crate) expert_bytes: u128,
    /// Tokens of the longest pass, which decide how many records are read early.
    pub(crate) tokens: usize,
}

impl Problem {
    /// Errors with everything that is wrong.
    pub fn new(question: Question) -> Result<Problem, Malformed> {
        let mut wrong = shape(&question);
        if !wrong.is_empty() {
            return Err(Malformed(wrong));
        }
        let Question {
            layers, workloads, ..
        } = &question;
        let largest = layers.iter().map(|layer| layer.record_bytes).max();
        let largest = largest.unwrap_or(0);
        let service = &question.service;
        if service.record_bytes != largest {
            wrong.push(format!(
                "the times of {:?} are of records of {} bytes, the largest here has {largest}",
                service.name, service.record_bytes
            ));
        }
        let alignment = question.limits.alignment_bytes.unwrap_or(1).max(1);
        let slot_bytes = largest.checked_next_multiple_of(alignment);
        let worst_read_ns = worst_read_ns(&question);
        let requests = workloads
            .iter()
            .map(|workload| Request::new(workload, service, layers.len(), worst_read_ns));
        let requests: Option<Vec<Request>> = requests.collect();
        let (Some(slot_bytes), Some(requests)) = (slot_bytes, requests) else {
            wrong.push("sizes or times add up to more than 64 bits hold".to_owned());
            return Err(Malformed(wrong));
        };
        if !wrong.is_empty() {
            return Err(Malformed(wrong));
        }
        let of = |layer: &LayerSize| layer.records as u128 * u128::from(layer.record_bytes);
        let tokens = workloads.iter().map(|workload| workload.tokens).max();
        Ok(Problem {
            requests,
            slot_bytes,
            most_records: layers.iter().map(|layer| layer.records).max().unwrap_or(0),
            expert_bytes: layers.iter().map(of).sum(),
            tokens: usize::try_from(tokens.unwrap_or(0)).unwrap_or(usize::MAX),
            question,
        })
    }

    /// What was asked.
    pub fn question(&self) -> &Question {
        &self.question
    }

    pub(crate) fn size_of(&self, group: usize) -> Option<GroupSize> {
        let sizes = &self.question.groups;
        sizes.iter().copied().find(|size| size.group == group)
    }

    /// L in nanoseconds: a read of so many records of a layer, `depth` under way, until they may be used.
    pub(crate) fn read_ns(&self, layer: LayerSize, records: usize, depth: usize) -> u64 {
        let bytes = layer.record_bytes.saturating_mul(records as u64);
        let storage = &self.question.storage;
        let read_ns = storage.read_ns(bytes, depth as u64);
        read_ns.saturating_add(self.question.service.publish_ns)
    }
}

/// More than any read of a question can take.
fn worst_read_ns(question: &Question) -> u64 {
    let storage = &question.storage;
    let slowest = storage.rates.iter().map(|rate| rate.bytes_per_second).min();
    let largest = question.layers.iter().map(|layer| layer.record_bytes).max();
    let group = question.groups.iter().map(|size| size.group).max();
    let depth = question.depths.iter().max();
    let work = u128::from(largest.unwrap_or(0))
        .saturating_mul(group.unwrap_or(1) as u128)
        .saturating_mul(*depth.unwrap_or(&1) as u128)
        .saturating_mul(1_000_000_000);
    let transfer = work / u128::from(slowest.unwrap_or(1).max(1));
    let fixed = storage
        .latency_ns
        .saturating_add(question.service.publish_ns);
    u64::try_from(transfer)
        .unwrap_or(u64::MAX)
        .saturating_add(fixed)
}

/// What is wrong with the lists of a question.
fn shape(question: &Question) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: &dyn Fn() -> String| {
        if !holds {
            wrong.push(what());
        }
    };
    let Question {
        layers,
        groups,
        depths,
        workloads,
        ..
    } = question;
    for (empty, name) in [
        (layers.is_empty(), "layers"),
        (groups.is_empty(), "groups"),
        (depths.is_empty(), "depths"),
        (question.schedules.is_empty(), "schedules"),
        (workloads.is_empty(), "workloads"),
        (question.storage.rates.is_empty(), "rates of storage"),
    ] {
        must(!empty, &|| format!("there are no {name}"));
    }
    must(layers.len() as u64 <= MAX_LAYERS, &|| {
        format!("{} layers are more than {MAX_LAYERS}", layers.len())
    });
    let mut schedules = question.schedules.iter();
    let by_slice = schedules.find(|schedule| !schedule.is_by_record());
    must(question.pinned == 0 || by_slice.is_none(), &|| {
        let name = by_slice.map_or("", |schedule| schedule.name());
        format!("records are pinned, which {name} cannot leave out; compact and ahead can")
    });
    for (at, layer) in layers.iter().enumerate() {
        let records = 1..=MAX_EXPERTS * MAX_SHARDS;
        let fits = records.contains(&(layer.records as u64)) && layer.record_bytes > 0;
        must(fits, &|| {
            let LayerSize {
                records,
                record_bytes,
            } = layer;
            format!("layer {at} has {records} records of {record_bytes} bytes")
        });
    }
    for (at, size) in groups.iter().enumerate() {
        let group = size.group;
        must((1..=MAX_COUNT).contains(&group), &|| {
            format!("G = {group} is outside 1 to {MAX_COUNT}")
        });
        let again = groups[..at].iter().any(|other| other.group == group);
        must(!again, &|| format!("G = {group} is there twice"));
    }
    for depth in depths {
        must((1..=MAX_COUNT).contains(depth), &|| {
            format!("Q = {depth} is outside 1 to {MAX_COUNT}")
        });
    }
    for (at, workload) in workloads.iter().enumerate() {
        let weight = workload.weight;
        must((1..=MAX_WEIGHT).contains(&weight), &|| {
            format!("workload {at} has weight {weight}, outside 1 to {MAX_WEIGHT}")
        });
        let steps = workload.routes.len();
        let passes = steps > 0 && steps.is_multiple_of(layers.len().max(1));
        must(passes, &|| {
            format!(
                "workload {at} has routes of {steps} steps, no multiple of {} layers",
                layers.len()
            )
        });
        for (step, rows) in workload.routes.iter().enumerate() {
            let Some(layer) = layers.get(step % layers.len().max(1)) else {
                break;
            };
            must(rows.len() == layer.records, &|| {
                format!(
                    "step {step} of workload {at} has routes of {} records, the layer has {}",
                    rows.len(),
                    layer.records
                )
            });
            let most = rows.iter().max().copied().unwrap_or(0);
            must(most <= workload.tokens, &|| {
                format!(
                    "step {step} of workload {at} routes {most} rows of {} tokens to one record",
                    workload.tokens
                )
            });
        }
    }
    wrong
}
