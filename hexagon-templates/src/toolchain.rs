//! How the C in `c/` is built: for this machine, for Hexagon in an emulator, for a device.
//!
//! Nothing here runs when the workspace is built: tests, `cargo xtask hexagon` and whoever wants
//! kernels call it, and are told which tools they lack.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that building or running the kernels takes, and the Debian package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Name of the program.
    pub name: &'static str,
    /// Name of the package.
    pub package: &'static str,
}

/// The host's C compiler.
pub const CC: Tool = tool("cc", "gcc");
/// Compiler for Hexagon.
pub const CLANG: Tool = tool("clang-19", "clang-19");
/// Linker for Hexagon.
pub const LLD: Tool = tool("ld.lld-19", "lld-19");
/// Disassembler.
pub const OBJDUMP: Tool = tool("llvm-objdump-19", "llvm-19");
/// Emulator.
pub const QEMU: Tool = tool("qemu-hexagon", "qemu-user");

const fn tool(name: &'static str, package: &'static str) -> Tool {
    Tool { name, package }
}

impl Tool {
    /// Where it is, in the directories of `PATH`.
    pub fn find(self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        let mut places = std::env::split_paths(&path).map(|dir| dir.join(self.name));
        places.find(|place| place.is_file())
    }
}

/// Those of `tools` that are not installed.
pub fn missing(tools: &[Tool]) -> Vec<Tool> {
    let absent = tools.iter().filter(|tool| tool.find().is_none());
    absent.copied().collect()
}

/// Why there is no program or object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A tool is not installed.
    #[error("{} is missing: install the package {}", .0.name, .0.package)]
    Missing(Tool),
    /// A tool could not be started.
    #[error("cannot run {tool}")]
    Run {
        /// Its name.
        tool: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A tool refused its input: the C and the tool do not fit each other.
    #[error("{tool} failed for {what}:\n{said}")]
    Failed {
        /// Its name.
        tool: &'static str,
        /// What was to be built.
        what: String,
        /// What it said.
        said: String,
    },
}

/// A program made of the C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Runs batches.
    Serve,
    /// Calls single functions, for tests.
    Probe,
}

/// What a program is built to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// This one.
    Host,
    /// This one, with a DMA engine and a matrix unit that do nothing before somebody waits, and
    /// memory that is spoilt when nothing should read it any more.
    Late {
        /// The wait that is left out; 0 for none.
        skip_wait: u32,
    },
    /// This one, with checks of every access and every shift.
    Sanitized,
    /// Hexagon, in an emulator that has integer vectors alone.
    Emulated,
}

const COMMON: &[&str] = &[
    "expert.c",
    "route.c",
    "check.c",
    "decode.c",
    "weight.c",
    "product.c",
    "embed.c",
    "linear.c",
    "norm.c",
    "rope.c",
    "attention.c",
    "mla.c",
    "conv.c",
    "router.c",
    "add.c",
];
const STRICT: &[&str] = &[
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    // One rounding an operation, on every machine.
    "-ffp-contract=off",
    // Tiles are halves for one function and vectors for another.
    "-fno-strict-aliasing",
];
const HOST: &[&str] = &["-Wno-psabi"];
const HEXAGON: &[&str] = &[
    "--target=hexagon-unknown-linux-musl",
    "-mv68",
    "-mhvx",
    "-mhvx-length=128B",
    "-ffreestanding",
    "-fno-stack-protector",
    // Vectors that the compiler makes are of floats, which the emulator does not have.
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-nostdlib",
    "-static",
    "-fuse-ld=lld",
];

impl Program {
    fn source(self) -> &'static str {
        match self {
            Program::Serve => "serve.c",
            Program::Probe => "probe.c",
        }
    }
}

impl Machine {
    /// Tools that building takes.
    pub fn tools(self) -> &'static [Tool] {
        match self {
            Machine::Host | Machine::Late { .. } | Machine::Sanitized => &[CC],
            Machine::Emulated => &[CLANG, LLD],
        }
    }

    fn sources(self) -> &'static [&'static str] {
        match self {
            Machine::Host | Machine::Sanitized => &[
                "emulated/mat_sf.c",
                "emulated/dma_copy.c",
                "emulated/sync_seq.c",
                "host/port_host.c",
            ],
            Machine::Late { .. } => &[
                "emulated/mat_sf.c",
                "host/dma_late.c",
                "host/sync_late.c",
                "host/port_host.c",
            ],
            Machine::Emulated => &[
                "emulated/mat_sf.c",
                "emulated/dma_copy.c",
                "emulated/sync_seq.c",
                "emulated/port_hexagon.c",
                "emulated/runtime.c",
            ],
        }
    }
}

/// Builds `program` for `machine` from the C in `sources`, and writes it to `out`.
///
/// # Errors
/// If a tool is missing or fails; then `out` is as it was.
pub fn build(
    sources: &Path,
    program: Program,
    machine: Machine,
    out: &Path,
) -> Result<(), BuildError> {
    let compiler = machine.tools()[0];
    let mut command = Command::new(compiler.name);
    command.current_dir(sources).args(STRICT);
    match machine {
        Machine::Host => command.args(HOST),
        Machine::Late { skip_wait } => command
            .args(HOST)
            .arg("-DESTREAM_ADVERSARIAL")
            .arg(format!("-DESTREAM_SKIP_WAIT={skip_wait}")),
        Machine::Sanitized => command.args(HOST).args([
            "-O1",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ]),
        Machine::Emulated => command.args(HEXAGON),
    };
    command.args(COMMON).arg(program.source());
    command.args(machine.sources());
    compile(machine.tools(), command, out)
}

/// Runs a compiler whose last argument is still missing: where its output goes. That is beside `out`
/// first, so that nobody starts half a program.
fn compile(tools: &'static [Tool], mut command: Command, out: &Path) -> Result<(), BuildError> {
    if let Some(tool) = missing(tools).first() {
        return Err(BuildError::Missing(*tool));
    }
    let tool = tools[0].name;
    let part = out.with_extension(format!("{}.part", std::process::id()));
    let run = |source| BuildError::Run { tool, source };
    let output = command.arg("-o").arg(&part).output().map_err(run)?;
    if !output.status.success() {
        return Err(BuildError::Failed {
            tool,
            what: out
                .file_name()
                .unwrap_or(OsStr::new("it"))
                .display()
                .to_string(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    std::fs::rename(&part, out).map_err(run)
}
