//! The paper's models on made-up devices.

use estream_planner::{GroupSize, LayerSize, Question, Search, Workload, expected_routes};
use estream_schemas::plan::Schedule;
use estream_schemas::profile::{Limits, OtherTime, Rate, RecordTime, Service, Storage};

/// A model's layers with experts, at Q4_0.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) layers: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) record_bytes: u64,
}

/// Paper table 1.
pub(crate) const MODELS: [Model; 5] = [
    model("olmoe-1b-7b", 16, (64, 8), 3_538_944),
    model("lfm2.5-8b-a1b", 22, (32, 4), 6_193_152),
    model("deepseek-v2-lite", 26, (64, 6), 4_866_048),
    model("qwen3-30b-a3b", 48, (128, 8), 2_654_208),
    model("mixtral-8x7b", 32, (8, 2), 99_090_432),
];

const fn model(
    name: &'static str,
    layers: usize,
    (experts, top_k): (usize, usize),
    record_bytes: u64,
) -> Model {
    Model {
        name,
        layers,
        experts,
        top_k,
        record_bytes,
    }
}

/// A device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub(crate) latency_ns: u64,
    /// Bytes a second with 1 to 4 reads at a time.
    pub(crate) rates: [u64; 4],
    /// Picoseconds for a row and a byte of a record.
    pub(crate) row_ps: u64,
    pub(crate) dispatch_ns: u64,
}

/// Near the paper's: two reads reach 3.75 GB/s, and 4,096 tokens of Qwen3-30B take 6.9 s.
pub(crate) const DEVICE: Device = Device {
    latency_ns: 100_000,
    rates: [3_000_000_000, 3_750_000_000, 3_750_000_000, 3_750_000_000],
    row_ps: 904,
    dispatch_ns: 80_000,
};

/// T^ne is 2 ms + 6.5 µs a token + 1 ns a pair of tokens for each layer; a record takes 0.1 ms besides
/// its rows. Popularity falls with the square of the rank.
pub(crate) fn question(
    model: &Model,
    device: &Device,
    tokens: u64,
    (schedule, first_layer): (Schedule, usize),
) -> Question {
    let rate = |(outstanding, bytes_per_second)| Rate {
        read_bytes: 1 << 20,
        outstanding,
        bytes_per_second,
    };
    let row_ns = |rows: u64| rows * model.record_bytes * device.row_ps / 1_000_000;
    let other = [1, 16, 256, 1024, 4096].map(|tokens| OtherTime {
        tokens,
        group: None,
        ns: 2_000_000 + 6_500 * tokens + tokens * tokens,
    });
    let records = [32, 1024].map(|rows| RecordTime {
        rows,
        ns: 100_000 + row_ns(rows),
    });
    let layers = first_layer..first_layer + model.layers;
    let routes = |layer| expected_routes((model.experts, model.top_k), tokens, 2, layer);
    let size = |group| GroupSize {
        group,
        other_bytes: 1 << 30,
        mapped_bytes: 1 << 30,
    };
    Question {
        storage: Storage {
            latency_ns: device.latency_ns,
            rates: (1..).zip(device.rates).map(rate).collect(),
            hot_rates: Vec::new(),
            buffer_bytes: None,
        },
        service: Service {
            name: "made up".to_owned(),
            record_bytes: model.record_bytes,
            tile_rows: 32,
            capacity: None,
            other: other.into(),
            records: records.into(),
            dispatch_ns: device.dispatch_ns,
            publish_ns: 20_000,
            head_ns: 3_000_000,
        },
        limits: Limits::default(),
        budget_bytes: 2 << 30,
        layers: vec![
            LayerSize {
                records: model.experts,
                record_bytes: model.record_bytes,
            };
            model.layers
        ],
        region_bytes: model.record_bytes / 3,
        pinned: 0,
        groups: [1, 2, 4, 8, 16, 32].map(size).into(),
        depths: vec![1, 2, 3, 4],
        search: Search::Nested,
        schedules: vec![schedule],
        workloads: vec![Workload {
            weight: 1,
            tokens,
            routes: layers.map(routes).collect(),
        }],
    }
}
