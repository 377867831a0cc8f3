//! The messages in Rust and in C are the same.

use std::fmt::Write;
use std::process::Command;

use estream_hexagon::abi::*;
use estream_hexagon::message::{self, Map};
use estream_hexagon::toolchain::{CC, CLANG};
use estream_hexagon::wire::Described;

use crate::tools;

/// Assertions, in C, that a struct is what it is in Rust.
fn describe<T: Described>(out: &mut String) {
    let name = T::C_NAME;
    writeln!(
        out,
        "_Static_assert(sizeof(struct {name}) == {}, \"{name}\");",
        T::BYTES
    )
    .unwrap();
    for (field, offset) in T::fields() {
        writeln!(
            out,
            "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{name}.{field}\");"
        )
        .unwrap();
    }
}

/// C that compiles only if the headers say what Rust says.
fn assertions() -> String {
    let mut out = "#include \"abi.h\"\n#include \"pipe.h\"\n".to_owned();
    describe::<Batch>(&mut out);
    describe::<Buffer>(&mut out);
    describe::<Reply>(&mut out);
    describe::<Op>(&mut out);
    describe::<Ref>(&mut out);
    describe::<Rows>(&mut out);
    describe::<Weight>(&mut out);
    describe::<Embed>(&mut out);
    describe::<Linear>(&mut out);
    describe::<RmsNorm>(&mut out);
    describe::<Rope>(&mut out);
    describe::<Attention>(&mut out);
    describe::<Mla>(&mut out);
    describe::<ShortConv>(&mut out);
    describe::<Router>(&mut out);
    describe::<Add>(&mut out);
    describe::<Route>(&mut out);
    describe::<Entry>(&mut out);
    describe::<Bank>(&mut out);
    describe::<Projection>(&mut out);
    describe::<Plan>(&mut out);
    describe::<Experts>(&mut out);
    describe::<Map>(&mut out);
    let codes = Status::ALL.iter().map(|(code, name)| (*name, code.code()));
    let codes = codes.chain(Kind::ALL.iter().map(|(code, name)| (*name, code.code())));
    let codes = codes.chain(
        LayoutCode::ALL
            .iter()
            .map(|(code, name)| (*name, code.code())),
    );
    let constants = [
        ("ESTREAM_MAGIC", MAGIC),
        ("ESTREAM_VERSION", VERSION),
        ("ESTREAM_MAX_BUFFERS", MAX_BUFFERS),
        ("ESTREAM_MAX_OPS", MAX_OPS),
        ("ESTREAM_MAX_BATCH_BYTES", MAX_BATCH_BYTES),
        ("ESTREAM_MAX_EXPERTS", MAX_EXPERTS),
        ("ESTREAM_MAX_ENTRIES", MAX_ENTRIES),
        ("ESTREAM_MAX_BANKS", MAX_BANKS),
        ("ESTREAM_MAX_TOKENS", MAX_TOKENS),
        ("ESTREAM_MAX_ROUTES", MAX_ROUTES),
        ("ESTREAM_TILE", TILE),
        ("ESTREAM_TILE_BYTES", TILE_BYTES),
        ("ESTREAM_ALIGN", ALIGN),
        ("ESTREAM_SCALES_BYTES", SCALES_BYTES),
        ("ESTREAM_NONE", NONE),
        ("PIPE_MAP_MAGIC", message::MAP_MAGIC),
        ("PIPE_UNMAP_MAGIC", message::UNMAP_MAGIC),
        ("PIPE_MAX_HANDLES", message::MAX_HANDLES),
        ("PIPE_MAX_PATH_BYTES", message::MAX_PATH_BYTES),
    ];
    for (name, value) in codes.chain(constants) {
        writeln!(out, "_Static_assert({name} == {value}u, \"{name}\");").unwrap();
    }
    out
}

/// What a compiler says to some C, if it refuses it.
fn refusal(compiler: &str, arguments: &[&str], c: &str) -> Option<String> {
    let path = tools::scratch(&format!("abi-{compiler}-{}.c", c.len()));
    std::fs::write(&path, c).unwrap();
    let mut command = Command::new(compiler);
    command
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(tools::sources());
    let output = command.args(arguments).arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(said)
}

#[test]
fn structs_and_codes_are_those_of_the_headers() {
    let c = assertions();
    assert!(
        tools::have(&[CC], "the messages in C"),
        "a C compiler links Rust too"
    );
    assert_eq!(refusal(CC.name, &[], &c), None);
    if tools::have(&[CLANG], "the messages in C for Hexagon") {
        let target = "--target=hexagon-unknown-linux-musl";
        assert_eq!(refusal(CLANG.name, &[target, "-ffreestanding"], &c), None);
    }
    let wrong = c.replace(
        "offsetof(struct estream_rows, width) == 12",
        "offsetof(struct estream_rows, width) == 8",
    );
    assert!(refusal(CC.name, &[], &wrong).is_some_and(|said| said.contains("estream_rows.width")));
}

/// Every code of the headers is in Rust too.
#[test]
fn the_headers_have_no_code_that_rust_lacks() {
    let header = std::fs::read_to_string(tools::sources().join("abi.h")).unwrap();
    let known = assertions();
    let mut enumerators = 0;
    for line in header.lines() {
        let Some((name, _)) = line.trim().split_once(" = ") else {
            continue;
        };
        if name.starts_with("ESTREAM_") {
            enumerators += 1;
            assert!(known.contains(&format!("({name} == ")), "{name}");
        }
    }
    assert_eq!(
        enumerators,
        Status::ALL.len() + Kind::ALL.len() + LayoutCode::ALL.len()
    );
}
