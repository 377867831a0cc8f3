//! From a checkpoint to a program and a plan of its weights.
#![forbid(unsafe_code)]

pub mod arch;
pub mod compile;
pub mod ingest;
pub mod layout;
pub mod lower;
mod near;
mod problem;
pub mod quant;
pub mod recipe;
