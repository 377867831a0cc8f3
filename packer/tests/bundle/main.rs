//! Properties of bundles as they are written, one file a group of them.

mod common;
mod hostile;
mod large;
mod plans;
mod relayout;
mod reorder;
mod round_trip;
mod target;
