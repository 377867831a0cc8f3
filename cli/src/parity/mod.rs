//! How far a bundle's results are from those of its source, on real text.
//!
//! ```text
//! text ─► windows ─► reference ─► stored rows and choices ─► comparison ─► report
//!                    (one model)   (and whole rows on disk)   (the other model)
//! ```
//!
//! Only one model is in memory at a time, so what the reference computes is kept: its
//! likeliest tokens and the mass of the rest in memory, whole rows in a file without a
//! name. `docs/parity.md` has the formulas and the format of a stored reference.

mod compare;
mod file;
mod reference;
mod report;
mod shape;
mod stats;
mod stored;
mod windows;

pub(crate) use compare::compare;
pub(crate) use file::{read, write};
pub(crate) use reference::{Reference, Source, Unquantised, require_same};
pub(crate) use report::{Limits, ReferenceUsed, Report};
pub(crate) use shape::Shape;
pub(crate) use stored::Stored;
pub(crate) use windows::Windows;

/// The text that is run unless the user names one.
pub(crate) const TEXT: &str = include_str!("../../data/kjv.txt");
