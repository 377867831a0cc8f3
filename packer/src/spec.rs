//! What a bundle will be, before there is one.

use std::collections::BTreeMap;

use estream_compiler::ingest::{Carried, CarriedContent};
use estream_schemas::digest::Digest;
use estream_schemas::layout::{Layout, TILE};
use estream_schemas::manifest::{
    CarriedFile, Descriptor, ExpertLayer, Experts, FORMAT, KERNEL_ABI, LedgerEntry, License,
    Manifest, Model, Part, RecipeUsed, Region, Resident, ResidentTensor, Source, SourceFile,
    SourceFormat, VERSION, part_file,
};
use estream_schemas::program::Program;
use estream_schemas::valid::{Bundle, align_up};

use crate::PlanError;

/// Everything a manifest says, without what follows from it (places and sizes) and
/// without what only the bytes know (digests).
#[derive(Clone, Debug)]
pub struct BundleSpec {
    /// What kind of model this is, for people.
    pub model: Model,
    /// What a runtime does with the weights.
    pub program: Program,
    /// The weights outside experts, in file order.
    pub resident: Vec<TensorSpec>,
    /// The layers that have experts, ascending.
    pub layers: Vec<LayerSpec>,
    /// The recipe, as far as it decides bytes.
    pub recipe: RecipeUsed,
    /// Text of the family descriptor.
    pub descriptor: String,
    /// What became of every tensor of the source.
    pub ledger: Vec<LedgerEntry>,
    /// Where the weights came from.
    pub source: SourceSpec,
    /// Files for `tokenizer/`.
    pub tokenizer: Vec<Carried>,
    /// Licence as declared.
    pub license: LicenseSpec,
    /// Bytes a part of the experts may have. Parts are split only between layers, so a
    /// layer larger than this is refused: whoever asks for small files has a
    /// reason that a larger one would defeat. `None` makes one part.
    pub max_part_bytes: Option<u64>,
}

impl BundleSpec {
    /// Puts the experts of a layer in the order that `orders` has for it, if it has one.
    pub fn reorder(&mut self, orders: &BTreeMap<u64, Vec<u64>>) {
        for layer in &mut self.layers {
            if let Some(order) = orders.get(&layer.layer) {
                layer.order.clone_from(order);
            }
        }
    }
}

/// One weight outside experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// `role`, or `layers.N.role`.
    pub name: String,
    /// Element type and arrangement.
    pub layout: Layout,
    /// One dimension, or `[rows, cols]`.
    pub shape: Vec<u64>,
}

/// The experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Layer of the program.
    pub layer: u64,
    /// Experts.
    pub experts: u64,
    /// Records an expert is cut into along its feed-forward width.
    pub shards: u64,
    /// The expert at each position of the storage order.
    pub order: Vec<u64>,
    /// Width of the model.
    pub hidden: u64,
    /// Feed-forward width of a whole expert.
    pub ff: u64,
    /// Layout of `gate`, `[ff, hidden]`.
    pub gate: Layout,
    /// Layout of `up`, `[ff, hidden]`.
    pub up: Layout,
    /// Layout of `down`, `[hidden, ff]`.
    pub down: Layout,
}

/// Where the weights came from.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// File format.
    pub format: SourceFormat,
    /// Weight files, by name alone, in name order.
    pub files: Vec<SourceFile>,
    /// A GGUF source's key-value pairs as a file without tensors.
    pub metadata: Option<Carried>,
}

/// Licence as declared, never inferred.
#[derive(Clone, Debug)]
pub struct LicenseSpec {
    /// The identifier the source states, if it states one.
    pub declared: Option<String>,
    /// Licence files of the source.
    pub files: Vec<Carried>,
}

const UNKNOWN: Digest = Digest([0; 32]);

/// The manifest that `spec` leads to, all places and sizes filled in and every digest
/// zero. Looks at no file: the size of a file that is carried from disk is zero too.
pub fn plan(spec: &BundleSpec) -> Result<Manifest, PlanError> {
    let carried = |folder: &'static str| {
        move |carried: &Carried| CarriedFile {
            file: format!("{folder}{}", carried.name),
            bytes: match &carried.content {
                CarriedContent::Bytes(bytes) => bytes.len() as u64,
                CarriedContent::File(_) => 0,
            },
            digest: UNKNOWN,
        }
    };
    let manifest = Manifest {
        format: FORMAT.into(),
        version: VERSION,
        kernel_abi: KERNEL_ABI,
        model: spec.model.clone(),
        program: spec.program.clone(),
        resident: resident(&spec.resident)?,
        experts: experts(&spec.layers, spec.max_part_bytes)?,
        recipe: spec.recipe.clone(),
        descriptor: Descriptor {
            digest: Digest(*blake3::hash(spec.descriptor.as_bytes()).as_bytes()),
            text: spec.descriptor.clone(),
        },
        ledger: spec.ledger.clone(),
        source: Source {
            format: spec.source.format,
            files: spec.source.files.clone(),
            metadata: spec.source.metadata.as_ref().map(carried("")),
        },
        tokenizer: spec.tokenizer.iter().map(carried("tokenizer/")).collect(),
        license: License {
            declared: spec.license.declared.clone(),
            files: spec.license.files.iter().map(carried("")).collect(),
        },
    };
    Ok(Bundle::check(manifest)?.into_manifest())
}

fn resident(tensors: &[TensorSpec]) -> Result<Resident, PlanError> {
    let mut end = 0;
    let mut planned = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let mut tensor = ResidentTensor {
            name: tensor.name.clone(),
            layout: tensor.layout,
            shape: tensor.shape.clone(),
            offset: end,
            bytes: 0,
            digest: UNKNOWN,
        };
        let what = || format!("tensor {:?}", tensor.name);
        let (rows, cols) = match tensor.shape[..] {
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            // The check of the whole manifest says what is wrong with it.
            _ => (0, 0),
        };
        tensor.bytes = bytes(tensor.layout, rows, cols, what)?;
        end = end_of(end, tensor.bytes, what)?;
        planned.push(tensor);
    }
    Ok(Resident {
        bytes: end,
        tensors: planned,
    })
}

fn experts(layers: &[LayerSpec], max_part_bytes: Option<u64>) -> Result<Experts, PlanError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut planned = Vec::with_capacity(layers.len());
    for spec in layers {
        let mut layer = expert_layer(spec)?;
        let overflow = || PlanError::Overflow {
            what: format!("experts of layer {}", spec.layer),
        };
        let records = spec.experts.checked_mul(spec.shards).ok_or_else(overflow)?;
        let bytes = records
            .checked_mul(layer.record_bytes)
            .ok_or_else(overflow)?;
        if let Some(max_part_bytes) = max_part_bytes
            && bytes > max_part_bytes
        {
            return Err(PlanError::PartTooSmall {
                layer: spec.layer,
                bytes,
                max_part_bytes,
            });
        }
        let room = |part: &Part| match max_part_bytes {
            None => true,
            Some(max) => part.bytes.checked_add(bytes).is_some_and(|end| end <= max),
        };
        if !parts.last().is_some_and(room) {
            parts.push(Part {
                file: part_file(parts.len()),
                bytes: 0,
            });
        }
        layer.part = parts.len() as u64 - 1;
        if let Some(part) = parts.last_mut() {
            layer.offset = part.bytes;
            part.bytes = part.bytes.checked_add(bytes).ok_or_else(overflow)?;
        }
        planned.push(layer);
    }
    Ok(Experts {
        slot_bytes: planned
            .iter()
            .map(|layer| layer.record_bytes)
            .max()
            .unwrap_or(0),
        parts,
        layers: planned,
    })
}

/// One layer, its place still unknown.
fn expert_layer(spec: &LayerSpec) -> Result<ExpertLayer, PlanError> {
    let &LayerSpec {
        layer,
        shards,
        hidden,
        ff,
        ..
    } = spec;
    let divides = match shards {
        0 => false,
        1 => true,
        _ => ff.is_multiple_of(TILE) && (ff / TILE).is_multiple_of(shards),
    };
    if !divides {
        return Err(PlanError::Shards { layer, shards, ff });
    }
    let width = ff / shards;
    let mut end = 0;
    let mut region = |projection, layout: Layout, rows, cols| {
        let what = || format!("{projection} of layer {layer}");
        let region = Region {
            layout,
            rows,
            cols,
            offset: end,
            bytes: bytes(layout, rows, cols, what)?,
        };
        end = end_of(region.offset, region.bytes, what)?;
        Ok::<_, PlanError>(region)
    };
    let gate = region("gate", spec.gate, width, hidden)?;
    let up = region("up", spec.up, width, hidden)?;
    let down = region("down", spec.down, hidden, width)?;
    let records = spec.experts.saturating_mul(shards);
    Ok(ExpertLayer {
        layer,
        part: 0,
        offset: 0,
        record_bytes: end,
        experts: spec.experts,
        shards,
        order: spec.order.clone(),
        gate,
        up,
        down,
        digests: vec![UNKNOWN; bounded(records)?],
    })
}

/// Records as a length: more than any valid layer has are not allocated for.
fn bounded(records: u64) -> Result<usize, PlanError> {
    use estream_schemas::limits::{MAX_EXPERTS, MAX_SHARDS};
    usize::try_from(records)
        .ok()
        .filter(|_| records <= MAX_EXPERTS * MAX_SHARDS)
        .ok_or_else(|| PlanError::Overflow {
            what: format!("a layer of {records} records"),
        })
}

fn bytes(
    layout: Layout,
    rows: u64,
    cols: u64,
    what: impl Fn() -> String,
) -> Result<u64, PlanError> {
    layout.bytes(rows, cols).ok_or_else(|| PlanError::Shape {
        what: what(),
        layout,
        rows,
        cols,
    })
}

fn end_of(offset: u64, bytes: u64, what: impl Fn() -> String) -> Result<u64, PlanError> {
    offset
        .checked_add(bytes)
        .and_then(align_up)
        .ok_or_else(|| PlanError::Overflow { what: what() })
}
