//! Every malformed GGUF file is refused with a message that says what is wrong.

use std::fs;

use estream_compiler::ingest::gguf::{Gguf, open};
use estream_schemas::exit::Exit;

mod gguf_cases;

use gguf_cases::{Case, valid};

fn check(case: &Case) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, &case.bytes).unwrap();
    let error = open(&path).expect_err(case.name);
    assert_eq!(error.exit(), Exit::Invalid);
    let message = error.to_string();
    assert!(
        message.starts_with(&path.display().to_string()),
        "{message}"
    );
    assert!(message.contains(case.message), "{}: {message}", case.name);
    assert!(!message.contains(|c: char| c.is_control()), "{message:?}");
    assert!(message.len() < 1000, "{message}");
    // A file and bytes in memory are the same to the reader.
    let fault = Gguf::read(case.bytes.as_slice(), case.bytes.len() as u64).unwrap_err();
    assert!(message.ends_with(&fault.to_string()), "{fault}");
}

/// Without this, every case could be refused for a fault of what it is made from.
#[test]
fn what_the_malformed_files_are_made_from_is_read() {
    let bytes = valid().bytes();
    let gguf = Gguf::read(bytes.as_slice(), bytes.len() as u64).unwrap();
    assert_eq!(gguf.tensors().len(), 3);
    assert_eq!(gguf.pair_count(), 5);
}

#[test]
fn a_directory_is_named_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let message = open(dir.path()).unwrap_err().to_string();
    assert!(
        message.ends_with("not a regular file; name a .gguf file"),
        "{message}"
    );
}

#[test]
fn a_missing_file_is_an_error_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let error = open(&dir.path().join("none.gguf")).unwrap_err();
    assert_eq!(error.exit(), Exit::Io);
}
