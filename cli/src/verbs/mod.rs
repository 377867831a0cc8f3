//! One file a verb.

pub(crate) mod arch;
pub(crate) mod compile;
pub(crate) mod inspect;
pub(crate) mod parity;
pub(crate) mod profile;
pub(crate) mod relayout;
pub(crate) mod run;
pub(crate) mod unpack;
pub(crate) mod verify;
