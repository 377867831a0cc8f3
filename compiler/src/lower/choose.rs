//! Which operators a checkpoint has: they decide which weights it must have.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::{Block, Descriptor, Keys, OpForm, Operand};
use crate::problem::Problems;

/// The operators of one checkpoint. Operands that can be left out and whose role it
/// may lack and lacks are gone.
pub(super) struct Chosen {
    pub(super) prologue: Vec<OpForm>,
    pub(super) layers: Vec<Vec<OpForm>>,
    pub(super) epilogue: Vec<OpForm>,
}

impl Chosen {
    /// Chooses them for a checkpoint that `has` a role in a layer, or has not.
    pub(super) fn new(
        descriptor: &Descriptor,
        keys: &Keys,
        has: impl Fn(&str, u64) -> bool,
        layers: u64,
        problems: &mut Problems,
    ) -> Chosen {
        let present = |op: &OpForm, layer: u64| {
            op.without(|role| {
                descriptor.role(role).is_some_and(|role| role.optional) && !has(role, layer)
            })
        };
        let form = &descriptor.program;
        let layers = (0..layers).map(|layer| {
            let blocks = blocks(&form.block, |block| {
                let holds = block.when.holds(keys, layer, |role| has(role, layer));
                problems.or(holds, false)
            });
            let ops = blocks.iter().flat_map(|block| &block.ops);
            ops.map(|op| present(op, layer)).collect()
        });
        Chosen {
            layers: layers.collect(),
            prologue: form.prologue.iter().map(|op| present(op, 0)).collect(),
            epilogue: form.epilogue.iter().map(|op| present(op, 0)).collect(),
        }
    }

    /// Every role that some operator names.
    pub(super) fn roles(&self) -> BTreeSet<&str> {
        self.ops().flat_map(OpForm::roles).collect()
    }

    /// Every register that some operator names.
    pub(super) fn registers(&self) -> BTreeSet<&str> {
        let operands = self.ops().flat_map(OpForm::operands);
        let registers = operands.filter_map(|operand| match operand {
            Operand::Register(name) => Some(name),
            _ => None,
        });
        registers.collect()
    }

    fn ops(&self) -> impl Iterator<Item = &OpForm> {
        let layers = self.layers.iter().flatten();
        self.prologue.iter().chain(layers).chain(&self.epilogue)
    }
}

/// Of each name, the first block that `holds`; names in the order they first stand.
fn blocks(blocks: &[Block], mut holds: impl FnMut(&Block) -> bool) -> Vec<&Block> {
    let mut names: Vec<&str> = Vec::new();
    let mut chosen: BTreeMap<&str, &Block> = BTreeMap::new();
    for block in blocks {
        if !names.contains(&block.name.as_str()) {
            names.push(&block.name);
        }
        if !chosen.contains_key(block.name.as_str()) && holds(block) {
            chosen.insert(&block.name, block);
        }
    }
    let chosen = names.iter().filter_map(|name| chosen.get(name).copied());
    chosen.collect()
}
