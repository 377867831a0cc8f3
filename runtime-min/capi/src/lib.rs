//! The runtime for programs in C: `libestream`, and the header `include/estream.h`, which
//! `cargo xtask header` makes of this crate's documentation.
//!
//! | module | holds |
//! |---|---|
//! | `abi` | types and constants that C sees |
//! | `ffi` | functions that C calls: pointers in, status out, and all the unsafe code |
//! | `handles` | numbers for runtimes; a number that was closed is never one again |
//! | `runtime` | one runtime: who may use it when, what it keeps of a request |
//! | `report` | what is said in JSON |
//! | `failure` | a status and a text |
//!
//! A panic must be caught before it reaches C, so this crate refuses to be built without
//! unwinding.

#[cfg(panic = "abort")]
compile_error!("build libestream with panic = \"unwind\": a bug must not end the app");

pub mod abi;
mod failure;
mod ffi;
mod handles;
mod report;
mod runtime;

pub use ffi::*;
