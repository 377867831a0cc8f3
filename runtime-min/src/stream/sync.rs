//! The locks of the pipeline: the standard library's, or loom's, which tries every order in
//! which threads can take them.

#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
