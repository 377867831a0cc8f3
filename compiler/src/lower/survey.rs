//! What of a checkpoint a family's descriptor explains, also if it does not explain all.

use std::collections::BTreeMap;

use estream_schemas::dtype::DType;
use estream_schemas::manifest::{Fate, LedgerEntry, SourceFormat};
use serde::Serialize;
use serde_json::Value;

use super::attempt;
use crate::arch::{Family, KeySource, Keys};
use crate::ingest::{Checkpoint, IngestError, Notice};
use crate::near;

/// How a descriptor and a checkpoint fit together.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Name of the family.
    pub family: String,
    /// The descriptor's keys, in its order.
    pub keys: Vec<KeyFound>,
    /// The descriptor's roles, in its order.
    pub roles: Vec<RoleFound>,
    /// Tensors that are no weights of their own: scales, those that equal another, and
    /// those that nobody needs.
    pub others: Vec<Other>,
    /// Everything that is wrong: if there is nothing, the checkpoint lowers.
    pub problems: Vec<String>,
    /// What a strict build refuses.
    pub surprises: Vec<String>,
}

/// A number of the model.
#[derive(Clone, Debug, Serialize)]
pub struct KeyFound {
    /// Name in the descriptor.
    pub key: String,
    /// What it is for this checkpoint.
    pub value: Option<Value>,
    /// Where the value is from; nowhere, if there is none.
    pub from: Option<Origin>,
}

/// Where a key's value is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This key of the configuration.
    Config(String),
    /// A default of the descriptor.
    Default,
    /// The number of rows of this role's tensor.
    RowsOf(String),
}

/// A kind of weight.
#[derive(Clone, Debug, Serialize)]
pub struct RoleFound {
    /// Its name.
    pub role: String,
    /// Whether an operator of this checkpoint's program names it.
    pub is_needed: bool,
    /// The role whose tensor serves for it.
    pub tied_to: Option<String>,
    /// The tensors it is in.
    pub sources: Vec<Fitting>,
}

/// Source tensors that differ in the numbers in their names only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fitting {
    /// Their name, with `{layer}` and `{expert}` for numbers if there are several.
    pub name: String,
    /// How many there are.
    pub tensor_count: u64,
    /// Element type.
    #[serde(rename = "type")]
    pub dtype: DType,
    /// Shape, slowest dimension first.
    pub shape: Vec<u64>,
}

/// Source tensors that are no weights of their own.
#[derive(Clone, Debug, Serialize)]
pub struct Other {
    /// Which.
    #[serde(flatten)]
    pub tensors: Fitting,
    /// What became of them.
    pub fate: String,
}

/// Maps `checkpoint` as a member of `family`, as far as that goes.
pub fn survey(checkpoint: &Checkpoint, family: &Family) -> Result<Survey, IngestError> {
    let descriptor = &family.descriptor;
    let attempt = attempt(checkpoint, family)?;
    let (ledger, notices) = match attempt.lowered {
        Some(lowered) => (lowered.ledger, lowered.notices),
        None => (Vec::new(), Vec::new()),
    };
    let keys = descriptor.key.iter().map(|key| KeyFound {
        key: key.name.clone(),
        value: attempt.keys.get(&key.name).cloned(),
        from: origin(&attempt.keys, key, checkpoint.format),
    });
    let mut by_role = by_role(&ledger);
    let roles = descriptor.tensor.iter().map(|role| RoleFound {
        role: role.role.clone(),
        is_needed: attempt.needed.contains(&role.role),
        tied_to: match &attempt.tied {
            Some([spared, stored]) if *spared == role.role => Some(stored.clone()),
            _ => None,
        },
        sources: by_role
            .remove(role.role.as_str())
            .unwrap_or_default()
            .list(),
    });
    let surprises = notices
        .iter()
        .filter(|notice| matches!(notice, Notice::Surprise(_)));
    Ok(Survey {
        family: descriptor.family.clone(),
        keys: keys.collect(),
        roles: roles.collect(),
        others: others(&ledger),
        problems: match attempt.problems {
            problems if problems.is_empty() => attempt.misfits,
            problems => problems,
        },
        surprises: surprises.map(ToString::to_string).collect(),
    })
}

fn origin(keys: &Keys, key: &KeySource, format: SourceFormat) -> Option<Origin> {
    keys.get(&key.name)?;
    let stated = keys.stated_by(&key.name);
    let rows_of = key
        .rows_of
        .as_ref()
        .filter(|_| key.default_in(format).is_none());
    Some(match (stated, rows_of) {
        (Some(name), _) => Origin::Config(name.to_owned()),
        (None, Some(role)) => Origin::RowsOf(role.clone()),
        (None, None) => Origin::Default,
    })
}

/// Source tensors by name, those that are alike together: the first, and how many.
#[derive(Default)]
struct Fittings<'a>(BTreeMap<(String, &'static str, &'a [u64]), (&'a LedgerEntry, u64)>);

impl<'a> Fittings<'a> {
    fn add(&mut self, entry: &'a LedgerEntry) {
        let kind = (
            near::pattern(&entry.tensor),
            entry.dtype.name(),
            entry.shape.as_slice(),
        );
        self.0.entry(kind).or_insert((entry, 0)).1 += 1;
    }

    fn list(self) -> Vec<Fitting> {
        let kinds = self
            .0
            .into_iter()
            .map(|((pattern, ..), (first, count))| Fitting {
                name: match count {
                    1 => first.tensor.clone(),
                    _ => pattern,
                },
                tensor_count: count,
                dtype: first.dtype,
                shape: first.shape.clone(),
            });
        kinds.collect()
    }
}

fn by_role(ledger: &[LedgerEntry]) -> BTreeMap<&str, Fittings<'_>> {
    let mut by_role: BTreeMap<&str, Fittings<'_>> = BTreeMap::new();
    for entry in ledger {
        let Fate::Became(names) = &entry.fate else {
            continue;
        };
        let mut roles: Vec<&str> = names.iter().map(|name| role_of(name)).collect();
        roles.sort_unstable();
        roles.dedup();
        for role in roles {
            by_role.entry(role).or_default().add(entry);
        }
    }
    by_role
}

/// The role of a weight of a bundle: `attn_q` of `layers.3.attn_q`, and so of an expert's.
fn role_of(name: &str) -> &str {
    let mut parts = name.split('.');
    match parts.next() {
        Some("layers") => parts.nth(1).unwrap_or(name),
        first => first.unwrap_or(name),
    }
}

fn others(ledger: &[LedgerEntry]) -> Vec<Other> {
    let mut by_fate: BTreeMap<String, Fittings<'_>> = BTreeMap::new();
    for entry in ledger {
        let fate = match &entry.fate {
            Fate::Became(_) => continue,
            Fate::ScalesOf(other) => format!("scales of {}", near::pattern(other)),
            Fate::AliasOf(other) => format!("equals {other:?}"),
            Fate::Dropped(reason) => format!("not needed: {reason}"),
        };
        by_fate.entry(fate).or_default().add(entry);
    }
    let others = by_fate.into_iter().flat_map(|(fate, tensors)| {
        let of = move |tensors| Other {
            tensors,
            fate: fate.clone(),
        };
        tensors.list().into_iter().map(of)
    });
    others.collect()
}
