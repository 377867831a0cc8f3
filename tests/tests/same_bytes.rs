//! The same source gives the same bytes, whoever compiles it, where and when; and what
//! is written is what the published schema says.

use std::fs;
use std::path::{Path, PathBuf};

use estream_tests::{assert_valid, compile, estream, files, finish, fixture, manifest, xtask};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (name, bytes) in files(from) {
        fs::write(to.join(name), bytes).unwrap();
    }
}

#[test]
fn nothing_but_the_source_and_the_options_reaches_a_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("here"), dir.path().join("else/where"));
    copy(&fixture("olmoe"), &here.join("olmoe"));
    copy(&fixture("olmoe"), &there.join("olmoe"));
    let compile = |cwd: &Path, out: PathBuf, settings: &[(&str, &str)]| {
        let mut command = estream();
        command.current_dir(cwd).envs(settings.iter().copied());
        command.args(["compile", "olmoe", "-o"]).arg(&out);
        finish(&mut command).success();
        files(&out)
    };
    let one = [
        ("RAYON_NUM_THREADS", "1"),
        ("TZ", "UTC"),
        ("LC_ALL", "C"),
        ("HOME", "/"),
    ];
    let other = [
        ("RAYON_NUM_THREADS", "3"),
        ("TZ", "Pacific/Chatham"),
        ("LC_ALL", "tr_TR.UTF-8"),
        ("HOSTNAME", "elsewhere"),
    ];
    let first = compile(&here, PathBuf::from(&here).join("a.estream"), &one);
    let second = compile(&there, dir.path().join("another-name"), &other);
    assert!(first.len() >= 4, "{:?}", first.keys());
    for (name, bytes) in &first {
        assert!(second.get(name) == Some(bytes), "{name}");
    }
    assert_eq!(first.len(), second.len());
}

#[test]
fn every_kind_of_bundle_has_a_manifest_that_the_schema_accepts() {
    let dir = tempfile::tempdir().unwrap();
    let kinds: [(&str, &[&str]); 6] = [
        ("olmoe", &[]),
        ("olmoe", &["--recipe", "keep"]),
        ("olmoe", &["--shards", "2", "--layout", "pair"]),
        ("olmoe", &["--max-part-size", "1MiB"]),
        ("gguf/olmoe-q4_0.gguf", &[]),
        ("gguf/olmoe-bf16.gguf", &["--recipe", "keep"]),
    ];
    for (index, (source, flags)) in kinds.into_iter().enumerate() {
        let bundle = dir.path().join(index.to_string());
        compile(&fixture(source), &bundle, flags);
        assert_valid("manifest", &manifest(&bundle));
    }
}

#[test]
fn the_published_schema_is_what_the_types_say() {
    finish(xtask().args(["schema", "--check"])).success();
}
