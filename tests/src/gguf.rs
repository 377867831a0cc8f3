//! GGUF files in memory, to be written again in another encoding.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use estream_compiler::ingest::Checkpoint;
use estream_compiler::ingest::gguf::{Gguf, GgufBuilder};
use estream_schemas::dtype::DType;

/// A GGUF file that is not split.
#[derive(Debug)]
pub struct GgufFile {
    header: Gguf,
    /// The tensors by name.
    pub tensors: BTreeMap<String, GgufTensor>,
}

/// A tensor of a GGUF file.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// Element type.
    pub dtype: DType,
    /// Shape, slowest dimension first.
    pub shape: Vec<u64>,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl GgufFile {
    /// The file at `path`.
    ///
    /// # Panics
    ///
    /// If it cannot be read.
    pub fn read(path: &Path) -> GgufFile {
        let source = Checkpoint::open(path).expect("a GGUF file");
        let tensors = source.tensors.iter().map(|tensor| {
            let len = usize::try_from(tensor.bytes).expect("a small tensor");
            let mut bytes = vec![0; len];
            source.read(tensor, 0, &mut bytes).expect("its bytes");
            let copy = GgufTensor {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                bytes,
            };
            (tensor.name.clone(), copy)
        });
        GgufFile {
            tensors: tensors.collect(),
            header: Gguf::open(path).expect("a GGUF file"),
        }
    }

    /// Writes it to `path`, with the pairs it was read with.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn write(&self, path: &Path) {
        let mut builder = GgufBuilder::new();
        for (key, value) in self.header.pairs() {
            builder.pair(key, value).expect("a pair that was read");
        }
        for (name, tensor) in &self.tensors {
            let GgufTensor { dtype, shape, .. } = tensor;
            builder.tensor(name, *dtype, shape).expect("a tensor");
        }
        let file = File::create(path).expect("a file");
        let mut writer = builder.begin(file).expect("a header");
        for tensor in self.tensors.values() {
            let written = writer.write_tensor_data(&tensor.bytes);
            written.expect("the tensor's bytes");
        }
        drop(writer.finish().expect("all tensors"));
    }

    /// The same weights with one tensor an expert and projection, as files of before
    /// April 2024 have them.
    ///
    /// # Panics
    ///
    /// If it has no experts.
    pub fn with_single_experts(mut self) -> GgufFile {
        let stacked = "_exps.weight";
        let names = self.tensors.keys();
        let names: Vec<String> = names
            .filter(|name| name.ends_with(stacked))
            .cloned()
            .collect();
        assert!(!names.is_empty(), "no experts");
        for name in names {
            let all = self.tensors.remove(&name).expect("a tensor of the file");
            let count = usize::try_from(all.shape[0]).expect("a small number");
            let experts = all.bytes.chunks(all.bytes.len() / count);
            for (expert, bytes) in experts.enumerate() {
                let one = GgufTensor {
                    dtype: all.dtype,
                    shape: all.shape[1..].to_vec(),
                    bytes: bytes.to_vec(),
                };
                let name = name.replace(stacked, &format!(".{expert}.weight"));
                self.tensors.insert(name, one);
            }
        }
        self
    }

    /// The same weights with q, k and v of a layer in one tensor.
    ///
    /// # Panics
    ///
    /// If it has no q, or q, k and v have different types.
    pub fn with_fused_attention(mut self) -> GgufFile {
        let q = ".attn_q.weight";
        let names = self.tensors.keys();
        let layers = names.filter_map(|name| name.strip_suffix(q));
        let layers: Vec<String> = layers.map(str::to_owned).collect();
        assert!(!layers.is_empty(), "no attention");
        for layer in layers {
            let parts = ["attn_q", "attn_k", "attn_v"].map(|part| format!("{layer}.{part}.weight"));
            let [mut all, k, v] = parts.map(|name| self.tensors.remove(&name).expect("q, k and v"));
            for part in [k, v] {
                assert_eq!(part.dtype, all.dtype, "{layer}");
                all.shape[0] += part.shape[0];
                all.bytes.extend(&part.bytes);
            }
            self.tensors.insert(format!("{layer}.attn_qkv.weight"), all);
        }
        self
    }

    /// The same weights of latent attention as files of after April 2025 have them, and
    /// the pairs of `like`, which is one: each head's key rows turned, and its value
    /// rows apart.
    ///
    /// # Panics
    ///
    /// If it has no latent attention, or its elements are not plain numbers.
    pub fn with_split_latent(mut self, like: GgufFile) -> GgufFile {
        self.header = like.header;
        let number = |key: &str| -> usize {
            let key = format!("deepseek2.{key}");
            let number = self.header.kv(&key).and_then(|value| value.as_u64());
            let number = number.unwrap_or_else(|| panic!("no {key}"));
            usize::try_from(number).expect("a small number")
        };
        let heads = number("attention.head_count");
        let value = number("attention.value_length_mla");
        let nope = number("attention.key_length_mla") - number("rope.dimension_count");
        let rank = number("attention.kv_lora_rank");
        let joined = ".attn_kv_b.weight";
        let names = self.tensors.keys();
        let layers = names.filter_map(|name| name.strip_suffix(joined));
        let layers: Vec<String> = layers.map(str::to_owned).collect();
        assert!(!layers.is_empty(), "no latent attention");
        for layer in layers {
            let all = self.tensors.remove(&format!("{layer}{joined}"));
            let all = all.expect("a tensor of the file");
            let width = usize::try_from(all.dtype.block_bytes()).expect("a small number");
            assert_eq!(all.dtype.block_len(), 1, "{layer}");
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for head in all.bytes.chunks((nope + value) * rank * width) {
                let (key, of_values) = head.split_at(nope * rank * width);
                let elements: Vec<&[u8]> = key.chunks(width).collect();
                for column in 0..rank {
                    for row in 0..nope {
                        keys.extend(elements[row * rank + column]);
                    }
                }
                values.extend(of_values);
            }
            for (part, sizes, bytes) in [
                ("attn_k_b", [heads, rank, nope], keys),
                ("attn_v_b", [heads, value, rank], values),
            ] {
                let tensor = GgufTensor {
                    dtype: all.dtype,
                    shape: sizes.map(|size| size as u64).to_vec(),
                    bytes,
                };
                let name = format!("{layer}.{part}.weight");
                self.tensors.insert(name, tensor);
            }
        }
        self
    }
}
