//! How long a request takes, from how long its parts take (paper §3.4). Nothing is read, run
//! or measured here.
#![forbid(unsafe_code)]

mod recurrence;

pub use recurrence::{Group, Layer, Predicted, predict};
