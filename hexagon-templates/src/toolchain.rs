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
/// A later compiler for Hexagon. Its package is one of Python's.
pub const ZIG: Tool = tool("zig", "ziglang (pip)");
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
    /// This one, multiplying by the vectors that Hexagon multiplies by in the emulator.
    HostVectors,
    /// This one, with checks of every access and every shift.
    Sanitized,
    /// This one, with a thread for everything that may run at the same time, and a check that no two
    /// of them touch the same memory.
    Threads {
        /// The wait that is left out; 0 for none.
        skip_wait: u32,
    },
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
            Machine::Emulated => &[CLANG, LLD],
            _ => &[CC],
        }
    }

    /// What takes the place of a device's matrix unit, DMA engine and threads, and of its system.
    fn sources(self) -> &'static [&'static str] {
        match self {
            Machine::Host | Machine::Sanitized => &[
                "emulated/mat_sf.c",
                "emulated/dma_copy.c",
                "emulated/sync_seq.c",
                "host/port_host.c",
            ],
            Machine::HostVectors => &[
                "emulated/mat_hvxint.c",
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
            Machine::Threads { .. } => &[
                "emulated/mat_sf.c",
                "host/dma_threads.c",
                "host/sync_threads.c",
                "host/port_host.c",
            ],
            Machine::Emulated => &[
                "emulated/mat_hvxint.c",
                "emulated/dma_copy.c",
                "emulated/sync_seq.c",
                "emulated/port_hexagon.c",
                "emulated/runtime.c",
            ],
        }
    }

    fn flags(self) -> Vec<String> {
        let own = match self {
            Machine::Host | Machine::HostVectors => "",
            Machine::Late { skip_wait } => {
                &format!("-DESTREAM_ADVERSARIAL -DESTREAM_SKIP_WAIT={skip_wait}")
            }
            Machine::Sanitized => "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all",
            Machine::Threads { skip_wait } => {
                &format!("-O1 -fsanitize=thread -pthread -DESTREAM_SKIP_WAIT={skip_wait}")
            }
            Machine::Emulated => return HEXAGON.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        let flags = own.split_whitespace().chain(HOST.iter().copied());
        flags.map(str::to_owned).collect()
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
    command.args(machine.flags());
    command.args(COMMON).arg(program.source());
    command.args(machine.sources());
    compile(machine.tools(), &mut command, out)
}

/// How a device's vector unit computes with floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Every architecture from v68 on.
    Qfloat,
    /// Fewer instructions, where it is there.
    Ieee,
}

/// Architectures of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the architectures")]
pub enum Arch {
    V73,
    V75,
    V79,
    V81,
}

/// What compiles for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// [`CLANG`], which knows v73 and no later one, and lets one dialect use instructions of the other.
    Clang,
    /// [`ZIG`], a later clang, which knows all of [`Arch`] and keeps the dialects apart.
    Zig,
}

/// A device, as far as a compiler knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its architecture.
    pub arch: Arch,
    /// Which of its instructions are used.
    pub dialect: Dialect,
    /// By what.
    pub compiler: Compiler,
}

/// What a compiler makes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// An object.
    Object,
    /// Text: all that can be had of instructions which no assembler here knows.
    Assembly,
}

/// The files of a device that compile to objects; `device/mat_hmx.c` compiles to text alone.
pub const DEVICE_SOURCES: &[&str] = &[
    "expert.c",
    "route.c",
    "check.c",
    "decode.c",
    "device/dma_user.c",
];

impl Arch {
    /// All of them.
    pub const ALL: [Arch; 4] = [Arch::V73, Arch::V75, Arch::V79, Arch::V81];

    /// The number in its name.
    pub fn number(self) -> u32 {
        match self {
            Arch::V73 => 73,
            Arch::V75 => 75,
            Arch::V79 => 79,
            Arch::V81 => 81,
        }
    }
}

impl Device {
    fn command(self, out: &Path) -> Command {
        let number = self.arch.number();
        let ieee = self.dialect == Dialect::Ieee;
        match self.compiler {
            Compiler::Clang => {
                let mut command = Command::new(CLANG.name);
                command.arg("--target=hexagon-unknown-linux-musl");
                command.args([&format!("-mv{number}"), &format!("-mhvx=v{number}")]);
                command.args(["-mhvx-length=128B", "-mhvx-qfloat"]);
                command.args(ieee.then_some("-mhvx-ieee-fp"));
                command
            }
            Compiler::Zig => {
                let mut command = Command::new(ZIG.name);
                let ieee = if ieee { "+hvx_ieee_fp" } else { "" };
                command.args(["cc", "-target", "hexagon-linux-musl"]);
                command.arg(format!(
                    "-mcpu=hexagonv{number}+hvxv{number}+hvx_length128b+hvx_qfloat{ieee}"
                ));
                // It passes options that text does not need, and warns of them.
                command.args([
                    "-fno-sanitize=undefined",
                    "-Wno-unused-command-line-argument",
                ]);
                let cache = out.with_file_name("zig-cache");
                command.env("ZIG_GLOBAL_CACHE_DIR", &cache);
                command.env("ZIG_LOCAL_CACHE_DIR", &cache);
                command
            }
        }
    }
}

/// Compiles one file of the C in `sources` for a device. Nothing is linked: what a program for a device
/// is linked with comes with its vendor's tools.
///
/// # Errors
/// If a tool is missing or fails; then `out` is as it was.
pub fn device(
    sources: &Path,
    source: &str,
    device: Device,
    output: Output,
    out: &Path,
) -> Result<(), BuildError> {
    let tool = match device.compiler {
        Compiler::Clang => CLANG,
        Compiler::Zig => ZIG,
    };
    let mut command = device.command(out);
    command.current_dir(sources).args(STRICT);
    command.args(["-ffreestanding", "-DESTREAM_DEVICE"]);
    command.args((device.dialect == Dialect::Ieee).then_some("-DESTREAM_IEEE"));
    match output {
        Output::Object => command.arg("-c"),
        Output::Assembly => command.args(["-S", "-fno-integrated-as"]),
    };
    compile(&[tool], command.arg(source), out)
}

/// Runs a compiler whose last argument is still missing: where its output goes. That is beside `out`
/// first, so that nobody starts half a program.
fn compile(tools: &[Tool], command: &mut Command, out: &Path) -> Result<(), BuildError> {
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
