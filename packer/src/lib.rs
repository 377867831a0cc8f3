//! From a compiled model to a bundle.
//!
//! A [`BundleSpec`] says everything about a bundle but its weights; [`plan`] turns one
//! into the manifest it will have, as far as sizes and places go, without touching a
//! disk. [`write()`] asks a [`Payload`] for the weights in file order and leaves either a
//! complete, synced bundle at the target or nothing at all:
//!
//! ```text
//! spec ─► plan ─► claim the target ─► stage beside it ─► open again ─► rename
//!                 (refuse, or replace)   payload, manifest last
//! ```
//!
//! Same spec and payload, same bytes: nothing here looks at a clock, a host name, the
//! order of a directory or the path it writes to.
#![forbid(unsafe_code)]

mod compiled;
mod error;
mod folder;
mod payload;
mod plans;
mod relayout;
pub mod report;
mod spec;
mod target;
mod unpack;
mod writer;

pub use compiled::spec;
pub use error::{OutputError, PackError, PlanError};
pub use folder::write_folder;
pub use payload::{Payload, Sink, Stopped};
pub use plans::ReplacedPlans;
pub use relayout::{Relayout, RelayoutError, relayout, reorder};
pub use spec::{BundleSpec, LayerSpec, LicenseSpec, SourceSpec, TensorSpec, plan};
pub use unpack::{UnpackError, Unpacked, unpack};
pub use writer::{WriteOptions, Written, rehearse, write};
