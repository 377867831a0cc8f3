//! What checkpoints look like, as data: a family is its config and a table of tensors.

use anyhow::{Context, ensure};
use serde_json::{Map, Value};

use super::{Args, Dtype};

/// How a tensor is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Around zero.
    Zero,
    /// Around one: the weight of a norm, without which the signal would fade.
    One,
}

/// Tensors of one kind: `{layer}` and `{expert}` in the name stand for every one of them.
struct Row {
    name: &'static str,
    /// Config keys of the dimensions, slowest first.
    shape: &'static [&'static str],
    fill: Fill,
}

/// What every model of a family has in common.
struct Family {
    /// `config.json` of the published model.
    config: &'static str,
    tensors: &'static [Row],
    layers: &'static str,
    experts: &'static str,
    top_k: &'static str,
    hidden: &'static str,
    ff: &'static str,
    vocab: &'static str,
    /// Every key that counts heads; all are set to the same number.
    heads: &'static [&'static str],
}

/// A family with some keys of its config changed.
struct Shape {
    name: &'static str,
    family: &'static Family,
    set: &'static [(&'static str, u64)],
}

const fn row(name: &'static str, shape: &'static [&'static str], fill: Fill) -> Row {
    Row { name, shape, fill }
}

const OLMOE: Family = Family {
    config: include_str!("../../shapes/olmoe.config.json"),
    tensors: {
        const H: &str = "hidden_size";
        const FF: &str = "intermediate_size";
        const VOCAB: &str = "vocab_size";
        const EXPERTS: &str = "num_experts";
        &[
            row("model.embed_tokens.weight", &[VOCAB, H], Fill::Zero),
            row("model.norm.weight", &[H], Fill::One),
            row("lm_head.weight", &[VOCAB, H], Fill::Zero),
            row(
                "model.layers.{layer}.input_layernorm.weight",
                &[H],
                Fill::One,
            ),
            row(
                "model.layers.{layer}.post_attention_layernorm.weight",
                &[H],
                Fill::One,
            ),
            row(
                "model.layers.{layer}.self_attn.q_proj.weight",
                &[H, H],
                Fill::Zero,
            ),
            row(
                "model.layers.{layer}.self_attn.k_proj.weight",
                &[H, H],
                Fill::Zero,
            ),
            row(
                "model.layers.{layer}.self_attn.v_proj.weight",
                &[H, H],
                Fill::Zero,
            ),
            row(
                "model.layers.{layer}.self_attn.o_proj.weight",
                &[H, H],
                Fill::Zero,
            ),
            row(
                "model.layers.{layer}.self_attn.q_norm.weight",
                &[H],
                Fill::One,
            ),
            row(
                "model.layers.{layer}.self_attn.k_norm.weight",
                &[H],
                Fill::One,
            ),
            row(
                "model.layers.{layer}.mlp.gate.weight",
                &[EXPERTS, H],
                Fill::Zero,
            ),
            row(
                "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
                &[FF, H],
                Fill::Zero,
            ),
            row(
                "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
                &[FF, H],
                Fill::Zero,
            ),
            row(
                "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
                &[H, FF],
                Fill::Zero,
            ),
        ]
    },
    layers: "num_hidden_layers",
    experts: "num_experts",
    top_k: "num_experts_per_tok",
    hidden: "hidden_size",
    ff: "intermediate_size",
    vocab: "vocab_size",
    heads: &["num_attention_heads", "num_key_value_heads"],
};

const SHAPES: &[Shape] = &[
    Shape {
        name: "olmoe",
        family: &OLMOE,
        set: &[],
    },
    Shape {
        name: "olmoe-tiny",
        family: &OLMOE,
        set: &[
            ("num_hidden_layers", 2),
            ("num_experts", 8),
            ("num_experts_per_tok", 2),
            ("hidden_size", 128),
            ("intermediate_size", 64),
            ("num_attention_heads", 4),
            ("num_key_value_heads", 4),
            ("vocab_size", 512),
        ],
    },
];

/// The shapes `--shape` takes.
pub(crate) fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|shape| shape.name).collect()
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

fn number(config: &Map<String, Value>, key: &str) -> anyhow::Result<u64> {
    let value = config.get(key).and_then(Value::as_u64);
    value.with_context(|| format!("the config has no whole number {key}"))
}

/// The model `args` ask for.
pub(crate) fn model(args: &Args) -> anyhow::Result<Model> {
    let shape = SHAPES
        .iter()
        .find(|shape| shape.name == args.shape)
        .with_context(|| format!("unknown shape {:?}", args.shape))?;
    let family = shape.family;
    let mut config: Map<String, Value> = serde_json::from_str(family.config)?;

    let asked = [
        (family.layers, args.layers),
        (family.experts, args.experts),
        (family.top_k, args.top_k),
        (family.hidden, args.hidden),
        (family.ff, args.ff),
        (family.vocab, args.vocab),
    ];
    let heads = family.heads.iter().map(|key| (*key, args.heads));
    let asked = asked.into_iter().chain(heads);
    let asked = asked.filter_map(|(key, value)| Some((key, value?)));
    for (key, value) in shape.set.iter().copied().chain(asked) {
        ensure!(value > 0, "{key} is 0; ask for at least 1");
        config.insert(key.into(), value.into());
    }
    if args.dtype == Dtype::F32 {
        config.insert("torch_dtype".into(), "float32".into());
    }
    check(family, &mut config)?;

    let mut tensors = Vec::new();
    for row in family.tensors {
        expand(family, row, &config, &mut tensors)?;
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Model { config, tensors })
}

/// Refuses a config that no model could have.
fn check(family: &Family, config: &mut Map<String, Value>) -> anyhow::Result<()> {
    let (experts, top_k) = (
        number(config, family.experts)?,
        number(config, family.top_k)?,
    );
    ensure!(
        top_k <= experts,
        "a token is routed to {top_k} of {experts} experts; pass a smaller --top-k"
    );
    let hidden = number(config, family.hidden)?;
    for key in family.heads {
        let heads = number(config, key)?;
        ensure!(
            hidden.is_multiple_of(heads),
            "{key} = {heads} does not divide a width of {hidden}; pass --heads or --hidden"
        );
    }
    // A smaller vocabulary may not hold the published model's own end of text.
    let vocab = number(config, family.vocab)?;
    for key in ["eos_token_id", "pad_token_id"] {
        if number(config, key).is_ok_and(|id| id >= vocab) {
            config.insert(key.into(), 0.into());
        }
    }
    Ok(())
}

/// Adds the tensors `row` stands for.
fn expand(
    family: &Family,
    row: &Row,
    config: &Map<String, Value>,
    tensors: &mut Vec<Tensor>,
) -> anyhow::Result<()> {
    let shape: Vec<u64> = row
        .shape
        .iter()
        .map(|key| number(config, key))
        .collect::<Result<_, _>>()?;
    let len = shape
        .iter()
        .try_fold(1u64, |len, dim| len.checked_mul(*dim));
    let len = len
        .filter(|len| *len < 1 << 36)
        .with_context(|| format!("{} of shape {shape:?} is too large", row.name))?;
    let count = |mark: &str, key: &str| {
        let repeats = row.name.contains(mark);
        if repeats { number(config, key) } else { Ok(1) }
    };
    let (layers, experts) = (
        count("{layer}", family.layers)?,
        count("{expert}", family.experts)?,
    );
    ensure!(
        layers.saturating_mul(experts) <= 1 << 20,
        "{layers} layers of {experts} experts are too many"
    );
    for layer in 0..layers {
        for expert in 0..experts {
            tensors.push(Tensor {
                name: row
                    .name
                    .replace("{layer}", &layer.to_string())
                    .replace("{expert}", &expert.to_string()),
                shape: shape.clone(),
                len,
                fill: row.fill,
            });
        }
    }
    Ok(())
}
