//! Helpers for end-to-end tests: the binaries, the fixtures and variants of them, and
//! the numbers to compare with.
#![forbid(unsafe_code)]

mod binaries;
mod bundles;
mod checkpoint;
mod derived;
mod gguf;
mod json_schema;
mod numbers;
mod parity;
mod picture;
pub mod schedules;
pub mod sweep;
mod trace;

pub use binaries::{Finished, estream, estream_run, finish, xtask};
pub use bundles::{compile, files, manifest, model, model_on};
pub use checkpoint::{Checkpoint, Tensor};
pub use gguf::{GgufFile, GgufTensor};
pub use json_schema::assert_valid;
pub use numbers::{Prompt, Tensors, id_list, max_diff, prompts};
pub use parity::{ParityDesk, SHORT, number, with};
pub use picture::{Panel, Picture, PictureLane, PictureMark};
pub use trace::{Layer, Trace};

use std::path::{Path, PathBuf};

/// A file or directory of `fixtures/`. `gguf/ARCH-TYPE.gguf` that is not among them is
/// derived from the checkpoint.
///
/// # Panics
///
/// If there is none of that name.
pub fn fixture(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name);
    let derived = || {
        let file = name.strip_prefix("gguf/")?.strip_suffix(".gguf")?;
        file.split_once('-')
    };
    match (path.exists(), derived()) {
        (true, _) => path,
        (false, Some((arch, dtype))) => derived::gguf(arch, dtype),
        (false, None) => panic!("there is no {path:?}"),
    }
}

/// A directory for checkpoints and bundles of real size, which `/tmp` may have no room
/// for. It is removed with the value.
///
/// # Panics
///
/// If it cannot be made.
pub fn roomy_dir() -> tempfile::TempDir {
    let target = binaries::target_dir();
    tempfile::tempdir_in(&target).unwrap_or_else(|error| panic!("{target:?}: {error}"))
}
