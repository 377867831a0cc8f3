//! What is known of a device without one: every file compiles for it, the loops over nibbles take no
//! more instructions than they should, and the emulator's program has none that it cannot execute.

use std::path::{Path, PathBuf};
use std::process::Command;

use estream_hexagon::toolchain::{
    Arch, CLANG, Compiler, DEVICE_SOURCES, Device, Dialect, LLD, Machine, OBJDUMP, Output, Program,
    Tool, ZIG, device,
};

use crate::tools;

const DIALECTS: [Dialect; 2] = [Dialect::Qfloat, Dialect::Ieee];

/// v73 by clang 19, in both dialects.
fn v73() -> impl Iterator<Item = Device> {
    DIALECTS.into_iter().map(|dialect| Device {
        arch: Arch::V73,
        dialect,
        compiler: Compiler::Clang,
    })
}

/// Every architecture by the later compiler.
fn all() -> impl Iterator<Item = Device> {
    let devices = |arch| {
        DIALECTS.map(|dialect| Device {
            arch,
            dialect,
            compiler: Compiler::Zig,
        })
    };
    Arch::ALL.into_iter().flat_map(devices)
}

/// Attributes without which the disassembler knows no vector instruction.
const ATTRIBUTES: &str = "+hvxv73,+hvx-length128b,+hvx-qfloat,+hvx-ieee-fp";

fn disassembly(path: &Path) -> String {
    let mut command = Command::new(OBJDUMP.name);
    command.args(["-d", "--no-show-raw-insn", "--mcpu=hexagonv73"]);
    command.arg(format!("--mattr={ATTRIBUTES}")).arg(path);
    let output = command.output().expect("the disassembler was found");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// An instruction on vectors of floating-point numbers, or of the DMA engine.
fn only_on_a_device(line: &str) -> bool {
    let float = ["hf", "sf", "qf16", "qf32", "bf"];
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != ':');
    words.any(|word| {
        let Some((register, kind)) = word.split_once('.') else {
            return word.starts_with("dmstart")
                || word.starts_with("dmlink")
                || word.starts_with("dmpoll")
                || word.starts_with("dmwait");
        };
        let digits = register.strip_prefix('v').unwrap_or("");
        let vector = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || c == ':');
        vector && float.contains(&kind)
    })
}

#[test]
fn the_emulated_programs_have_no_instruction_that_is_only_on_a_device() {
    if !tools::have(
        &[CLANG, LLD, OBJDUMP],
        "instructions of the emulated kernels",
    ) {
        return;
    }
    for program in [Program::Serve, Program::Probe] {
        let text = disassembly(&tools::program(program, Machine::Emulated));
        assert!(text.contains("vlut16"), "vectors are disassembled");
        assert_eq!(text.lines().find(|line| only_on_a_device(line)), None);
    }
    // What is looked for is found where it is.
    for source in ["decode.c", "expert.c"] {
        for to in v73() {
            let text = disassembly(&object(source, to));
            assert!(text.lines().any(only_on_a_device), "{source} {to:?}");
        }
    }
    let dma = object("device/dma_user.c", v73().next().unwrap());
    assert!(disassembly(&dma).lines().any(only_on_a_device));
}

fn out(source: &str, to: Device, extension: &str) -> PathBuf {
    let name = source.replace('/', "-").replace(".c", "");
    let Device {
        arch,
        dialect,
        compiler,
    } = to;
    tools::scratch(&format!(
        "{name}-{arch:?}-{dialect:?}-{compiler:?}.{extension}"
    ))
}

fn object(source: &str, to: Device) -> PathBuf {
    let out = out(source, to, "o");
    let built = device(&tools::sources(), source, to, Output::Object, &out);
    built.unwrap_or_else(|e| panic!("{to:?}: {e}"));
    out
}

fn check_that_it_compiles(to: Device) {
    for source in DEVICE_SOURCES {
        object(source, to);
    }
    let matrix = "device/mat_hmx.c";
    let out = out(matrix, to, "s");
    let built = device(&tools::sources(), matrix, to, Output::Assembly, &out);
    built.unwrap_or_else(|e| panic!("{to:?}: {e}"));
    let text = std::fs::read_to_string(out).unwrap();
    for instruction in [
        "bias = mxmem2(r",
        "mxclracc.hf",
        "activation.hf = mxmem(r",
        "weight.hf = mxmem(r",
        "):after.hf = acc",
    ] {
        assert!(text.contains(instruction), "{instruction}");
    }
}

#[test]
fn every_file_of_the_device_compiles_without_a_warning() {
    if tools::have(&[CLANG], "compiling for v73") {
        v73().for_each(check_that_it_compiles);
    }
}

/// Instructions of a function's loop, as text.
fn hardware_loop<'a>(text: &'a str, function: &str) -> Vec<&'a str> {
    let start = text
        .find(&format!("<{function}>:"))
        .expect("the function is there");
    let body = &text[start..];
    let body = &body[..body[1..].find("\n\n").map_or(body.len(), |end| end + 1)];
    let (_, target) = body.split_once("loop0(0x").expect("a hardware loop");
    let target: String = target.chars().take_while(char::is_ascii_hexdigit).collect();
    let label = format!("{target}:");
    let lines = body
        .lines()
        .skip_while(|line| !line.trim_start().starts_with(&label));
    let mut inside = Vec::new();
    for line in lines {
        inside.push(line);
        if line.contains(":endloop0") {
            return inside;
        }
    }
    panic!("the loop of {function} has no end");
}

/// Whether a line of disassembly is an instruction on vectors; stores apart.
fn is_vector(line: &str) -> bool {
    let line = line.split_once(':').map_or(line, |(_, rest)| rest);
    let vector = |word: &str| {
        let digits = word
            .strip_prefix('v')
            .or(word.strip_prefix('q'))
            .unwrap_or("");
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
    };
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    line.contains("vmem") || words.into_iter().any(vector)
}

fn is_store(line: &str) -> bool {
    line.find("vmem(")
        .is_some_and(|at| line[at..].contains(" = v"))
}

/// Vector instructions, stores apart, for each 128 bytes of nibbles.
fn count(text: &str, function: &str) -> f64 {
    let lines = hardware_loop(text, function);
    assert!(
        !lines.iter().any(|line| line.contains("<unknown>")),
        "{lines:#?}"
    );
    let look_ups = lines.iter().filter(|line| line.contains("vlut16")).count();
    let vectors = lines.iter().filter(|line| is_vector(line)).count();
    let stores = lines.iter().filter(|line| is_store(line)).count();
    assert!(look_ups > 0 && stores == 2 * look_ups, "{lines:#?}");
    2.0 * (vectors - stores) as f64 / look_ups as f64
}

/// Counts the loops of `decode.c`, prints the figures, and compares them with what they should be.
fn check_counts(to: Device) {
    let (direct, pair) = match to.dialect {
        Dialect::Qfloat => (12.0, 15.0),
        Dialect::Ieee => (8.0, 11.0),
    };
    let text = disassembly(&object("decode.c", to));
    for (function, most) in [("decode_direct", direct), ("decode_pair", pair)] {
        let count = count(&text, function);
        println!("{function}: {count} vector instructions for 128 bytes, {to:?}");
        assert!(count <= most, "{function} {to:?}: {count} of {most}");
    }
}

#[test]
fn loops_over_nibbles_take_few_instructions() {
    if tools::have(&[CLANG, OBJDUMP], "counting instructions for v73") {
        v73().for_each(check_counts);
    }
}

#[test]
#[ignore = "needs zig; scripts/hexagon runs it"]
fn later_architectures_compile_too_and_take_as_few() {
    const TOOLS: [Tool; 2] = [ZIG, OBJDUMP];
    if tools::have(&TOOLS, "compiling for v75, v79 and v81") {
        all().for_each(check_that_it_compiles);
        all().for_each(check_counts);
    }
}
