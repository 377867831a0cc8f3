//! Opens a bundle, streams its experts and runs prefill.

#[cfg(feature = "reader")]
pub mod reader;
