//! From GGUF files to a [`Checkpoint`].

use std::path::{Path, PathBuf};

use estream_schemas::manifest::SourceFormat;
use serde_json::{Map, Number, Value as Json};

use super::error::{GgufError, GgufFault};
use super::header::Gguf;
use super::value::Value;
use super::{MAX_HEADER_BYTES, MAX_TENSORS, split};
use crate::ingest::{
    Carried, CarriedContent, Checkpoint, Config, Notice, SourceTensor, WeightFile,
};

/// The name under which the pairs travel in a bundle.
const METADATA_NAME: &str = "source-metadata.gguf";
/// Elements of an array that is configuration and not a table: one a layer, at most.
const MAX_CONFIG_ARRAY: u64 = estream_schemas::limits::MAX_LAYERS;
/// Bytes of a string that is configuration and not a document.
const MAX_CONFIG_STRING_BYTES: usize = 4 << 10;
/// Elements of all arrays of a configuration.
const MAX_CONFIG_ELEMENTS: u64 = 1 << 16;

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
        self.tensors.reserve_exact(gguf.tensors().len());
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
            notices: self.notices.into_iter().map(Notice::from).collect(),
        })
    }
}

/// The pairs that are configuration, as JSON.
fn config_values(gguf: &Gguf, notices: &mut Vec<String>) -> Map<String, Json> {
    let mut values = Map::new();
    let mut elements_left = MAX_CONFIG_ELEMENTS;
    for (key, value) in gguf.pairs() {
        let json = match value {
            Value::Array(array) => {
                if key.starts_with("tokenizer.") || array.count() > MAX_CONFIG_ARRAY {
                    continue;
                }
                let Some(left) = elements_left.checked_sub(array.count()) else {
                    notices.push(format!(
                        "{key:?} is left out of the configuration: its arrays have more than {MAX_CONFIG_ELEMENTS} elements"
                    ));
                    continue;
                };
                elements_left = left;
                array
                    .iter()
                    .map(|element| scalar(&element))
                    .collect::<Option<Vec<Json>>>()
                    .map(Json::Array)
            }
            Value::String(bytes) if bytes.len() > MAX_CONFIG_STRING_BYTES => continue,
            other => scalar(&other),
        };
        match json {
            Some(json) => {
                values.insert(key.to_owned(), json);
            }
            None => notices.push(format!(
                "{key:?} is left out of the configuration: it holds a number that is not finite or text that is not UTF-8"
            )),
        }
    }
    values
}

/// A scalar as JSON, exactly; `None` if JSON has no such value.
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
        Value::F32(v) => Json::Number(Number::from_f64(v.into())?),
        Value::F64(v) => Json::Number(Number::from_f64(v)?),
        Value::Bool(v) => v.into(),
        Value::String(_) => value.as_str()?.into(),
        Value::Array(_) => return None,
    })
}
