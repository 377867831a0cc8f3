//! Every type that crosses a boundary in estream, and what makes one valid.
//!
//! The compiler writes these types, the runtime reads them, and neither knows the
//! other. There is no I/O here. Parsing is in two steps: serde reads a file's text
//! into the plain types of [`manifest`], and [`valid::Bundle`] checks that extents
//! lie in bounds, do not overlap and agree with shapes, so that whoever holds one
//! need not check again.
//!
//! ```
//! use estream_schemas::layout::Layout;
//!
//! // OLMoE-1B-7B: a gate matrix of 1024 × 2048 weights in Q4_0 tiles.
//! let layout: Layout = "q4_0.t32.direct".parse().unwrap();
//! assert_eq!(layout.bytes(1024, 2048), Some(1_179_648));
//! ```
#![forbid(unsafe_code)]

pub mod canonical;
pub mod digest;
pub mod dtype;
pub mod exit;
pub mod layout;
pub mod limits;
pub mod manifest;
mod operands;
pub mod plan;
pub mod profile;
pub mod program;
pub mod real;
pub mod routes;
mod text;
pub mod valid;
