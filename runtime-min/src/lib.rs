//! Opens a bundle, streams its experts and runs prefill.

#[cfg(feature = "run")]
pub mod backend;
#[cfg(feature = "run")]
pub mod math;
#[cfg(feature = "run")]
pub mod pool;
#[cfg(feature = "reader")]
pub mod reader;
