//! Family descriptors: what estream knows about model families, as data.

mod descriptor;
mod expr;
mod family;
mod keys;

pub use descriptor::{
    Block, ConfigRules, Descriptor, DropRule, Encoding, FixedRenormalise, KeySource, Match,
    OneOrMany, OpForm, Per, ProgramForm, RealForm, RenormaliseForm, TensorRole,
};
pub use expr::{Expr, ExprError, Predicate};
pub use family::{ArchError, Family};
pub use keys::Keys;
