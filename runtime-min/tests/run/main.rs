//! Bundles of a small model, run in every way there is. One file a property.
#![cfg(feature = "run")]

mod dense;
mod disk;
mod faults;
mod hot;
mod matches_reference;
mod measures;
mod pins;
mod reference;
mod rows;
mod runner;
mod same_bits;
mod stream_faults;
mod streams;
mod tells;
mod toy;
