//! One file a verb.

pub(crate) mod arch;
pub(crate) mod compile;
pub(crate) mod inspect;
pub(crate) mod kernels;
pub(crate) mod parity;
pub(crate) mod plan;
pub(crate) mod profile;
pub(crate) mod relayout;
pub(crate) mod reorder;
pub(crate) mod routes;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod unpack;
pub(crate) mod verify;
