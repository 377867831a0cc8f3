//! Hexagon kernels for bundles: the interface to the C in `c/`, how that is built, and the templates it is
//! used with.
//!
//! A *template* is the expert kernel for one shape class, made for one size of VTCM, the memory on the
//! NPU's chip: how many rows an invocation takes and where in VTCM everything lies. It is computed from
//! dimensions and layouts alone, and depends neither on weights nor on routes.
//!
//! ```
//! use estream_hexagon::{ExpertShape, Template};
//!
//! // An expert of OLMoE-1B-7B on 8 MiB of VTCM.
//! let q4_0 = "q4_0.t32.direct".parse().unwrap();
//! let shape = ExpertShape::new(2048, 1024, 1, [q4_0; 3])?;
//! let template = Template::new(&shape, 8 << 20)?;
//! assert_eq!(template.capacity(), 1248);
//! # Ok::<(), estream_hexagon::Refused>(())
//! ```
#![forbid(unsafe_code)]

pub mod abi;
mod arch;
mod codes;
mod header;
pub mod message;
mod pack;
mod refused;
pub mod room;
mod shape;
pub mod toolchain;
mod vtcm;
pub mod wire;

pub use arch::{Arch, DmaLimits, UnknownArch};
pub use header::{file_name, header};
pub use refused::Refused;
pub use shape::{ExpertShape, Stored};
pub use vtcm::{Buffer, MAX_VTCM_BYTES, Region, Template, VTCM_BYTES};
