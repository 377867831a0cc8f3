//! Reading weights by position.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};

use estream_compiler::ingest::IngestError;
use estream_schemas::exit::Exit;

use super::write::{entry, file};
use super::{Dir, says};

const FILE: &str = "model.safetensors";

fn ten_bytes() -> Dir {
    let data: Vec<u8> = (0..10).collect();
    Dir::new().with(FILE, file(&entry("a", "U8", "[10]", "[0,10]"), &data))
}

#[test]
fn any_range_within_a_tensor_is_read_and_none_beyond_it() {
    let checkpoint = ten_bytes().open().expect("opens");
    let tensor = &checkpoint.tensors[0];
    let mut out = [0; 4];
    checkpoint.read(tensor, 6, &mut out).expect("reads");
    assert_eq!(out, [6, 7, 8, 9]);
    checkpoint.read(tensor, 10, &mut []).expect("reads nothing");
    for offset in [7, 11, u64::MAX] {
        let error = checkpoint
            .read(tensor, offset, &mut out)
            .expect_err("refused");
        assert!(matches!(error, IngestError::OutOfTensor { .. }), "{error}");
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_io_error() {
    let dir = ten_bytes();
    let checkpoint = dir.open().expect("opens");
    let bytes = checkpoint.files[0].bytes;
    let file = OpenOptions::new()
        .write(true)
        .open(dir.path(FILE))
        .expect("opens");
    file.set_len(bytes - 1).expect("shrinks");
    let error = checkpoint
        .read(&checkpoint.tensors[0], 0, &mut [0; 10])
        .expect_err("refused");
    assert_eq!(error.exit(), Exit::Io);
    says(&error, &[FILE, &format!("had {bytes} bytes")]);
}

#[test]
fn a_file_that_is_replaced_is_still_read_as_it_was() {
    let dir = ten_bytes();
    let checkpoint = dir.open().expect("opens");
    fs::write(dir.path("new"), "other").expect("writes");
    fs::rename(dir.path("new"), dir.path(FILE)).expect("replaces");
    let mut out = [0; 10];
    checkpoint
        .read(&checkpoint.tensors[0], 0, &mut out)
        .expect("reads");
    assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn offsets_go_past_four_gibibytes() {
    const BIG: u64 = (4 << 30) + 1;
    let end = BIG + 2;
    let header = format!(
        r#"{{"big":{{"dtype":"U8","shape":[{BIG}],"data_offsets":[0,{BIG}]}},"last":{{"dtype":"U8","shape":[2],"data_offsets":[{BIG},{end}]}}}}"#
    );
    let head = file(&header, &[]);
    let dir = Dir::new();
    let mut sparse = File::create(dir.path(FILE)).expect("creates");
    sparse.write_all(&head).expect("writes");
    sparse
        .seek(SeekFrom::Start(head.len() as u64 + BIG))
        .expect("seeks");
    sparse.write_all(&[5, 6]).expect("writes");
    let checkpoint = dir.open().expect("opens");
    let mut out = [0; 2];
    let last = checkpoint.tensor("last").expect("the tensor");
    checkpoint.read(last, 0, &mut out).expect("reads");
    assert_eq!(out, [5, 6]);
    let big = checkpoint.tensor("big").expect("the tensor");
    checkpoint.read(big, BIG - 2, &mut out).expect("reads");
    assert_eq!(out, [0, 0]);
}
