//! Family descriptors: what estream knows about model families, as data.

mod check;
mod descriptor;
mod expr;
mod family;
mod flow;
mod keys;
mod op;
mod predicate;
mod unpack;

pub use descriptor::{
    Block, ConfigRules, DefaultForm, Descriptor, DropRule, Encoding, EqualRule, KeySource, Match,
    OneOrMany, Per, PrefixRule, ProgramForm, RequireRule, TensorRole, Words,
};
pub use expr::{Expr, ExprError};
pub use family::{ArchError, Family, MAX_DESCRIPTOR_BYTES, Nearest};
pub(crate) use flow::{Place, misplaced, misrouted, unwritten};
pub use keys::{Keys, QUANTISATION};
pub use op::{
    ChosenRenormalise, EXPERT_ROLES, FixedRenormalise, Mscale, OpForm, Operand, Product, RealForm,
    RenormaliseForm, SumPlus, YarnForm, mscale,
};
pub use predicate::Predicate;
pub use unpack::{GgufPairs, LayersPair, PairForm, PairValue, RealPair, TokenizerForm, UnpackForm};
