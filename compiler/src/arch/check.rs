//! What can be known of a descriptor without a checkpoint: that everything it names
//! is there, and that everything it has is named.

use std::collections::{BTreeMap, BTreeSet};

use super::descriptor::DefaultForm;
use super::expr::is_key;
use super::flow::{Place, misplaced, unwritten};
use super::{
    Descriptor, EXPERT_ROLES, Encoding, Expr, OpForm, Operand, Per, Predicate, RealForm,
    RenormaliseForm, TensorRole,
};
use crate::problem::{Problems, cut};

/// Everything that is wrong with `descriptor`.
pub(super) fn check(descriptor: &Descriptor) -> Vec<String> {
    let mut check = Check {
        descriptor,
        keys: BTreeSet::new(),
        problems: Problems::default(),
    };
    check.family();
    check.keys();
    for role in &descriptor.tensor {
        check.role(role);
    }
    check.rules();
    check.ties();
    check.expert_shapes();
    check.program();
    check.order();
    check.unpack();
    check.problems.into_list()
}

/// `*` in the name of a drop rule: what each may stand for is tried with all that the others may.
const MAX_STARS: usize = 2;
/// Characters of a family's name.
const MAX_FAMILY_CHARS: usize = 64;

struct Check<'a> {
    descriptor: &'a Descriptor,
    /// Keys stated so far.
    keys: BTreeSet<&'a str>,
    problems: Problems,
}

/// Whether something is read for a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Model,
    Layer,
}

impl<'a> Check<'a> {
    fn problem(&mut self, place: &str, why: &str) {
        self.problems.push(format!("{place}: {why}"));
    }

    fn key(&mut self, place: &str, key: &str) {
        if !self.keys.contains(key) {
            self.problem(place, &format!("there is no key {key:?}"));
        }
    }

    fn expr(&mut self, place: &str, expr: &Expr, at: At) {
        for key in expr.keys() {
            self.key(place, key);
        }
        if at == At::Model && expr.needs_layer() {
            self.problem(place, &format!("{:?} needs a layer", expr.to_string()));
        }
    }

    fn family(&mut self) {
        let family = &self.descriptor.family;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !(1..=MAX_FAMILY_CHARS).contains(&family.len()) || !family.chars().all(is_plain) {
            let why = format!("is not 1 to {MAX_FAMILY_CHARS} letters, digits, `-` and `_`");
            self.problem(&format!("family {:?}", cut(family, MAX_FAMILY_CHARS)), &why);
        }
    }

    fn keys(&mut self) {
        for key in &self.descriptor.key {
            let place = format!("key {:?}", key.name);
            if !is_key(&key.name) || key.name == "layer" {
                self.problem(&place, "cannot be named in an expression");
            }
            for default in [&key.default, &key.hf_default, &key.gguf_default] {
                // Only keys stated earlier are known by now.
                if let Some(DefaultForm::Expr(expr)) = default {
                    self.expr(&place, expr, At::Model);
                }
            }
            if let Some(role) = &key.rows_of
                && self.descriptor.role(role).is_none()
            {
                self.problem(&place, &format!("there is no role {role:?}"));
            }
            if !self.keys.insert(&key.name) {
                self.problem(&place, "is there twice");
            }
        }
    }

    /// What is neither a key nor a role.
    fn rules(&mut self) {
        for rule in &self.descriptor.equal {
            for key in &rule.keys {
                self.key("equal", key);
            }
        }
        let gguf = &self.descriptor.gguf;
        if !(gguf.root.is_empty() && gguf.scales.is_empty()) {
            self.problem("gguf", "root and scales are for safetensors");
        }
        for rule in &self.descriptor.drop {
            if rule.name.matches('*').count() > MAX_STARS {
                let why = format!("more than {MAX_STARS} `*` in a name");
                self.problem(&format!("drop {:?}", rule.name), &why);
            }
        }
    }

    fn role(&mut self, role: &'a TensorRole) {
        let place = format!("role {:?}", role.role);
        let same = |other: &&TensorRole| other.role == role.role;
        if self.descriptor.tensor.iter().filter(same).count() > 1 {
            self.problem(&place, "is there twice");
        }
        if !is_key(&role.role) {
            self.problem(&place, "is no name");
        }
        if !matches!(role.shape.len(), 1 | 2) {
            self.problem(&place, "a shape has one or two dimensions");
        }
        if role.per == Per::Expert && !EXPERT_ROLES.contains(&role.role.as_str()) {
            let known = EXPERT_ROLES.join(", ");
            self.problem(&place, &format!("the roles of an expert are {known}"));
        }
        let at = match role.per {
            Per::Model => At::Model,
            Per::Layer | Per::Expert => At::Layer,
        };
        for size in &role.shape {
            self.expr(&place, size, at);
        }
        for encoding in role.hf.iter().chain(&role.gguf) {
            self.encoding(role, encoding, at);
        }
    }

    fn encoding(&mut self, role: &TensorRole, encoding: &Encoding, at: At) {
        let place = format!("role {:?} as {:?}", role.role, encoding.name);
        for size in encoding.sizes() {
            self.expr(&place, size, at);
        }
        if (role.per != Per::Model) != encoding.name.contains("{layer}") {
            self.problem(
                &place,
                "{layer} stands in names of what layers have, and only there",
            );
        }
        if role.per != Per::Expert && !encoding.is_stacked() {
            self.problem(&place, "{expert} stands in names of what experts have");
        }
        if encoding.stored.as_ref().is_some_and(Vec::is_empty) {
            self.problem(&place, "stored has no dimension");
        }
        if encoding.transposed && role.shape.len() != 2 {
            self.problem(&place, "only a matrix can be transposed");
        }
    }

    fn ties(&mut self) {
        let mut tied = 0;
        for role in &self.descriptor.tensor {
            let place = format!("role {:?}", role.role);
            if let Some(other) = &role.tied_to {
                tied += 1;
                let fits = |other: &TensorRole| {
                    other.role != role.role
                        && (other.per, role.per) == (Per::Model, Per::Model)
                        && other.shape == role.shape
                };
                if !self.descriptor.role(other).is_some_and(fits) {
                    let why =
                        format!("tied_to {other:?} is no other role of the model of this shape");
                    self.problem(&place, &why);
                }
            }
            match &role.tied_if {
                Some(_) if role.tied_to.is_none() => {
                    self.problem(&place, "tied_if without tied_to");
                }
                Some(key) => self.key(&place, key),
                None => {}
            }
        }
        if tied > 1 {
            self.problems.push("more than one role has tied_to");
        }
    }

    /// An expert's matrices multiply one after another.
    fn expert_shapes(&mut self) {
        let roles = EXPERT_ROLES.map(|role| self.descriptor.role(role));
        let [Some(gate), Some(up), Some(down)] = roles else {
            return;
        };
        let turned: Vec<&Expr> = down.shape.iter().rev().collect();
        if gate.shape != up.shape || gate.shape.iter().collect::<Vec<_>>() != turned {
            let why =
                "must be [ff, hidden], [ff, hidden] and [hidden, ff], in the same expressions";
            self.problem(&EXPERT_ROLES.join(", "), why);
        }
    }

    fn program(&mut self) {
        let form = &self.descriptor.program;
        for (place, expr) in [
            ("vocab", &form.vocab),
            ("context", &form.context),
            ("layers", &form.layers),
        ] {
            self.expr(place, expr, At::Model);
        }
        self.expr("experts", &form.experts, At::Layer);
        for (name, width) in &form.registers {
            self.expr(&format!("register {name:?}"), width, At::Model);
        }
        self.ops("prologue", &form.prologue, At::Model);
        self.ops("epilogue", &form.epilogue, At::Model);
        let mut closed: BTreeMap<&str, bool> = BTreeMap::new();
        for block in &form.block {
            let place = format!("block {:?}", block.name);
            let closed = closed.entry(&block.name).or_default();
            if *closed {
                self.problem(&place, "one that is for all layers stands before another");
            }
            *closed |= block.when == Predicate::All;
            if let Some(key) = block.when.key() {
                self.key(&place, key);
            }
            if let Predicate::Has(role) = &block.when
                && self.descriptor.role(role).is_none()
            {
                self.problem(&place, &format!("there is no role {role:?}"));
            }
            self.ops(&place, &block.ops, At::Layer);
        }
        let blocks = form.block.iter().flat_map(|block| &block.ops);
        let ops = form.prologue.iter().chain(blocks).chain(&form.epilogue);
        let named: BTreeSet<&str> = ops.flat_map(OpForm::roles).collect();
        for role in &self.descriptor.tensor {
            if !named.contains(role.role.as_str()) {
                self.problem(&format!("role {:?}", role.role), "no operator names it");
            }
        }
    }

    /// That operators have their place, and read nothing that no operator can have written.
    fn order(&mut self) {
        let form = &self.descriptor.program;
        let mut wrong = Vec::new();
        let mut tell = |place: &str, problems: Vec<String>| {
            wrong.extend(problems.into_iter().map(|why| (place.to_owned(), why)));
        };
        let mut written = BTreeSet::new();
        tell("prologue", misplaced(Place::Prologue, &form.prologue));
        tell("prologue", unwritten(&form.prologue, &mut written));
        let ops = form.block.iter().flat_map(|block| &block.ops);
        let mut anywhere = written.clone();
        anywhere.extend(ops.filter_map(OpForm::writes));
        for block in &form.block {
            let place = format!("block {:?}", block.name);
            tell(&place, misplaced(Place::Layer, &block.ops));
            // A block that the first layer may lack can read what any block of an earlier layer wrote.
            let others = form.block.iter().filter(|other| other.name == block.name);
            let is_always = block.when == Predicate::All && others.count() == 1;
            match is_always {
                true => tell(&place, unwritten(&block.ops, &mut written)),
                false => {
                    tell(&place, unwritten(&block.ops, &mut anywhere.clone()));
                    written.extend(block.ops.iter().filter_map(OpForm::writes));
                }
            }
        }
        tell("epilogue", unwritten(&form.epilogue, &mut anywhere));
        tell("epilogue", misplaced(Place::Epilogue, &form.epilogue));
        for (place, why) in wrong {
            self.problem(&place, &why);
        }
    }

    fn unpack(&mut self) {
        for (name, pair) in self.descriptor.unpack.iter().flat_map(|form| &form.keys) {
            let place = format!("pair {name:?}");
            for key in pair.keys() {
                self.key(&place, key);
            }
            if let Some(problem) = pair.problem() {
                self.problem(&place, &problem);
            }
        }
        let assumed = self.descriptor.unpack.iter();
        for key in assumed.flat_map(|form| form.assumes.keys()) {
            self.key("[unpack.assumes]", key);
        }
    }

    fn ops(&mut self, place: &str, ops: &[OpForm], at: At) {
        for op in ops {
            let is_experts = matches!(op, OpForm::Experts { .. });
            if is_experts && at == At::Model {
                self.problem(place, "experts belong to a layer");
            }
            if let OpForm::Mla { kv_b, k_b, v_b, .. } = op {
                let stated = [kv_b, k_b, v_b].map(Option::is_some);
                if ![[true, false, false], [false, true, true]].contains(&stated) {
                    self.problem(place, "mla has kv_b, or k_b and v_b");
                }
            }
            for operand in op.operands() {
                match operand {
                    Operand::Register(name) => {
                        if !self.descriptor.program.registers.contains_key(name) {
                            self.problem(place, &format!("there is no register {name:?}"));
                        }
                    }
                    Operand::Weight(role) => self.weight(place, role, is_experts, at),
                    Operand::Size(size) => self.expr(place, size, at),
                    Operand::Real(real) => self.real(place, real, at),
                    Operand::Renormalise(form) => self.renormalise(place, form),
                    Operand::Key(key) => self.key(place, key),
                }
            }
        }
    }

    fn weight(&mut self, place: &str, role: &str, is_experts: bool, at: At) {
        match self.descriptor.role(role).map(|role| role.per) {
            None => self.problem(place, &format!("there is no role {role:?}")),
            Some(per) if (per == Per::Expert) != is_experts => {
                let why = format!(
                    "{role:?} is not named so: experts, and nothing else, have roles per expert"
                );
                self.problem(place, &why);
            }
            Some(Per::Layer) if at == At::Model => {
                self.problem(place, &format!("{role:?} belongs to a layer"));
            }
            Some(_) => {}
        }
    }

    fn real(&mut self, place: &str, real: &RealForm, at: At) {
        for key in real.keys() {
            self.key(place, key);
        }
        if let RealForm::Product(product) = real
            && let Some(expr) = &product.rsqrt
        {
            self.expr(place, expr, at);
        }
    }

    fn renormalise(&mut self, place: &str, form: &RenormaliseForm) {
        if let RenormaliseForm::Chosen(chosen) = form {
            self.key(place, &chosen.key);
            self.renormalise(place, &chosen.yes);
            self.renormalise(place, &chosen.no);
        }
    }
}
