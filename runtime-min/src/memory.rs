//! The memory a request can take, computed before it starts.

use std::num::NonZeroUsize;

use estream_schemas::manifest::{Experts, Manifest};

use crate::backend::Backend;
use crate::error::{RunError, index};
use crate::executor::head_rows;
use crate::ops::{Graph, HistoryForm, MatrixId, Op, RegisterId};
use crate::resolve::{MatrixSource, Resolved};
use crate::stream::{
    EVENTS_A_RECORD, EVENTS_A_STEP, STACK_BYTES as LOADER_STACK_BYTES, Streaming, least_room,
    timeline_bytes,
};

/// What the system reserves for a thread's stack, unless told otherwise.
const STACK_BYTES: u64 = 2 << 20;
const F32_BYTES: u64 = size_of::<f32>() as u64;

/// How many tokens a request has, and how many go through the model together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    pub(crate) all: usize,
    /// At least one, and no more than there are.
    pub(crate) together: usize,
}

impl Tokens {
    fn new(all: usize, chunk: Option<NonZeroUsize>) -> Tokens {
        let together = chunk.map_or(all, NonZeroUsize::get).min(all).max(1);
        Tokens { all, together }
    }

    /// So many at a time as is asked for, or else as the plan says.
    pub(crate) fn planned(
        all: usize,
        chunk: Option<NonZeroUsize>,
        streaming: Option<&Streaming>,
    ) -> Tokens {
        let chunk = chunk.or_else(|| streaming?.chunk(all));
        Tokens::new(all, chunk)
    }

    /// Pieces the prompt is cut into.
    pub(crate) fn chunks(self) -> u64 {
        self.all.div_ceil(self.together) as u64
    }

    pub(crate) fn are_cut(self) -> bool {
        self.together < self.all
    }
}

/// The most memory of a request, one field a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights outside experts.
    pub resident_bytes: u64,
    /// Expert records: the arena, or all of them.
    pub expert_bytes: u64,
    /// Expert records that stay while others pass through the arena.
    pub pinned_bytes: u64,
    /// Registers of a chunk, without keys and values.
    pub register_bytes: u64,
    /// Keys and values: of the layer at work if the prompt is one chunk, else what each
    /// layer keeps of all chunks.
    pub kv_bytes: u64,
    /// Scores and choices of the router at work.
    pub route_bytes: u64,
    /// Tables of rotation angles.
    pub rope_bytes: u64,
    /// Registers and logits of the rows the head works on.
    pub head_bytes: u64,
    /// The backend's buffers.
    pub scratch_bytes: u64,
    /// Stacks of the backend's threads.
    pub stack_bytes: u64,
    /// Results that the caller keeps.
    pub kept_bytes: u64,
    /// What happened when, and the statistics made of it.
    pub timeline_bytes: u64,
    /// The process before the model was loaded, in steps of 8 MiB; 0 where the system does not say.
    pub process_bytes: u64,
}

impl Memory {
    /// Every term by name.
    pub fn terms(&self) -> [(&'static str, u64); 13] {
        [
            ("resident", self.resident_bytes),
            ("experts", self.expert_bytes),
            ("pinned", self.pinned_bytes),
            ("registers", self.register_bytes),
            ("kv", self.kv_bytes),
            ("routes", self.route_bytes),
            ("rope", self.rope_bytes),
            ("head", self.head_bytes),
            ("scratch", self.scratch_bytes),
            ("stacks", self.stack_bytes),
            ("results", self.kept_bytes),
            ("timeline", self.timeline_bytes),
            ("process", self.process_bytes),
        ]
    }

    /// All terms together.
    pub fn total_bytes(&self) -> u64 {
        let terms = self.terms();
        terms
            .iter()
            .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Errors if it, of so many tokens, is more than `budget`.
    pub(crate) fn keep_within(
        &self,
        budget: u64,
        sizes: &Sizes,
        tokens: Tokens,
    ) -> Result<(), RunError> {
        let ceiling = self.total_bytes();
        if ceiling <= budget {
            return Ok(());
        }
        let terms = self.terms();
        let terms: Vec<String> = terms
            .iter()
            .map(|(term, bytes)| format!("{term} {bytes}"))
            .collect();
        let one_record = Memory {
            expert_bytes: sizes.least_expert_bytes,
            pinned_bytes: 0,
            stack_bytes: self
                .stack_bytes
                .saturating_sub(loader_stacks(sizes.loaders))
                .saturating_add(loader_stacks(sizes.least_loaders)),
            ..*self
        };
        Err(RunError::Budget {
            least: one_record.total_bytes(),
            chunk: tokens.are_cut().then_some(tokens.together),
            ceiling,
            budget,
            terms: terms.join(" + "),
        })
    }

    /// The memory of a request of `tokens` tokens.
    pub(crate) fn of(
        graph: &Graph,
        sizes: &Sizes,
        backend: &dyn Backend,
        tokens: Tokens,
        process_bytes: u64,
    ) -> Memory {
        let rows = tokens.together as u64;
        let times = |per_row: u64| per_row.saturating_mul(rows);
        let all = (0..graph.registers.len()).map(RegisterId);
        let (kv, others): (Vec<_>, Vec<_>) = all.partition(|id| is_kv(graph, *id));
        let width = |ids: &[RegisterId]| ids.iter().map(|id| graph.width(*id) as u64).sum::<u64>();
        let register_row = F32_BYTES * width(&others);
        let kv_row = F32_BYTES * width(&kv);
        let rope_row = graph.ropes.iter().map(|rope| rope.dims as u64);
        let head_rows = rows.min(head_rows(graph.vocab) as u64);
        let head_row = register_row + kv_row + F32_BYTES * graph.vocab as u64;
        let hidden = graph.width(graph.head.input);
        Memory {
            resident_bytes: sizes.resident_bytes,
            expert_bytes: sizes.expert_bytes,
            pinned_bytes: sizes.pinned_bytes,
            register_bytes: times(register_row),
            kv_bytes: times(kv_row)
                .saturating_add(history(graph, tokens))
                .saturating_add(latent_attention(graph, backend, tokens)),
            route_bytes: routes(graph, sizes, rows),
            rope_bytes: times(F32_BYTES * rope_row.sum::<u64>()),
            head_bytes: head_row.saturating_mul(head_rows),
            scratch_bytes: backend.scratch_bytes(
                sizes.widest_ff.max(widest_mlp(graph, sizes)),
                sizes.widest_cols.max(hidden),
            ),
            stack_bytes: STACK_BYTES * (backend.threads() as u64).saturating_sub(1)
                + loader_stacks(sizes.loaders),
            kept_bytes: 0,
            timeline_bytes: 2 * timeline_bytes(sizes.events(tokens.chunks())),
            process_bytes,
        }
    }
}

/// Sizes of a model's weights in memory, known before any is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    resident_bytes: u64,
    /// By matrix.
    rows: Vec<usize>,
    widest_cols: usize,
    expert_bytes: u64,
    pinned_bytes: u64,
    /// Rows of the widest record's gate.
    widest_ff: usize,
    /// Threads that read experts.
    loaders: u64,
    /// The same of an arena of one record, with nothing pinned.
    least_expert_bytes: u64,
    least_loaders: u64,
    /// Layers with experts, and records of all of them.
    steps: u64,
    records: u64,
}

impl Sizes {
    pub(crate) fn new(
        manifest: &Manifest,
        resolved: &Resolved,
        streaming: Option<&Streaming>,
    ) -> Result<Sizes, RunError> {
        let tensors = &manifest.resident.tensors;
        let elements = |tensor: usize| tensors[tensor].shape.iter().product::<u64>();
        let mut sizes = Sizes::default();
        for matrix in &resolved.matrices {
            let (rows, cols, bytes) = match *matrix {
                MatrixSource::Stored(tensor) => {
                    let (rows, cols) = tensors[tensor].matrix();
                    (rows, cols, tensors[tensor].bytes)
                }
                MatrixSource::Joined { k, v, .. } => {
                    let (rank, elements) = (tensors[v].matrix().1, elements(k) + elements(v));
                    (elements / rank, rank, F32_BYTES * elements)
                }
            };
            sizes.resident_bytes += bytes;
            sizes.rows.push(index("a weight", rows)?);
            sizes.widest_cols = sizes.widest_cols.max(index("a weight", cols)?);
        }
        for vector in &resolved.vectors {
            sizes.resident_bytes += F32_BYTES * elements(*vector);
        }
        let experts = &manifest.experts;
        (sizes.least_expert_bytes, sizes.least_loaders) = least_room(experts, streaming)?;
        for layer in &experts.layers {
            sizes.widest_ff = sizes.widest_ff.max(index("a record", layer.gate.rows)?);
            sizes.steps += 1;
            sizes.records = sizes.records.saturating_add(layer.records());
        }
        match streaming {
            Some(streaming) => {
                sizes.expert_bytes = streaming.buffers(experts)?.bytes();
                sizes.loaders = streaming.loaders(experts)?;
            }
            None => sizes.expert_bytes = pinned_bytes(experts, u64::MAX),
        }
        Ok(sizes)
    }

    /// Counts `pinned` records of each layer in.
    pub(crate) fn pin(&mut self, experts: &Experts, pinned: usize) {
        self.pinned_bytes = pinned_bytes(experts, pinned as u64);
    }

    /// The most events of a request.
    pub(crate) fn events(&self, chunks: u64) -> u64 {
        let steps = EVENTS_A_STEP.saturating_mul(self.steps + 1);
        let records = EVENTS_A_RECORD.saturating_mul(self.records);
        chunks.saturating_mul(steps.saturating_add(records))
    }

    fn rows(&self, matrix: MatrixId) -> usize {
        self.rows[matrix.0]
    }
}

fn loader_stacks(loaders: u64) -> u64 {
    loaders.saturating_mul(LOADER_STACK_BYTES as u64)
}

/// Bytes of `pinned` records of each layer, or of all that it has.
fn pinned_bytes(experts: &Experts, pinned: u64) -> u64 {
    let layers = experts.layers.iter();
    layers
        .map(|layer| {
            layer
                .records()
                .min(pinned)
                .saturating_mul(layer.record_bytes)
        })
        .fold(0, u64::saturating_add)
}

/// The most records of each layer that `room` bytes hold.
pub(crate) fn most_pinned(experts: &Experts, room: u64) -> usize {
    let records = experts.layers.iter().map(|layer| layer.records()).max();
    let fitting =
        (1..=records.unwrap_or(0)).take_while(|count| pinned_bytes(experts, *count) <= room);
    fitting.count()
}

/// Whether some attention reads the register as keys or values.
fn is_kv(graph: &Graph, id: RegisterId) -> bool {
    graph.body().any(|op| match op {
        Op::Attention { k: a, v: b, .. }
        | Op::Mla {
            latent: a, k_pe: b, ..
        } => [a, b].contains(&&id),
        _ => false,
    })
}

/// Bytes of what chunks leave to later ones.
fn history(graph: &Graph, tokens: Tokens) -> u64 {
    let floats = graph.histories.iter().map(|form| match *form {
        HistoryForm::State { len } => len as u64,
        HistoryForm::Rows { widths } if tokens.are_cut() => {
            let width: usize = widths.iter().sum();
            (width as u64).saturating_mul(tokens.all as u64)
        }
        HistoryForm::Rows { .. } => 0,
    });
    let floats = floats.fold(0, |sum: u64, floats| sum.saturating_add(floats));
    F32_BYTES.saturating_mul(floats)
}

/// Bytes of the keys and values that latent rows are expanded to, of the layer at work.
fn latent_attention(graph: &Graph, backend: &dyn Backend, tokens: Tokens) -> u64 {
    let layers = graph.body().filter_map(|op| match *op {
        Op::Mla {
            q,
            out,
            heads,
            scale,
            ..
        } => {
            let form = graph.attention(q, out, heads, heads, scale, 0);
            Some(backend.mla_bytes(&form, tokens.all))
        }
        _ => None,
    });
    layers.max().unwrap_or(0)
}

/// Rows of the widest network that all tokens share.
fn widest_mlp(graph: &Graph, sizes: &Sizes) -> usize {
    let layers = graph.body().filter_map(|op| match op {
        Op::Mlp { gate, .. } => Some(sizes.rows(*gate)),
        _ => None,
    });
    layers.max().unwrap_or(0)
}

/// Bytes of the widest router's logits, choices by token, and choices by expert; where all
/// tokens go to one network, of their routes.
fn routes(graph: &Graph, sizes: &Sizes, rows: u64) -> u64 {
    let layers = graph.body().filter_map(|op| match op {
        Op::Router { weight, form, .. } => {
            let experts = sizes.rows(*weight) as u64;
            // Token and weight, twice; two counters an expert for the sort.
            let row = F32_BYTES * experts + 16 * form.top_k;
            Some(row.saturating_mul(rows).saturating_add(16 * (experts + 1)))
        }
        // A gate, and a token and weight.
        Op::Mlp { .. } => Some(12u64.saturating_mul(rows)),
        _ => None,
    });
    layers.max().unwrap_or(0)
}

/// What the process takes before a model is loaded is rounded up to a multiple of this: it differs
/// by some hundred kilobytes from run to run, and a budget that would do once should do again.
const PROCESS_STEP_BYTES: u64 = 8 << 20;

/// Memory this process has now, where the system says so, and a little more.
pub(crate) fn process_bytes() -> u64 {
    let now = status_bytes("VmRSS:").unwrap_or(0);
    now.div_ceil(PROCESS_STEP_BYTES)
        .saturating_mul(PROCESS_STEP_BYTES)
}

/// The most memory this process has had so far, where the system says so: what was resident,
/// and what devices hold.
pub(crate) fn peak_bytes() -> Option<u64> {
    let pinned = status_bytes("VmPin:").unwrap_or(0);
    Some(status_bytes("VmHWM:")?.saturating_add(pinned))
}

/// Lets [`peak_bytes`] count from now on; false where the system does not.
pub(crate) fn forget_peak() -> bool {
    // 5 is "reset the peak" (man 5 proc).
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// A line of the system's account of this process.
fn status_bytes(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1 << 10)
}
