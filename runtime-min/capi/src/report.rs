//! What is said in JSON.

use estream_runtime::reader::BundleReader;
use estream_runtime::stats::Stats;
use estream_runtime::{Chosen, Outcome};
use estream_schemas::plan::{PlanRow, StreamConfig};
use serde::Serialize;

use crate::abi::ESTREAM_INTERNAL;
use crate::failure::Failure;

#[derive(Serialize)]
struct PlanReport {
    /// Digest of the manifest.
    bundle: String,
    tokens: usize,
    why: String,
    /// How experts are streamed; none if all of them stay in memory.
    stream: Option<StreamConfig>,
    /// The same on a hot device; none if nothing is said of one.
    hot: Option<StreamConfig>,
    /// Tokens that go through the model together, if not all.
    chunk: Option<u64>,
    /// Memory that experts pass through, hot or not.
    arena_bytes: u64,
    /// The most memory of the request, results excepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
}

/// What is done for a prompt of `tokens` tokens.
pub(crate) fn plan(
    reader: &BundleReader,
    chosen: &Chosen,
    tokens: usize,
    memory_bytes: Option<u64>,
) -> Result<String, Failure> {
    let row = chosen.streaming.as_ref().map(|all| all.row(tokens));
    let configs = row.into_iter().flat_map(PlanRow::configs);
    let slots = configs.map(StreamConfig::slots).max().unwrap_or(0) as u64;
    let experts = &reader.bundle().manifest().experts;
    json(&PlanReport {
        bundle: reader.identity().to_string(),
        tokens,
        why: chosen.why.clone(),
        stream: row.map(|row| row.stream),
        hot: row.and_then(|row| row.hot),
        chunk: row.and_then(|row| row.chunk),
        arena_bytes: slots.saturating_mul(experts.slot_bytes),
        memory_bytes,
    })
}

#[derive(Serialize)]
struct StatsReport {
    /// Digest of the manifest.
    bundle: String,
    tokens: usize,
    rows: usize,
    /// Memory of the rows that are kept, beside `memory_bytes`.
    result_bytes: u64,
    #[serde(flatten)]
    stats: Stats,
}

/// What a request took.
pub(crate) fn stats(
    reader: &BundleReader,
    outcome: &Outcome,
    result_bytes: u64,
    stats: Stats,
) -> Result<String, Failure> {
    json(&StatsReport {
        bundle: reader.identity().to_string(),
        tokens: outcome.tokens,
        rows: outcome.rows,
        result_bytes,
        stats,
    })
}

fn json(report: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(report).map_err(|error| Failure::new(ESTREAM_INTERNAL, error.to_string()))
}
