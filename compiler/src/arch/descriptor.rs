//! A family descriptor as it stands in its TOML file.
//!
//! `docs/descriptors.md` describes the form for those who write one.

use std::collections::BTreeMap;

use estream_schemas::manifest::SourceFormat;
use estream_schemas::program::{NormWidth, RopePairing, ScoreWhen, Scoring};
use serde::Deserialize;
use serde_json::Value;

use super::{Expr, Predicate};

/// One family.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// Name of the family, as it appears in a manifest.
    pub family: String,
    /// One line for people.
    pub about: String,
    /// How a checkpoint of the family is recognised.
    #[serde(rename = "match")]
    pub matches: Match,
    /// The numbers that shape the model, in an order in which defaults can use earlier ones.
    pub key: Vec<KeySource>,
    /// Keys of `config.json` that are not numbers of the model.
    #[serde(default)]
    pub hf: ConfigRules,
    /// The same for GGUF, whose names are whole, with `{arch}` for the architecture.
    #[serde(default)]
    pub gguf: ConfigRules,
    /// Weights by role, in the order they are stored.
    pub tensor: Vec<TensorRole>,
    /// Tensors that a checkpoint may hold and nobody needs.
    #[serde(default)]
    pub drop: Vec<DropRule>,
    /// What a runtime does with the weights.
    pub program: ProgramForm,
}

impl Descriptor {
    /// The rules for configurations of `format`.
    pub fn rules(&self, format: SourceFormat) -> &ConfigRules {
        match format {
            SourceFormat::Safetensors => &self.hf,
            SourceFormat::Gguf => &self.gguf,
        }
    }
}

/// How a checkpoint of a family is recognised.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// `model_type` in `config.json`.
    pub hf: Vec<String>,
    /// `general.architecture` in GGUF.
    pub gguf: Vec<String>,
    /// A GGUF key (after the architecture) that must be greater than 0, where
    /// families share an architecture.
    #[serde(default)]
    pub gguf_requires: Option<String>,
}

/// Where a key's value is found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySource {
    /// Name in this descriptor.
    pub name: String,
    /// Names in `config.json`; a dot enters an object. The first that is stated counts.
    #[serde(default)]
    pub hf: OneOrMany,
    /// Names in GGUF, after the architecture.
    #[serde(default)]
    pub gguf: OneOrMany,
    /// A value, or an expression of earlier keys, where the checkpoint states none.
    #[serde(default)]
    pub default: Option<Value>,
    /// A role whose tensor has as many rows as this key says, where nothing states it.
    #[serde(default)]
    pub rows_of: Option<String>,
}

/// A string, or a list of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "OneOrManyForm")]
pub struct OneOrMany(Vec<String>);

impl OneOrMany {
    /// The strings.
    pub fn iter(&self) -> std::slice::Iter<'_, String> {
        self.0.iter()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrManyForm {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrManyForm> for OneOrMany {
    fn from(form: OneOrManyForm) -> OneOrMany {
        match form {
            OneOrManyForm::One(one) => OneOrMany(vec![one]),
            OneOrManyForm::Many(many) => OneOrMany(many),
        }
    }
}

/// Configuration keys that are not numbers of the model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigRules {
    /// Keys that must be absent, null, or one of these values.
    #[serde(default)]
    pub neutral: BTreeMap<String, Vec<Value>>,
    /// Keys that say nothing about the program; `prefix*` names many.
    #[serde(default)]
    pub ignored: Vec<String>,
}

/// How many tensors a role has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// One.
    Model,
    /// One a layer.
    Layer,
    /// One an expert of a layer: routed experts, which are streamed.
    Expert,
}

/// A role: one kind of weight.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRole {
    /// Its name in the program and the bundle.
    pub role: String,
    /// How many there are.
    pub per: Per,
    /// Layers that have it.
    #[serde(default = "every_layer")]
    pub when: Predicate,
    /// Canonical shape: `[n]`, or `[out, in]`.
    pub shape: Vec<Expr>,
    /// Encodings in safetensors, in the order they are tried.
    #[serde(default)]
    pub hf: Vec<Encoding>,
    /// Encodings in GGUF.
    #[serde(default)]
    pub gguf: Vec<Encoding>,
    /// A role whose tensor serves for this one where the checkpoint ties them.
    #[serde(default)]
    pub tied_to: Option<String>,
}

fn every_layer() -> Predicate {
    Predicate::All
}

impl TensorRole {
    /// The encodings in `format`.
    pub fn encodings(&self, format: SourceFormat) -> &[Encoding] {
        match format {
            SourceFormat::Safetensors => &self.hf,
            SourceFormat::Gguf => &self.gguf,
        }
    }
}

/// How a source stores a role.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "EncodingForm")]
pub struct Encoding {
    /// Name of the source tensor, with `{layer}` and `{expert}`. An expert role whose
    /// name lacks `{expert}` is stacked: experts are the slowest dimension.
    pub name: String,
    /// Shape of one stored matrix, without the experts' dimension, where it is
    /// not the role's own.
    pub stored: Option<Vec<Expr>>,
    /// First row of the role in the stored matrix.
    pub first_row: Option<Expr>,
    /// Distance between its rows in the stored matrix.
    pub row_step: Option<Expr>,
    /// Whether the stored matrix is `[in, out]`.
    pub transposed: bool,
    /// Heads whose rows are stored as adjacent rope pairs: stored row 2i of a head is
    /// row i, and 2i + 1 is i + d/2.
    pub rope_pairs_of_heads: Option<Expr>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EncodingForm {
    Name(String),
    Full(FullEncoding),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FullEncoding {
    name: String,
    stored: Option<Vec<Expr>>,
    first_row: Option<Expr>,
    row_step: Option<Expr>,
    #[serde(default)]
    transposed: bool,
    rope_pairs_of_heads: Option<Expr>,
}

impl From<EncodingForm> for Encoding {
    fn from(form: EncodingForm) -> Encoding {
        let full = match form {
            EncodingForm::Full(full) => full,
            EncodingForm::Name(name) => FullEncoding {
                name,
                stored: None,
                first_row: None,
                row_step: None,
                transposed: false,
                rope_pairs_of_heads: None,
            },
        };
        Encoding {
            name: full.name,
            stored: full.stored,
            first_row: full.first_row,
            row_step: full.row_step,
            transposed: full.transposed,
            rope_pairs_of_heads: full.rope_pairs_of_heads,
        }
    }
}

/// A tensor that is not needed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropRule {
    /// Its name, with `{layer}` for any layer.
    pub name: String,
    /// Why it is not needed, for the ledger.
    pub reason: String,
}

/// The program of a family.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramForm {
    /// Vocabulary size.
    pub vocab: Expr,
    /// Positions the model was made for.
    pub context: Expr,
    /// Layers.
    pub layers: Expr,
    /// Routed experts of a layer.
    pub experts: Expr,
    /// Widths of registers.
    pub registers: BTreeMap<String, Expr>,
    /// Operators before the first layer.
    pub prologue: Vec<OpForm>,
    /// Blocks of a layer in order. Of the blocks with one name, a layer has the
    /// first whose predicate holds.
    pub block: Vec<Block>,
    /// Operators after the last layer.
    pub epilogue: Vec<OpForm>,
}

/// Operators that some layers have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// What the block does in a layer (`mixer`, `ffn`).
    pub name: String,
    /// Layers that have it.
    #[serde(default = "every_layer")]
    pub when: Predicate,
    /// Its operators.
    pub ops: Vec<OpForm>,
}

/// A real operand.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum RealForm {
    /// Itself.
    Number(f64),
    /// The value of a key.
    Key(String),
    /// `expression ^ −½`.
    Rsqrt {
        /// The expression.
        rsqrt: Expr,
    },
}

/// The divisor of a router's weights.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum RenormaliseForm {
    /// `none` or `sum`.
    Fixed(FixedRenormalise),
    /// The sum plus a constant.
    SumPlus {
        /// The constant.
        sum_plus: f64,
    },
    /// As a key says.
    Chosen {
        /// A key that is true or false.
        key: String,
        /// If it is true.
        yes: Box<RenormaliseForm>,
        /// If it is false.
        no: Box<RenormaliseForm>,
    },
}

/// A divisor without a parameter.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixedRenormalise {
    /// Nothing.
    None,
    /// The sum.
    Sum,
}

/// An operator of [`estream_schemas::program`], its tensors named by role.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "the operands are those of estream_schemas::program::Op"
)]
pub enum OpForm {
    Embed {
        out: String,
        weight: String,
        scale: Option<RealForm>,
    },
    RmsNorm {
        input: String,
        out: String,
        weight: String,
        eps: RealForm,
    },
    Linear {
        input: String,
        out: String,
        weight: String,
        bias: Option<String>,
    },
    QkNorm {
        register: String,
        weight: String,
        eps: RealForm,
        heads: Expr,
        over: NormWidth,
    },
    Rope {
        register: String,
        heads: Expr,
        dims: Expr,
        theta: RealForm,
        pairing: RopePairing,
    },
    Attention {
        q: String,
        k: String,
        v: String,
        out: String,
        heads: Expr,
        kv_heads: Expr,
        scale: RealForm,
    },
    Router {
        input: String,
        weight: String,
        selection_bias: Option<String>,
        scoring: Scoring,
        score: ScoreWhen,
        top_k: Expr,
        renormalise: RenormaliseForm,
        scale: Option<RealForm>,
    },
    Experts {
        input: String,
        out: String,
    },
    Add {
        input: String,
        out: String,
        scale: Option<RealForm>,
    },
    LmHead {
        input: String,
        weight: String,
        scale: Option<RealForm>,
    },
}
