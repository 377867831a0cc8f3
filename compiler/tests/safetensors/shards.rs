//! Checkpoints of several files: the index says which.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use estream_compiler::ingest::{Checkpoint, IngestError, MissingShard, Notice};
use estream_schemas::exit::Exit;

use super::{Dir, names, refused, says};

const A: &str = "model-00001-of-00002.safetensors";
const B: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn two_shards() -> Dir {
    Dir::new()
        .shard(A, &[("x", 1), ("z", 3)])
        .shard(B, &[("y", 2)])
        .index(&[("z", A), ("x", A), ("y", B)])
}

#[test]
fn tensors_of_all_shards_come_in_name_order() {
    let checkpoint = two_shards().open().expect("opens");
    assert_eq!(names(&checkpoint), ["x", "y", "z"]);
    let files: Vec<_> = checkpoint.files.iter().map(|file| &file.name).collect();
    assert_eq!(files, [A, B]);
    for (tensor, value) in checkpoint.tensors.iter().zip(1..) {
        let mut byte = [0];
        checkpoint.read(tensor, 0, &mut byte).expect("reads");
        assert_eq!(byte, [value], "{}", tensor.name);
    }
}

#[test]
fn c07_the_index_says_which_files_there_are() {
    let dir = Dir::new()
        .shard("model-00001-of-00001.safetensors", &[("a", 1)])
        .shard("mtp.safetensors", &[("b", 2)])
        .shard("model-old.safetensors", &[("c", 3)])
        .index(&[
            ("a", "model-00001-of-00001.safetensors"),
            ("b", "mtp.safetensors"),
        ]);
    let checkpoint = dir.open().expect("opens");
    assert_eq!(names(&checkpoint), ["a", "b"]);
    let unused = Notice::Unused {
        file: "model-old.safetensors".to_owned(),
    };
    assert!(checkpoint.notices.contains(&unused));
}

#[test]
fn c39_all_missing_shards_are_listed_with_their_tensor_counts() {
    let present = "model-00003-of-00003.safetensors";
    // The one shard that is there is not even a weight file, and there is no
    // config.json: neither is looked at.
    let dir = Dir::empty().with(present, "junk").index(&[
        ("a", "model-00001-of-00003.safetensors"),
        ("b", "model-00001-of-00003.safetensors"),
        ("c", "model-00002-of-00003.safetensors"),
        ("d", present),
    ]);
    symlink("nowhere", dir.path("model-00002-of-00003.safetensors")).expect("a link");
    let start = Instant::now();
    let error = dir.refused(Exit::Invalid);
    assert!(start.elapsed() < Duration::from_secs(1));
    says(
        &error,
        &[
            "2 of 3 weight files are missing",
            "(2 tensors)",
            "(1 tensor)",
        ],
    );
    let IngestError::MissingShards { missing, .. } = error else {
        panic!("{error}");
    };
    let shard = |name: &str, tensor_count| MissingShard {
        name: name.to_owned(),
        tensor_count,
    };
    assert_eq!(
        missing,
        [
            shard("model-00001-of-00003.safetensors", 2),
            shard("model-00002-of-00003.safetensors", 1),
        ]
    );
}

#[test]
fn c40_a_tensor_that_is_not_where_the_index_says_is_an_error() {
    let dir = two_shards().index(&[("x", A), ("y", A), ("z", A), ("w", B)]);
    let error = dir.refused(Exit::Invalid);
    says(
        &error,
        &[INDEX, "2 tensors", "\"w\" in", "\"y\" in", "one revision"],
    );
}

#[test]
fn c40_absent_tensors_before_between_and_after_the_present_ones_are_all_counted() {
    let dir = Dir::new().shard(A, &[("b", 1), ("d", 2)]).index(&[
        ("a", A),
        ("b", A),
        ("c", A),
        ("d", A),
        ("e", A),
    ]);
    match dir.refused(Exit::Invalid) {
        IngestError::AbsentTensors { tensors, count, .. } => {
            let absent: Vec<_> = tensors.iter().map(|tensor| &*tensor.name).collect();
            assert_eq!((absent.as_slice(), count), (["a", "c", "e"].as_slice(), 3));
        }
        error => panic!("{error}"),
    }
}

#[test]
fn c40_a_tensor_that_the_index_does_not_list_is_kept_with_a_notice() {
    let dir = two_shards().index(&[("x", A), ("y", B)]);
    let checkpoint = dir.open().expect("opens");
    assert_eq!(names(&checkpoint), ["x", "y", "z"]);
    let notice = Notice::Unlisted {
        file: A.to_owned(),
        count: 1,
        tensors: vec!["z".to_owned()],
    };
    assert!(notice.is_refused_when_strict());
    assert!(notice.to_string().contains("\"z\""));
    assert!(checkpoint.notices.contains(&notice));
}

#[test]
fn c42_one_tensor_in_two_files_with_equal_bytes_is_a_notice() {
    for (listed, other, value) in [(A, B, 1), (B, A, 1)] {
        let dir = Dir::new()
            .shard(A, &[("t", value), ("x", 5)])
            .shard(B, &[("y", 6), ("t", value)])
            .index(&[("t", listed), ("x", A), ("y", B)]);
        let checkpoint = dir.open().expect("opens");
        assert_eq!(names(&checkpoint), ["t", "x", "y"]);
        let used = &checkpoint.files[checkpoint.tensors[0].file].name;
        assert_eq!(used, listed);
        assert!(checkpoint.notices.contains(&Notice::Repeated {
            file: other.to_owned(),
            count: 1,
            tensors: vec!["t".to_owned()],
        }));
    }
}

#[test]
fn c42_one_tensor_in_two_files_with_different_content_is_an_error() {
    let other_shape = r#"{"t":{"dtype":"U8","shape":[1,1],"data_offsets":[0,1]}}"#;
    let dir = |second: Dir| second.index(&[("t", A), ("y", B)]);
    let by_value = dir(Dir::new()
        .shard(A, &[("t", 1)])
        .shard(B, &[("t", 2), ("y", 0)]));
    let by_shape = Dir::new()
        .shard(A, &[("t", 1)])
        .with(B, super::write::file(other_shape, &[1]))
        .index(&[("t", A), ("t2", B)]);
    for dir in [by_value, by_shape] {
        let error = dir.refused(Exit::Invalid);
        assert!(matches!(error, IngestError::Conflict { .. }), "{error}");
        says(&error, &["\"t\"", A, B]);
    }
}

#[test]
fn c42_a_difference_in_the_last_byte_of_a_long_tensor_is_found() {
    const BYTES: usize = (2 << 20) + 3;
    let file = |last: u8| {
        let mut data = vec![9; BYTES];
        data[BYTES - 1] = last;
        let header = super::write::entry("t", "U8", &format!("[{BYTES}]"), &format!("[0,{BYTES}]"));
        super::write::file(&header, &data)
    };
    let dir = |last| {
        Dir::new()
            .with(A, file(9))
            .with(B, file(last))
            .index(&[("t", A), ("t2", B)])
    };
    let error = dir(8).refused(Exit::Invalid);
    assert!(matches!(error, IngestError::Conflict { .. }), "{error}");
    // With equal bytes the comparison passes, and what is left is t2's absence.
    let error = dir(9).refused(Exit::Invalid);
    assert!(
        matches!(error, IngestError::AbsentTensors { .. }),
        "{error}"
    );
}

#[test]
fn c47_a_shard_that_is_a_git_lfs_pointer_says_so() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 4995584848\n";
    let dir = two_shards().with(B, pointer);
    let error = dir.refused(Exit::Invalid);
    says(&error, &[B, "Git LFS pointer", "git lfs pull"]);
    let dir = Dir::new().with("model.safetensors", pointer);
    says(&dir.refused(Exit::Invalid), &["git lfs pull"]);
}

#[test]
fn c52_any_file_of_the_set_opens_the_set() {
    let dir = two_shards();
    for name in [A, B, INDEX] {
        let checkpoint = Checkpoint::open(&dir.path(name)).expect(name);
        assert_eq!(names(&checkpoint), ["x", "y", "z"]);
        assert_eq!(checkpoint.path, dir.path(name));
    }
    fs::remove_file(dir.path(A)).expect("removes");
    let error = refused(&dir.path(B), Exit::Invalid);
    says(&error, &[A, "(2 tensors)"]);
}

#[test]
fn a_file_beside_the_set_does_not_stand_for_it() {
    let dir = two_shards().shard("golden.safetensors", &[("g", 1)]);
    let error = refused(&dir.path("golden.safetensors"), Exit::Usage);
    says(&error, &["golden.safetensors", INDEX]);
}

#[test]
fn shards_without_an_index_are_refused() {
    for dir in [
        Dir::new().shard(A, &[("x", 1)]).shard(B, &[("y", 1)]),
        Dir::new().shard(A, &[("x", 1)]),
    ] {
        let error = dir.refused(Exit::Invalid);
        says(&error, &[A, "no index", "model.safetensors.index.json"]);
    }
}
