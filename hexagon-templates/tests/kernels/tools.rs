//! Programs of the C, each built once, and what to do where a tool is missing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use estream_hexagon::toolchain::{Machine, Program, QEMU, Tool, build, missing};

/// Set where every tool must be there, as in CI: what is missing is then a failure.
const REQUIRED: &str = "ESTREAM_TEST_ALL_TOOLS";

pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

pub(crate) fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Whether the tools are there; if not, says what is not tested, or fails.
pub(crate) fn have(tools: &[Tool], what: &str) -> bool {
    let absent = missing(tools);
    if absent.is_empty() {
        return true;
    }
    let names: Vec<_> = absent.iter().map(|tool| tool.package).collect();
    let told = format!(
        "not tested: {what}: install {} (scripts/setup hexagon)\n",
        names.join(", ")
    );
    assert!(std::env::var_os(REQUIRED).is_none(), "{told}");
    // Past the harness, which shows nothing of tests that pass.
    std::io::stderr().write_all(told.as_bytes()).unwrap();
    false
}

/// Machines that programs can be run on here: this one, and the emulator if it is installed.
pub(crate) fn machines(what: &str) -> Vec<Machine> {
    let mut machines = vec![Machine::Host];
    let tools = [Machine::Emulated.tools(), &[QEMU]].concat();
    if have(&tools, &format!("{what}, on Hexagon in an emulator")) {
        machines.push(Machine::Emulated);
    }
    machines
}

/// A program, built if this process has not built it.
pub(crate) fn program(program: Program, machine: Machine) -> PathBuf {
    static BUILT: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());
    let name = match machine {
        Machine::Host => format!("{program:?}-host"),
        Machine::Late { skip_wait } => format!("{program:?}-late-{skip_wait}"),
        Machine::Sanitized => format!("{program:?}-sanitized"),
        Machine::Emulated => format!("{program:?}.elf"),
    };
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, path)) = built.iter().find(|known| known.0 == name) {
        return path.clone();
    }
    let path = scratch(&name);
    build(&sources(), program, machine, &path).unwrap_or_else(|e| panic!("{e}"));
    built.push((name, path.clone()));
    path
}
