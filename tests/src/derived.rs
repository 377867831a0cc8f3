//! GGUF files that llama.cpp made and the repository does not hold: they are derived
//! from the checkpoints of `fixtures/`. That they are llama.cpp's, tensor for tensor, is
//! what `tests/unpacking_checkpoints.rs` shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::binaries::target_dir;
use crate::{GgufFile, compile, estream, finish, fixture};

/// `ARCH-TYPE.gguf`, made anew once a process.
///
/// # Panics
///
/// If there is no such checkpoint or type, or it cannot be unpacked.
pub(crate) fn gguf(arch: &str, dtype: &str) -> PathBuf {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = target_dir().join("derived-gguf");
    let path = dir.join(format!("{arch}-{dtype}.gguf"));
    if !made.contains(&path) {
        fs::create_dir_all(&dir).expect("a directory");
        let desk = tempfile::tempdir_in(&dir).expect("a directory");
        let whole = derive(arch, dtype, desk.path());
        // Processes may do this at one time, and each finds a whole file.
        fs::rename(whole, &path).expect("a file");
        made.insert(path.clone());
    }
    path
}

fn derive(arch: &str, dtype: &str, desk: &Path) -> PathBuf {
    let checkpoint = fixture(arch);
    if arch != "deepseek2" {
        return unpacked(&checkpoint, &recipe(arch, dtype), desk);
    }
    // Unpacked, its latent attention is as files of before April 2025 had it.
    if let Some(dtype) = dtype.strip_prefix("legacy-") {
        return unpacked(&checkpoint, &recipe(arch, dtype), desk);
    }
    let joined = GgufFile::read(&unpacked(&checkpoint, KEEP, desk));
    let like = GgufFile::read(&fixture("gguf/deepseek2-q4_0.gguf"));
    let split = desk.join("split.gguf");
    joined.with_split_latent(like).write(&split);
    match dtype {
        "bf16" => split,
        _ => {
            let desk = desk.join("again");
            fs::create_dir(&desk).expect("a directory");
            unpacked(&split, &recipe(arch, dtype), &desk)
        }
    }
}

/// `source`, compiled by `recipe` and unpacked again in `desk`.
fn unpacked(source: &Path, recipe: &str, desk: &Path) -> PathBuf {
    let [file, bundle, gguf] = ["by.toml", "a.estream", "a.gguf"].map(|name| desk.join(name));
    fs::write(&file, recipe).expect("a recipe");
    let file = file.to_str().expect("a plain path");
    compile(source, &bundle, &["--recipe", file]);
    let mut command = estream();
    command.arg("unpack").arg(&bundle).arg("--gguf").arg(&gguf);
    finish(&mut command).success();
    gguf
}

/// Every tensor as the checkpoint has it, which is bf16.
const KEEP: &str =
    "name = \"same\"\nabout = \"the same\"\n[[rule]]\nrole = \"*\"\ntype = \"keep\"\n";

/// The types that llama.cpp gives a file which it calls `dtype`.
fn recipe(arch: &str, dtype: &str) -> String {
    let more: &[&str] = match (arch, dtype) {
        (_, "bf16") => return KEEP.to_owned(),
        // There are so few of them in a model of eight experts.
        ("mixtral", "q4_0") => &["head", "attn_k", "attn_v"],
        (_, "q4_0") => &["head"],
        _ => &[],
    };
    let full = ["*norm", "router*", "*bias", "conv"].map(|role| (role, "f32"));
    let more = more.iter().map(|role| (*role, "q8_0"));
    let rules = full.into_iter().chain(more).chain([("*", dtype)]);
    let rules =
        rules.map(|(role, dtype)| format!("[[rule]]\nrole = \"{role}\"\ntype = \"{dtype}\"\n"));
    let rules: String = rules.collect();
    format!("name = \"made\"\nabout = \"as llama.cpp makes it\"\n{rules}")
}
