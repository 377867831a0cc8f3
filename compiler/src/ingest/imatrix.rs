//! How often each expert was used, from an importance matrix of llama.cpp's `llama-imatrix`.
//!
//! Since it is a GGUF file (`general.type` is `imatrix`), it has for every weight `NAME` that rows were multiplied
//! with a tensor `NAME.in_sum2` and a tensor `NAME.counts`, f32, `[1, n]`. For stacked experts,
//! `blk.L.ffn_gate_exps.weight` and the like, n is the number of experts, and a count is the number of pairs
//! of a token and a place among its k experts that named the expert (`tools/imatrix/imatrix.cpp`). The older
//! `.dat` files have no counts by expert.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use estream_schemas::dtype::DType;
use estream_schemas::exit::Exit;
use estream_schemas::limits::MAX_EXPERTS;

use super::gguf::{Gguf, GgufError, TensorInfo};

/// Stacks of experts, as GGUF names them.
const STACKS: [&str; 4] = [
    "ffn_gate_exps",
    "ffn_gate_up_exps",
    "ffn_up_exps",
    "ffn_down_exps",
];

/// An importance matrix that says nothing of experts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImatrixError {
    /// It is no GGUF file that can be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// It cannot be read.
    #[error("{}: cannot read: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("{}: general.type is not \"imatrix\"; name a file that llama-imatrix wrote as GGUF", path.display())]
    NoImatrix {
        /// Which file.
        path: PathBuf,
    },
    /// Counts that cannot be.
    #[error("{}: {}; make it again", path.display(), wrong.join("; "))]
    Counts {
        /// Which file.
        path: PathBuf,
        /// Everything that is wrong with them.
        wrong: Vec<String>,
    },
}

impl ImatrixError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            ImatrixError::Gguf(error) => error.exit(),
            ImatrixError::Io { .. } => Exit::Io,
            ImatrixError::NoImatrix { .. } | ImatrixError::Counts { .. } => Exit::Invalid,
        }
    }
}

/// Routes to each expert, by layer.
///
/// # Errors
/// If the file is no importance matrix in GGUF, or two stacks of a layer were counted differently.
pub fn read(path: &Path) -> Result<BTreeMap<u64, Vec<u32>>, ImatrixError> {
    let gguf = Gguf::open(path)?;
    let kind = gguf.kv("general.type");
    if kind.and_then(|kind| kind.as_str()) != Some("imatrix") {
        return Err(ImatrixError::NoImatrix {
            path: path.to_owned(),
        });
    }
    let failed = |source| ImatrixError::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let mut layers: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for tensor in gguf.tensors() {
        let Some(layer) = layer_of(tensor.name) else {
            continue;
        };
        let bytes = match checked_bytes(&tensor) {
            Ok(bytes) => bytes,
            Err(why) => {
                wrong.push(why);
                continue;
            }
        };
        let mut buffer = vec![0; bytes];
        let at = gguf.data_start() + tensor.offset;
        file.read_exact_at(&mut buffer, at).map_err(failed)?;
        let counts: Option<Vec<u32>> = buffer.as_chunks::<4>().0.iter().map(count).collect();
        let Some(counts) = counts else {
            wrong.push(format!(
                "{:?} has a count that is no number of rows",
                tensor.name
            ));
            continue;
        };
        match layers.get(&layer) {
            Some(other) if *other != counts => {
                wrong.push(format!(
                    "{:?} differs from another of its layer",
                    tensor.name
                ));
            }
            _ => drop(layers.insert(layer, counts)),
        }
    }
    match wrong.is_empty() {
        true => Ok(layers),
        false => Err(ImatrixError::Counts {
            path: path.to_owned(),
            wrong,
        }),
    }
}

/// The layer whose experts a tensor has counts of.
fn layer_of(name: &str) -> Option<u64> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let stack = rest.strip_suffix(".weight.counts")?;
    STACKS.contains(&stack).then(|| layer.parse().ok())?
}

/// Bytes of counts of no more experts than a layer can have.
fn checked_bytes(tensor: &TensorInfo<'_>) -> Result<usize, String> {
    let elements = tensor.dims.iter().product::<u64>();
    let is_list = tensor.dims.first() == Some(&1) && tensor.dtype == DType::F32;
    match is_list && elements <= MAX_EXPERTS {
        true => Ok(usize::try_from(tensor.bytes).unwrap_or(0)),
        false => Err(format!(
            "{:?} is {} of {:?}, not f32 of [1, experts]",
            tensor.name, tensor.dtype, tensor.dims
        )),
    }
}

/// A whole number below 2^32.
fn count(bytes: &[u8; 4]) -> Option<u32> {
    let value = f64::from(f32::from_le_bytes(*bytes));
    let whole = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is a whole number of that range"
    )]
    whole.then_some(value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::gguf::{GgufBuilder, Value};

    fn file(kind: &[u8], tensors: &[(&str, &[f32])]) -> tempfile::NamedTempFile {
        let mut header = GgufBuilder::new();
        header.pair("general.type", Value::String(kind)).unwrap();
        for (name, counts) in tensors {
            let shape = [counts.len() as u64, 1];
            header.tensor(name, DType::F32, &shape).unwrap();
        }
        let mut writer = header.begin(Vec::new()).unwrap();
        for (_, counts) in tensors {
            let bytes: Vec<u8> = counts.iter().flat_map(|c| c.to_le_bytes()).collect();
            writer.write_tensor_data(&bytes).unwrap();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), writer.finish().unwrap()).unwrap();
        file
    }

    const GATE: &str = "blk.3.ffn_gate_exps.weight.counts";
    const DOWN: &str = "blk.3.ffn_down_exps.weight.counts";

    #[test]
    fn counts_of_stacked_experts_are_read_and_all_else_is_passed_over() {
        let tensors: [(&str, &[f32]); 5] = [
            ("blk.0.attn_q.weight.counts", &[512.0]),
            (GATE, &[4.0, 0.0, 16_777_216.0]),
            (DOWN, &[4.0, 0.0, 16_777_216.0]),
            ("blk.3.ffn_gate_exps.weight.in_sum2", &[0.5, 0.5, 0.5]),
            ("blk.11.ffn_gate_up_exps.weight.counts", &[1.0]),
        ];
        let counts = read(file(b"imatrix", &tensors).path()).unwrap();
        let expected = [(3, vec![4, 0, 1 << 24]), (11, vec![1])];
        assert_eq!(counts, BTreeMap::from(expected));
    }

    #[test]
    fn counts_that_cannot_be_are_told_all_at_once() {
        let tensors: [(&str, &[f32]); 4] = [
            (GATE, &[1.0, 2.0]),
            (DOWN, &[2.0, 1.0]),
            ("blk.4.ffn_gate_exps.weight.counts", &[0.5]),
            ("blk.5.ffn_gate_exps.weight.counts", &[f32::NAN]),
        ];
        let error = read(file(b"imatrix", &tensors).path()).unwrap_err();
        assert_eq!(error.exit(), Exit::Invalid);
        let text = error.to_string();
        for says in ["blk.3.ffn_down_exps", "blk.4", "blk.5"] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let error = read(file(b"model", &[(GATE, &[1.0])]).path()).unwrap_err();
        assert!(matches!(error, ImatrixError::NoImatrix { .. }), "{error}");
        let long = vec![0.0; usize::try_from(MAX_EXPERTS).unwrap() + 1];
        let error = read(file(b"imatrix", &[(GATE, &long)]).path()).unwrap_err();
        assert!(error.to_string().contains("[1, experts]"), "{error}");
    }
}
