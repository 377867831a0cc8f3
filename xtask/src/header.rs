//! The header of the C ABI, generated from the crate that implements it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cbindgen::{Builder, Config, DocumentationStyle, ExportConfig, Language, Style};

/// Arguments of `header`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if the committed header is not what the sources say.
    #[arg(long)]
    check: bool,
}

/// What a reader of the header should know before any function.
const PREAMBLE: &str = "\
/*
 * estream: the runtime for programs in C.
 *
 * Written by `cargo xtask header` from runtime-min/capi/src; change that.
 *
 * Every function that can fail returns an estream_status, and leaves a text for
 * estream_last_error of the thread that called it. A bug inside is ESTREAM_INTERNAL; nothing is
 * thrown or unwound into the caller.
 *
 * Ownership. Memory belongs to whoever allocated it: results are copied to the caller's
 * buffers, and estream keeps no pointer of the caller's after a call, except log and log_user
 * until estream_close returns. The one thing to give back is the handle.
 *
 * Threads. Any thread may use any handle. Calls on one handle wait for each other, except
 * estream_cancel; calls on different handles do not. The results of a handle are those of its last
 * request, whoever made it.
 *
 * Handles. One that is 0, closed, or made up is ESTREAM_USAGE, never undefined behaviour. A
 * child of fork must not use its parent's handles.
 *
 * Pointers. Null or unaligned ones, empty arrays and buffers that are too small are
 * ESTREAM_USAGE. That a pointer is good for the length beside it is the caller's promise, which
 * is what the sections \"Safety\" say.
 */";

/// Names in C of types that have others in Rust.
const NAMES: [(&str, &str); 6] = [
    ("Status", "estream_status"),
    ("Handle", "estream_runtime"),
    ("LogFn", "estream_log_fn"),
    ("Options", "estream_options"),
    ("Request", "estream_request"),
    ("Info", "estream_info"),
];

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime-min/capi")
}

/// The header's text.
fn text() -> anyhow::Result<Vec<u8>> {
    let rename = NAMES.map(|(rust, c)| (rust.to_owned(), c.to_owned()));
    let config = Config {
        language: Language::C,
        style: Style::Both,
        header: Some(PREAMBLE.to_owned()),
        include_guard: Some("ESTREAM_H".to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        cpp_compat: true,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C99,
        export: ExportConfig {
            rename: rename.into_iter().collect(),
            ..ExportConfig::default()
        },
        ..Config::default()
    };
    let sources = ["abi.rs", "ffi.rs"].map(|file| package().join("src").join(file));
    let [types, functions] = sources;
    let bindings = Builder::new()
        .with_config(config)
        .with_src(types)
        .with_src(functions)
        .generate()?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(text)
}

/// Errors if `path` is not what the sources say.
fn check(path: &Path) -> anyhow::Result<()> {
    if fs::read(path).ok() != Some(text()?) {
        bail!(
            "not what the sources say: {}; run `cargo xtask header` and commit the result",
            path.display()
        );
    }
    Ok(())
}

fn write(path: &Path) -> anyhow::Result<()> {
    fs::write(path, text()?).with_context(|| format!("cannot write {path:?}"))
}

/// Writes or checks the header.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let path = package().join("include/estream.h");
    match args.check {
        true => check(&path),
        false => write(&path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_fresh_once_written_and_stale_once_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("estream.h");
        assert!(check(&path).is_err());
        write(&path).unwrap();
        check(&path).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes.push(b'\n');
        fs::write(&path, bytes).unwrap();
        assert!(check(&path).is_err());
    }
}
