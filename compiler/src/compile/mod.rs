//! A lowered model with a type and layout for each weight: what a packer packs.
//!
//! [`Compiled::plan`] decides everything and reads no weight, so that a size is known
//! and every refusal is made before any work. [`Compiled::write_resident`]
//! and [`Compiled::write_region`] then make the bytes of one weight at a time, strip by strip.

mod error;
mod payload;
mod plan;

use estream_schemas::layout::{Layout, NibbleOrder};
use estream_schemas::manifest::{LedgerEntry, Model, Projection, RecipeUsed};
use estream_schemas::program::Program;

use crate::ingest::{Checkpoint, Notice};
use crate::lower::View;
pub use error::CompileError;
pub use payload::Sink;

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Options {
    /// A built-in recipe's name or `auto`, unless `recipe_text` is given.
    pub recipe: String,
    /// The text of a recipe file called `recipe`.
    pub recipe_text: Option<String>,
    /// Order of nibbles in tiles.
    pub order: NibbleOrder,
    /// Records an expert is cut into along its feed-forward width.
    pub shards: u64,
    /// Whether rows may be padded to a multiple of 32 elements.
    pub pad_k: bool,
    /// Whether quantised weights may be quantised again.
    pub requantize: bool,
    /// Whether what the user should know is an error.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            recipe: "auto".to_owned(),
            recipe_text: None,
            order: NibbleOrder::Direct,
            shards: 1,
            pad_k: false,
            requantize: false,
            strict: false,
        }
    }
}

/// A model ready to be packed. Holding one proves that every source tensor has a
/// fate and that every weight has a type its source can give and a kernel can read.
#[derive(Debug)]
pub struct Compiled<'a> {
    /// Where the weights are read from.
    pub checkpoint: &'a Checkpoint,
    /// For people.
    pub model: Model,
    /// What a runtime does.
    pub program: Program,
    /// Weights that are always in memory, in the order they are stored.
    pub resident: Vec<Resident>,
    /// Weights that are streamed, by layer.
    pub experts: Vec<Experts>,
    /// The recipe that was used.
    pub recipe: RecipeUsed,
    /// The text of the family's descriptor.
    pub descriptor: String,
    /// What became of every source tensor.
    pub ledger: Vec<LedgerEntry>,
    /// What the user should know and need not act on.
    pub notices: Vec<Notice>,
}

/// A weight that is always in memory.
#[derive(Clone, Debug)]
pub struct Resident {
    /// Name in the bundle.
    pub name: String,
    /// Shape, one or two dimensions.
    pub shape: Vec<u64>,
    /// How it is stored.
    pub layout: Layout,
    view: View,
}

/// The routed experts of a layer, all of one shape class.
#[derive(Clone, Debug)]
pub struct Experts {
    /// The layer.
    pub layer: u64,
    /// Experts.
    pub experts: u64,
    /// Records an expert is cut into.
    pub shards: u64,
    /// Rows of gate and up of one record, columns of its down.
    pub ff: u64,
    /// Columns of gate and up, rows of down.
    pub hidden: u64,
    /// Layouts of gate, up and down.
    pub layouts: [Layout; 3],
    views: [Vec<View>; 3],
}

impl Experts {
    /// Layout, rows and columns of one projection of a record.
    pub fn region(&self, projection: Projection) -> (Layout, u64, u64) {
        let layout = self.layouts[projection as usize];
        match projection {
            Projection::Gate | Projection::Up => (layout, self.ff, self.hidden),
            Projection::Down => (layout, self.hidden, self.ff),
        }
    }
}
