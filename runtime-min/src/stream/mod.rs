//! Experts from flash, through an arena of fixed size (paper §3.3 and §3.4).
//!
//! [`residency`] says what is in a slot, [`sequence`] what is read and run next; both are
//! plain state. [`pipeline`] puts threads around them, [`storage`] reads, [`arena`] is the
//! memory, and [`timeline`] is what happened when.

mod residency;
mod sequence;

#[cfg(test)]
mod exhaustive;
