//! Hexagon kernels for bundles.
#![forbid(unsafe_code)]
