//! From a compiled model to a bundle.
#![forbid(unsafe_code)]
