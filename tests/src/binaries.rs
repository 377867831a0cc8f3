//! The project's programs, built if they are missing or older than their sources.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Value;

/// A program and the directories it is built from.
struct Program {
    name: &'static str,
    sources: &'static [&'static str],
}

const ESTREAM: Program = Program {
    name: "estream",
    sources: &[
        "cli",
        "compiler",
        "hexagon-templates",
        "packer",
        "packer/order",
        "packer/planner",
        "packer/plot",
        "runtime-min",
        "schemas",
    ],
};
const ESTREAM_RUN: Program = Program {
    name: "estream-run",
    sources: &["runtime-min", "schemas"],
};
const XTASK: Program = Program {
    name: "xtask",
    sources: &["xtask", "compiler", "schemas"],
};

/// The command line for people.
pub fn estream() -> Command {
    Command::new(ESTREAM.path())
}

/// The program for devices.
pub fn estream_run() -> Command {
    Command::new(ESTREAM_RUN.path())
}

/// Chores of the repository.
pub fn xtask() -> Command {
    Command::new(XTASK.path())
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code.
    pub code: i32,
    /// Everything it wrote to standard output.
    pub stdout: Vec<u8>,
    /// Everything it wrote to standard error.
    pub stderr: String,
}

/// Runs `command` to its end.
///
/// # Panics
///
/// If it cannot be started, or was ended by a signal.
#[track_caller]
pub fn finish(command: &mut Command) -> Finished {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Finished {
        code: output
            .status
            .code()
            .unwrap_or_else(|| panic!("{command:?}: {}: {stderr}", output.status)),
        stdout: output.stdout,
        stderr,
    }
}

impl Finished {
    /// The same, if it succeeded.
    ///
    /// # Panics
    ///
    /// If it did not.
    #[track_caller]
    pub fn success(self) -> Finished {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// What it wrote to standard output, as JSON.
    ///
    /// # Panics
    ///
    /// If it is not exactly one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| {
            let stdout = String::from_utf8_lossy(&self.stdout);
            panic!("{error} in {stdout:?}; {}", self.stderr)
        })
    }
}

impl Program {
    /// Where it is, no older than its sources.
    fn path(&self) -> PathBuf {
        static BUILT: OnceLock<()> = OnceLock::new();
        BUILT.get_or_init(|| {
            let all = [ESTREAM, ESTREAM_RUN, XTASK];
            if !all.iter().all(Program::is_fresh) {
                build();
            }
        });
        let path = self.place();
        assert!(
            path.is_file(),
            "there is no {path:?}; build it with cargo build --workspace --all-features --bins"
        );
        path
    }

    fn place(&self) -> PathBuf {
        target_dir().join(format!("{}{}", self.name, env::consts::EXE_SUFFIX))
    }

    /// `cargo test` does not build programs of other packages, so one may be there that
    /// was built before its sources were edited.
    fn is_fresh(&self) -> bool {
        let Ok(built) = fs::metadata(self.place()).and_then(|about| about.modified()) else {
            return false;
        };
        let newest = self.sources.iter().map(|package| {
            let package = workspace().join(package);
            // Descriptors, recipes and profiles are compiled in, and lie beside `src`.
            let folders = ["src", "arch", "recipes", "profiles"].map(|folder| package.join(folder));
            folders.iter().filter_map(|folder| newest(folder)).max()
        });
        newest.max().flatten().is_none_or(|edited| edited <= built)
    }
}

/// Where cargo has put this test's programs: `target/PROFILE`.
pub(crate) fn target_dir() -> PathBuf {
    let test = env::current_exe().expect("a test knows where it is");
    // target/PROFILE/deps/test
    let dir = test.parent().and_then(Path::parent);
    dir.expect("a test lies in a target directory").to_owned()
}

fn workspace() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the workspace is above its packages")
}

/// When the newest file at or below `path` was written.
fn newest(path: &Path) -> Option<SystemTime> {
    if path.is_dir() {
        let entries = fs::read_dir(path).ok()?;
        return entries
            .filter_map(|entry| newest(&entry.ok()?.path()))
            .max();
    }
    fs::metadata(path).ok()?.modified().ok()
}

/// The flags are those of `scripts/test`, so that nothing is compiled twice.
fn build() {
    let dir = target_dir();
    let profile = match dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(workspace())
        .args(["build", "--workspace", "--all-features", "--bins"])
        .args(["--profile", profile])
        .status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "the programs cannot be built: {status:?}"
    );
}
