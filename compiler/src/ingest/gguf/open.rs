//! From GGUF files to a [`Checkpoint`].

use std::path::{Path, PathBuf};

use estream_schemas::manifest::SourceFormat;
use serde_json::{Map, Number, Value as Json};

use super::error::{GgufError, GgufFault};
use super::header::Gguf;
use super::value::Value;
use super::{MAX_HEADER_BYTES, MAX_TENSORS, split};
use crate::ingest::{Carried, CarriedContent, Checkpoint, Config, SourceTensor, WeightFile};

/// The name under which the pairs travel in a bundle.
const METADATA_NAME: &str = "source-metadata.gguf";
/// Elements of an array that is configuration and not a table: one a layer, at most.
const MAX_CONFIG_ARRAY: u64 = estream_schemas::limits::MAX_LAYERS;
/// Bytes of a string that is configuration and not a document.
const MAX_CONFIG_STRING_BYTES: usize = 4 << 10;
/// Bytes in memory of all strings and arrays of a configuration.
const MAX_CONFIG_BYTES: usize = 4 << 20;

/// Opens the GGUF file at `path`, or the split set it is a part of.
///
/// [`Checkpoint::config`] has the scalars, the strings up to 4 KiB and the arrays of
/// up to 1,024 elements, except those of the tokenizer; [`Checkpoint::metadata`] has all.
pub fn open(path: &Path) -> Result<Checkpoint, GgufError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |fault| GgufError { path, fault }
    };
    let mut set = Set::default();
    let (gguf, file, bytes) = Gguf::open_within(path, MAX_HEADER_BYTES)?;
    match split::parts(path, &gguf).map_err(at(path))? {
        None => {
            let file = weight_file(path, file, bytes);
            if split::is_part_name(&file.name) {
                set.notices.push(format!(
                    "{:?} is named like one part of several, but holds no split.count: read as a whole",
                    file.name
                ));
            }
            set.add(gguf, file).map_err(at(path))?;
        }
        Some(paths) => {
            // Read again in its turn: the pairs come from the first part.
            drop(gguf);
            for (part, index) in paths.iter().zip(0..) {
                let (gguf, file, bytes) = Gguf::open_within(part, set.header_bytes_left())?;
                split::check_part(&gguf, index, paths.len() as u64).map_err(at(part))?;
                set.add(gguf, weight_file(part, file, bytes))
                    .map_err(at(part))?;
            }
        }
    }
    set.finish(path.to_owned()).map_err(at(path))
}

fn weight_file(path: &Path, file: std::fs::File, bytes: u64) -> WeightFile {
    WeightFile {
        name: path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        path: path.to_owned(),
        bytes,
        file,
    }
}

/// What the parts read so far amount to.
#[derive(Default)]
struct Set {
    files: Vec<WeightFile>,
    tensors: Vec<SourceTensor>,
    header_bytes: usize,
    /// What the first part says, but for its tensors.
    first: Option<First>,
    notices: Vec<String>,
}

struct First {
    values: Map<String, Json>,
    license: Option<String>,
    tensor_count: Option<u64>,
    metadata: Vec<u8>,
}

impl Set {
    /// All headers of a set share one limit, since what is kept of them adds up.
    fn header_bytes_left(&self) -> usize {
        MAX_HEADER_BYTES.saturating_sub(self.header_bytes)
    }

    fn add(&mut self, gguf: Gguf, file: WeightFile) -> Result<(), GgufFault> {
        self.header_bytes += gguf.header_bytes();
        let count = (self.tensors.len() + gguf.tensors().len()) as u64;
        if count > MAX_TENSORS {
            return Err(GgufFault::TooMany {
                what: "tensors",
                count,
                max: MAX_TENSORS,
            });
        }
        let index = self.files.len();
        self.files.push(file);
        self.tensors
            .extend(gguf.tensors().map(|tensor| SourceTensor {
                name: tensor.name.to_owned(),
                dtype: tensor.dtype,
                shape: tensor.dims.iter().rev().copied().collect(),
                file: index,
                offset: gguf.data_start() + tensor.offset,
                bytes: tensor.bytes,
            }));
        if self.first.is_none() {
            self.first = Some(First {
                values: config_values(&gguf, &mut self.notices),
                license: gguf
                    .kv("general.license")
                    .and_then(|value| value.as_str())
                    .map(str::to_owned),
                tensor_count: split::tensor_count(&gguf)?,
                metadata: gguf.into_metadata(),
            });
        }
        Ok(())
    }

    fn finish(mut self, path: PathBuf) -> Result<Checkpoint, GgufFault> {
        self.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = self
            .tensors
            .windows(2)
            .find(|pair| pair[0].name == pair[1].name)
        {
            return Err(GgufFault::DuplicateTensor(pair[0].name.clone()));
        }
        let first = self.first.unwrap_or_else(|| First {
            values: Map::new(),
            license: None,
            tensor_count: None,
            metadata: Vec::new(),
        });
        let found = self.tensors.len() as u64;
        if self.files.len() > 1
            && let Some(expected) = first.tensor_count
            && expected != found
        {
            return Err(split::wrong_tensor_count(found, expected));
        }
        Ok(Checkpoint {
            format: SourceFormat::Gguf,
            path,
            files: self.files,
            tensors: self.tensors,
            config: Config {
                format: SourceFormat::Gguf,
                values: first.values,
            },
            tokenizer: Vec::new(),
            license_files: Vec::new(),
            license: first.license,
            metadata: Some(Carried {
                name: METADATA_NAME.to_owned(),
                content: CarriedContent::Bytes(first.metadata),
            }),
            notices: self.notices.into_iter().map(Into::into).collect(),
        })
    }
}

/// The pairs that are configuration, as JSON.
pub(in crate::ingest) fn config_values(
    gguf: &Gguf,
    notices: &mut Vec<String>,
) -> Map<String, Json> {
    let mut values = Map::new();
    let mut bytes_left = MAX_CONFIG_BYTES;
    let mut inexpressible = Vec::new();
    let mut beyond = Vec::new();
    for (key, value) in gguf.pairs() {
        let cost = match value {
            Value::Array(array)
                if key.starts_with("tokenizer.") || array.count() > MAX_CONFIG_ARRAY =>
            {
                continue;
            }
            Value::String(bytes) if bytes.len() > MAX_CONFIG_STRING_BYTES => continue,
            Value::Array(array) => array
                .iter()
                .map(|element| size_of::<Json>() + text_bytes(&element))
                .sum(),
            scalar => text_bytes(&scalar),
        };
        let Some(left) = bytes_left.checked_sub(cost) else {
            beyond.push(key);
            continue;
        };
        match json(&value) {
            Some(json) => {
                bytes_left = left;
                values.insert(key.to_owned(), json);
            }
            None => inexpressible.push(key),
        }
    }
    let reasons = [
        (inexpressible, "a list in a list"),
        (beyond, "more text and arrays than a configuration has"),
    ];
    for (keys, reason) in reasons {
        // One notice a reason: a hostile file has many keys.
        if let Some(first) = keys.first() {
            let count = keys.len();
            notices.push(format!(
                "{count} pairs, the first of them {first:?}, are left out of the configuration: {reason}"
            ));
        }
    }
    values
}

fn text_bytes(value: &Value<'_>) -> usize {
    match value {
        Value::String(bytes) => bytes.len(),
        _ => 0,
    }
}

/// A scalar or an array of scalars as JSON.
fn json(value: &Value<'_>) -> Option<Json> {
    match value {
        Value::Array(array) => array.iter().map(|element| scalar(&element)).collect(),
        other => scalar(other),
    }
}

/// A scalar as JSON; `None` for a list in a list. What JSON has no value for, a number that is not
/// finite or text that is not UTF-8, is text that nothing takes for a value: left out, it would
/// count as not stated.
fn scalar(value: &Value<'_>) -> Option<Json> {
    Some(match *value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => v.into(),
        Value::I64(v) => v.into(),
        Value::F32(v) => real(v.into()),
        Value::F64(v) => real(v),
        Value::Bool(v) => v.into(),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Array(_) => return None,
    })
}

fn real(value: f64) -> Json {
    match Number::from_f64(value) {
        Some(number) => Json::Number(number),
        None => value.to_string().into(),
    }
}
