//! Finding every weight of a family in a checkpoint, and a use for every tensor.

use std::collections::{BTreeMap, BTreeSet};

use estream_schemas::manifest::{Fate, LedgerEntry};

use super::view::View;
use crate::arch::{Descriptor, Encoding, Expr, Keys, Per, TensorRole};
use crate::ingest::{Checkpoint, SourceTensor};

/// Weights found, and what is wrong with those that were not.
pub(super) struct Resolver<'a> {
    checkpoint: &'a Checkpoint,
    descriptor: &'a Descriptor,
    keys: &'a Keys,
    /// By source tensor: the weights it holds, and how many of its elements they are.
    uses: BTreeMap<usize, Use>,
    aliases: BTreeMap<usize, String>,
    problems: Problems,
}

/// Everything that is wrong, each thing once.
#[derive(Debug, Default)]
pub(super) struct Problems {
    list: Vec<String>,
    seen: BTreeSet<String>,
    omitted_count: usize,
}

/// A configuration can claim any number of experts; nobody reads more lines than this.
const MAX_PROBLEMS: usize = 4096;

impl Problems {
    pub(super) fn push(&mut self, problem: String) {
        if self.list.len() == MAX_PROBLEMS {
            self.omitted_count += 1;
        } else if self.seen.insert(problem.clone()) {
            self.list.push(problem);
        }
    }

    pub(super) fn into_list(mut self) -> Vec<String> {
        if self.omitted_count > 0 {
            self.list.push(format!("and {} more", self.omitted_count));
        }
        self.list
    }
}

#[derive(Default)]
struct Use {
    names: Vec<String>,
    elements: u64,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        descriptor: &'a Descriptor,
        keys: &'a Keys,
    ) -> Self {
        Resolver {
            checkpoint,
            descriptor,
            keys,
            uses: BTreeMap::new(),
            aliases: BTreeMap::new(),
            problems: Problems::default(),
        }
    }

    /// The value of `expr`; a problem if it has none.
    pub(super) fn size(&mut self, expr: &Expr) -> u64 {
        expr.value(self.keys).unwrap_or_else(|error| {
            self.problem(error.to_string());
            0
        })
    }

    pub(super) fn problem(&mut self, problem: String) {
        self.problems.push(problem);
    }

    pub(super) fn problems(&mut self, problems: impl IntoIterator<Item = String>) {
        problems
            .into_iter()
            .for_each(|problem| self.problem(problem));
    }

    /// The source tensor of `role`, if one of its encodings names one that exists.
    pub(super) fn find(
        &self,
        role: &'a TensorRole,
        layer: u64,
        expert: u64,
    ) -> Option<(usize, &'a Encoding)> {
        let encodings = role.encodings(self.checkpoint.format);
        encodings.iter().find_map(|encoding| {
            let name = spell(&encoding.name, layer, expert);
            Some((self.index(&name)?, encoding))
        })
    }

    fn index(&self, name: &str) -> Option<usize> {
        let tensors = &self.checkpoint.tensors;
        tensors
            .binary_search_by(|tensor| tensor.name.as_str().cmp(name))
            .ok()
    }

    /// The weight `role` of `layer`, which the bundle calls `name`.
    pub(super) fn weight(&mut self, role: &'a TensorRole, layer: u64, name: &str) -> Option<View> {
        match self.find(role, layer, 0) {
            Some((tensor, encoding)) => self.view(role, tensor, encoding, 0, 1, name),
            None => {
                self.missing(role, layer, None);
                None
            }
        }
    }

    /// The weights `role` of all `experts` experts of `layer`, by expert.
    pub(super) fn expert_weights(
        &mut self,
        role: &'a TensorRole,
        layer: u64,
        experts: u64,
    ) -> Vec<View> {
        let mut views = Vec::new();
        for expert in 0..experts {
            let Some((tensor, encoding)) = self.find(role, layer, expert) else {
                self.missing(role, layer, Some(expert));
                continue;
            };
            let stacked = !encoding.name.contains("{expert}");
            let whole = format!("layers.{layer}.{}", role.role);
            let view = match stacked {
                true => self.view(role, tensor, encoding, expert, experts, &whole),
                false => self.view(role, tensor, encoding, 0, 1, &format!("{whole}.{expert}")),
            };
            if view.is_none() && stacked {
                break;
            }
            views.extend(view);
        }
        views
    }

    fn missing(&mut self, role: &TensorRole, layer: u64, expert: Option<u64>) {
        let encodings = role.encodings(self.checkpoint.format);
        let names: Vec<String> = encodings
            .iter()
            .map(|encoding| format!("{:?}", spell(&encoding.name, layer, expert.unwrap_or(0))))
            .collect();
        self.problem(match names.is_empty() {
            true => format!("no {} in this file format", role.role),
            false => format!("missing: {} ({})", names.join(" or "), role.role),
        });
    }

    /// The view of matrix `index` of `count` in `tensor`, after its shape was checked.
    fn view(
        &mut self,
        role: &TensorRole,
        tensor: usize,
        encoding: &Encoding,
        index: u64,
        count: u64,
        name: &str,
    ) -> Option<View> {
        let shape: Vec<u64> = role.shape.iter().map(|dim| self.size(dim)).collect();
        let (rows, cols) = match shape[..] {
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            _ => {
                self.problem(format!(
                    "descriptor: {} has {} dimensions",
                    role.role,
                    shape.len()
                ));
                return None;
            }
        };
        let stored: Vec<u64> = match &encoding.stored {
            Some(stored) => stored.iter().map(|dim| self.size(dim)).collect(),
            None if encoding.transposed => shape.iter().rev().copied().collect(),
            None => shape.clone(),
        };
        let first_row = encoding
            .first_row
            .as_ref()
            .map_or(0, |expr| self.size(expr));
        let row_step = encoding.row_step.as_ref().map_or(1, |expr| self.size(expr));
        let heads = encoding
            .rope_pairs_of_heads
            .as_ref()
            .map(|expr| self.size(expr));
        let source = &self.checkpoint.tensors[tensor];
        let stacked = role.per == Per::Expert && !encoding.name.contains("{expert}");
        let expected: Vec<u64> = stacked
            .then_some(count)
            .into_iter()
            .chain(stored.clone())
            .collect();
        if source.shape != expected {
            self.problem(wrong_shape(source, &expected, &role.role));
            return None;
        }
        let (stored_rows, stored_cols) = match stored[..] {
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            _ => (0, 0),
        };
        let (limit, length) = match encoding.transposed {
            true => (stored_cols, stored_rows),
            false => (stored_rows, stored_cols),
        };
        let last = rows
            .checked_sub(1)?
            .checked_mul(row_step)?
            .checked_add(first_row)?;
        if last >= limit || length != cols {
            self.problem(format!(
                "descriptor: {} needs rows up to {last} of {cols}, {:?} has {limit} of {length}",
                role.role, source.name
            ));
            return None;
        }
        if encoding.transposed && source.dtype.is_quantised() {
            self.problem(format!(
                "{:?} is stored transposed in {}, whose blocks cannot be turned without quantising again",
                source.name, source.dtype
            ));
            return None;
        }
        let rope_head_rows = match heads {
            None => None,
            Some(heads) if heads > 0 && rows.is_multiple_of(2 * heads) => Some(rows / heads),
            Some(heads) => {
                self.problem(format!(
                    "{} has {rows} rows, not {heads} heads of pairs",
                    role.role
                ));
                return None;
            }
        };
        let matrix_bytes = source.bytes / count.max(1);
        let used = self.uses.entry(tensor).or_default();
        used.elements += rows * cols;
        if used.names.last().is_none_or(|last| last != name) {
            used.names.push(name.to_owned());
        }
        Some(View {
            tensor,
            dtype: source.dtype,
            rows,
            cols,
            base_bytes: matrix_bytes * index,
            stored_cols,
            first_row,
            row_step,
            transposed: encoding.transposed,
            rope_head_rows,
        })
    }

    /// Records that `tensor` equals `other`, which is used instead.
    pub(super) fn alias(&mut self, tensor: usize, other: &str) {
        self.aliases.insert(tensor, other.to_owned());
    }

    /// What became of every source tensor; every one without a use, or used in part, is a problem.
    pub(super) fn finish(mut self) -> Result<Vec<LedgerEntry>, Vec<String>> {
        let mut ledger = Vec::new();
        for (index, tensor) in self.checkpoint.tensors.iter().enumerate() {
            let fate = match (self.uses.remove(&index), self.aliases.remove(&index)) {
                (Some(used), _) => {
                    let elements: u64 = tensor.shape.iter().product();
                    if used.elements != elements {
                        self.problem(format!(
                            "{:?} has {elements} elements, of which {} are used",
                            tensor.name, used.elements
                        ));
                    }
                    Fate::Became(used.names)
                }
                (None, Some(other)) => Fate::AliasOf(other),
                (None, None) => match self
                    .descriptor
                    .drop
                    .iter()
                    .find(|rule| fits(&rule.name, &tensor.name))
                {
                    Some(rule) => Fate::Dropped(rule.reason.clone()),
                    None => {
                        self.problem(format!(
                            "unmapped: {:?} ({} {:?}) has no role in the {} descriptor",
                            tensor.name, tensor.dtype, tensor.shape, self.descriptor.family
                        ));
                        continue;
                    }
                },
            };
            ledger.push(LedgerEntry {
                tensor: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                fate,
            });
        }
        match self.problems.into_list() {
            problems if problems.is_empty() => Ok(ledger),
            problems => Err(problems),
        }
    }
}

fn wrong_shape(tensor: &SourceTensor, expected: &[u64], role: &str) -> String {
    format!(
        "wrong shape: {:?} is {:?}, {role} must be {expected:?}",
        tensor.name, tensor.shape
    )
}

fn spell(pattern: &str, layer: u64, expert: u64) -> String {
    pattern
        .replace("{layer}", &layer.to_string())
        .replace("{expert}", &expert.to_string())
}

/// Whether `name` is `pattern` for some layer.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once("{layer}") {
        None => pattern == name,
        Some((before, after)) => name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .is_some_and(|layer| !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit())),
    }
}
