//! What was read and computed when, with each schedule (paper Fig. 6).

use serde::{Deserialize, Serialize};

/// One prompt with every schedule, on one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Schedules {
    /// Its processor, and how many threads computed.
    pub machine: String,
    /// Whose shape the model has.
    pub model: String,
    /// Its layers.
    pub layers: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// G, Q and B.
    pub numbers: [usize; 3],
    /// Bandwidth of its storage.
    pub bytes_per_second: u64,
    /// What a run took with all experts in memory.
    pub resident_ns: u64,
    /// By schedule: the run in the middle.
    pub runs: Vec<Shown>,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shown {
    /// Its schedule.
    pub schedule: String,
    /// Request to logits.
    pub total_ns: u64,
    /// Time with a read under way.
    pub io_ns: u64,
    /// Time with the executor at work.
    pub exec_ns: u64,
    /// The bubble that equation 5 predicts, where it does.
    pub predicted: Option<f64>,
    /// What happened.
    pub spans: Vec<Span>,
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// What.
    pub what: What,
    /// The loader that did it; 0 for the executor.
    pub thread: usize,
    /// From the start of the request.
    pub start_ns: u64,
    /// From the start of the request.
    pub end_ns: u64,
}

/// What takes time in a picture of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Reading records.
    Read,
    /// Executing them.
    Experts,
    /// Everything else that is computed.
    Other,
}

impl Shown {
    /// 1 − max(T_io, T_exec) / T_total.
    pub fn bubble(&self) -> f64 {
        1.0 - self.io_ns.max(self.exec_ns) as f64 / self.total_ns as f64
    }
}
