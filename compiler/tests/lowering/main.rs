//! Lowering: toy checkpoints of a toy family, and what they become.

mod descriptors;
mod dialects;
mod experts;
mod fixtures;
mod fp8;
mod gguf_types;
mod not_finite;
mod outline;
mod problems;
mod quantised;
mod rules;
mod semantics;
mod survey;
mod ties;
mod toy;
mod types;
mod values;
mod windows;
