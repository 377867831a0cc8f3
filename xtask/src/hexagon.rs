//! The Hexagon kernels as programs and objects, for whoever wants to look at them or run them. Tests
//! build their own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use estream_hexagon::toolchain::{
    Arch, Compiler, DEVICE_SOURCES, Device, Dialect, Machine, Output, Program, build, device,
};

/// Arguments of `hexagon`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; target/hexagon without it.
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn default_out() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
    target.join("hexagon")
}

/// Builds everything, and prints each path when it is there.
#[expect(clippy::print_stdout, reason = "paths are what it was asked for")]
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hexagon-templates/c");
    let sources = sources.canonicalize().context("the C of the kernels")?;
    let out = args.out.clone().unwrap_or_else(default_out);
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = out.canonicalize()?;
    for (name, machine) in [
        ("serve-host", Machine::Host),
        ("serve.elf", Machine::Emulated),
    ] {
        let path = out.join(name);
        build(&sources, Program::Serve, machine, &path)?;
        println!("{}", path.display());
    }
    for (name, dialect) in [("qfloat", Dialect::Qfloat), ("ieee", Dialect::Ieee)] {
        let to = Device {
            arch: Arch::V73,
            dialect,
            compiler: Compiler::Clang,
        };
        let dir = out.join(format!("device-v73-{name}"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let objects = DEVICE_SOURCES
            .iter()
            .map(|source| (*source, Output::Object, "o"));
        for (source, output, extension) in
            objects.chain([("device/mat_hmx.c", Output::Assembly, "s")])
        {
            let file = Path::new(source).file_name().expect("a file");
            let path = dir.join(file).with_extension(extension);
            device(&sources, source, to, output, &path)?;
            println!("{}", path.display());
        }
    }
    Ok(())
}
