//! Running `estream parity` on bundles of a fixture.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::{Finished, compile, estream, finish, fixture};

/// A short run: three windows of the text that comes with the program.
pub const SHORT: [&str; 4] = ["--window", "200", "--max-tokens", "600"];

/// Bundles of the OLMoE fixture, called by their recipes, in a directory that has another
/// one, `work`, for what is temporary.
#[derive(Debug)]
pub struct ParityDesk {
    dir: TempDir,
}

impl ParityDesk {
    /// One with a bundle of each of these recipes.
    ///
    /// # Panics
    ///
    /// If one cannot be made.
    #[track_caller]
    pub fn new(recipes: &[&str]) -> ParityDesk {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("work")).expect("a directory");
        for recipe in recipes {
            let bundle = dir.path().join(recipe);
            compile(&fixture("olmoe"), &bundle, &["--recipe", recipe]);
        }
        ParityDesk { dir }
    }

    /// The path of something on it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the verb there, with an answer in JSON.
    ///
    /// # Panics
    ///
    /// If something temporary is left.
    #[track_caller]
    pub fn parity(&self, bundle: &str, reference: &Path, flags: &[&str]) -> Finished {
        let mut command = estream();
        command.current_dir(self.dir.path()).arg("parity");
        command.arg(bundle).arg("--reference").arg(reference);
        let done = finish(command.args(["--json", "--work-dir", "work"]).args(flags));
        let left = fs::read_dir(self.at("work")).expect("a directory").count();
        assert_eq!(left, 0, "something is left: {}", done.stderr);
        done
    }
}

/// `flags`, then `more`.
pub fn with<'a>(flags: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [flags, more].concat()
}

/// The number at `path` of a JSON value, as `/kl/mean`.
///
/// # Panics
///
/// If there is none.
#[track_caller]
pub fn number(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number {path} in {value}"))
}
