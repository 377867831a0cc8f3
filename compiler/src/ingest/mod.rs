//! Reading checkpoints: what is in the files, without what it means.
//!
//! [`Checkpoint::open`] reads headers alone. Weights are read later, by position,
//! in pieces the caller chooses, so that no tensor is in memory as a whole unless
//! a caller asks for all of it.

mod checkpoint;
mod config;
mod error;
pub mod gguf;
pub mod safetensors;
pub mod sniff;

pub use checkpoint::{Carried, CarriedContent, Checkpoint, SourceTensor, WeightFile};
pub use config::Config;
pub use error::IngestError;
