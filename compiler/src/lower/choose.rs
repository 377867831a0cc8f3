//! Which operators a checkpoint has: they decide which weights it must have.

use std::collections::{BTreeMap, BTreeSet};

use crate::arch::{
    Block, Descriptor, Keys, OpForm, Operand, Place, misplaced, misrouted, unwritten,
};
use crate::problem::Problems;

/// The operators of one checkpoint. Operands that can be left out and whose role it
/// may lack and lacks are gone.
pub(super) struct Chosen {
    pub(super) prologue: Vec<OpForm>,
    pub(super) layers: Vec<Vec<OpForm>>,
    pub(super) epilogue: Vec<OpForm>,
    /// Whether every predicate could be decided. What follows from those that could not is
    /// not worth telling.
    pub(super) is_decided: bool,
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
        let mut is_decided = true;
        let layers = (0..layers).map(|layer| {
            let blocks = blocks(&form.block, |block| {
                let holds = block.when.holds(keys, layer, |role| has(role, layer));
                is_decided &= holds.is_ok();
                problems.or(holds, false)
            });
            let ops = blocks.iter().flat_map(|block| &block.ops);
            ops.map(|op| present(op, layer)).collect()
        });
        let layers = layers.collect();
        Chosen {
            layers,
            prologue: form.prologue.iter().map(|op| present(op, 0)).collect(),
            epilogue: form.epilogue.iter().map(|op| present(op, 0)).collect(),
            is_decided,
        }
    }

    /// Why the operators, which are as the descriptor has them, cannot run one after another.
    pub(super) fn misfits(&self) -> Vec<String> {
        let mut wrong = Problems::default();
        let mut written = BTreeSet::new();
        let mut tell = |place: &str, problems: Vec<String>| {
            wrong.extend(problems.iter().map(|why| format!("{place}: {why}")));
        };
        tell("prologue", unwritten(&self.prologue, &mut written));
        for (layer, ops) in self.layers.iter().enumerate() {
            let place = format!("\"layers.{layer}\"");
            tell(&place, misplaced(Place::Layer, ops));
            let routing = misrouted(ops).into_iter();
            tell(&place, routing.map(str::to_owned).collect());
            tell(&place, unwritten(ops, &mut written));
        }
        tell("epilogue", unwritten(&self.epilogue, &mut written));
        wrong.into_list()
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
