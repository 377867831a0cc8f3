//! Names from an index stay in its directory; links lead to regular files alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use estream_compiler::ingest::{Checkpoint, IngestError};
use estream_schemas::exit::Exit;

use super::{Dir, names, refused, says};

const FILE: &str = "model.safetensors";

#[test]
fn c85_an_index_cannot_name_a_path() {
    for name in [
        "../x.safetensors",
        "..",
        ".",
        "",
        "/etc/passwd",
        "a/../../b.safetensors",
        "sub/b.safetensors",
        "./b.safetensors",
        "C:\\b.safetensors",
        "C:b.safetensors",
        "\\\\srv\\b.safetensors",
        "b.safetensors\0",
        "\u{1b}[31m.safetensors",
    ] {
        let dir = Dir::new().index(&[("a", "missing.safetensors"), ("b", name)]);
        match dir.refused(Exit::Invalid) {
            IngestError::UnsafeName { name: refused, .. } => assert_eq!(refused, name),
            error => panic!("{name:?}: {error}"),
        }
    }
}

#[test]
fn c85_a_name_too_long_to_open_is_refused_and_cut_in_the_message() {
    let dir = Dir::new().index(&[("a", &"é".repeat(5_000))]);
    let message = dir.refused(Exit::Invalid).to_string();
    assert!(message.len() < 500, "{message}");
}

#[test]
fn c85_what_a_link_leads_to_is_not_quoted() {
    let secret = Dir::empty().with("passwd", "root:x:0:0:{secret}:/root:/bin/sh\nmore:y:1\n");
    let by_link = Dir::new();
    symlink(secret.path("passwd"), by_link.path(FILE)).expect("a link");
    let by_hard_link = Dir::new();
    fs::hard_link(secret.path("passwd"), by_hard_link.path(FILE)).expect("a hard link");
    let as_config = Dir::empty().shard(FILE, &[("a", 1)]);
    symlink(secret.path("passwd"), as_config.path("config.json")).expect("a link");
    for dir in [by_link, by_hard_link, as_config] {
        let message = dir.refused(Exit::Invalid).to_string();
        assert!(
            !message.contains("root") && !message.contains("secret"),
            "{message}"
        );
    }
}

#[test]
fn a_cache_of_links_opens_through_its_snapshot() {
    let blobs = Dir::new()
        .shard("0a1b", &[("a", 1)])
        .shard("2c3d", &[("b", 2)])
        .with("4e5f", "{\"version\":\"1.0\"}");
    let snapshot = Dir::empty().index(&[("a", "a.safetensors"), ("b", "b.safetensors")]);
    for (blob, name) in [
        ("0a1b", "a.safetensors"),
        ("2c3d", "b.safetensors"),
        ("config.json", "config.json"),
        ("4e5f", "tokenizer.json"),
    ] {
        symlink(blobs.path(blob), snapshot.path(name)).expect("a link");
    }
    for path in [snapshot.path(""), snapshot.path("b.safetensors")] {
        let checkpoint = Checkpoint::open(&path).expect("opens");
        assert_eq!(names(&checkpoint), ["a", "b"]);
        assert_eq!(checkpoint.tokenizer.len(), 1);
    }
    // The blob alone has no neighbours by name.
    let error = refused(&blobs.path("0a1b"), Exit::Invalid);
    says(&error, &["a safetensors file", "name the directory"]);
}

#[test]
fn a_link_to_nothing_is_not_taken_for_an_absent_file() {
    let dir = Dir::new();
    symlink("nowhere", dir.path(FILE)).expect("a link");
    let error = dir.refused(Exit::Invalid);
    assert!(matches!(error, IngestError::DanglingLink { .. }), "{error}");
}

/// Opens in another thread, since the fault to rule out is one that waits forever.
fn refused_in_time(path: PathBuf) -> IngestError {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let refusal = Checkpoint::open(&path).err();
        // Nobody listens any more if the time is up.
        drop(sender.send(refusal));
    });
    let refusal = receiver.recv_timeout(Duration::from_secs(10));
    refusal.expect("an answer").expect("a refusal")
}

fn make_pipe(path: &Path) {
    let status = Command::new("mkfifo").arg(path).status();
    assert!(status.expect("mkfifo runs").success());
}

fn make_socket(path: &Path) {
    UnixListener::bind(path).expect("a socket");
}

#[test]
fn what_is_not_a_regular_file_is_refused_without_waiting() {
    type Make = fn(&Path);
    let kinds: [(&str, Make); 4] = [
        ("a pipe", make_pipe),
        ("a socket", make_socket),
        ("a directory", |path| {
            fs::create_dir(path).expect("a directory");
        }),
        ("a device", |path| {
            symlink("/dev/zero", path).expect("a link");
        }),
    ];
    for (kind, make) in kinds {
        for name in [FILE, "config.json", "tokenizer.json", "README.md"] {
            let dir = Dir::new().shard(FILE, &[("a", 1)]);
            if dir.path(name).exists() {
                fs::remove_file(dir.path(name)).expect("removes");
            }
            make(&dir.path(name));
            let error = refused_in_time(dir.path(""));
            assert_eq!(error.exit(), Exit::Invalid);
            says(&error, &[name, kind]);
        }
        if kind != "a directory" {
            let dir = Dir::new();
            make(&dir.path("x.safetensors"));
            says(&refused_in_time(dir.path("x.safetensors")), &[kind]);
        }
    }
}
