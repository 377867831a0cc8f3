//! Reading checkpoints: what is in the files, without what it means.
//!
//! [`Checkpoint::open`] reads headers alone. Weights are read later, by position,
//! in pieces the caller chooses, so that no tensor is in memory as a whole unless
//! a caller asks for all of it.

mod checkpoint;
mod config;
mod error;
pub mod gguf;
pub mod imatrix;
mod json;
mod notice;
mod quantised;
pub mod safetensors;
pub mod sniff;
mod source;

pub use checkpoint::{Carried, CarriedContent, Checkpoint, SourceTensor, WeightFile};
pub use config::{Config, MAX_CONFIG_BYTES};
pub use error::{AbsentTensor, IngestError, MissingShard, TensorFault};
pub use notice::Notice;
pub use quantised::Quantised;
