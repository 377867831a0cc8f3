//! Bundles of published shapes, made once.

use std::fs;
use std::path::{Path, PathBuf};

use estream_tests::{estream, finish, xtask};

/// A bundle of so many layers of a published shape, its records cut into `shards`.
pub(crate) fn bundle(shape: &str, layers: usize, shards: usize) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("streaming");
    let bundle = dir.join(format!("{shape}-{layers}-{shards}.estream"));
    if !bundle.join("manifest.json").is_file() {
        let source = dir.join(format!("{shape}-{layers}"));
        let _ = fs::remove_dir_all(&source);
        let mut synth = xtask();
        synth.args([
            "synth",
            "--shape",
            shape,
            "--layers",
            &layers.to_string(),
            "-o",
        ]);
        finish(synth.arg(&source)).success();
        let mut compile = estream();
        compile.args(["compile", "--quiet", "--recipe", "q4_0", "--force"]);
        compile.args(["--shards", &shards.to_string(), "-o"]);
        finish(compile.arg(&bundle).arg(&source)).success();
        fs::remove_dir_all(&source).expect("the checkpoint is not needed any more");
    }
    bundle
}
