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
            let name = encoding.spelled(layer, expert);
            Some((*self.by_name.get(name.as_str())?, encoding))
        })
    }

    /// What the descriptor calls source tensor `name`.
    pub(super) fn renamed<'n>(&self, name: &'n str) -> Cow<'n, str> {
        renamed(self.rules, name)
    }

    /// Whether source tensor `name` is one that `pattern` means.
    pub(super) fn fits(&self, pattern: &str, name: &str) -> bool {
        fits(pattern, &renamed(self.rules, name))
    }
}

/// Whether `name` is `pattern`, where `{layer}` stands for a number and `*` for any run
/// of characters.
fn fits(pattern: &str, name: &str) -> bool {
    let Some(special) = pattern.find(['*', '{']) else {
        return pattern == name;
    };
    let (start, special) = pattern.split_at(special);
    let Some(rest) = name.strip_prefix(start) else {
        return false;
    };
    if let Some(after) = special.strip_prefix('*') {
        let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        return ends.any(|at| fits(after, &rest[at..]));
    }
    match special.strip_prefix("{layer}") {
        None => false,
        Some(after) => {
            let named = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            named.len() < rest.len() && fits(after, named)
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

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_drop_rule_names_layers_and_runs_of_characters() {
        for (pattern, name, expected) in [
            ("rest", "rest", true),
            ("rest", "rest.weight", false),
            ("layers.{layer}.inv_freq", "layers.12.inv_freq", true),
            ("layers.{layer}.inv_freq", "layers..inv_freq", false),
            ("layers.{layer}.inv_freq", "layers.1x.inv_freq", false),
            ("vision_tower.*", "vision_tower.blocks.0.weight", true),
            ("vision_tower.*", "model.vision_tower.blocks", false),
            ("*.inv_freq", "layers.0.inv_freq", true),
            ("*.inv_freq", "layers.0.inv_freqs", false),
            ("layers.{layer}.*.bias", "layers.3.mlp.up.bias", true),
            ("*.{layer}.*", "mtp.0.norm", true),
            ("*.{layer}.*", "mtp.norm", false),
            ("{expert}", "{expert}", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
