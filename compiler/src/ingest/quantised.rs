//! In which way the weights of a safetensors checkpoint are quantised.
//!
//! A configuration says so, and so do the names and types of tensors, which nobody edits.
//! One way is read, FP8 elements with scales beside them; every other is recognised and
//! refused by its name, as its integers would be taken for weights otherwise.

use estream_schemas::dtype::DType;
use estream_schemas::manifest::SourceFormat;
use serde_json::Value;

use super::{Checkpoint, SourceTensor};

/// What a checkpoint's configuration says of its FP8 elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantised {
    /// Whether there are any.
    pub is_fp8: bool,
    /// Rows and columns of a block with one scale, where the configuration states them.
    pub block: Option<[u64; 2]>,
}

/// Blocks of fewer elements would make the scales a large part of the weights.
const MIN_BLOCK_LEN: u64 = 32;

/// What to do about any of them.
const ADVICE: &str =
    "compile the checkpoint it was made from, in bf16, f16 or f32, or a GGUF file of it";

/// A way of quantising that is not read, told by one kind of tensor.
struct Way {
    name: &'static str,
    /// How names of its tensors end.
    suffix: &'static str,
    /// Which types such a tensor has; any, if empty.
    dtypes: &'static [DType],
}

const fn way(name: &'static str, suffix: &'static str, dtypes: &'static [DType]) -> Way {
    Way {
        name,
        suffix,
        dtypes,
    }
}

/// In the order in which they are looked for: what is more telling comes first.
const WAYS: &[Way] = &[
    way("GPTQ", ".g_idx", &[]),
    way("GPTQ or AWQ", ".qweight", &[]),
    way("compressed-tensors NVFP4", ".weight_global_scale", &[]),
    way("compressed-tensors, packed", ".weight_packed", &[]),
    way("ModelOpt NVFP4", ".weight_scale_2", &[]),
    way("bitsandbytes, 8 bits", ".SCB", &[]),
    way("bitsandbytes, 4 bits", ".absmax", &[]),
    way("bitsandbytes, 4 bits", ".quant_map", &[]),
    way("MXFP4", "_blocks", &[DType::U8]),
    way("MLX", ".weight", &[DType::U32]),
    way("torchao", "_qdata", &[]),
    way("HQQ", ".W_q", &[]),
    way("AQLM", ".codebooks", &[]),
    way("EXL2", ".q_weight", &[]),
    way("EXL3", ".trellis", &[]),
    way("FP8 of five exponent bits", "", &[DType::F8_E5M2]),
    way("8-bit integers", ".weight", &[DType::I8, DType::U8]),
];

impl Way {
    fn has(&self, tensor: &SourceTensor) -> bool {
        let dtypes = self.dtypes;
        tensor.name.ends_with(self.suffix) && (dtypes.is_empty() || dtypes.contains(&tensor.dtype))
    }
}

impl Quantised {
    /// What `checkpoint` says by its tensors and by the keys of its configuration at
    /// `places`; else which way of quantising is refused, and why.
    pub fn of(checkpoint: &Checkpoint, places: &[String]) -> Result<Quantised, String> {
        if checkpoint.format == SourceFormat::Gguf {
            return Ok(Quantised::default());
        }
        let mut places = places.iter();
        let stated = places.find_map(|place| {
            let value = checkpoint.config.get(place)?;
            (!value.is_null()).then_some((place, value))
        });
        let says = match stated {
            Some((place, value)) => format!("config key {place:?} says {}", summary(value)),
            None => "config.json does not say so".to_owned(),
        };
        let tensors = &checkpoint.tensors;
        for way in WAYS {
            let mut found = tensors.iter().filter(|tensor| way.has(tensor));
            if let Some(first) = found.next() {
                let more = match found.count() {
                    0 => String::new(),
                    more => format!(" and {more} more such tensors"),
                };
                let widths = stated.and_then(|(_, value)| widths(checkpoint, first, value));
                return Err(format!(
                    "it is quantised ({}: {:?} is {} {:?}{more}; {says}{}), which is not read; {ADVICE}",
                    way.name,
                    first.name,
                    first.dtype,
                    first.shape,
                    widths.unwrap_or_default(),
                ));
            }
        }
        let is_fp8 = |tensor: &SourceTensor| tensor.dtype == DType::F8_E4M3;
        let first = tensors.iter().find(|tensor| is_fp8(tensor));
        match (stated, first) {
            (None, None) => Ok(Quantised::default()),
            (None, Some(tensor)) => Err(format!(
                "{:?} is {}, and config.json has no quantization_config that says what its scales are; \
                 take config.json from where the weights come from",
                tensor.name, tensor.dtype
            )),
            (Some((place, value)), first) => {
                let block = fp8(value).map_err(|why| {
                    format!("config key {place:?} {why}, which is not read; {ADVICE}")
                })?;
                match first {
                    Some(_) => Ok(Quantised {
                        is_fp8: true,
                        block,
                    }),
                    None => Err(format!(
                        "{says}, but no tensor is f8_e4m3; take config.json from where the weights come from"
                    )),
                }
            }
        }
    }
}

/// Method, format and width that `config` states, in one line.
fn summary(config: &Value) -> String {
    let keys = ["quant_method", "quant_algo", "format", "fmt", "bits"];
    let stated = keys.iter().filter_map(|key| {
        let value = config.get(key)?;
        Some(format!("{key} {value}"))
    });
    let stated: Vec<String> = stated.collect();
    match stated.is_empty() {
        true => "neither method nor format".to_owned(),
        false => stated.join(", "),
    }
}

/// The block of FP8 elements that `config` states, if any; else why it is not FP8 as it is read here.
fn fp8(config: &Value) -> Result<Option<[u64; 2]>, String> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let refuse = || Err(format!("says {}", summary(config)));
    match text(config, "quant_method").as_deref() {
        Some("fp8") => match text(config, "fmt").as_deref() {
            None | Some("e4m3") => block(config.get("weight_block_size")),
            Some(_) => refuse(),
        },
        Some("compressed-tensors")
            if text(config, "format").as_deref() == Some("float-quantized") =>
        {
            let groups = config.get("config_groups").and_then(Value::as_object);
            let mut blocks = Vec::new();
            for group in groups.into_iter().flat_map(serde_json::Map::values) {
                let weights = group.get("weights").unwrap_or(&Value::Null);
                let is_fp8 = text(weights, "type").as_deref() == Some("float")
                    && weights.get("num_bits").and_then(Value::as_u64) == Some(8);
                if !is_fp8 {
                    return Err(format!("says float-quantized with weights {weights}"));
                }
                blocks.push(block(weights.get("block_structure"))?);
            }
            match blocks[..] {
                [first, ..] if blocks.iter().all(|other| *other == first) => Ok(first),
                _ => Err("says float-quantized without one form of weights".to_owned()),
            }
        }
        _ => refuse(),
    }
}

/// Two sizes of a block, or none.
fn block(stated: Option<&Value>) -> Result<Option<[u64; 2]>, String> {
    let Some(stated) = stated.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let sizes = stated.as_array().map(Vec::as_slice);
    let sizes = match sizes {
        Some([rows, cols]) => rows.as_u64().zip(cols.as_u64()),
        _ => None,
    };
    match sizes {
        Some((rows, cols)) if rows.saturating_mul(cols) >= MIN_BLOCK_LEN => Ok(Some([rows, cols])),
        _ => Err(format!(
            "has blocks of {stated}, not of two sizes whose product is at least {MIN_BLOCK_LEN}"
        )),
    }
}

/// Stated and stored bits of a GPTQ or AWQ matrix, if they differ. Its words have 32 bits:
/// GPTQ packs inputs, so that there is a column an output; AWQ packs outputs.
fn widths(checkpoint: &Checkpoint, first: &SourceTensor, config: &Value) -> Option<String> {
    const WORD_BITS: u64 = 32;
    let stated = config.get("bits")?.as_u64()?;
    let (base, _) = first.name.rsplit_once('.')?;
    let of = |suffix: &str| match &checkpoint.tensor(&format!("{base}.{suffix}"))?.shape[..] {
        [rows, cols] => Some([*rows, *cols]),
        [len] => Some([*len, 1]),
        _ => None,
    };
    let ([rows, cols], [groups, outputs]) = (of("qweight")?, of("scales")?);
    let stored = match cols == outputs {
        true => {
            let group = config.get("group_size").and_then(Value::as_u64);
            let inputs = match (of("g_idx"), group) {
                (Some([inputs, _]), _) => inputs,
                (None, group) => groups.checked_mul(group?)?,
            };
            rows.checked_mul(WORD_BITS)?.checked_div(inputs)?
        }
        false => cols.checked_mul(WORD_BITS)?.checked_div(outputs)?,
    };
    (stored != stated).then(|| format!(", but {stored} are stored"))
}
