//! What makes a manifest valid.
//!
//! [`Bundle::parse`] is the only way to get a [`Bundle`], and a reader takes nothing
//! less. Packing is checked to be *dense*: every byte of `resident.bin` and of the
//! experts files is either inside exactly one checked extent or padding of known
//! length, so there is no room for anything the manifest does not state.

mod ledger;
mod program;
mod weight;

use std::collections::BTreeSet;

use crate::layout::TILE;
use crate::limits::{
    MAX_CARRIED_FILES, MAX_DIM, MAX_EXPERTS, MAX_LAYERS, MAX_MANIFEST_BYTES, MAX_NAME_BYTES,
    MAX_PARTS, MAX_RESIDENT, MAX_SHARDS,
};
use crate::manifest::{
    ALIGN, CarriedFile, ExpertLayer, FORMAT, KERNEL_ABI, MANIFEST_FILE, Manifest, PLANS_DIR,
    RESIDENT_FILE, Region, ResidentTensor, VERSION, part_file,
};

/// Why a manifest is not that of a bundle this version can use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidManifest {
    /// More bytes than any manifest has.
    #[error(
        "the manifest has {bytes} bytes, more than the {MAX_MANIFEST_BYTES} a manifest may have"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// Not JSON, or not the fields of a manifest.
    #[error("the manifest cannot be parsed: {0}")]
    Json(#[from] serde_json::Error),
    /// Another kind of file.
    #[error("the manifest's format is {found:?}, not {FORMAT:?}")]
    Format {
        /// What it says it is.
        found: String,
    },
    /// Made by a newer (or broken) packer.
    #[error(
        "the bundle has format version {version} and kernel ABI {kernel_abi}; this version of estream reads \
         {VERSION} and {KERNEL_ABI}: use a newer estream, or compile the bundle again"
    )]
    Unsupported {
        /// Its format version.
        version: u64,
        /// Its kernel ABI.
        kernel_abi: u64,
    },
    /// A statement that contradicts another or is out of bounds.
    #[error("the manifest is invalid at {at}: {why}; the bundle is corrupt, compile it again")]
    Invalid {
        /// Where in the manifest.
        at: String,
        /// What is wrong there.
        why: String,
    },
}

/// A valid manifest.
///
/// Holding one proves: formats and versions are known; sizes meet the
/// [limits](crate::limits); extents are aligned, dense, in bounds of the sizes the
/// manifest states, and agree with shapes and layouts; names are safe to join to
/// the bundle's path; every register and tensor the program names exists with the
/// width or shape its operator needs, and no register is read before it is written; each layer's experts form one shape class;
/// the ledger's names lead to weights, and every weight is in it exactly once.
/// It does not prove that the files exist, have those sizes, or match the digests.
#[derive(Clone, Debug)]
pub struct Bundle {
    manifest: Manifest,
}

impl Bundle {
    /// Parses and checks the text of a manifest.
    pub fn parse(text: &[u8]) -> Result<Bundle, InvalidManifest> {
        let bytes = text.len() as u64;
        if bytes > MAX_MANIFEST_BYTES {
            return Err(InvalidManifest::TooLarge { bytes });
        }
        weight::check(text)?;
        // The version decides how the rest reads, so it is looked at first.
        let head: Head = serde_json::from_slice(text)?;
        if head.format != FORMAT {
            return Err(InvalidManifest::Format { found: head.format });
        }
        if head.version != VERSION || head.kernel_abi != KERNEL_ABI {
            return Err(InvalidManifest::Unsupported {
                version: head.version,
                kernel_abi: head.kernel_abi,
            });
        }
        Bundle::check(serde_json::from_slice(text)?)
    }

    /// Checks a manifest that is already in memory.
    pub fn check(manifest: Manifest) -> Result<Bundle, InvalidManifest> {
        resident(&manifest)?;
        experts(&manifest)?;
        files(&manifest)?;
        program::check(&manifest)?;
        ledger::check(&manifest)?;
        Ok(Bundle { manifest })
    }

    /// What was checked.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What was checked, to be changed and checked again.
    pub fn into_manifest(self) -> Manifest {
        self.manifest
    }

    /// The resident tensor called `name`.
    pub fn resident(&self, name: &str) -> Option<&ResidentTensor> {
        let tensors = &self.manifest.resident.tensors;
        tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The experts of layer `layer`.
    pub fn experts(&self, layer: usize) -> Option<&ExpertLayer> {
        let layers = &self.manifest.experts.layers;
        layers.iter().find(|experts| experts.layer == layer as u64)
    }
}

#[derive(serde::Deserialize)]
struct Head {
    format: String,
    version: u64,
    kernel_abi: u64,
}

/// An error at `at`, which is only spelled out when there is one.
fn invalid(at: impl std::fmt::Display, why: impl Into<String>) -> InvalidManifest {
    InvalidManifest::Invalid {
        at: at.to_string(),
        why: why.into(),
    }
}

/// `Ok` if `holds`, else an error at `at`.
fn ensure(
    holds: bool,
    at: impl std::fmt::Display,
    why: impl FnOnce() -> String,
) -> Result<(), InvalidManifest> {
    if holds {
        Ok(())
    } else {
        Err(invalid(at, why()))
    }
}

/// The next multiple of [`ALIGN`], if it exists.
pub fn align_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGN)
}

/// `end` of an extent rounded up, where the extent starts at `offset`.
fn aligned_end(offset: u64, bytes: u64) -> Option<u64> {
    align_up(offset.checked_add(bytes)?)
}

fn name(at: &str, name: &str) -> Result<(), InvalidManifest> {
    ensure(name.len() <= MAX_NAME_BYTES, at, || {
        format!("a name of {} bytes, more than {MAX_NAME_BYTES}", name.len())
    })?;
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    ensure(!name.is_empty() && plain, at, || {
        format!("{name:?} is not a name of letters, digits, dots, dashes and underscores")
    })
}

fn dim(at: &str, what: &str, value: u64, max: u64) -> Result<(), InvalidManifest> {
    ensure((1..=max).contains(&value), at, || {
        format!("{what} is {value}, outside 1 to {max}")
    })
}

fn resident(manifest: &Manifest) -> Result<(), InvalidManifest> {
    let resident = &manifest.resident;
    ensure(resident.tensors.len() <= MAX_RESIDENT, "resident", || {
        format!("more than {MAX_RESIDENT} tensors")
    })?;
    let mut names = BTreeSet::new();
    let mut end = 0;
    for (index, tensor) in resident.tensors.iter().enumerate() {
        name(&format!("resident tensor {index}"), &tensor.name)?;
        let at = format!("resident tensor {:?}", tensor.name);
        ensure(names.insert(&tensor.name), &at, || "stated twice".into())?;
        ensure(matches!(tensor.shape.len(), 1 | 2), &at, || {
            "has neither one nor two dimensions".into()
        })?;
        for &value in &tensor.shape {
            dim(&at, "a dimension", value, MAX_DIM)?;
        }
        let (rows, cols) = tensor.matrix();
        extent(&at, tensor.offset, end)?;
        size(&at, tensor.layout, rows, cols, tensor.bytes)?;
        end = aligned_end(tensor.offset, tensor.bytes)
            .ok_or_else(|| invalid(&at, "its end overflows"))?;
    }
    ensure(resident.bytes == end, "resident", || {
        format!("the file has {} bytes, its tensors {end}", resident.bytes)
    })
}

fn extent(at: &str, offset: u64, expected: u64) -> Result<(), InvalidManifest> {
    ensure(offset == expected, at, || {
        format!("starts at {offset}, not at {expected} where the one before it ends")
    })
}

fn size(
    at: &str,
    layout: crate::layout::Layout,
    rows: u64,
    cols: u64,
    bytes: u64,
) -> Result<(), InvalidManifest> {
    let expected = layout
        .bytes(rows, cols)
        .ok_or_else(|| invalid(at, format!("{layout} cannot hold rows of {cols}")))?;
    ensure(bytes == expected, at, || {
        format!("{rows} × {cols} in {layout} takes {expected} bytes, not {bytes}")
    })
}

fn experts(manifest: &Manifest) -> Result<(), InvalidManifest> {
    let experts = &manifest.experts;
    ensure(experts.parts.len() <= MAX_PARTS, "experts", || {
        format!("more than {MAX_PARTS} parts")
    })?;
    ensure(experts.layers.len() as u64 <= MAX_LAYERS, "experts", || {
        format!("more than {MAX_LAYERS} layers")
    })?;
    let mut slot_bytes = 0;
    let mut previous: Option<(u64, u64, u64)> = None; // layer, part, end of its last record
    for layer in &experts.layers {
        let at = format!("experts of layer {}", layer.layer);
        let (expected_part, expected_offset) = match previous {
            None => (0, 0),
            Some((before, part, end)) => {
                ensure(layer.layer > before, &at, || "layers do not ascend".into())?;
                match layer.part == part {
                    true => (part, end),
                    false => {
                        part_size(manifest, part, end)?;
                        (part + 1, 0)
                    }
                }
            }
        };
        ensure(layer.part == expected_part, &at, || {
            format!("in part {}, not {expected_part}", layer.part)
        })?;
        extent(&at, layer.offset, expected_offset)?;
        shape_class(&at, layer)?;
        slot_bytes = slot_bytes.max(layer.record_bytes);
        let end = layer
            .records()
            .checked_mul(layer.record_bytes)
            .and_then(|bytes| bytes.checked_add(layer.offset))
            .ok_or_else(|| invalid(&at, "its end overflows"))?;
        previous = Some((layer.layer, layer.part, end));
    }
    let part_count = match previous {
        None => 0,
        Some((_, part, end)) => {
            part_size(manifest, part, end)?;
            part + 1
        }
    };
    ensure(experts.parts.len() as u64 == part_count, "experts", || {
        format!(
            "{} parts, of which {part_count} are used",
            experts.parts.len()
        )
    })?;
    for (index, part) in experts.parts.iter().enumerate() {
        ensure(part.file == part_file(index), "experts", || {
            format!("part {index} is called {:?}", part.file)
        })?;
    }
    ensure(experts.slot_bytes == slot_bytes, "experts", || {
        format!(
            "slot_bytes is {}, the largest record {slot_bytes}",
            experts.slot_bytes
        )
    })
}

fn part_size(manifest: &Manifest, part: u64, end: u64) -> Result<(), InvalidManifest> {
    let at = format!("part {part} of the experts");
    let bytes = usize::try_from(part)
        .ok()
        .and_then(|index| manifest.experts.parts.get(index))
        .ok_or_else(|| invalid(&at, "does not exist"))?
        .bytes;
    ensure(bytes == end, &at, || {
        format!("has {bytes} bytes, its records {end}")
    })
}

fn shape_class(at: &str, layer: &ExpertLayer) -> Result<(), InvalidManifest> {
    ensure(layer.layer < MAX_LAYERS, at, || {
        format!("no program has more than {MAX_LAYERS} layers")
    })?;
    dim(at, "the number of experts", layer.experts, MAX_EXPERTS)?;
    dim(at, "the number of shards", layer.shards, MAX_SHARDS)?;
    let [gate, up, down] = layer.regions();
    let (ff, hidden) = (gate.rows, gate.cols);
    dim(at, "ff / shards", ff, MAX_DIM)?;
    dim(at, "hidden", hidden, MAX_DIM)?;
    let agree = (up.rows, up.cols) == (ff, hidden) && (down.rows, down.cols) == (hidden, ff);
    ensure(agree, at, || {
        "gate, up and down disagree about hidden or ff".into()
    })?;
    ensure(layer.shards == 1 || ff.is_multiple_of(TILE), at, || {
        format!("a shard's ff of {ff} is not a multiple of {TILE}")
    })?;
    let mut end = 0;
    for (region, projection) in [(gate, "gate"), (up, "up"), (down, "down")] {
        let Region {
            layout,
            rows,
            cols,
            offset,
            bytes,
        } = *region;
        let at = format!("{at}, {projection}");
        extent(&at, offset, end)?;
        size(&at, layout, rows, cols, bytes)?;
        end = aligned_end(offset, bytes).ok_or_else(|| invalid(&at, "its end overflows"))?;
    }
    ensure(layer.record_bytes == end, at, || {
        format!(
            "records have {} bytes, their regions {end}",
            layer.record_bytes
        )
    })?;
    ensure(layer.digests.len() as u64 == layer.records(), at, || {
        format!(
            "{} digests for {} records",
            layer.digests.len(),
            layer.records()
        )
    })?;
    // Every position names an expert that none before it named, so as many name them all.
    let mut seen = vec![false; layer.digests.len()];
    let mut fresh = |expert: &u64| {
        let seen = usize::try_from(*expert)
            .ok()
            .and_then(|expert| seen.get_mut(expert));
        *expert < layer.experts && seen.is_some_and(|seen| !std::mem::replace(seen, true))
    };
    let is_permutation =
        layer.order.len() as u64 == layer.experts && layer.order.iter().all(&mut fresh);
    ensure(is_permutation, at, || {
        "the storage order is not a permutation of the experts".into()
    })
}

fn files(manifest: &Manifest) -> Result<(), InvalidManifest> {
    let at = "carried files";
    let tokenizer = &manifest.tokenizer;
    let beside = manifest
        .license
        .files
        .iter()
        .chain(&manifest.source.metadata);
    let all: Vec<&CarriedFile> = manifest.carried().collect();
    ensure(all.len() <= MAX_CARRIED_FILES, at, || {
        format!("more than {MAX_CARRIED_FILES}")
    })?;
    for file in tokenizer {
        let inside = file.file.strip_prefix("tokenizer/");
        let inside =
            inside.ok_or_else(|| invalid(at, format!("{:?} is outside tokenizer/", file.file)))?;
        file_name(at, inside)?;
    }
    for file in beside {
        file_name(at, &file.file)?;
        let ours = [MANIFEST_FILE, RESIDENT_FILE, PLANS_DIR, "tokenizer"].contains(&&*file.file)
            || manifest
                .experts
                .parts
                .iter()
                .any(|part| part.file == file.file);
        ensure(!ours, at, || {
            format!("{:?} is not a carried file's name", file.file)
        })?;
    }
    let mut names = BTreeSet::new();
    names.extend(all.iter().map(|file| &*file.file));
    ensure(names.len() == all.len(), at, || {
        "a name is stated twice".into()
    })
}

/// A name that is one path component on every system, and no hidden file.
fn file_name(at: &str, file: &str) -> Result<(), InvalidManifest> {
    name(at, file)?;
    ensure(!file.starts_with('.') && !file.ends_with('.'), at, || {
        format!("{file:?} starts or ends with a dot")
    })
}
