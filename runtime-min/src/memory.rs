//! The memory a request can take, computed before it starts.

use crate::backend::Backend;
use crate::executor::head_rows;
use crate::ops::{Graph, Op, RegisterId};
use crate::resident::Resident;
use crate::store::ExpertStore;

/// What the system reserves for a thread's stack, unless told otherwise.
const STACK_BYTES: u64 = 2 << 20;
const F32_BYTES: u64 = size_of::<f32>() as u64;

/// The most memory of a request, one field a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights outside experts.
    pub resident_bytes: u64,
    /// Expert records.
    pub expert_bytes: u64,
    /// Registers of all tokens, without keys and values.
    pub register_bytes: u64,
    /// Keys and values of the layer at work.
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
    /// The process before the model was loaded; 0 where the system does not say.
    pub process_bytes: u64,
}

impl Memory {
    /// Every term by name.
    pub fn terms(&self) -> [(&'static str, u64); 10] {
        [
            ("resident", self.resident_bytes),
            ("experts", self.expert_bytes),
            ("registers", self.register_bytes),
            ("kv", self.kv_bytes),
            ("routes", self.route_bytes),
            ("rope", self.rope_bytes),
            ("head", self.head_bytes),
            ("scratch", self.scratch_bytes),
            ("stacks", self.stack_bytes),
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

    /// The memory of a request of `tokens` tokens.
    pub(crate) fn of(
        graph: &Graph,
        resident: &Resident,
        store: &ExpertStore,
        backend: &dyn Backend,
        tokens: usize,
        process_bytes: u64,
    ) -> Memory {
        let rows = tokens as u64;
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
            resident_bytes: resident.bytes(),
            expert_bytes: store.bytes(),
            register_bytes: times(register_row),
            kv_bytes: times(kv_row),
            route_bytes: routes(graph, resident, rows),
            rope_bytes: times(F32_BYTES * rope_row.sum::<u64>()),
            head_bytes: head_row.saturating_mul(head_rows),
            scratch_bytes: backend.scratch_bytes(store.widest(), resident.widest().max(hidden)),
            stack_bytes: STACK_BYTES * (backend.threads() as u64).saturating_sub(1),
            process_bytes,
        }
    }
}

/// Whether some attention reads the register as keys or values.
fn is_kv(graph: &Graph, id: RegisterId) -> bool {
    graph
        .body()
        .any(|op| matches!(op, Op::Attention { k, v, .. } if *k == id || *v == id))
}

/// Bytes of the widest router's logits, choices by token, and choices by expert.
fn routes(graph: &Graph, resident: &Resident, rows: u64) -> u64 {
    let layers = graph.body().filter_map(|op| match op {
        Op::Router { weight, form, .. } => {
            let experts = resident.matrix(*weight).rows as u64;
            // Token and weight, twice; two counters an expert for the sort.
            let row = F32_BYTES * experts + 16 * form.top_k;
            Some(row.saturating_mul(rows).saturating_add(16 * (experts + 1)))
        }
        _ => None,
    });
    layers.max().unwrap_or(0)
}

/// Memory this process has now, where the system says so.
pub(crate) fn process_bytes() -> u64 {
    let kib = || {
        let text = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    kib().map_or(0, |kib| kib.saturating_mul(1 << 10))
}
