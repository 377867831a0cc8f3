//! A checkpoint's configuration, whatever dialect it is written in.

use estream_schemas::manifest::SourceFormat;
use serde_json::{Map, Value};

/// Key-value pairs of `config.json`, or of a GGUF header.
///
/// GGUF scalars and short arrays of scalars are here under their full name
/// (`olmoe.expert_count`); long arrays and tokenizer tables are not.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which dialect the keys are in.
    pub format: SourceFormat,
    /// The pairs; nested for `config.json`, flat for GGUF.
    pub values: Map<String, Value>,
}

impl Config {
    /// The value at `key`. In `config.json` a dot enters a nested object
    /// (`rope_parameters.rope_theta`); a GGUF key is one flat name.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self.format {
            SourceFormat::Gguf => self.values.get(key),
            SourceFormat::Safetensors => {
                let mut parts = key.split('.');
                let first = self.values.get(parts.next()?)?;
                parts.try_fold(first, |value, part| value.get(part))
            }
        }
    }

    /// `general.architecture` of a GGUF source.
    pub fn gguf_architecture(&self) -> Option<&str> {
        self.values.get("general.architecture")?.as_str()
    }
}
