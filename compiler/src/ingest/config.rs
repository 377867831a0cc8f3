//! A checkpoint's configuration, whatever dialect it is written in.

use std::io;
use std::path::Path;

use estream_schemas::manifest::SourceFormat;
use serde_json::{Map, Value};

use super::gguf::{self, Gguf};
use super::{IngestError, json, source};

/// The largest `config.json` that is read.
pub const MAX_CONFIG_BYTES: u64 = 4 << 20;

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
    /// Reads the `config.json` of directory `dir`: one object, without a key that
    /// appears twice anywhere in it.
    pub(super) fn read_json(dir: &Path) -> Result<Config, IngestError> {
        let path = dir.join("config.json");
        match source::stat(&path) {
            Err(IngestError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(IngestError::MissingConfig {
                    path: dir.to_owned(),
                })
            }
            _ => Ok(Config {
                format: SourceFormat::Safetensors,
                values: json::read_object(&path, "config.json", MAX_CONFIG_BYTES)?,
            }),
        }
    }

    /// The configuration that a bundle carries of its source: `config.json`, or a GGUF
    /// file without tensors.
    pub fn carried(path: &Path, format: SourceFormat) -> Result<Config, IngestError> {
        let values = match format {
            SourceFormat::Safetensors => {
                json::read_object(path, "a configuration", MAX_CONFIG_BYTES)?
            }
            SourceFormat::Gguf => gguf::config_values(&Gguf::open(path)?, &mut Vec::new()),
        };
        Ok(Config { format, values })
    }

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
