//! A family descriptor as it stands in its TOML file.
//!
//! `docs/descriptors.md` describes the form for those who write one.

use std::collections::BTreeMap;

use estream_schemas::manifest::SourceFormat;
use serde::Deserialize;
use serde_json::Value;

use super::{Expr, ExprError, OpForm, Predicate, UnpackForm};

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
    /// Keys that must have one value.
    #[serde(default)]
    pub equal: Vec<EqualRule>,
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
    /// What a GGUF file says that is made from a bundle of another origin.
    #[serde(default)]
    pub unpack: Option<UnpackForm>,
}

impl Descriptor {
    /// The rules for configurations of `format`.
    pub fn rules(&self, format: SourceFormat) -> &ConfigRules {
        match format {
            SourceFormat::Safetensors => &self.hf,
            SourceFormat::Gguf => &self.gguf,
        }
    }

    /// The role called `name`.
    pub fn role(&self, name: &str) -> Option<&TensorRole> {
        self.tensor.iter().find(|role| role.role == name)
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
    /// Whether a stated list is read as the one value its elements have that are not 0.
    #[serde(default)]
    pub nonzero: bool,
    /// What to multiply a number of `config.json` by.
    #[serde(default)]
    pub hf_times: Option<f64>,
    /// What to multiply a number of GGUF by.
    #[serde(default)]
    pub gguf_times: Option<f64>,
    /// What a stated value, or each element of a list, is called here.
    #[serde(default)]
    pub words: Words,
    /// Its value where the checkpoint states none.
    #[serde(default)]
    pub default: Option<DefaultForm>,
    /// The same for safetensors only; goes before `default`.
    #[serde(default)]
    pub hf_default: Option<DefaultForm>,
    /// The same for GGUF only; goes before `default`.
    #[serde(default)]
    pub gguf_default: Option<DefaultForm>,
    /// A role whose tensor has as many rows as this key says: where nothing states it, or,
    /// if each layer has such a tensor, where what is stated is not so.
    #[serde(default)]
    pub rows_of: Option<String>,
}

impl KeySource {
    /// What to multiply a stated number by, and the words for stated values, in `format`.
    pub fn reading(&self, format: SourceFormat) -> (Option<f64>, &BTreeMap<String, String>) {
        match format {
            SourceFormat::Safetensors => (self.hf_times, &self.words.hf),
            SourceFormat::Gguf => (self.gguf_times, &self.words.gguf),
        }
    }

    /// The default for `format`.
    pub fn default_in(&self, format: SourceFormat) -> Option<&DefaultForm> {
        let own = match format {
            SourceFormat::Safetensors => &self.hf_default,
            SourceFormat::Gguf => &self.gguf_default,
        };
        own.as_ref().or(self.default.as_ref())
    }
}

/// Keys that a family could tell apart and its program does not.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EqualRule {
    /// Their names in this descriptor. Those without a value do not count.
    pub keys: Vec<String>,
}

/// One vocabulary for values that dialects spell differently; `*` is any other value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    /// From values of `config.json`.
    #[serde(default)]
    pub hf: BTreeMap<String, String>,
    /// From values of GGUF.
    #[serde(default)]
    pub gguf: BTreeMap<String, String>,
}

/// A default.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub enum DefaultForm {
    /// A string: an expression of earlier keys.
    Expr(Expr),
    /// Anything else, and a word: a string in single quotes.
    Value(Value),
}

impl TryFrom<Value> for DefaultForm {
    type Error = ExprError;

    fn try_from(value: Value) -> Result<DefaultForm, ExprError> {
        let Value::String(text) = &value else {
            return Ok(DefaultForm::Value(value));
        };
        let inside = text.strip_prefix('\'');
        match inside.and_then(|text| text.strip_suffix('\'')) {
            Some(word) => Ok(DefaultForm::Value(word.into())),
            None => Expr::parse(text).map(DefaultForm::Expr),
        }
    }
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

/// What one dialect has beside the numbers of the model.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigRules {
    /// Objects of `config.json` in which keys are looked up first, for a model that is
    /// one part of another.
    #[serde(default)]
    pub root: Vec<String>,
    /// Beginnings of tensor names, and what the descriptor has instead. The first
    /// that fits a name is used, and no other.
    #[serde(default)]
    pub rename: Vec<PrefixRule>,
    /// What follows the name of a tensor of FP8 elements in the name of its scales.
    #[serde(default)]
    pub scales: Vec<String>,
    /// Keys that must be absent, null, or one of these values.
    #[serde(default)]
    pub neutral: BTreeMap<String, Vec<Value>>,
    /// Keys that say nothing about the program; `prefix*` names many.
    #[serde(default)]
    pub ignored: Vec<String>,
    /// Keys that mean something only beside others.
    #[serde(default)]
    pub requires: Vec<RequireRule>,
}

impl ConfigRules {
    /// Where a key with these `names` is looked up, in this order.
    pub fn places(&self, names: &[impl AsRef<str>]) -> Vec<String> {
        let roots = self.root.iter().map(|root| format!("{root}."));
        let roots = roots.chain([String::new()]);
        let places = roots.flat_map(|root| {
            let place = move |name: &_| format!("{root}{}", AsRef::<str>::as_ref(name));
            names.iter().map(place)
        });
        places.collect()
    }

    /// `place` without the root it is in.
    pub fn without_root<'a>(&self, place: &'a str) -> &'a str {
        let mut roots = self.root.iter();
        let name = roots.find_map(|root| place.strip_prefix(root)?.strip_prefix('.'));
        name.unwrap_or(place)
    }
}

/// A key that may not be alone.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequireRule {
    /// Where this is stated, and not null,
    pub key: String,
    /// and has this value, if there is one here,
    #[serde(default)]
    pub is: Option<Value>,
    /// one of these must be stated.
    pub needs: OneOrMany,
}

/// A beginning of tensor names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixRule {
    /// In the source.
    pub from: String,
    /// In the descriptor.
    pub to: String,
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
    /// Whether it may be missing: operands that can be left out then are.
    #[serde(default)]
    pub optional: bool,
    /// Canonical shape: `[n]`, or `[out, in]`.
    pub shape: Vec<Expr>,
    /// Encodings in safetensors, in the order they are tried.
    #[serde(default, deserialize_with = "encodings")]
    pub hf: Vec<Encoding>,
    /// Encodings in GGUF.
    #[serde(default, deserialize_with = "encodings")]
    pub gguf: Vec<Encoding>,
    /// A role whose tensor serves for this one where the checkpoint ties them.
    #[serde(default)]
    pub tied_to: Option<String>,
    /// The key that says whether it does, true or false. Where it has no value,
    /// the checkpoint ties them by having one tensor for both.
    #[serde(default)]
    pub tied_if: Option<String>,
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
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Encoding {
    /// Name of the source tensor, with `{layer}` and `{expert}`. An expert role whose
    /// name lacks `{expert}` is stacked: experts are the slowest dimension.
    pub name: String,
    /// Shape of one stored matrix, without the experts' dimension, where it is not the
    /// role's own. All dimensions but the last are rows.
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

impl Encoding {
    /// Its name for one layer and expert.
    pub fn spelled(&self, layer: u64, expert: u64) -> String {
        let name = self.name.replace("{layer}", &layer.to_string());
        name.replace("{expert}", &expert.to_string())
    }

    /// Whether it holds all experts of a layer.
    pub fn is_stacked(&self) -> bool {
        !self.name.contains("{expert}")
    }

    /// The expressions in it.
    pub fn sizes(&self) -> impl Iterator<Item = &Expr> {
        let stored = self.stored.iter().flatten();
        stored
            .chain(&self.first_row)
            .chain(&self.row_step)
            .chain(&self.rope_pairs_of_heads)
    }
}

/// Reads encodings, of which one that needs no more is just its name.
fn encodings<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<Encoding>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Name(String),
        Full(Encoding),
    }

    let forms = Vec::<Form>::deserialize(d)?;
    let encodings = forms.into_iter().map(|form| match form {
        Form::Full(encoding) => encoding,
        Form::Name(name) => Encoding {
            name,
            ..Encoding::default()
        },
    });
    Ok(encodings.collect())
}

/// A tensor that is not needed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropRule {
    /// Its name, with `{layer}` for any layer and `*` for any run of characters.
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

fn every_layer() -> Predicate {
    Predicate::All
}
