//! A toy family, and checkpoints of it on disk.

use std::collections::BTreeMap;
use std::fs;

use estream_compiler::arch::Family;
use estream_compiler::compile::{Compiled, Options};
use estream_compiler::ingest::Checkpoint;
use estream_compiler::layout::untile_strip;
use estream_compiler::lower::{Lowered, lower};
use estream_compiler::quant::decode;
use estream_schemas::dtype::DType;
use estream_schemas::layout::Layout;
use estream_schemas::manifest::Projection;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// The toy's sizes: two roles differ in shape, but a fused gate and up is square.
pub(crate) const HIDDEN: u64 = 64;
pub(crate) const FF: u64 = 32;

/// A descriptor as text that tests change.
#[derive(Clone)]
pub(crate) struct Text(String);

/// The toy family.
pub(crate) fn toy() -> Text {
    Text(include_str!("toy.toml").to_owned())
}

impl Text {
    /// The text with `new` for `old`, which must be there.
    pub(crate) fn with(&self, old: &str, new: &str) -> Text {
        assert!(self.0.contains(old), "{old}");
        Text(self.0.replace(old, new))
    }

    /// The one line that has `part`.
    pub(crate) fn line(&self, part: &str) -> String {
        let mut lines = self.0.lines().filter(|line| line.contains(part));
        lines.next().unwrap().to_owned()
    }

    /// The text with more tables before the program.
    pub(crate) fn and(&self, more: &str) -> Text {
        self.with("[program]\n", &format!("{more}\n[program]\n"))
    }

    pub(crate) fn family(&self) -> Family {
        Family::parse("toy.toml", &self.0).unwrap()
    }

    /// Why it is no descriptor.
    pub(crate) fn error(&self) -> String {
        Family::parse("toy.toml", &self.0).unwrap_err().to_string()
    }
}

/// A tensor to be written.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn f32(shape: &[u64], values: &[f32]) -> Tensor {
        assert_eq!(shape.iter().product::<u64>(), values.len() as u64);
        Tensor {
            dtype: DType::F32,
            shape: shape.to_vec(),
            bytes: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        }
    }

    /// As many values of another type, all bits 0.
    pub(crate) fn zeros(dtype: DType, shape: &[u64]) -> Tensor {
        let bytes = dtype.row_bytes(shape.iter().product()).unwrap();
        Tensor {
            dtype,
            shape: shape.to_vec(),
            bytes: vec![0; usize::try_from(bytes).unwrap()],
        }
    }
}

/// Values that differ from each other and from those of other `first`s.
pub(crate) fn count_from(first: usize, count: u64) -> Vec<f32> {
    (0..usize::try_from(count).unwrap())
        .map(|index| (first + index) as f32)
        .collect()
}

/// A checkpoint before it is written.
#[derive(Clone)]
pub(crate) struct Model {
    /// `config.json`, or GGUF pairs.
    pub(crate) config: Map<String, Value>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

/// A checkpoint on disk.
pub(crate) struct Written {
    pub(crate) checkpoint: Checkpoint,
    _dir: TempDir,
}

impl Model {
    /// A toy in safetensors, all its matrices in f32 and different.
    pub(crate) fn toy(layers: u64, experts: u64) -> Model {
        let config = json!({
            "model_type": "toy", "layers": layers, "hidden": HIDDEN, "ff": FF, "experts": experts
        });
        let Value::Object(config) = config else {
            unreachable!("an object was written");
        };
        let mut model = Model {
            config,
            tensors: BTreeMap::new(),
        };
        let mut first = 0;
        let mut add = |name: &str, rows: u64, cols: u64| {
            let values = count_from(first, rows * cols);
            first += values.len();
            model.put(name, Tensor::f32(&[rows, cols], &values));
        };
        add("embed", 4, HIDDEN);
        for layer in 0..layers {
            add(&format!("{layer}.mix"), HIDDEN, HIDDEN);
            add(&format!("{layer}.router"), experts, HIDDEN);
            for expert in 0..experts {
                add(&format!("{layer}.{expert}.w1"), FF, HIDDEN);
                add(&format!("{layer}.{expert}.w2"), HIDDEN, FF);
                add(&format!("{layer}.{expert}.w3"), FF, HIDDEN);
            }
        }
        add("head", 4, HIDDEN);
        model
    }

    /// A toy in GGUF with one layer and two experts, of zeros in f32.
    pub(crate) fn gguf_toy() -> Model {
        let config = json!({
            "general.architecture": "toy", "toy.block_count": 1, "toy.embedding_length": HIDDEN,
            "toy.feed_forward_length": FF, "toy.expert_count": 2
        });
        let Value::Object(config) = config else {
            unreachable!("an object was written");
        };
        let mut model = Model {
            config,
            tensors: BTreeMap::new(),
        };
        for (name, shape) in [
            ("token_embd.weight", &[4, HIDDEN][..]),
            ("blk.0.mix.weight", &[HIDDEN, HIDDEN]),
            ("blk.0.ffn_gate_inp.weight", &[2, HIDDEN]),
            ("blk.0.ffn_gate_exps.weight", &[2, FF, HIDDEN]),
            ("blk.0.ffn_up_exps.weight", &[2, FF, HIDDEN]),
            ("blk.0.ffn_down_exps.weight", &[2, HIDDEN, FF]),
            ("output.weight", &[4, HIDDEN]),
        ] {
            model.put(name, Tensor::zeros(DType::F32, shape));
        }
        model
    }

    pub(crate) fn put(&mut self, name: &str, tensor: Tensor) {
        self.tensors.insert(name.to_owned(), tensor);
    }

    pub(crate) fn take(&mut self, name: &str) -> Tensor {
        self.tensors.remove(name).unwrap()
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.config.insert(key.to_owned(), value);
    }

    /// Writes it as one safetensors file, or, if it has an architecture, as GGUF.
    pub(crate) fn write(&self) -> Written {
        let dir = TempDir::new().unwrap();
        let path = match self.config.contains_key("general.architecture") {
            true => {
                let path = dir.path().join("toy.gguf");
                fs::write(&path, self.gguf()).unwrap();
                path
            }
            false => {
                let config = Value::Object(self.config.clone()).to_string();
                fs::write(dir.path().join("config.json"), config).unwrap();
                fs::write(dir.path().join("model.safetensors"), self.safetensors()).unwrap();
                dir.path().to_owned()
            }
        };
        Written {
            checkpoint: Checkpoint::open(&path).unwrap(),
            _dir: dir,
        }
    }

    /// Writes it as GGUF in parts of one tensor each, and opens the last of them.
    pub(crate) fn write_in_parts(&self) -> Written {
        let dir = TempDir::new().unwrap();
        let count = self.tensors.len();
        let name = |no: usize| format!("toy-{:05}-of-{count:05}.gguf", no + 1);
        for (no, (tensor, content)) in self.tensors.iter().enumerate() {
            let mut part = Model {
                // Pairs that are no numbers of the set stand in the first part.
                config: if no == 0 {
                    self.config.clone()
                } else {
                    Map::new()
                },
                tensors: BTreeMap::from([(tensor.clone(), content.clone())]),
            };
            part.set("split.no", json!(no));
            part.set("split.count", json!(count));
            part.set("split.tensors.count", json!(count));
            fs::write(dir.path().join(name(no)), part.gguf()).unwrap();
        }
        Written {
            checkpoint: Checkpoint::open(&dir.path().join(name(count - 1))).unwrap(),
            _dir: dir,
        }
    }

    fn safetensors(&self) -> Vec<u8> {
        let mut header = Map::new();
        let mut data: Vec<u8> = Vec::new();
        for (name, tensor) in &self.tensors {
            let start = data.len();
            data.extend(&tensor.bytes);
            let dtype = tensor.dtype.name().to_uppercase();
            let entry = json!({
                "dtype": dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]
            });
            header.insert(name.clone(), entry);
        }
        let header = Value::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.extend(data);
        file
    }

    fn gguf(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.config.len() as u64).to_le_bytes());
        for (key, value) in &self.config {
            file.extend(gguf_string(key));
            let (kind, bytes) = gguf_value(value);
            file.extend(kind.to_le_bytes());
            file.extend(bytes);
        }
        let mut data: Vec<u8> = Vec::new();
        for (name, tensor) in &self.tensors {
            file.extend(gguf_string(name));
            file.extend(u32::try_from(tensor.shape.len()).unwrap().to_le_bytes());
            let dims = tensor.shape.iter().rev();
            file.extend(dims.flat_map(|dim| dim.to_le_bytes()));
            file.extend(tensor.dtype.ggml_id().unwrap().to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        file
    }
}

fn gguf_string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.bytes());
    bytes
}

/// A value's type and bytes: integers become u32, other numbers f32.
fn gguf_value(value: &Value) -> (u32, Vec<u8>) {
    match value {
        Value::String(text) => (8, gguf_string(text)),
        Value::Bool(value) => (7, vec![u8::from(*value)]),
        Value::Array(list) => {
            let elements: Vec<_> = list.iter().map(gguf_value).collect();
            let mut bytes = elements[0].0.to_le_bytes().to_vec();
            bytes.extend((list.len() as u64).to_le_bytes());
            bytes.extend(elements.into_iter().flat_map(|(_, bytes)| bytes));
            (9, bytes)
        }
        value => match value.as_u64() {
            Some(whole) => (4, u32::try_from(whole).unwrap().to_le_bytes().to_vec()),
            None => {
                #[expect(clippy::cast_possible_truncation, reason = "GGUF has it as f32")]
                let real = value.as_f64().unwrap() as f32;
                (6, real.to_le_bytes().to_vec())
            }
        },
    }
}

impl Written {
    pub(crate) fn lower(&self, text: &Text) -> Lowered {
        lower(&self.checkpoint, &text.family()).unwrap()
    }

    /// Everything that is wrong, in one text.
    pub(crate) fn problems(&self, text: &Text) -> String {
        lower(&self.checkpoint, &text.family())
            .unwrap_err()
            .to_string()
    }

    /// The model compiled with every weight in its own type.
    pub(crate) fn keep(&self, text: &Text) -> Compiled<'_> {
        let options = Options {
            recipe: "keep".to_owned(),
            ..Options::default()
        };
        Compiled::plan(&self.checkpoint, &text.family(), &options).unwrap()
    }
}

/// Canonical values of resident weight `name`, as a runtime would read them.
pub(crate) fn weight(compiled: &Compiled<'_>, name: &str) -> Vec<f32> {
    let index = compiled
        .resident
        .iter()
        .position(|weight| weight.name == name);
    let weight = &compiled.resident[index.unwrap()];
    let mut bytes = Vec::new();
    let mut sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    compiled.write_resident(index.unwrap(), &mut sink).unwrap();
    let (rows, cols) = match weight.shape[..] {
        [cols] => (1, cols),
        [rows, cols] => (rows, cols),
        _ => unreachable!("weights are vectors or matrices"),
    };
    values(weight.layout, rows, cols, &bytes)
}

/// Canonical values of one projection of an expert.
pub(crate) fn expert(
    compiled: &Compiled<'_>,
    layer: usize,
    expert: u64,
    projection: Projection,
) -> Vec<f32> {
    let mut bytes = Vec::new();
    let mut sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    compiled
        .write_region(layer, expert, 0, projection, &mut sink)
        .unwrap();
    let (layout, rows, cols) = compiled.experts[layer].region(projection);
    values(layout, rows, cols, &bytes)
}

fn values(layout: Layout, rows: u64, cols: u64, bytes: &[u8]) -> Vec<f32> {
    let size = |value: u64| usize::try_from(value).unwrap();
    let row_bytes = size(layout.dtype().row_bytes(cols).unwrap());
    let mut plain = vec![0; row_bytes * size(rows)];
    match layout.tile_bytes() {
        None => plain.copy_from_slice(bytes),
        Some(tile_bytes) => {
            let strip_bytes = size(tile_bytes * cols / 32);
            let strips = plain
                .chunks_mut(32 * row_bytes)
                .zip(bytes.chunks(strip_bytes));
            for (rows, strip) in strips {
                untile_strip(layout, strip, rows.len() / row_bytes, size(cols), rows).unwrap();
            }
        }
    }
    let mut values = vec![0.0; size(rows * cols)];
    decode(layout.dtype(), &plain, &mut values).unwrap();
    values
}

/// Whether `text` has every one of `parts`.
#[track_caller]
pub(crate) fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}
