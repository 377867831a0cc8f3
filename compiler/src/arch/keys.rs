//! A family's keys: the numbers of one checkpoint, whatever dialect states them.

use std::collections::{BTreeMap, BTreeSet};

use estream_schemas::manifest::SourceFormat;
use serde_json::Value;

use super::descriptor::{Descriptor, KeySource};
use crate::ingest::Config;

/// The values of a descriptor's keys for one checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    values: BTreeMap<String, Value>,
}

impl Keys {
    /// Resolves every key of `descriptor` from `config`.
    ///
    /// A key that the configuration does not state takes its default, or stays
    /// unresolved until somebody needs it. Problems go to `problems`.
    pub fn resolve(descriptor: &Descriptor, config: &Config, problems: &mut Vec<String>) -> Keys {
        let mut keys = Keys::default();
        for key in &descriptor.key {
            let stated = spellings(key, config)
                .into_iter()
                .find_map(|name| config.get(&name).filter(|value| !value.is_null()));
            let value = match (stated, &key.default) {
                (Some(value), _) => Some(value.clone()),
                (None, Some(Value::String(text))) => {
                    match super::Expr::parse(text).and_then(|default| default.value(&keys)) {
                        Ok(value) => Some(Value::from(value)),
                        Err(error) => {
                            problems.push(format!("key {:?} has no value: {error}", key.name));
                            None
                        }
                    }
                }
                (None, Some(default)) => Some(default.clone()),
                (None, None) => None,
            };
            if let Some(value) = value {
                keys.values.insert(key.name.clone(), value);
            }
        }
        keys
    }

    /// Keys with these values, for tests of what uses them.
    #[cfg(test)]
    pub(crate) fn of(values: &[(&str, Value)]) -> Keys {
        Keys {
            values: values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        }
    }

    /// Whether the checkpoint or a default gives `key` a value.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Sets a key that follows from the tensors rather than from the configuration.
    pub fn set(&mut self, key: &str, value: u64) {
        self.values.insert(key.to_owned(), Value::from(value));
    }

    fn value(&self, key: &str) -> Result<&Value, String> {
        self.values.get(key).ok_or_else(|| {
            format!("key {key:?} is not stated by the checkpoint and has no default")
        })
    }

    /// `key` as a whole number; an integral JSON float counts.
    pub fn integer(&self, key: &str) -> Result<u64, String> {
        let value = self.value(key)?;
        integer(value).ok_or_else(|| format!("key {key:?} is {value}, not a whole number"))
    }

    /// `key` as a real number.
    pub fn real(&self, key: &str) -> Result<f64, String> {
        let value = self.value(key)?;
        value
            .as_f64()
            .ok_or_else(|| format!("key {key:?} is {value}, not a number"))
    }

    /// `key` as true or false.
    pub fn boolean(&self, key: &str) -> Result<bool, String> {
        let value = self.value(key)?;
        value
            .as_bool()
            .ok_or_else(|| format!("key {key:?} is {value}, not true or false"))
    }

    /// `key` as a list of whole numbers.
    pub fn integers(&self, key: &str) -> Result<Vec<u64>, String> {
        let value = self.value(key)?;
        let list = value
            .as_array()
            .map(|list| list.iter().map(integer).collect());
        list.flatten()
            .ok_or_else(|| format!("key {key:?} is {value}, not a list of whole numbers"))
    }

    /// Element `layer` of the list `key`, as text.
    pub fn element(&self, key: &str, layer: u64) -> Result<String, String> {
        let value = self.value(key)?;
        let element = usize::try_from(layer)
            .ok()
            .and_then(|layer| value.as_array()?.get(layer));
        match element {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Ok(other.to_string()),
            None => Err(format!("key {key:?} has no element for layer {layer}")),
        }
    }
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
    let mut known: BTreeSet<String> = BTreeSet::new();
    for key in &descriptor.key {
        known.extend(spellings(key, config));
    }
    let prefix = config.gguf_architecture().unwrap_or_default();
    let rules = descriptor.rules(config.format);
    let expand = |name: &str| name.replace("{arch}", prefix);
    let mut problems = Vec::new();
    for (name, allowed) in &rules.neutral {
        let name = expand(name);
        if let Some(value) = config.get(&name).filter(|value| !value.is_null())
            && !allowed.iter().any(|allowed| {
                serde_json::to_value(allowed).is_ok_and(|allowed| same(&allowed, value))
            })
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
    let ignored: Vec<String> = rules.ignored.iter().map(|name| expand(name)).collect();
    let mut surprises = Vec::new();
    unknown("", &config.values, &known, &ignored, &mut surprises);
    (problems, surprises)
}

/// Equality that does not tell 1 from 1.0.
fn same(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}

fn unknown(
    path: &str,
    values: &serde_json::Map<String, Value>,
    known: &BTreeSet<String>,
    ignored: &[String],
    surprises: &mut Vec<String>,
) {
    for (name, value) in values {
        let name = format!("{path}{name}");
        let is_ignored = ignored
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => *pattern == name,
            });
        if known.contains(&name) || is_ignored {
            continue;
        }
        let inside = format!("{name}.");
        match value {
            Value::Object(values) if known.iter().any(|known| known.starts_with(&inside)) => {
                unknown(&inside, values, known, ignored, surprises);
            }
            _ => surprises.push(name),
        }
    }
}
