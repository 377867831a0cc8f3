//! The file of a stored reference: safetensors, whose tensors `docs/parity.md` lists.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use estream_schemas::digest::Digest;
use estream_schemas::exit::Exit;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::reference::require_same;
use super::shape::{Router, Shape};
use super::stats::exp;
use super::stored::{Choices, Kept, Rows, Stored};
use super::windows::Windows;
use crate::failure::Failure;

/// What the metadata's `format` says.
const FORMAT: &str = "estream-parity";
/// The version this program writes and reads.
const VERSION: &str = "1";
/// Bytes of a file: some hundred thousand positions.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Bytes of a header, of which two tensors a layer take about 150.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// How far probabilities may be from a sum of 1.
const SUM_TOLERANCE: f64 = 1e-6;

/// `__metadata__`, all values strings.
#[derive(Debug, Serialize, Deserialize)]
struct Metadata {
    format: String,
    version: String,
    /// [`Shape`] as JSON.
    model: String,
    /// Identity of the bundle that computed it.
    identity: String,
    /// Tokens of a window.
    window: String,
    /// Digest of the tokens.
    tokens: String,
}

/// Whether `path` is a regular file that says it is a stored reference.
pub(crate) fn is_stored(path: &Path) -> bool {
    #[derive(Deserialize)]
    struct Head {
        #[serde(rename = "__metadata__")]
        metadata: BTreeMap<String, String>,
    }
    let head = || -> Option<Head> {
        // Opening a pipe would wait for a writer.
        fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let mut file = File::open(path).ok()?;
        let mut length = [0; 8];
        file.read_exact(&mut length).ok()?;
        let length = Some(u64::from_le_bytes(length)).filter(|n| *n <= MAX_HEADER_BYTES)?;
        let mut text = vec![0; usize::try_from(length).ok()?];
        file.read_exact(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    };
    head().is_some_and(|head| head.metadata.get("format").is_some_and(|f| f == FORMAT))
}

/// Elements of a tensor.
enum Elements<'a> {
    F64(&'a [f64]),
    F32(&'a [f32]),
    I32(&'a [u32]),
    U16(&'a [u16]),
}

impl Elements<'_> {
    fn dtype(&self) -> (&'static str, usize, usize) {
        match self {
            Elements::F64(x) => ("F64", 8, x.len()),
            Elements::F32(x) => ("F32", 4, x.len()),
            Elements::I32(x) => ("I32", 4, x.len()),
            Elements::U16(x) => ("U16", 2, x.len()),
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Elements::F64(x) => x.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
            Elements::F32(x) => x.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
            Elements::I32(x) => x.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
            Elements::U16(x) => x.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
        }
    }
}

/// A stored reference's tensors in the order they are written: wide elements first, so
/// that all are aligned.
fn tensors(stored: &Stored) -> Vec<(String, Elements<'_>, usize)> {
    let rows = &stored.rows;
    let mut all = vec![
        ("log_norms".to_owned(), Elements::F64(&rows.log_norms), 0),
        ("log_tails".to_owned(), Elements::F64(&rows.log_tails), 0),
        ("tokens".to_owned(), Elements::I32(stored.windows.ids()), 0),
        ("top_ids".to_owned(), Elements::I32(&rows.top_ids), rows.top),
        (
            "top_logits".to_owned(),
            Elements::F32(&rows.top_logits),
            rows.top,
        ),
        (
            "next_logits".to_owned(),
            Elements::F32(&rows.next_logits),
            0,
        ),
    ];
    let layers = || stored.shape.routers.iter().zip(&stored.choices);
    for (router, choices) in layers().filter(|(_, choices)| !choices.margins.is_empty()) {
        let name = format!("margins.{}", router.layer);
        all.push((name, Elements::F32(&choices.margins), 0));
    }
    for (router, choices) in layers() {
        let name = format!("experts.{}", router.layer);
        let top_k = usize::try_from(router.top_k).unwrap_or(usize::MAX);
        all.push((name, Elements::U16(&choices.experts), top_k));
    }
    all
}

/// Writes `stored`: the same bytes for the same results.
pub(crate) fn write(stored: &Stored, out: &mut dyn Write) -> io::Result<()> {
    let metadata = Metadata {
        format: FORMAT.to_owned(),
        version: VERSION.to_owned(),
        model: serde_json::to_string(&stored.shape)?,
        identity: stored.identity.clone(),
        window: stored.windows.window().to_string(),
        tokens: stored.windows.digest().to_string(),
    };
    let mut header = format!("{{\"__metadata__\":{}", serde_json::to_string(&metadata)?);
    let positions = stored.windows.ids().len();
    let tensors = tensors(stored);
    let mut begin = 0;
    for (name, elements, cols) in &tensors {
        let (dtype, bytes, count) = elements.dtype();
        let end = begin + count * bytes;
        let shape = match cols {
            0 => format!("[{positions}]"),
            cols => format!("[{positions},{cols}]"),
        };
        header.push_str(&format!(
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}"
        ));
        begin = end;
    }
    header.push('}');
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    tensors
        .iter()
        .try_for_each(|(_, elements, _)| elements.write(out))
}

/// Reads the file at `path`, if it is of the model `shape`.
///
/// What this returns is consistent: every row and choice is there, ids are below what
/// they count, values are finite, and each row's probabilities sum to 1.
pub(crate) fn read(path: &Path, shape: &Shape) -> Result<Stored, Failure> {
    let invalid = |why: String| {
        let message = format!(
            "{}: is no valid stored reference: {why}; store it again with --save-reference",
            path.display()
        );
        Failure::new(Exit::Invalid, anyhow::anyhow!(message))
    };
    let bytes = load(path)?.ok_or_else(|| invalid(format!("more than {MAX_FILE_BYTES} bytes")))?;
    let length = bytes.first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
    if length > MAX_HEADER_BYTES {
        return Err(invalid(format!("a header of {length} bytes")));
    }
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| invalid(e.to_string()))?;
    let metadata = serde_json::to_value(header.metadata()).and_then(serde_json::from_value);
    let metadata: Metadata = metadata.map_err(|e| invalid(format!("metadata: {e}")))?;
    if metadata.version != VERSION {
        let version = &metadata.version;
        return Err(invalid(format!(
            "its version is {version:?}, not {VERSION:?}"
        )));
    }
    let model: Shape =
        serde_json::from_str(&metadata.model).map_err(|e| invalid(format!("model: {e}")))?;
    require_same(path, shape, &model)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| invalid(e.to_string()))?;
    let mut parts = Parts {
        file,
        wrong: Vec::new(),
        used: Vec::new(),
    };
    let stored = parts.stored(shape, &metadata);
    match (stored, parts.wrong.is_empty()) {
        (Some(stored), true) => Ok(stored),
        _ => Err(invalid(parts.wrong.join("; "))),
    }
}

/// All bytes of a regular file; `None` if it is larger than any reference.
fn load(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let mut bytes = Vec::new();
    let file = File::open(path);
    file.and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            let message = format!("{}: cannot be read: {error}", path.display());
            Failure::io(io::Error::new(error.kind(), message))
        })?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= MAX_FILE_BYTES))
}

/// Takes a file's tensors one by one and notes what is wrong with each.
struct Parts<'a> {
    file: SafeTensors<'a>,
    wrong: Vec<String>,
    /// Names of the tensors that were taken.
    used: Vec<String>,
}

impl Parts<'_> {
    fn stored(&mut self, shape: &Shape, metadata: &Metadata) -> Option<Stored> {
        let vocab = u32::try_from(shape.vocab).unwrap_or(u32::MAX);
        let tokens = self.rows("tokens")?;
        let top = self.cols("top_ids")?;
        self.require(top as u64 <= shape.vocab, || {
            format!("top_ids: {top} of {vocab} tokens")
        });
        let window = metadata.window.parse().unwrap_or(0);
        self.require(
            window >= Windows::MIN && metadata.window == window.to_string(),
            || format!("window: {:?}", metadata.window),
        );
        if !self.wrong.is_empty() {
            return None;
        }
        let ids = self.integers("tokens", &[tokens], vocab);
        let rows = Rows {
            top,
            top_ids: self.integers("top_ids", &[tokens, top], vocab),
            top_logits: self.floats("top_logits", &[tokens, top]),
            log_norms: self.doubles("log_norms", &[tokens]),
            log_tails: self.doubles("log_tails", &[tokens]),
            next_logits: self.floats("next_logits", &[tokens]),
        };
        let routers = shape.routers.iter();
        let choices: Vec<Choices> = routers.map(|router| self.choices(router, tokens)).collect();
        self.refuse_others();
        self.require(metadata.identity.parse::<Digest>().is_ok(), || {
            "identity: not a digest".to_owned()
        });
        if !self.wrong.is_empty() {
            return None;
        }
        let windows = Windows::new(ids, window);
        self.require(windows.digest().to_string() == metadata.tokens, || {
            "tokens: not those of the stated digest".to_owned()
        });
        let has_rest = (top as u64) < shape.vocab;
        let odd =
            (0..tokens).find(|index| !is_row(&rows.get(*index), windows.next(*index), has_rest));
        if let Some(index) = odd {
            let what = "its logits contradict each other, or their probabilities do not sum to 1";
            self.wrong.push(format!("position {index}: {what}"));
        }
        Some(Stored {
            shape: shape.clone(),
            identity: metadata.identity.clone(),
            windows,
            rows,
            choices,
        })
    }

    fn choices(&mut self, router: &Router, tokens: usize) -> Choices {
        let top_k = usize::try_from(router.top_k).unwrap_or(usize::MAX);
        let name = format!("experts.{}", router.layer);
        let words = self.words::<2>(&name, Dtype::U16, &[tokens, top_k]);
        let experts: Vec<u16> = words.into_iter().map(u16::from_le_bytes).collect();
        let known = experts
            .iter()
            .all(|expert| u64::from(*expert) < router.experts);
        self.require(known, || {
            format!("{name}: an expert that is not below {}", router.experts)
        });
        let twice = experts.chunks_exact(top_k.max(1)).any(has_twice);
        self.require(!twice, || format!("{name}: an expert twice for one token"));
        let name = format!("margins.{}", router.layer);
        let margins = match self.file.tensor(&name).is_ok() {
            true => self.floats(&name, &[tokens]),
            false => Vec::new(),
        };
        self.require(margins.iter().all(|margin| *margin >= 0.0), || {
            format!("{name}: a negative margin")
        });
        Choices { experts, margins }
    }

    /// Notes the tensors that were not taken, the first few of them.
    fn refuse_others(&mut self) {
        let mut others = self.file.names();
        others.retain(|name| !self.used.iter().any(|used| used == name));
        others.sort_unstable();
        let names = others.iter().take(5).map(|name| format!("{name}: unknown"));
        self.wrong.extend(names);
    }

    fn require(&mut self, good: bool, what: impl FnOnce() -> String) {
        if !good {
            self.wrong.push(what());
        }
    }

    /// Elements of `name`'s first dimension, at least one.
    fn rows(&mut self, name: &str) -> Option<usize> {
        self.dim(name, 0)
    }

    fn cols(&mut self, name: &str) -> Option<usize> {
        self.dim(name, 1)
    }

    fn dim(&mut self, name: &str, dim: usize) -> Option<usize> {
        let tensor = self.file.tensor(name).ok();
        let size = tensor.and_then(|tensor| tensor.shape().get(dim).copied());
        let size = size.filter(|size| *size > 0);
        self.require(size.is_some(), || {
            format!("{name}: absent, or without elements")
        });
        size
    }

    /// The elements of a tensor, of `N` bytes each; none if it is not as stated.
    fn words<const N: usize>(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Vec<[u8; N]> {
        let Ok(tensor) = self.file.tensor(name) else {
            self.wrong.push(format!("{name}: absent"));
            return Vec::new();
        };
        self.used.push(name.to_owned());
        if tensor.dtype() != dtype || tensor.shape() != shape {
            let (has, of) = (tensor.dtype(), tensor.shape());
            self.wrong
                .push(format!("{name}: {has:?} {of:?}, not {dtype:?} {shape:?}"));
            return Vec::new();
        }
        tensor.data().as_chunks::<N>().0.to_vec()
    }

    /// Integers from 0 to below `end`.
    fn integers(&mut self, name: &str, shape: &[usize], end: u32) -> Vec<u32> {
        let words = self.words::<4>(name, Dtype::I32, shape);
        let all: Vec<u32> = words.into_iter().map(u32::from_le_bytes).collect();
        self.require(all.iter().all(|id| *id < end), || {
            format!("{name}: an id that is not below {end}")
        });
        all
    }

    fn floats(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let words = self.words::<4>(name, Dtype::F32, shape);
        let all: Vec<f32> = words.into_iter().map(f32::from_le_bytes).collect();
        self.require(all.iter().all(|x| x.is_finite()), || {
            format!("{name}: a value that is not finite")
        });
        all
    }

    /// Numbers or −∞, which is ln of nothing.
    fn doubles(&mut self, name: &str, shape: &[usize]) -> Vec<f64> {
        let words = self.words::<8>(name, Dtype::F64, shape);
        let all: Vec<f64> = words.into_iter().map(f64::from_le_bytes).collect();
        self.require(all.iter().all(|x| *x < f64::INFINITY), || {
            format!("{name}: a value that is no logarithm")
        });
        all
    }
}

/// Whether `kept` can be of a softmax: logits in order, no token twice, probabilities of 1
/// in all, a rest exactly if there are other tokens, and the logit of `next` among them.
fn is_row(kept: &Kept<'_>, next: Option<u32>, has_rest: bool) -> bool {
    let pairs = kept.logits.iter().zip(kept.ids);
    let in_order = pairs.is_sorted_by(|(a, i), (b, j)| a > b || (a == b && i < j));
    let log_probs = kept
        .logits
        .iter()
        .map(|logit| f64::from(*logit) - kept.log_norm);
    let sum = log_probs.chain([kept.log_tail]).map(exp).sum::<f64>();
    let next_fits = next.is_none_or(|next| {
        let listed = kept.ids.iter().position(|id| *id == next);
        match (listed, kept.logits.last()) {
            (Some(at), _) => kept.next_logit == kept.logits[at],
            (None, Some(least)) => has_rest && kept.next_logit <= *least,
            (None, None) => false,
        }
    });
    in_order
        && !has_twice(kept.ids)
        && (kept.log_tail > f64::NEG_INFINITY) == has_rest
        && (sum - 1.0).abs() <= SUM_TOLERANCE
        && next_fits
}

fn has_twice<T: Ord + Clone>(all: &[T]) -> bool {
    let mut sorted = all.to_vec();
    sorted.sort_unstable();
    sorted.array_windows().any(|[a, b]| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c92_a_real_model_on_the_usual_text_takes_a_few_megabytes() {
        let routers = (0..48).map(|layer| Router {
            layer,
            experts: 128,
            top_k: 8,
            form: None,
        });
        let shape = Shape {
            family: "qwen3moe".to_owned(),
            vocab: 151_936,
            layers: 48,
            routers: routers.collect(),
        };
        let tokens = 2000;
        let windows = Windows::new(vec![0; tokens], 512);
        let mut stored = Stored::new(shape, "0".repeat(64), windows, 64);
        stored.rows.top_ids = vec![0; tokens * 64];
        stored.rows.top_logits = vec![0.0; tokens * 64];
        stored.rows.next_logits = vec![0.0; tokens];
        stored.rows.log_norms = vec![0.0; tokens];
        stored.rows.log_tails = vec![0.0; tokens];
        for choices in &mut stored.choices {
            choices.experts = vec![0; tokens * 8];
            choices.margins = vec![0.0; tokens];
        }
        let mut bytes = Vec::new();
        write(&stored, &mut bytes).unwrap();
        SafeTensors::deserialize(&bytes).unwrap();
        assert!(bytes.len() < 4 << 20, "{}", bytes.len());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let shape = Shape {
            family: "olmoe".to_owned(),
            vocab: 3,
            layers: 1,
            routers: vec![Router {
                layer: 0,
                experts: 4,
                top_k: 2,
                form: None,
            }],
        };
        let windows = Windows::new(vec![2, 0, 1], 2);
        let mut stored = Stored::new(shape, "ab".repeat(32), windows, 2);
        for (index, row) in [[0.5, 0.25, -1.0], [1.0, 1.0, 1.0], [-9.0, 0.0, 9.0]]
            .iter()
            .enumerate()
        {
            stored.rows.push(row, stored.windows.next(index));
        }
        stored.choices[0] = Choices {
            experts: vec![0, 3, 2, 1, 3, 2],
            margins: vec![0.5, 0.0, 0.25],
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ref.safetensors");
        let mut bytes = Vec::new();
        write(&stored, &mut bytes).unwrap();
        fs::write(&path, &bytes).unwrap();
        assert!(is_stored(&path) && !is_stored(dir.path()));
        assert_eq!(read(&path, &stored.shape).unwrap(), stored);
        let mut other = stored.shape.clone();
        other.vocab = 4;
        assert_eq!(read(&path, &other).unwrap_err().exit, Exit::Usage);
    }
}
