//! Finding every weight of a family in a checkpoint, and a use for every tensor.

use std::collections::{BTreeMap, BTreeSet};

use estream_schemas::dtype::DType;
use estream_schemas::manifest::{Fate, LedgerEntry};

use super::names::Names;
use super::scales::Scales;
use super::view::View;
use super::window::{Sizes, window};
use crate::arch::{Descriptor, Encoding, Keys, TensorRole};
use crate::ingest::{Checkpoint, Quantised, SourceTensor};
use crate::near;
use crate::problem::Problems;

/// Weights found, and what is wrong with those that were not.
pub(super) struct Resolver<'a> {
    checkpoint: &'a Checkpoint,
    descriptor: &'a Descriptor,
    keys: &'a Keys,
    names: &'a Names<'a>,
    quantised: Quantised,
    /// By source tensor: the weights it holds.
    uses: BTreeMap<usize, Vec<(String, View)>>,
    /// By source tensor: the one whose scales it has.
    scale_of: BTreeMap<usize, usize>,
    /// By source tensor: the one that is used instead of it.
    aliases: BTreeMap<usize, String>,
    /// Source tensors that a problem names already.
    faulty: BTreeSet<usize>,
    /// By kind of problem: the role that is missing.
    missing: BTreeMap<usize, &'a TensorRole>,
    pub(super) problems: Problems,
}

/// Unmapped tensors whose names differ in numbers only.
struct Unmapped {
    /// Their kinds of problem.
    problems: BTreeSet<usize>,
    /// What the first of them is called.
    name: String,
    count: usize,
}

/// Which weight is being looked for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a, 'n> {
    pub(super) role: &'a TensorRole,
    /// Its layer; a weight of the model has none.
    pub(super) layer: Option<u64>,
    /// Its name in the bundle; of an expert's, without the expert.
    pub(super) name: &'n str,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        descriptor: &'a Descriptor,
        keys: &'a Keys,
        names: &'a Names<'a>,
        quantised: Quantised,
        problems: Problems,
    ) -> Self {
        Resolver {
            checkpoint,
            descriptor,
            keys,
            names,
            quantised,
            uses: BTreeMap::new(),
            scale_of: BTreeMap::new(),
            aliases: BTreeMap::new(),
            faulty: BTreeSet::new(),
            missing: BTreeMap::new(),
            problems,
        }
    }

    /// The source tensor of a weight of the model.
    pub(super) fn find(&self, role: &TensorRole) -> Option<usize> {
        self.names.find(role, 0, 0).map(|(tensor, _)| tensor)
    }

    /// A weight outside experts.
    pub(super) fn weight(&mut self, wanted: Wanted<'a, '_>) -> Option<View> {
        let layer = wanted.layer.unwrap_or(0);
        match self.names.find(wanted.role, layer, 0) {
            Some((tensor, encoding)) => self.view(wanted, wanted.name, tensor, encoding, None),
            None => {
                self.missing(wanted, 0);
                None
            }
        }
    }

    /// A weight of all `experts` experts of a layer, by expert.
    pub(super) fn expert_weights(&mut self, wanted: Wanted<'a, '_>, experts: u64) -> Vec<View> {
        let layer = wanted.layer.unwrap_or(0);
        let mut views = Vec::new();
        for expert in 0..experts {
            let Some((tensor, encoding)) = self.names.find(wanted.role, layer, expert) else {
                self.missing(wanted, expert);
                continue;
            };
            let name = format!("{}.{expert}", wanted.name);
            let stacked = encoding.is_stacked();
            let (name, place) = match stacked {
                true => (wanted.name, Some((expert, experts))),
                false => (name.as_str(), None),
            };
            let view = self.view(wanted, name, tensor, encoding, place);
            // What is wrong with one of a stack is wrong with all.
            if view.is_none() && stacked {
                break;
            }
            views.extend(view);
        }
        views
    }

    fn missing(&mut self, wanted: Wanted<'a, '_>, expert: u64) {
        let encodings = wanted.role.encodings(self.checkpoint.format);
        let names: Vec<String> = encodings
            .iter()
            .map(|encoding| {
                let layer = wanted.layer.unwrap_or(0);
                format!("{:?}", encoding.spelled(layer, expert))
            })
            .collect();
        let role = &wanted.role.role;
        let kind = self.problems.add(&match names.is_empty() {
            true => format!("missing: {role} has no name in this file format"),
            false => format!("missing: {} ({role})", names.join(" or ")),
        });
        self.missing.extend(kind.map(|kind| (kind, wanted.role)));
    }

    /// The view of a weight in `tensor`, which may be one matrix of a stack (index and
    /// count), after its shape was checked.
    fn view(
        &mut self,
        wanted: Wanted<'_, '_>,
        name: &str,
        tensor: usize,
        encoding: &Encoding,
        place: Option<(u64, u64)>,
    ) -> Option<View> {
        let source = &self.checkpoint.tensors[tensor];
        let sizes = Sizes {
            keys: self.keys,
            layer: wanted.layer,
        };
        let view = window(sizes, wanted.role, source, encoding, place);
        let scaled = view.and_then(|view| Ok((view, self.scales(tensor, name)?)));
        match scaled {
            Ok((view, scales)) => {
                let view = View {
                    tensor,
                    scales,
                    ..view
                };
                let uses = self.uses.entry(tensor).or_default();
                uses.push((name.to_owned(), view.clone()));
                Some(view)
            }
            Err(why) => {
                self.faulty.insert(tensor);
                self.problems.push(why);
                None
            }
        }
    }

    /// The scales of `tensor`, which is to be weight `name`, if its elements need any.
    fn scales(&mut self, tensor: usize, name: &str) -> Result<Option<Scales>, String> {
        let source = &self.checkpoint.tensors[tensor];
        if source.dtype != DType::F8_E4M3 {
            return Ok(None);
        }
        let suffixes = &self.descriptor.rules(self.checkpoint.format).scales;
        let names: Vec<String> = suffixes
            .iter()
            .map(|suffix| format!("{}{suffix}", source.name))
            .collect();
        let mut found = names.iter().filter_map(|name| self.checkpoint.index(name));
        let Some(scale) = found.next() else {
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            return Err(format!(
                "missing: {}, the scales of {:?} ({name:?})",
                names.join(" or "),
                source.name
            ));
        };
        self.scale_of.insert(scale, tensor);
        let block = self.quantised.block;
        let scales = Scales::of(source, &self.checkpoint.tensors[scale], scale, block);
        scales.map(Some)
    }

    /// Records that `tensor` equals `other`, which is used instead.
    pub(super) fn alias(&mut self, tensor: usize, other: &str) {
        self.aliases.insert(tensor, other.to_owned());
    }

    /// What became of every source tensor that nothing is wrong with, and everything that is
    /// wrong: every tensor without a use, or used in part, is a problem.
    pub(super) fn finish(mut self) -> (Vec<LedgerEntry>, Vec<String>) {
        let mut ledger = Vec::new();
        let mut unmapped: BTreeMap<String, Unmapped> = BTreeMap::new();
        for (index, tensor) in self.checkpoint.tensors.iter().enumerate() {
            let fate = match (self.uses.remove(&index), self.aliases.remove(&index)) {
                _ if self.faulty.contains(&index) => continue,
                (Some(uses), _) => {
                    self.problems.extend(not_used_once(tensor, &uses));
                    let mut names: Vec<String> = uses.into_iter().map(|(name, _)| name).collect();
                    names.dedup();
                    Fate::Became(names)
                }
                (None, Some(other)) => Fate::AliasOf(other),
                (None, None) if self.scale_of.contains_key(&index) => {
                    Fate::ScalesOf(self.checkpoint.tensors[self.scale_of[&index]].name.clone())
                }
                (None, None) => {
                    let mut rules = self.descriptor.drop.iter();
                    match rules.find(|rule| self.names.fits(&rule.name, &tensor.name)) {
                        Some(rule) => Fate::Dropped(rule.reason.clone()),
                        None => {
                            let problem = self.problems.add(&format!(
                                "unmapped: {:?} ({} {:?}) has no role in the {} descriptor",
                                tensor.name, tensor.dtype, tensor.shape, self.descriptor.family
                            ));
                            if let Some(problem) = problem {
                                let pattern = near::pattern(&self.names.renamed(&tensor.name));
                                let alike = unmapped.entry(pattern).or_insert_with(|| Unmapped {
                                    problems: BTreeSet::new(),
                                    name: tensor.name.clone(),
                                    count: 0,
                                });
                                alike.problems.insert(problem);
                                alike.count += 1;
                            }
                            continue;
                        }
                    }
                }
            };
            ledger.push(LedgerEntry {
                tensor: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                fate,
            });
        }
        self.hint(&unmapped);
        (ledger, self.problems.into_list())
    }

    /// Says what unmapped tensors and missing roles may have to do with each other.
    fn hint(&mut self, unmapped: &BTreeMap<String, Unmapped>) {
        let format = self.checkpoint.format;
        let roles = self.descriptor.tensor.iter();
        let known: Vec<(&str, &str)> = roles
            .flat_map(|role| {
                let encodings = role.encodings(format).iter();
                encodings.map(|encoding| (encoding.name.as_str(), role.role.as_str()))
            })
            .collect();
        for (pattern, alike) in unmapped.iter().take(near::MAX_CANDIDATES) {
            let near = near::nearest(&[pattern], known.iter().map(|(name, _)| *name));
            let of = |name: &str| {
                let roles = known.iter().filter(|(known, _)| *known == name);
                let roles: Vec<&str> = roles.map(|(_, role)| *role).collect();
                format!("{name:?} ({})", roles.join(", "))
            };
            if !near.is_empty() {
                let hint = match near[..] {
                    [name] if name == pattern => {
                        format!("its role, {}, is not used here", of(name))
                    }
                    _ => {
                        let near: Vec<String> = near.into_iter().map(of).collect();
                        format!("a name near it is {}", near.join(" or "))
                    }
                };
                for problem in &alike.problems {
                    self.problems.hint(*problem, hint.clone());
                }
            }
        }
        for (kind, role) in &self.missing {
            let encodings = role.encodings(format).iter();
            let names: Vec<&str> = encodings.map(|encoding| encoding.name.as_str()).collect();
            let near = near::nearest(&names, unmapped.keys().map(String::as_str));
            let near: Vec<String> = near
                .into_iter()
                .filter_map(|pattern| unmapped.get(pattern))
                .map(|alike| match alike.count {
                    1 => format!("{:?}", alike.name),
                    count => format!("{:?} × {count}", near::pattern(&alike.name)),
                })
                .collect();
            if !near.is_empty() {
                let hint = format!("unmapped and near it is {}", near.join(" or "));
                self.problems.hint(*kind, hint);
            }
        }
    }
}

/// What is wrong if `uses` are not every element of `tensor` once.
fn not_used_once(tensor: &SourceTensor, uses: &[(String, View)]) -> Option<String> {
    let mut by_matrix: BTreeMap<u64, Vec<&(String, View)>> = BTreeMap::new();
    for used in uses {
        by_matrix.entry(used.1.base_bytes).or_default().push(used);
    }
    for uses in by_matrix.values() {
        for (at, (name, view)) in uses.iter().enumerate() {
            let other = uses[..at].iter().find(|(_, other)| view.overlaps(other));
            if let Some((other, _)) = other {
                return Some(format!(
                    "descriptor: {other} and {name} share elements of {:?}",
                    tensor.name
                ));
            }
        }
    }
    let elements: u64 = tensor.shape.iter().product();
    let used: u64 = uses.iter().map(|(_, view)| view.elements()).sum();
    (used != elements).then(|| {
        format!(
            "{:?} has {elements} elements, of which {used} are used",
            tensor.name
        )
    })
}
