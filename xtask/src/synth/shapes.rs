//! What checkpoints look like: a configuration, and the tensors that the descriptor of
//! its family makes of it.

use anyhow::{Context, bail, ensure};
use estream_compiler::arch::{Descriptor, Family};
use estream_compiler::ingest::Config;
use estream_compiler::lower::outline;
use estream_schemas::manifest::SourceFormat;
use serde_json::{Map, Value};

use super::{Args, Dtype};

/// A published model, with some keys of its descriptor changed.
struct Shape {
    name: &'static str,
    /// Its `config.json`.
    config: &'static str,
    set: &'static [(&'static str, u64)],
}

const fn published(name: &'static str, config: &'static str) -> Shape {
    Shape {
        name,
        config,
        set: &[],
    }
}

const OLMOE: &str = include_str!("../../shapes/olmoe.config.json");

const SHAPES: &[Shape] = &[
    published(
        "deepseek2",
        include_str!("../../shapes/deepseek2.config.json"),
    ),
    published("lfm2moe", include_str!("../../shapes/lfm2moe.config.json")),
    published("mixtral", include_str!("../../shapes/mixtral.config.json")),
    published("olmoe", OLMOE),
    Shape {
        name: "olmoe-tiny",
        config: OLMOE,
        set: &[
            ("layers", 2),
            ("experts", 8),
            ("top_k", 2),
            ("hidden", 128),
            ("ff", 64),
            ("heads", 4),
            ("kv_heads", 4),
            ("vocab", 512),
        ],
    },
    published(
        "qwen3moe",
        include_str!("../../shapes/qwen3moe.config.json"),
    ),
];

/// The shapes `--shape` takes.
pub(crate) fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
}

/// How a tensor is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Around zero.
    Zero,
    /// Around one: the weight of a norm, without which the signal would fade.
    One,
    /// Rows of tokens, which make routes that spread as those of real models do.
    Embedding { width: u64 },
    /// Rows of experts; likewise.
    Router { width: u64 },
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    /// Elements; their size in bytes fits a file offset.
    pub(crate) len: u64,
    pub(crate) fill: Fill,
}

/// A checkpoint before its weights.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) config: Map<String, Value>,
    /// In name order, as the hub's files have them.
    pub(crate) tensors: Vec<Tensor>,
}

/// Cuts what has an element a layer to the first `layers`.
fn cut_lists(config: &mut Config, before: Option<&Value>, layers: u64) {
    let Some(before) = before.and_then(Value::as_u64) else {
        return;
    };
    for value in config.values.values_mut() {
        if let Value::Array(list) = value
            && list.len() as u64 == before
        {
            list.truncate(usize::try_from(layers).unwrap_or(usize::MAX));
        }
    }
}

/// The model `args` ask for.
pub(crate) fn model(args: &Args) -> anyhow::Result<Model> {
    let shape = SHAPES
        .iter()
        .find(|shape| shape.name == args.shape)
        .with_context(|| format!("unknown shape {:?}", args.shape))?;
    let mut config = Config {
        format: SourceFormat::Safetensors,
        values: serde_json::from_str(shape.config)?,
    };
    let family = family(&config)?;
    let asked = [
        ("layers", args.layers),
        ("experts", args.experts),
        ("top_k", args.top_k),
        ("hidden", args.hidden),
        ("ff", args.ff),
        ("heads", args.heads),
        ("kv_heads", args.heads),
        ("vocab", args.vocab),
    ];
    let asked = asked
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)));
    for (key, value) in shape.set.iter().copied().chain(asked) {
        // A family may have no such number: latent attention has no heads of keys.
        if let Some(name) = spelling(&family.descriptor, key, &config) {
            ensure!(value > 0, "{name} is 0; ask for at least 1");
            let before = config.values.insert(name, value.into());
            if key == "layers" {
                cut_lists(&mut config, before.as_ref(), value);
            }
        }
    }
    if args.dtype == Dtype::F32 {
        for name in ["torch_dtype", "dtype"] {
            if let Some(dtype) = config.values.get_mut(name) {
                *dtype = "float32".into();
            }
        }
    }
    check(&family.descriptor, &mut config)?;
    let tensors = match outline(&family, &config) {
        Ok(tensors) => tensors,
        Err(problems) => bail!("no model has this shape:\n  {}", problems.join("\n  ")),
    };
    let tensors = tensors.into_iter().map(|(name, tensor)| {
        let dims = tensor.shape.iter();
        let len = dims.fold(1u64, |len, dim| len.saturating_mul(*dim));
        ensure!(
            (1..1 << 36).contains(&len),
            "{name} of shape {:?} is empty or too large",
            tensor.shape
        );
        let fill = match (tensor.role.as_str(), &tensor.shape[..]) {
            ("embed", [_, width]) => Fill::Embedding { width: *width },
            ("router", [_, width]) => Fill::Router { width: *width },
            (role, _) if role.ends_with("norm") => Fill::One,
            _ => Fill::Zero,
        };
        Ok(Tensor {
            name,
            shape: tensor.shape,
            len,
            fill,
        })
    });
    Ok(Model {
        tensors: tensors.collect::<anyhow::Result<_>>()?,
        config: config.values,
    })
}

/// The family of a configuration.
fn family(config: &Config) -> anyhow::Result<Family> {
    let stated = config.get("model_type").and_then(Value::as_str);
    let stated = stated.context("the config has no model_type")?;
    let is_it = |family: &Family| {
        family
            .descriptor
            .matches
            .hf
            .iter()
            .any(|name| name == stated)
    };
    let mut families = Family::built_in()?.into_iter();
    families
        .find(is_it)
        .with_context(|| format!("no family has model_type {stated:?}"))
}

/// What `config` calls a key of the descriptor, or would call it.
fn spelling(descriptor: &Descriptor, key: &str, config: &Config) -> Option<String> {
    let key = descriptor.key.iter().find(|stated| stated.name == key)?;
    let mut names = key.hf.iter();
    let stated = names.clone().find(|name| config.get(name).is_some());
    stated.or_else(|| names.next()).cloned()
}

/// Refuses a config that no model could have.
fn check(descriptor: &Descriptor, config: &mut Config) -> anyhow::Result<()> {
    let number = |config: &Config, key: &str| {
        let name = spelling(descriptor, key, config);
        let value = name.and_then(|name| config.get(&name)?.as_u64());
        value.with_context(|| format!("the config has no whole number of {key}"))
    };
    let (experts, top_k) = (number(config, "experts")?, number(config, "top_k")?);
    ensure!(
        top_k <= experts,
        "a token is routed to {top_k} of {experts} experts; pass a smaller --top-k"
    );
    // A smaller vocabulary may not hold the published model's own end of text.
    let vocab = number(config, "vocab")?;
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        let id = config.get(key).and_then(Value::as_u64);
        if id.is_some_and(|id| id >= vocab) {
            config.values.insert(key.into(), 0.into());
        }
    }
    Ok(())
}
