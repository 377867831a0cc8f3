//! The ledger: every weight of the bundle is what one tensor of the source became.

use std::collections::{BTreeMap, BTreeSet};

use super::{InvalidManifest, ensure, invalid};
use crate::limits::{MAX_GGUF_DIMS, MAX_NAME_BYTES, MAX_SOURCE_DIMS};
use crate::manifest::{Fate, LedgerEntry, Manifest, SourceFormat};

/// Errors unless each entry stands for itself, names what there is, and no weight is
/// left without an entry or has two.
pub(super) fn check(manifest: &Manifest) -> Result<(), InvalidManifest> {
    let max_dims = match manifest.source.format {
        SourceFormat::Gguf => MAX_GGUF_DIMS,
        SourceFormat::Safetensors => MAX_SOURCE_DIMS,
    };
    let mut tensors = BTreeSet::new();
    let mut used = BTreeSet::new();
    for (index, entry) in manifest.ledger.iter().enumerate() {
        let bytes = entry.tensor.len();
        ensure(
            (1..=MAX_NAME_BYTES).contains(&bytes),
            format_args!("ledger entry {index}"),
            || format!("its tensor's name has {bytes} bytes, outside 1 to {MAX_NAME_BYTES}"),
        )?;
        let at = at(entry);
        ensure(tensors.insert(&*entry.tensor), &at, || {
            "stated twice".into()
        })?;
        shape(&at, entry, max_dims)?;
        if let Fate::Became(_) = entry.fate {
            used.insert(&*entry.tensor);
        }
    }
    let mut weights = Weights::of(manifest);
    for entry in &manifest.ledger {
        match &entry.fate {
            Fate::Became(names) => {
                let at = at(entry);
                ensure(!names.is_empty(), &at, || "it became nothing".into())?;
                for name in names {
                    weights.claim(&at, name)?;
                }
            }
            Fate::ScalesOf(other) => {
                let used = *other != entry.tensor && used.contains(&**other);
                ensure(used, at(entry), || {
                    format!("it scales {other:?}, which is no tensor that became a weight")
                })?;
            }
            Fate::AliasOf(other) => {
                let used = *other != entry.tensor && used.contains(&**other);
                ensure(used, at(entry), || {
                    format!("it equals {other:?}, which is no tensor that became a weight")
                })?;
            }
            Fate::Dropped(_) => {}
        }
    }
    weights.all_claimed()
}

fn at(entry: &LedgerEntry) -> String {
    format!("ledger entry {:?}", entry.tensor)
}

/// A scalar or an empty tensor can be no weight, but a source may have one: a scale, say.
fn shape(at: &str, entry: &LedgerEntry, max_dims: usize) -> Result<(), InvalidManifest> {
    let dims = &entry.shape;
    ensure(dims.len() <= max_dims, at, || {
        format!("{} dimensions, more than {max_dims}", dims.len())
    })?;
    let elements = dims
        .iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim));
    ensure(elements.is_some(), at, || {
        format!("the number of elements of {dims:?} overflows")
    })?;
    let is_weight = !matches!(entry.fate, Fate::Dropped(_) | Fate::ScalesOf(_));
    let is_filled = !dims.is_empty() && !dims.contains(&0);
    ensure(is_filled || !is_weight, at, || {
        format!("a tensor of shape {dims:?} is no weight")
    })
}

/// The weights of a bundle, and which of them an entry has claimed.
struct Weights<'a> {
    manifest: &'a Manifest,
    resident: BTreeMap<&'a str, bool>,
    /// By layer of the program, projection and expert.
    experts: BTreeMap<u64, [Vec<bool>; 3]>,
}

/// What the projections of experts are called in names, in the order they are stored.
const ROLES: [&str; 3] = ["expert_gate", "expert_up", "expert_down"];

impl<'a> Weights<'a> {
    fn of(manifest: &'a Manifest) -> Weights<'a> {
        let tensors = manifest.resident.tensors.iter();
        let layers = manifest.experts.layers.iter();
        // Extended, not collected: to collect would sort first, and a sort is 5 KB of code.
        let mut resident = BTreeMap::new();
        resident.extend(tensors.map(|tensor| (&*tensor.name, false)));
        let mut experts = BTreeMap::new();
        experts.extend(
            layers.map(|layer| (layer.layer, ROLES.map(|_| vec![false; layer.order.len()]))),
        );
        Weights {
            manifest,
            resident,
            experts,
        }
    }

    fn claim(&mut self, at: &str, name: &str) -> Result<(), InvalidManifest> {
        let twice = || invalid(at, format!("{name:?} is claimed twice"));
        let lost = || invalid(at, format!("the bundle holds no {name:?}"));
        if let Some(claimed) = self.resident.get_mut(name) {
            return match std::mem::replace(claimed, true) {
                true => Err(twice()),
                false => Ok(()),
            };
        }
        let (layer, role, expert) = expert_name(name).ok_or_else(lost)?;
        let claimed = self.experts.get_mut(&layer).ok_or_else(lost)?;
        let claimed = claimed.get_mut(role).ok_or_else(lost)?;
        let claimed = match expert {
            None => &mut claimed[..],
            Some(expert) => claimed.get_mut(expert..=expert).ok_or_else(lost)?,
        };
        for claimed in claimed {
            if std::mem::replace(claimed, true) {
                return Err(twice());
            }
        }
        Ok(())
    }

    fn all_claimed(&self) -> Result<(), InvalidManifest> {
        let unclaimed = |name: String| {
            let why = format!("no tensor of the source became {name:?}");
            Err(invalid("the ledger", why))
        };
        let tensors = &self.manifest.resident.tensors;
        let is_free = |name: &str| self.resident.get(name) == Some(&false);
        let tensor = tensors.iter().find(|tensor| is_free(&tensor.name));
        if let Some(tensor) = tensor {
            return unclaimed(tensor.name.clone());
        }
        for (layer, claimed) in &self.experts {
            for (role, claimed) in ROLES.iter().zip(claimed) {
                if let Some(expert) = claimed.iter().position(|claimed| !claimed) {
                    return unclaimed(format!("layers.{layer}.{role}.{expert}"));
                }
            }
        }
        Ok(())
    }
}

/// Layer, index of the role and, unless all are meant, expert of `layers.L.ROLE.E`.
fn expert_name(name: &str) -> Option<(u64, usize, Option<usize>)> {
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let (role, expert) = match rest.split_once('.') {
        None => (rest, None),
        Some((role, expert)) => (role, Some(number(expert)?)),
    };
    let role = ROLES.iter().position(|known| *known == role)?;
    Some((number(layer)?, role, expert))
}

/// A number as it is written, so that each weight has one name.
fn number<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse()
        .ok()
        .filter(|value: &T| value.to_string() == text)
}
