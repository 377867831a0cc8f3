//! A path that is no UTF-8 is a path like another, in JSON answers too.
#![cfg(target_os = "linux")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use estream_tests::{Finished, estream, finish, fixture};
use serde_json::Value;

/// Runs a verb in `dir`, where a word that ends in `!` is a path with a byte that no text has.
fn json(dir: &Path, line: &str) -> Value {
    let words = line.split_whitespace().map(|word| -> OsString {
        match word.strip_suffix('!') {
            Some(name) => {
                let bytes = [name.as_bytes(), b"\xff"].concat();
                OsStr::from_bytes(&bytes).to_owned()
            }
            None if word == "OLMOE" => fixture("olmoe").into(),
            None => word.into(),
        }
    });
    let mut command = estream();
    command.current_dir(dir).args(words).arg("--json");
    let done: Finished = finish(&mut command).success();
    done.json()
}

#[test]
fn every_answer_has_its_paths() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("ids"), "1,2,3,4").unwrap();
    let profile = include_str!("../../docs/cli.md");
    let profile = profile.split("`phone.toml` is\n").nth(1).unwrap();
    let profile = profile
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with("    "));
    fs::write(
        dir.join("phone.toml"),
        profile.collect::<Vec<_>>().join("\n"),
    )
    .unwrap();
    let plan = "plan b! --device phone.toml --budget 64MiB --tokens 16 --store one";
    for (line, members) in [
        ("compile OLMOE -o b!", &["/bundle"][..]),
        ("inspect b!", &["/bundle"]),
        ("verify b!", &["/bundle"]),
        ("relayout b! -o c! --layout pair", &["/bundle"]),
        ("routes b! --ids-file ids -o r!", &["/routes"]),
        ("reorder b! --routes r! -o d!", &["/bundle"]),
        (plan, &["/bundle", "/stored"]),
        ("unpack b! --gguf g!", &["/gguf"]),
        ("inspect g!", &["/checkpoint"]),
        ("arch check olmoe g!", &["/checkpoint"]),
        (
            "parity b! --reference c! --max-tokens 8",
            &["/bundle", "/reference/path"],
        ),
    ] {
        let answer = json(dir, line);
        for member in members {
            let path = answer.pointer(member).and_then(Value::as_str);
            let path = path.unwrap_or_else(|| panic!("{line}: no {member}: {answer}"));
            assert!(path.contains('\u{fffd}'), "{line}: {path}");
        }
    }
    let stray = OsStr::from_bytes(b"stray\xff");
    let bundle = OsStr::from_bytes(b"b\xff");
    fs::write(dir.join(bundle).join(stray), "").unwrap();
    let answer = json(dir, "verify b!");
    assert_eq!(answer["strays"], serde_json::json!(["stray\u{fffd}"]));
}
