//! C, the rows of an invocation, for published models and sizes of VTCM: the table of docs/hexagon.md.
//!
//!     cargo run -p estream-hexagon --example capacities

use estream_hexagon::{ExpertShape, Template};
use estream_schemas::layout::Layout;

/// Name, width, feed-forward width, and the numbers of shards to show.
const MODELS: &[(&str, u64, u64, &[u64])] = &[
    ("OLMoE-1B-7B", 2048, 1024, &[1]),
    ("LFM2-8B-A1B", 2048, 1792, &[1]),
    ("DeepSeek-V2-Lite", 2048, 1408, &[1]),
    ("Qwen3-30B-A3B", 2048, 768, &[1]),
    ("Mixtral-8x7B", 4096, 14_336, &[1, 4, 8]),
];
/// MiB of VTCM.
const SIZES: [u64; 3] = [2, 4, 8];

/// The table, in Markdown.
pub(crate) fn table() -> String {
    let mut out = "| experts in Q4_0 | d × ff | shards | C, 2 MiB | 4 MiB | 8 MiB |\n|---|---|---|---|---|---|\n".to_owned();
    let q4_0: Layout = "q4_0.t32.direct".parse().expect("a layout");
    for (name, hidden, ff, shards) in MODELS {
        for shards in *shards {
            let shape =
                ExpertShape::new(*hidden, ff / shards, *shards, [q4_0; 3]).expect("a model");
            let cells = SIZES.map(|size| match Template::new(&shape, size << 20) {
                Ok(template) => template.capacity().to_string(),
                Err(_) => "none".to_owned(),
            });
            let cells = cells.join(" | ");
            out += &format!("| {name} | {hidden} × {ff} | {shards} | {cells} |\n");
        }
    }
    out
}

#[expect(clippy::print_stdout, reason = "a table is what it is for")]
fn main() {
    print!("{}", table());
}
