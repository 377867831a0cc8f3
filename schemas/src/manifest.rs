//! `manifest.json`: everything a bundle is, in one canonical file.
//!
//! These are the types as they stand in the file. [`crate::valid`] turns one into
//! a value that proves what a reader relies on.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::dtype::DType;
use crate::layout::Layout;
use crate::program::Program;

/// The `format` of every manifest.
pub const FORMAT: &str = "estream-bundle";
/// The version of the format this crate writes and reads.
pub const VERSION: u64 = 1;
/// The layouts this crate knows: version 1 of [`crate::layout`].
pub const KERNEL_ABI: u64 = 1;
/// Alignment of expert regions, records and resident tensors: pages of this size exist.
pub const ALIGN: u64 = 16 << 10;
/// Name of the manifest in a bundle.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Name of the file of all weights that are always in memory.
pub const RESIDENT_FILE: &str = "resident.bin";
/// Name of the folder of plans, whose files the manifest does not cover.
pub const PLANS_DIR: &str = "plans";

/// Name of part `index` of the experts, counted from 0.
pub fn part_file(index: usize) -> String {
    format!("experts-{:05}.bin", index + 1)
}

/// The whole manifest. The BLAKE3 of the file is the bundle's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`FORMAT`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = FORMAT)))]
    pub format: String,
    /// Version of the format.
    #[cfg_attr(feature = "schema", schemars(extend("const" = VERSION)))]
    pub version: u64,
    /// Version of the layouts the kernels must read.
    #[cfg_attr(feature = "schema", schemars(extend("const" = KERNEL_ABI)))]
    pub kernel_abi: u64,
    /// What kind of model this is, for people.
    pub model: Model,
    /// What a runtime does with the weights.
    pub program: Program,
    /// The weights that are always in memory.
    pub resident: Resident,
    /// The weights that are streamed.
    pub experts: Experts,
    /// The choice of types that was compiled.
    pub recipe: RecipeUsed,
    /// The family descriptor that was compiled with.
    pub descriptor: Descriptor,
    /// What became of every tensor of the source.
    pub ledger: Vec<LedgerEntry>,
    /// Where the weights came from.
    pub source: Source,
    /// Tokenizer files, carried verbatim and never executed.
    pub tokenizer: Vec<CarriedFile>,
    /// Licence as the source declares it.
    pub license: License,
}

impl Manifest {
    /// Every file that is carried verbatim: tokenizer, licence, source metadata.
    pub fn carried(&self) -> impl Iterator<Item = &CarriedFile> + Clone {
        let beside = self.license.files.iter().chain(&self.source.metadata);
        self.tokenizer.iter().chain(beside)
    }
}

/// What kind of model a bundle holds; a runtime needs none of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Family, as its descriptor names it.
    pub family: String,
    /// Elements of all weights of the source that the program uses.
    pub parameters: u64,
}

/// All weights outside experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Resident {
    /// Size of the file.
    pub bytes: u64,
    /// Tensors in file order.
    pub tensors: Vec<ResidentTensor>,
}

/// One weight of `resident.bin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResidentTensor {
    /// `role`, or `layers.N.role`.
    pub name: String,
    /// Element type and arrangement.
    pub layout: Layout,
    /// One dimension, or `[rows, cols]`.
    pub shape: Vec<u64>,
    /// Where it starts; a multiple of [`ALIGN`].
    pub offset: u64,
    /// Bytes it takes.
    pub bytes: u64,
    /// Of exactly these bytes.
    pub digest: Digest,
}

impl ResidentTensor {
    /// The part of the name that says what the tensor is for.
    pub fn role(&self) -> &str {
        role_of(&self.name)
    }

    /// `[rows, cols]`; a vector is one row.
    pub fn matrix(&self) -> (u64, u64) {
        match self.shape[..] {
            [rows, cols] => (rows, cols),
            _ => (1, self.shape.iter().product()),
        }
    }
}

/// The part of a resident tensor's name that says what it is for.
pub fn role_of(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// All weights of routed experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Bytes of the largest record: what a slot of the arena holds (W_e in paper eqs. 6 and 8).
    pub slot_bytes: u64,
    /// The files, in order.
    pub parts: Vec<Part>,
    /// The layers that have experts, ascending.
    pub layers: Vec<ExpertLayer>,
}

/// One file of expert records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// `experts-00001.bin` and so on.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
}

/// The records of one layer: one shape class, stored together in storage order.
///
/// Record r of `experts · shards` holds shard `r % shards` of expert
/// `order[r / shards]`, at `offset + r · record_bytes` of its part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExpertLayer {
    /// Layer of the program.
    pub layer: u64,
    /// Index into the parts.
    pub part: u64,
    /// Where the layer's first record starts; a multiple of [`ALIGN`].
    pub offset: u64,
    /// Bytes of one record; a multiple of [`ALIGN`].
    pub record_bytes: u64,
    /// Experts of the layer.
    pub experts: u64,
    /// Records an expert is cut into along its feed-forward width.
    pub shards: u64,
    /// The expert at each position of the storage order.
    pub order: Vec<u64>,
    /// Gate projection of a record: `[ff / shards, hidden]`.
    pub gate: Region,
    /// Up projection of a record: `[ff / shards, hidden]`.
    pub up: Region,
    /// Down projection of a record: `[hidden, ff / shards]`.
    pub down: Region,
    /// Of each whole record, padding included, in storage order.
    pub digests: Vec<Digest>,
}

impl ExpertLayer {
    /// Records of the layer.
    pub fn records(&self) -> u64 {
        self.experts * self.shards
    }

    /// The three regions in the order they are stored.
    pub fn regions(&self) -> [&Region; 3] {
        [&self.gate, &self.up, &self.down]
    }
}

/// One of the three matrices of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    /// `[ff, hidden]`, before the activation.
    Gate,
    /// `[ff, hidden]`, the factor of the activation.
    Up,
    /// `[hidden, ff]`.
    Down,
}

impl Projection {
    /// All three, in the order they are stored.
    pub const ALL: [Projection; 3] = [Projection::Gate, Projection::Up, Projection::Down];

    /// Its region in the records of `layer`.
    pub fn region(self, layer: &ExpertLayer) -> &Region {
        match self {
            Projection::Gate => &layer.gate,
            Projection::Up => &layer.up,
            Projection::Down => &layer.down,
        }
    }
}

/// One projection inside a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Element type and arrangement.
    pub layout: Layout,
    /// Output rows.
    pub rows: u64,
    /// Elements of the reduction dimension.
    pub cols: u64,
    /// Where it starts in the record; a multiple of [`ALIGN`].
    pub offset: u64,
    /// Bytes it takes; zeros follow up to the next multiple of [`ALIGN`].
    pub bytes: u64,
}

/// The recipe, as far as it decides bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RecipeUsed {
    /// Name of the recipe.
    pub name: String,
    /// Its rules as one line each, in the order they were tried.
    pub rules: Vec<String>,
    /// Whether quantised tensors of the source may have been quantised again.
    pub requantize: bool,
    /// Whether rows were padded to a multiple of 32 elements.
    pub pad_k: bool,
}

/// The family descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// Of the text.
    pub digest: Digest,
    /// The TOML file itself.
    pub text: String,
}

/// What became of one tensor of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LedgerEntry {
    /// Name in the source.
    pub tensor: String,
    /// Type in the source.
    #[serde(rename = "type")]
    pub dtype: DType,
    /// Shape in the source, slowest dimension first.
    pub shape: Vec<u64>,
    /// What became of it.
    pub fate: Fate,
}

/// Every source tensor is consumed, an alias, the scales of another, or dropped with a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fate {
    /// It holds these weights of the bundle (`layers.0.expert_gate.3`, `embed`).
    Became(Vec<String>),
    /// It equals this other tensor of the source, which was used instead.
    AliasOf(String),
    /// The numbers of this other tensor of the source were multiplied by its own.
    ScalesOf(String),
    /// It is not needed, for this reason.
    Dropped(String),
}

/// Where the weights came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// File format.
    pub format: SourceFormat,
    /// Weight files, by name alone, in name order.
    pub files: Vec<SourceFile>,
    /// What the source says of itself: `source-config.json`, its `config.json`; or
    /// `source-metadata.gguf`, the key-value pairs of a GGUF file, without tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<CarriedFile>,
}

/// The file format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SourceFormat {
    /// A Hugging Face directory of safetensors.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

/// A weight file of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Name without directories.
    pub name: String,
    /// Size.
    pub bytes: u64,
}

/// A file carried verbatim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CarriedFile {
    /// Path in the bundle: a name, or one folder and a name.
    pub file: String,
    /// Size.
    pub bytes: u64,
    /// Of the whole file.
    pub digest: Digest,
}

/// Licence as declared, never inferred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct License {
    /// The identifier the source states, if it states one.
    pub declared: Option<String>,
    /// Licence files of the source.
    pub files: Vec<CarriedFile>,
}
