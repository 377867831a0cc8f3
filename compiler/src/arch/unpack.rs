//! What a GGUF file of the family says, for a bundle that did not come from one.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::descriptor::DefaultForm;
use super::{Expr, Keys};

/// The key-value pairs of a GGUF file of the family.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnpackForm {
    /// Which of llama.cpp's tokenizers the family has.
    pub tokenizer: TokenizerForm,
    /// Its name for how that one takes text apart (`tokenizer.ggml.pre`). Without it
    /// the file has no vocabulary.
    #[serde(default)]
    pub pre: Option<String>,
    /// Pairs by key, after the architecture.
    pub keys: BTreeMap<String, PairForm>,
    /// Keys that llama.cpp asks nobody about, and what it takes them to be.
    #[serde(default)]
    pub assumes: BTreeMap<String, Value>,
}

impl UnpackForm {
    /// The pairs of a model of `layers` layers, by whole name; else everything that GGUF
    /// cannot say of it.
    pub(super) fn pairs(
        &self,
        architecture: &str,
        keys: &Keys,
        layers: u64,
    ) -> Result<Vec<(String, PairValue)>, Vec<String>> {
        let mut pairs = Vec::new();
        let mut problems = Vec::new();
        for (key, assumed) in &self.assumes {
            if let Some(stated) = keys.other_than(key, assumed) {
                let name = keys.name(key);
                problems.push(format!(
                    "{name} is {stated}, and llama.cpp takes it to be {assumed}"
                ));
            }
        }
        for (name, form) in &self.keys {
            let name = format!("{architecture}.{name}");
            match form.value(keys, layers) {
                Ok(value) => pairs.extend(value.map(|value| (name, value))),
                Err(why) => problems.push(format!("{name}: {why}")),
            }
        }
        match problems.is_empty() {
            true => Ok(pairs),
            false => Err(problems),
        }
    }
}

/// A tokenizer of llama.cpp, by its own name (`tokenizer.ggml.model`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerForm {
    /// Byte-level BPE, from `tokenizer.json`.
    Gpt2,
    /// SentencePiece, from `tokenizer.model`.
    Llama,
}

/// What a GGUF file says of one model.
#[derive(Clone, Debug)]
pub struct GgufPairs<'a> {
    /// The family's table.
    pub form: &'a UnpackForm,
    /// `general.architecture`.
    pub architecture: &'a str,
    /// Its pairs, by whole name.
    pub pairs: Vec<(String, PairValue)>,
}

/// Where a pair's value is from.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum PairForm {
    /// A real key.
    Real(RealPair),
    /// A list with one whole number a layer.
    Layers(LayersPair),
    /// An expression, or a constant.
    One(DefaultForm),
}

/// `real · times`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealPair {
    /// A key.
    pub real: String,
    /// What to multiply it by.
    #[serde(default)]
    pub times: Option<f64>,
}

/// For each layer, what its word in a list stands for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayersPair {
    /// A key, with a word a layer.
    pub layers: String,
    /// A number for each word.
    pub is: BTreeMap<String, Expr>,
}

/// A pair's value, of the type that llama.cpp reads it as.
#[derive(Clone, Debug, PartialEq)]
pub enum PairValue {
    /// A whole number.
    U32(u32),
    /// A real number.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// A word.
    Text(String),
    /// A whole number a layer.
    I32List(Vec<i32>),
}

impl PairForm {
    /// The keys it names.
    pub fn keys(&self) -> Vec<&str> {
        match self {
            PairForm::Real(pair) => vec![&pair.real],
            PairForm::Layers(pair) => {
                let sizes = pair.is.values().flat_map(Expr::keys);
                sizes.chain([pair.layers.as_str()]).collect()
            }
            PairForm::One(DefaultForm::Expr(expr)) => expr.keys().collect(),
            PairForm::One(DefaultForm::Value(_)) => Vec::new(),
        }
    }

    /// Its value in a model of `layers` layers; none if it names a key without one.
    pub(super) fn value(&self, keys: &Keys, layers: u64) -> Result<Option<PairValue>, String> {
        if !self.keys().into_iter().all(|key| keys.has(key)) {
            return Ok(None);
        }
        let whole = |expr: &Expr, layer| expr.value(keys, layer).map_err(|error| error.to_string());
        let value = match self {
            PairForm::Real(pair) => {
                PairValue::F32(narrow(keys.real(&pair.real)? * pair.times.unwrap_or(1.0))?)
            }
            PairForm::Layers(pair) => {
                let of_layer = |layer| {
                    let word = keys.text_of(&pair.layers, layer)?;
                    let expr = pair.is.get(&word);
                    let expr = expr.ok_or_else(|| format!("layer {layer} is {word:?}"))?;
                    fits(whole(expr, Some(layer))?)
                };
                PairValue::I32List((0..layers).map(of_layer).collect::<Result<_, _>>()?)
            }
            PairForm::One(DefaultForm::Expr(expr)) => PairValue::U32(fits(whole(expr, None)?)?),
            PairForm::One(DefaultForm::Value(value)) => constant(value)?,
        };
        Ok(Some(value))
    }

    /// What is wrong with it, whatever the keys are.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            PairForm::One(DefaultForm::Value(value)) => constant(value).err(),
            _ => None,
        }
    }
}

fn constant(value: &Value) -> Result<PairValue, String> {
    match value {
        Value::Bool(value) => Ok(PairValue::Bool(*value)),
        Value::String(word) => Ok(PairValue::Text(word.clone())),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => fits(whole).map(PairValue::U32),
            (None, Some(real)) => narrow(real).map(PairValue::F32),
            (None, None) => Err(format!("{value} is no number of GGUF")),
        },
        _ => Err(format!(
            "{value} is no value of a pair: it is a constant, an expression, {{ real, times }} or {{ layers, is }}"
        )),
    }
}

fn narrow(real: f64) -> Result<f32, String> {
    let narrow = real as f32;
    match narrow.is_finite() {
        true => Ok(narrow),
        false => Err(format!("{real} is beyond the range of f32")),
    }
}

fn fits<N: TryFrom<u64>>(whole: u64) -> Result<N, String> {
    N::try_from(whole).map_err(|_| format!("{whole} does not fit GGUF's 32 bits"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(form: Value, keys: &[(&str, Value)]) -> Result<Option<PairValue>, String> {
        let form: PairForm = serde_json::from_value(form).unwrap();
        form.value(&Keys::of(keys), 3)
    }

    #[test]
    fn a_pair_has_the_type_its_form_says() {
        let keys = [("n", json!(7)), ("theta", json!(1000)), ("m", json!(0.5))];
        let of = |form| value(form, &keys).unwrap().unwrap();
        assert_eq!(of(json!("n * 2")), PairValue::U32(14));
        assert_eq!(of(json!(1)), PairValue::U32(1));
        assert_eq!(of(json!(1.0)), PairValue::F32(1.0));
        assert_eq!(of(json!(true)), PairValue::Bool(true));
        assert_eq!(of(json!("'yarn'")), PairValue::Text("yarn".into()));
        // A configuration may spell a real number without a point.
        assert_eq!(of(json!({ "real": "theta" })), PairValue::F32(1000.0));
        let tenth = json!({ "real": "m", "times": 0.1 });
        assert_eq!(of(tenth), PairValue::F32(0.05));
    }

    #[test]
    fn a_list_has_a_number_for_the_word_of_each_layer() {
        let form = json!({ "layers": "kinds", "is": { "conv": "0", "attention": "kv" } });
        let kinds = ("kinds", json!(["conv", "attention", "conv"]));
        let keys = [kinds.clone(), ("kv", json!(2))];
        let list = value(form.clone(), &keys).unwrap().unwrap();
        assert_eq!(list, PairValue::I32List(vec![0, 2, 0]));
        // Without one of its keys there is no list, and with an unknown word no answer.
        assert_eq!(value(form.clone(), &[kinds]), Ok(None));
        let odd = [("kinds", json!(["conv", "x", "conv"])), ("kv", json!(2))];
        assert!(value(form, &odd).unwrap_err().contains("\"x\""));
    }

    #[test]
    fn a_model_that_is_not_what_llama_cpp_takes_it_to_be_has_no_pairs() {
        let form = json!({
            "tokenizer": "gpt2", "keys": { "block_count": "n" }, "assumes": { "sum": true, "m": 1 },
        });
        let form: UnpackForm = serde_json::from_value(form).unwrap();
        let pairs = |sum: bool, m: f64| {
            let keys = [("n", json!(3)), ("sum", json!(sum)), ("m", json!(m))];
            form.pairs("a", &Keys::of(&keys), 3)
        };
        let expected = vec![("a.block_count".to_owned(), PairValue::U32(3))];
        assert_eq!(pairs(true, 1.0), Ok(expected));
        assert_eq!(pairs(false, 0.5).unwrap_err().len(), 2);
    }

    #[test]
    fn what_gguf_cannot_hold_is_refused() {
        let keys = [("n", json!(1u64 << 32)), ("x", json!(1e300))];
        assert!(value(json!("n"), &keys).unwrap_err().contains("32 bits"));
        let real = json!({ "real": "x" });
        assert!(value(real, &keys).unwrap_err().contains("range"));
        let list: PairForm = serde_json::from_value(json!([1])).unwrap();
        assert!(list.problem().unwrap().contains("constant"));
    }
}
