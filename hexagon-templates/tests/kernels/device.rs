//! What is known of a device without one: every file compiles for it, the loops over nibbles take no
//! more instructions than they should, and the emulator's program has none that it cannot execute.

use std::process::Command;

use estream_hexagon::toolchain::{
    CLANG, DEVICE_SOURCES, Dialect, LLD, Machine, OBJDUMP, Output, Program, device,
};

use crate::tools;

const DIALECTS: [Dialect; 2] = [Dialect::Qfloat, Dialect::Ieee];

/// Attributes without which the disassembler knows no vector instruction.
const ATTRIBUTES: &str = "+hvxv73,+hvx-length128b,+hvx-qfloat,+hvx-ieee-fp";

fn disassembly(path: &std::path::Path) -> String {
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
    for (source, dialect) in [
        ("decode.c", Dialect::Qfloat),
        ("decode.c", Dialect::Ieee),
        ("expert.c", Dialect::Qfloat),
        ("device/dma_user.c", Dialect::Qfloat),
    ] {
        let text = disassembly(&object(source, dialect));
        assert!(text.lines().any(only_on_a_device), "{source} {dialect:?}");
    }
}

fn object(source: &str, dialect: Dialect) -> std::path::PathBuf {
    let name = source.replace('/', "-").replace(".c", "");
    let out = tools::scratch(&format!("{name}-{dialect:?}.o"));
    device(&tools::sources(), source, dialect, Output::Object, &out)
        .unwrap_or_else(|e| panic!("{e}"));
    out
}

#[test]
fn every_file_of_the_device_compiles_without_a_warning() {
    if !tools::have(&[CLANG], "compiling for a device") {
        return;
    }
    for dialect in DIALECTS {
        for source in DEVICE_SOURCES {
            object(source, dialect);
        }
    }
    let text = tools::scratch("mat_hmx.s");
    device(
        &tools::sources(),
        "device/mat_hmx.c",
        Dialect::Qfloat,
        Output::Assembly,
        &text,
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let text = std::fs::read_to_string(text).unwrap();
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

#[test]
fn loops_over_nibbles_take_few_instructions() {
    if !tools::have(&[CLANG, OBJDUMP], "counting instructions of a device") {
        return;
    }
    for (dialect, direct, pair) in [(Dialect::Qfloat, 12.0, 15.0), (Dialect::Ieee, 8.0, 11.0)] {
        let text = disassembly(&object("decode.c", dialect));
        for (function, most) in [("decode_direct", direct), ("decode_pair", pair)] {
            let count = count(&text, function);
            println!("{function}, v73, {dialect:?}: {count} vector instructions for 128 bytes");
            assert!(count <= most, "{function} {dialect:?}: {count} of {most}");
        }
    }
}
