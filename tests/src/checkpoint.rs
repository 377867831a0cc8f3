//! Checkpoints in memory, to be written again in another encoding.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

/// A Hugging Face checkpoint: configuration and weights, nothing else.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// `config.json`.
    pub config: Value,
    /// The weights by name.
    pub tensors: BTreeMap<String, Tensor>,
}

/// A weight.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: Dtype,
    /// Shape, slowest dimension first.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl Checkpoint {
    /// The checkpoint in `dir`, which has one weight file.
    ///
    /// # Panics
    ///
    /// If it cannot be read.
    pub fn read(dir: &Path) -> Checkpoint {
        let config = fs::read(dir.join("config.json")).expect("a configuration");
        let weights = fs::read(dir.join("model.safetensors")).expect("weights");
        let file = SafeTensors::deserialize(&weights).expect("a safetensors file");
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let tensor = Tensor {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            };
            (name, tensor)
        });
        Checkpoint {
            config: serde_json::from_slice(&config).expect("a configuration is JSON"),
            tensors: tensors.collect(),
        }
    }

    /// Writes it to `dir` as one weight file.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn write(&self, dir: &Path) {
        self.write_config(dir);
        let all: Vec<&String> = self.tensors.keys().collect();
        self.write_weights(&dir.join("model.safetensors"), &all);
    }

    /// Writes it to `dir` as `count` weight files and an index. Tensors are dealt out in
    /// turn, so that neighbours are in different files.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn write_sharded(&self, dir: &Path, count: usize) {
        self.write_config(dir);
        let mut weight_map = Map::new();
        for shard in 0..count {
            let name = format!("model-{:05}-of-{count:05}.safetensors", shard + 1);
            let mine: Vec<&String> = self.tensors.keys().skip(shard).step_by(count).collect();
            self.write_weights(&dir.join(&name), &mine);
            for tensor in mine {
                weight_map.insert(tensor.clone(), name.clone().into());
            }
        }
        let total_bytes: usize = self.tensors.values().map(|tensor| tensor.bytes.len()).sum();
        let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
        let path = dir.join("model.safetensors.index.json");
        fs::write(path, index.to_string()).expect("an index");
    }

    fn write_config(&self, dir: &Path) {
        fs::create_dir_all(dir).expect("a directory");
        fs::write(dir.join("config.json"), self.config.to_string()).expect("a configuration");
    }

    fn write_weights(&self, path: &Path, names: &[&String]) {
        let views = names.iter().map(|name| {
            let tensor = &self.tensors[*name];
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
            (name.as_str(), view.expect("bytes that fit the shape"))
        });
        let bytes = safetensors::serialize(views, None).expect("tensors");
        fs::write(path, bytes).expect("weights");
    }

    /// The same weights as transformers 5 saves them: all experts of a layer in one
    /// tensor, gate above up, and a configuration in its words.
    ///
    /// # Panics
    ///
    /// If it has no experts.
    pub fn fused(mut self) -> Checkpoint {
        self.config = in_words_of_transformers_5(&self.config);
        for layer in self.expert_layers() {
            let experts = self.take_experts(&layer);
            let gate_up = experts.iter().map(|[gate, up, _]| {
                let mut both = gate.clone();
                both.shape[0] += up.shape[0];
                both.bytes.extend(&up.bytes);
                both
            });
            let name = |projection| format!("{}.experts.{projection}", layer.name);
            self.tensors.insert(name("gate_up_proj"), stack(gate_up));
            let down = experts.iter().map(|[_, _, down]| down.clone());
            self.tensors.insert(name("down_proj"), stack(down));
        }
        let tensors = self.tensors.into_iter();
        self.tensors = tensors
            .map(|(name, tensor)| (name.replace(".block_sparse_moe.", ".mlp."), tensor))
            .collect();
        self
    }

    /// The same weights as MLX saves them: each projection of all experts of a layer in
    /// one tensor.
    ///
    /// # Panics
    ///
    /// If it has no experts.
    pub fn stacked(mut self) -> Checkpoint {
        for layer in self.expert_layers() {
            let experts = self.take_experts(&layer);
            for (index, projection) in PROJECTIONS[0].into_iter().enumerate() {
                let all = stack(experts.iter().map(|expert| expert[index].clone()));
                let name = format!("{}.switch_mlp.{projection}.weight", layer.name);
                self.tensors.insert(name, all);
            }
        }
        self
    }

    fn expert_layers(&self) -> Vec<ExpertLayer> {
        let layer = |name: &String| {
            let (layer, first) = name.split_once(".experts.0.")?;
            let gate = first.strip_suffix(".weight")?;
            let projections = PROJECTIONS.into_iter().find(|names| names[0] == gate)?;
            Some(ExpertLayer {
                name: layer.to_owned(),
                projections,
            })
        };
        let layers: Vec<ExpertLayer> = self.tensors.keys().filter_map(layer).collect();
        assert!(!layers.is_empty(), "no experts");
        layers
    }

    /// Removes the experts of a layer: gate, up and down of each.
    fn take_experts(&mut self, layer: &ExpertLayer) -> Vec<[Tensor; 3]> {
        let take = |expert: usize| {
            let name = |p| format!("{}.experts.{expert}.{p}.weight", layer.name);
            let names = layer.projections.map(name);
            let [gate, up, down] = names.map(|name| self.tensors.remove(&name));
            Some([gate?, up?, down?])
        };
        (0..).map_while(take).collect()
    }
}

/// The experts of a layer, one by one.
struct ExpertLayer {
    /// What their names begin with, as `model.layers.0.mlp`.
    name: String,
    /// What their gate, up and down are called.
    projections: [&'static str; 3],
}

/// What families call gate, up and down.
const PROJECTIONS: [[&str; 3]; 2] = [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]];

/// Keys that transformers 5 writes under another name, and the family it does so for.
const NEW_NAMES: [(&str, &str, &str); 2] = [
    ("qwen3_moe", "num_experts", "num_local_experts"),
    ("lfm2_moe", "tie_embedding", "tie_word_embeddings"),
];

/// `config` as transformers 5 writes it. What it leaves out can be left out.
fn in_words_of_transformers_5(config: &Value) -> Value {
    let mut config = config.as_object().expect("an object").clone();
    let scaling = config.remove("rope_scaling");
    let mut rope = match scaling.unwrap_or_default() {
        Value::Object(scaling) => scaling,
        _ => Map::from_iter([("type".to_owned(), json!("default"))]),
    };
    let kind = rope.remove("type").expect("a type of scaling");
    rope.insert("rope_type".to_owned(), kind);
    let theta = config.remove("rope_theta").expect("a base of angles");
    rope.insert("rope_theta".to_owned(), theta);
    config.insert("rope_parameters".to_owned(), rope.into());
    let dtype = config.remove("torch_dtype").expect("an element type");
    config.insert("dtype".to_owned(), dtype);
    for (family, old, new) in NEW_NAMES {
        if config["model_type"] == family {
            let value = config.remove(old).expect("a key of the family");
            config.insert(new.to_owned(), value);
        }
    }
    // Rotated dimensions of a head, whose others have a key of their own.
    if let Some(rotated) = config.get("qk_rope_head_dim").cloned() {
        config.insert("head_dim".to_owned(), rotated);
    }
    config.into()
}

/// Matrices of one shape as one tensor of one dimension more.
fn stack(matrices: impl Iterator<Item = Tensor>) -> Tensor {
    let mut matrices: Vec<Tensor> = matrices.collect();
    let count = matrices.len();
    let rest = matrices.split_off(1);
    let mut all = matrices.remove(0);
    for matrix in rest {
        assert_eq!((matrix.dtype, &matrix.shape), (all.dtype, &all.shape));
        all.bytes.extend(&matrix.bytes);
    }
    all.shape.insert(0, count);
    all
}
