//! What multiplies: one module a backend.

pub mod cpu;
