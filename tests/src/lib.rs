//! Helpers for end-to-end tests: the binaries, the fixtures and variants of them, and
//! the numbers to compare with.
#![forbid(unsafe_code)]

mod binaries;
mod json_schema;

pub use binaries::{Finished, estream, estream_run, finish, xtask};
pub use json_schema::assert_valid;

use std::path::{Path, PathBuf};

/// A file or directory of `fixtures/`.
///
/// # Panics
///
/// If there is none of that name.
pub fn fixture(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name);
    assert!(path.exists(), "there is no {path:?}");
    path
}
