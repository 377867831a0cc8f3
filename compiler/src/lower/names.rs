//! Finding source tensors by the names a descriptor has for them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use estream_schemas::manifest::SourceFormat;

use crate::arch::{Descriptor, Encoding, PrefixRule, TensorRole};
use crate::ingest::Checkpoint;
use crate::problem::Problems;

/// The tensors of a checkpoint by name, after the descriptor's prefix rules.
pub(super) struct Names<'a> {
    format: SourceFormat,
    rules: &'a [PrefixRule],
    by_name: BTreeMap<Cow<'a, str>, usize>,
}

impl<'a> Names<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        descriptor: &'a Descriptor,
        problems: &mut Problems,
    ) -> Self {
        let rules = descriptor.rules(checkpoint.format).rename.as_slice();
        let mut by_name: BTreeMap<Cow<'a, str>, usize> = BTreeMap::new();
        for (index, tensor) in checkpoint.tensors.iter().enumerate() {
            let name = renamed(rules, &tensor.name);
            if let Some(other) = by_name.insert(name.clone(), index) {
                let other = &checkpoint.tensors[other].name;
                problems.push(format!(
                    "{other:?} and {:?} are both {name:?} to the descriptor",
                    tensor.name
                ));
            }
        }
        Names {
            format: checkpoint.format,
            rules,
            by_name,
        }
    }

    /// The tensor of `role`, if one of its encodings names one that exists.
    pub(super) fn find<'r>(
        &self,
        role: &'r TensorRole,
        layer: u64,
        expert: u64,
    ) -> Option<(usize, &'r Encoding)> {
        let encodings = role.encodings(self.format);
        encodings.iter().find_map(|encoding| {
            let name = spell(&encoding.name, layer, expert);
            Some((*self.by_name.get(name.as_str())?, encoding))
        })
    }

    /// Whether source tensor `name` is one that `pattern` means, for some layer.
    pub(super) fn fits(&self, pattern: &str, name: &str) -> bool {
        let name = renamed(self.rules, name);
        match pattern.split_once("{layer}") {
            None => pattern == name,
            Some((before, after)) => name
                .strip_prefix(before)
                .and_then(|rest| rest.strip_suffix(after))
                .is_some_and(|layer| {
                    !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit())
                }),
        }
    }
}

fn renamed<'a>(rules: &[PrefixRule], name: &'a str) -> Cow<'a, str> {
    let new = rules.iter().find_map(|rule| {
        let rest = name.strip_prefix(&rule.from)?;
        Some(format!("{}{rest}", rule.to))
    });
    new.map_or(Cow::Borrowed(name), Cow::Owned)
}

/// The name that `pattern` is for one layer and expert.
pub(super) fn spell(pattern: &str, layer: u64, expert: u64) -> String {
    pattern
        .replace("{layer}", &layer.to_string())
        .replace("{expert}", &expert.to_string())
}
