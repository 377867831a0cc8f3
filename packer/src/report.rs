//! What a bundle is made of, by role: computed from its manifest alone.

use std::collections::BTreeMap;

use estream_schemas::layout::Layout;
use estream_schemas::manifest::{ExpertLayer, Manifest, Projection};
use serde::Serialize;

/// Sizes of a bundle, and the types it is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Elements of all weights.
    pub parameters: u64,
    /// Weights that are always in memory, without any padding.
    pub resident_payload_bytes: u64,
    /// `resident.bin`.
    pub resident_file_bytes: u64,
    /// Routed experts in tiles, without padding between regions.
    pub expert_payload_bytes: u64,
    /// All experts files.
    pub expert_file_bytes: u64,
    /// The largest record: one slot of an arena.
    pub slot_bytes: u64,
    /// Records that differ in size or shape.
    pub records: Vec<RecordClass>,
    /// Types by role.
    pub roles: Vec<RoleTypes>,
}

/// Layers whose records are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordClass {
    /// Layers.
    pub layers: Vec<u64>,
    /// Experts of a layer.
    pub experts: u64,
    /// Records an expert is cut into.
    pub shards: u64,
    /// Width of the model.
    pub hidden: u64,
    /// Feed-forward width of a record.
    pub ff: u64,
    /// Layouts of gate, up and down.
    pub layouts: [Layout; 3],
    /// Bytes of a record.
    pub record_bytes: u64,
}

/// All tensors of one role that have one layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoleTypes {
    /// What the tensors are for.
    pub role: String,
    /// How they are stored.
    pub layout: Layout,
    /// How many there are; for experts, one an expert.
    pub tensor_count: u64,
    /// Elements of all of them.
    pub elements: u64,
    /// Bytes of all of them, without padding between tensors.
    pub payload_bytes: u64,
}

impl RoleTypes {
    /// Effective bits a weight.
    pub fn bits_per_weight(&self) -> f64 {
        8.0 * self.payload_bytes as f64 / self.elements.max(1) as f64
    }
}

/// The sizes that `manifest` states.
pub fn sizes(manifest: &Manifest) -> Sizes {
    let mut roles = Roles::default();
    for tensor in &manifest.resident.tensors {
        let (rows, cols) = tensor.matrix();
        roles.add(tensor.role(), tensor.layout, 1, rows, cols);
    }
    let resident_payload_bytes = roles.payload_bytes();
    for layer in &manifest.experts.layers {
        for (projection, role) in Projection::ALL.into_iter().zip(EXPERT_ROLES) {
            let region = projection.region(layer);
            roles.add(
                role,
                region.layout,
                layer.records(),
                region.rows,
                region.cols,
            );
        }
    }
    let mut records: Vec<RecordClass> = Vec::new();
    for layer in &manifest.experts.layers {
        let class = RecordClass::of(layer);
        let alike = records.iter_mut().find(|known| {
            let layers = known.layers.clone();
            **known
                == RecordClass {
                    layers,
                    ..class.clone()
                }
        });
        match alike {
            Some(known) => known.layers.push(layer.layer),
            None => records.push(class),
        }
    }
    Sizes {
        parameters: manifest.model.parameters,
        resident_payload_bytes,
        resident_file_bytes: manifest.resident.bytes,
        expert_payload_bytes: roles.payload_bytes() - resident_payload_bytes,
        expert_file_bytes: manifest.experts.parts.iter().map(|part| part.bytes).sum(),
        slot_bytes: manifest.experts.slot_bytes,
        records,
        roles: roles.list,
    }
}

/// Roles of an expert's matrices, in the order of [`Projection::ALL`].
const EXPERT_ROLES: [&str; 3] = ["expert_gate", "expert_up", "expert_down"];

impl RecordClass {
    fn of(layer: &ExpertLayer) -> RecordClass {
        RecordClass {
            layers: vec![layer.layer],
            experts: layer.experts,
            shards: layer.shards,
            hidden: layer.gate.cols,
            ff: layer.gate.rows,
            layouts: layer.regions().map(|region| region.layout),
            record_bytes: layer.record_bytes,
        }
    }
}

#[derive(Default)]
struct Roles {
    list: Vec<RoleTypes>,
    index: BTreeMap<(String, Layout), usize>,
}

impl Roles {
    fn add(&mut self, role: &str, layout: Layout, count: u64, rows: u64, cols: u64) {
        // A checked manifest's sizes do not overflow; rows padded in k have no other size than their tiles'.
        let bytes = layout.dtype().matrix_bytes(rows, cols);
        let bytes = bytes.or(layout.bytes(rows, cols)).unwrap_or(0);
        let list = &mut self.list;
        let at = *self
            .index
            .entry((role.to_owned(), layout))
            .or_insert_with(|| {
                list.push(RoleTypes {
                    role: role.to_owned(),
                    layout,
                    tensor_count: 0,
                    elements: 0,
                    payload_bytes: 0,
                });
                list.len() - 1
            });
        let row = &mut self.list[at];
        row.tensor_count += count;
        row.elements += count * rows * cols;
        row.payload_bytes += count * bytes;
    }

    fn payload_bytes(&self) -> u64 {
        self.list.iter().map(|row| row.payload_bytes).sum()
    }
}
