//! A family's keys: the numbers of one checkpoint, whatever dialect states them.

use std::collections::{BTreeMap, BTreeSet};

use estream_schemas::manifest::SourceFormat;
use serde_json::Value;

use super::descriptor::{ConfigRules, DefaultForm, Descriptor, EqualRule, KeySource};
use crate::ingest::Config;
use crate::problem::Problems;

/// The key that says how weights are quantised: looked at by itself, before any other.
pub const QUANTISATION: &str = "quantization_config";

/// The values of a descriptor's keys for one checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    values: BTreeMap<String, Value>,
    /// What the checkpoint calls a key: the name it states it by, or those it could.
    names: BTreeMap<String, String>,
    /// The key of the configuration that states it.
    stated_by: BTreeMap<String, String>,
    /// Why a key that is stated, or has a default, has no value.
    faults: BTreeMap<String, String>,
    /// Layers of the model, once they are known.
    layers: Option<u64>,
}

impl Keys {
    /// Resolves every key of `descriptor` from `config`.
    ///
    /// A key that the configuration does not state takes its default, or stays
    /// unresolved until somebody needs it. Problems go to `problems`.
    pub(crate) fn resolve(
        descriptor: &Descriptor,
        config: &Config,
        problems: &mut Problems,
    ) -> Keys {
        let mut keys = Keys::default();
        let rules = descriptor.rules(config.format);
        for key in &descriptor.key {
            let names = spellings(key, config);
            let stated = rules.places(&names).into_iter().find_map(|place| {
                let value = config.get(&place).filter(|value| !value.is_null())?;
                Some((place, value))
            });
            let name = match &stated {
                Some((name, _)) => format!("config key {name:?}"),
                None if names.is_empty() => format!("key {:?}", key.name),
                None => {
                    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
                    format!("config key {}", names.join(" or "))
                }
            };
            keys.names.insert(key.name.clone(), name);
            if let Some((name, _)) = &stated {
                let name = name.to_string();
                keys.stated_by.insert(key.name.clone(), name);
            }
            let value = match (stated, key.default_in(config.format)) {
                (Some((_, stated)), _) => read(key, config.format, stated).map(Some),
                (None, Some(DefaultForm::Expr(default))) => match default.value(&keys, None) {
                    Ok(value) => Ok(Some(Value::from(value))),
                    Err(error) => Err(format!("has no value: {error}")),
                },
                (None, Some(DefaultForm::Value(default))) => Ok(Some(default.clone())),
                (None, None) => Ok(None),
            };
            match value {
                Ok(Some(value)) => keys.set(&key.name, value),
                Ok(None) => {}
                Err(why) => {
                    let fault = format!("{} {why}", keys.name(&key.name));
                    keys.faults.insert(key.name.clone(), fault.clone());
                    problems.push(fault);
                }
            }
        }
        let unequal = |rule| keys.unequal(rule, &descriptor.family);
        problems.extend(descriptor.equal.iter().filter_map(unequal));
        keys
    }

    /// What is wrong if the keys of `rule` have more than one value.
    fn unequal(&self, rule: &EqualRule, family: &str) -> Option<String> {
        let stated = |key: &String| Some((self.name(key), self.values.get(key)?));
        let values: Vec<_> = rule.keys.iter().filter_map(stated).collect();
        let (_, first) = values.first()?;
        if values.iter().all(|(_, value)| same(first, value)) {
            return None;
        }
        let values: Vec<String> = values
            .iter()
            .map(|(name, value)| format!("{name} is {value}"))
            .collect();
        Some(format!(
            "{}: the {family} descriptor supports them only if they are equal",
            values.join(" and ")
        ))
    }

    /// Keys with these values, for tests of what uses them.
    #[cfg(test)]
    pub(crate) fn of(values: &[(&str, Value)]) -> Keys {
        Keys {
            values: values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            ..Keys::default()
        }
    }

    /// What to call `key` in a message: whoever reads it has the checkpoint, not the descriptor.
    pub(crate) fn name(&self, key: &str) -> String {
        let name = self.names.get(key).cloned();
        name.unwrap_or_else(|| format!("key {key:?}"))
    }

    /// The value of `key`, if it has one.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The key of the configuration that states `key`.
    pub fn stated_by(&self, key: &str) -> Option<&str> {
        self.stated_by.get(key).map(String::as_str)
    }

    /// Whether the checkpoint or a default gives `key` a value.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The value of `key`, if it has one and it is not `value`.
    pub(super) fn other_than(&self, key: &str, value: &Value) -> Option<&Value> {
        let own = self.values.get(key)?;
        (!same(own, value)).then_some(own)
    }

    /// Says how many elements lists have that have one a layer.
    pub(crate) fn set_layers(&mut self, layers: u64) {
        self.layers = Some(layers);
    }

    /// Gives `key` a value.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    fn value(&self, key: &str) -> Result<&Value, String> {
        self.values.get(key).ok_or_else(|| {
            if let Some(fault) = self.faults.get(key) {
                return fault.clone();
            }
            let name = self.name(key);
            format!("{name} is not stated by the checkpoint and has no default")
        })
    }

    /// `key` as a whole number; an integral JSON float counts.
    pub fn integer(&self, key: &str) -> Result<u64, String> {
        let value = self.value(key)?;
        integer(value).ok_or_else(|| format!("{} is {value}, not a whole number", self.name(key)))
    }

    /// `key` as a real number.
    pub fn real(&self, key: &str) -> Result<f64, String> {
        let value = self.value(key)?;
        value
            .as_f64()
            .ok_or_else(|| format!("{} is {value}, not a number", self.name(key)))
    }

    /// `key` as true or false.
    pub fn boolean(&self, key: &str) -> Result<bool, String> {
        let value = self.value(key)?;
        value
            .as_bool()
            .ok_or_else(|| format!("{} is {value}, not true or false", self.name(key)))
    }

    /// `key` as a list of whole numbers.
    pub fn integers(&self, key: &str) -> Result<Vec<u64>, String> {
        let value = self.value(key)?;
        let list = value
            .as_array()
            .map(|list| list.iter().map(integer).collect());
        list.flatten()
            .ok_or_else(|| format!("{} is {value}, not a list of whole numbers", self.name(key)))
    }

    /// `key` for `layer`, as text.
    pub fn text_of(&self, key: &str, layer: u64) -> Result<String, String> {
        self.element(key, layer).map(text)
    }

    /// `key` for `layer`, as a whole number.
    pub fn integer_of(&self, key: &str, layer: u64) -> Result<u64, String> {
        let value = self.element(key, layer)?;
        integer(value).ok_or_else(|| {
            let name = self.name(key);
            format!("{name} is {value} for layer {layer}, not a whole number")
        })
    }

    /// The element of a list for `layer`. What is not a list has one value for all layers.
    fn element(&self, key: &str, layer: u64) -> Result<&Value, String> {
        let value = self.value(key)?;
        let Some(list) = value.as_array() else {
            return Ok(value);
        };
        let (name, count) = (self.name(key), list.len());
        if let Some(layers) = self.layers.filter(|layers| *layers != count as u64) {
            return Err(format!(
                "{name} has {count} elements, and the model has {layers} layers"
            ));
        }
        let element = usize::try_from(layer).ok().and_then(|at| list.get(at));
        element.ok_or_else(|| format!("{name} has no element for layer {layer}"))
    }
}

/// What a value is compared by: a string without its quotes, anything else as JSON.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What `key` makes of the value that a configuration states.
fn read(key: &KeySource, format: SourceFormat, stated: &Value) -> Result<Value, String> {
    let (factor, words) = key.reading(format);
    let mut value = match stated {
        Value::Array(list) if key.nonzero => one_nonzero(list)?,
        value => value,
    }
    .clone();
    if let Some(factor) = factor {
        let number = value.as_f64().map(|number| number * factor);
        value = number
            .and_then(serde_json::Number::from_f64)
            .map(Value::Number)
            .ok_or_else(|| format!("is {value}, not a number to multiply by {factor}"))?;
    }
    match value {
        value if words.is_empty() => Ok(value),
        Value::Array(list) => list.iter().map(|value| word(value, words)).collect(),
        value => word(&value, words),
    }
}

/// The value that all elements of `list` have that are not 0.
fn one_nonzero(list: &[Value]) -> Result<&Value, String> {
    let mut found: Vec<&Value> = Vec::new();
    for value in list {
        if value.as_f64() != Some(0.0) && !found.contains(&value) {
            found.push(value);
        }
    }
    match found[..] {
        [value] => Ok(value),
        [] => Err("is a list without an element that is not 0".to_owned()),
        _ => {
            let values: Vec<String> = found.iter().map(ToString::to_string).collect();
            Err(format!(
                "must be the same in every layer that has it, and is {}",
                values.join(" and ")
            ))
        }
    }
}

fn word(value: &Value, words: &BTreeMap<String, String>) -> Result<Value, String> {
    let word = words.get(&text(value)).or_else(|| words.get("*"));
    word.map(|word| Value::from(word.as_str())).ok_or_else(|| {
        let known: Vec<&str> = words.keys().map(String::as_str).collect();
        format!("is {value}, which is none of {}", known.join(", "))
    })
}

fn integer(value: &Value) -> Option<u64> {
    /// Beyond this a float no longer tells neighbouring integers apart.
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        let exact = (0.0..MAX_EXACT).contains(&float) && float.fract() == 0.0;
        #[expect(clippy::cast_sign_loss, reason = "checked to be within 0 and 2^53")]
        exact.then_some(float as u64)
    })
}

/// The names `key` may have in this configuration, in the order they are tried.
fn spellings(key: &KeySource, config: &Config) -> Vec<String> {
    match config.format {
        SourceFormat::Safetensors => key.hf.iter().cloned().collect(),
        SourceFormat::Gguf => {
            let prefix = config.gguf_architecture().unwrap_or_default();
            key.gguf
                .iter()
                .map(|name| format!("{prefix}.{name}"))
                .collect()
        }
    }
}

/// What the configuration says that the descriptor has no use for: keys that must be
/// neutral and are not (problems), and keys it does not know (surprises).
pub(super) fn audit(descriptor: &Descriptor, config: &Config) -> (Vec<String>, Vec<String>) {
    let rules = descriptor.rules(config.format);
    let places = |key| rules.places(&spellings(key, config));
    let mut known: BTreeSet<String> = descriptor.key.iter().flat_map(places).collect();
    let prefix = config.gguf_architecture().unwrap_or_default();
    let expand = |name: &str| name.replace("{arch}", prefix);
    let mut problems = Vec::new();
    let neutral = rules.neutral.iter().flat_map(|(name, allowed)| {
        let places = rules.places(&[expand(name)]).into_iter();
        places.map(move |place| (place, allowed))
    });
    for (name, allowed) in neutral {
        if let Some(value) = config.get(&name).filter(|value| !value.is_null())
            && !allowed.iter().any(|allowed| same(allowed, value))
        {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            problems.push(format!(
                "config key {name:?} is {value}, which the {} descriptor does not support (it must be absent{})",
                descriptor.family,
                match allowed.is_empty() {
                    true => String::new(),
                    false => format!(" or {}", allowed.join(" or ")),
                }
            ));
        }
        known.insert(name);
    }
    problems.extend(required(rules, config, expand));
    if config.format == SourceFormat::Safetensors {
        known.extend(rules.places(&[QUANTISATION]));
    }
    let ignored: Vec<String> = rules.ignored.iter().map(|name| expand(name)).collect();
    let mut audit = Audit {
        rules,
        is_nested: config.format == SourceFormat::Safetensors,
        known,
        ignored,
        surprises: Vec::new(),
        problems,
    };
    audit.unknown("", &config.values);
    (audit.problems, audit.surprises)
}

/// What is missing beside keys that may not be alone.
fn required(rules: &ConfigRules, config: &Config, expand: impl Fn(&str) -> String) -> Vec<String> {
    let stated = |place: &str| config.get(place).filter(|value| !value.is_null());
    let mut problems = Vec::new();
    for rule in &rules.requires {
        let key = expand(&rule.key);
        for place in rules.places(&[&key]) {
            let root = place.strip_suffix(key.as_str()).unwrap_or_default();
            let needs = rule.needs.iter();
            let needs: Vec<String> = needs
                .map(|name| format!("{root}{}", expand(name)))
                .collect();
            let value = stated(&place)
                .filter(|value| rule.is.as_ref().is_none_or(|wanted| same(wanted, value)));
            if value.is_none() || needs.iter().any(|need| stated(need).is_some()) {
                continue;
            }
            let is = match &rule.is {
                Some(value) => format!("is {value}"),
                None => "is stated".to_owned(),
            };
            let needs: Vec<String> = needs.iter().map(|need| format!("{need:?}")).collect();
            problems.push(format!(
                "config key {place:?} {is}, and needs {} beside it",
                needs.join(" or ")
            ));
        }
    }
    problems
}

/// Equality that does not tell 1 from 1.0.
fn same(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

/// What a descriptor knows of a configuration.
struct Audit<'a> {
    rules: &'a ConfigRules,
    is_nested: bool,
    known: BTreeSet<String>,
    ignored: Vec<String>,
    /// Keys that it does not know.
    surprises: Vec<String>,
    /// Keys that must be objects and are not, and what was found before.
    problems: Vec<String>,
}

impl Audit<'_> {
    /// Looks for keys of object `path`, which ends in a dot, that the descriptor does not know.
    fn unknown(&mut self, path: &str, values: &serde_json::Map<String, Value>) {
        for (name, value) in values {
            let name = format!("{path}{name}");
            let plain = self.rules.without_root(&name);
            let mut ignored = self.ignored.iter();
            let is_ignored = ignored.any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => plain.starts_with(start),
                None => pattern == plain,
            });
            if self.known.contains(&name) || is_ignored {
                continue;
            }
            let inside = format!("{name}.");
            let mut known = self.known.iter();
            // A GGUF key is one name, with nothing inside.
            let is_object = self.is_nested && known.any(|known| known.starts_with(&inside));
            match value {
                Value::Null if is_object => {}
                Value::Object(values) if is_object => self.unknown(&inside, values),
                value if is_object => self.problems.push(format!(
                    "config key {name:?} is {value}, not an object or null"
                )),
                _ => self.surprises.push(name),
            }
        }
    }
}
