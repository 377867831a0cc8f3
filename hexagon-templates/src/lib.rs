//! Hexagon kernels for bundles: the interface to the C in `c/`, and how that is built.
#![forbid(unsafe_code)]

pub mod abi;
pub mod message;
pub mod room;
pub mod toolchain;
pub mod wire;
