//! The files of a checkpoint, spelt as the hub spells them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use super::shapes::{Model, Tensor};
use super::{Args, Dtype, random};

/// Elements generated at a time; even, as the generator asks.
const PIECE_LEN: u64 = 1 << 20;

impl Dtype {
    /// Bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }

    fn safetensors(self) -> safetensors::Dtype {
        match self {
            Dtype::Bf16 => safetensors::Dtype::BF16,
            Dtype::F32 => safetensors::Dtype::F32,
        }
    }
}

/// Writes config, weights and, if there are several files, their index;
/// parameters and bytes of weights.
pub(crate) fn checkpoint(model: &Model, args: &Args) -> anyhow::Result<(u64, u64)> {
    let bytes = |tensor: &Tensor| tensor.len * args.dtype.bytes() as u64;
    let shards = split(&model.tensors, args.max_shard_size, bytes);
    let parameters = model.tensors.iter().map(|tensor| tensor.len).sum();
    let total = model.tensors.iter().map(bytes).sum();

    fs::create_dir_all(&args.out).with_context(|| format!("cannot create {:?}", args.out))?;
    json_file(&args.out.join("config.json"), &json!(model.config))?;
    let mut weight_map = serde_json::Map::new();
    for (index, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        let path = args.out.join(&name);
        weights(&path, shard, args).with_context(|| format!("cannot write {path:?}"))?;
        for tensor in *shard {
            weight_map.insert(tensor.name.clone(), name.clone().into());
        }
    }
    if shards.len() > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        json_file(&args.out.join("model.safetensors.index.json"), &index)?;
    }
    Ok((parameters, total))
}

/// Cuts `tensors` so that no piece has more than `max` bytes, unless it is one tensor.
fn split(tensors: &[Tensor], max: Option<u64>, bytes: impl Fn(&Tensor) -> u64) -> Vec<&[Tensor]> {
    let max = max.unwrap_or(u64::MAX);
    let mut shard_bytes = 0u64;
    let mut shards = Vec::new();
    let mut start = 0;
    for (index, tensor) in tensors.iter().enumerate() {
        if index > start && shard_bytes + bytes(tensor) > max {
            shards.push(&tensors[start..index]);
            (start, shard_bytes) = (index, 0);
        }
        shard_bytes += bytes(tensor);
    }
    shards.push(&tensors[start..]);
    shards
}

/// One safetensors file.
fn weights(path: &Path, tensors: &[Tensor], args: &Args) -> anyhow::Result<()> {
    let mut end = 0;
    let mut infos = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let start = end;
        end += usize::try_from(tensor.len)? * args.dtype.bytes();
        let info = TensorInfo {
            dtype: args.dtype.safetensors(),
            shape: tensor
                .shape
                .iter()
                .map(|dim| usize::try_from(*dim))
                .collect::<Result<_, _>>()?,
            data_offsets: (start, end),
        };
        infos.push((tensor.name.clone(), info));
    }
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut header = serde_json::to_vec(&Metadata::new(Some(about), infos)?)?;
    // Spaces up to a multiple of eight, so that elements are aligned in the file.
    header.resize(header.len().next_multiple_of(8), b' ');

    let mut file = File::create_new(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    if args.sparse {
        file.set_len((8 + header.len() + end) as u64)?;
        return Ok(());
    }
    let mut piece = vec![0; usize::try_from(PIECE_LEN)? * args.dtype.bytes()];
    for tensor in tensors {
        let key = random::key(args.seed, &tensor.name);
        let mut first = 0;
        while first < tensor.len {
            let len = PIECE_LEN.min(tensor.len - first);
            let piece = &mut piece[..usize::try_from(len)? * args.dtype.bytes()];
            random::fill(key, first, tensor.fill, args.dtype, piece);
            file.write_all(piece)?;
            first += len;
        }
    }
    Ok(())
}

fn json_file(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    let bytes = estream_schemas::canonical::to_vec(value)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {path:?}"))
}
