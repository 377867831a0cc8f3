//! A bundle that is not what it says is refused by name, and never waited for.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use estream_runtime::reader::{BundleReader, Problem, Projection, ReadError};
use estream_schemas::canonical;
use estream_schemas::exit::Exit;

use crate::common::written;

/// A good bundle, changed by `spoil`, does not open (or read its carried files) and says
/// which file is wrong.
fn refused(spoil: impl FnOnce(&Path)) -> ReadError {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    written(&out);
    spoil(&out);
    let open = BundleReader::open(&out).and_then(|reader| {
        let mut carried = reader.bundle().manifest().carried();
        carried
            .clone()
            .try_for_each(|file| reader.check_file(file))?;
        carried.try_for_each(|file| {
            let size = usize::try_from(file.bytes).unwrap();
            reader.read_file(file, &mut vec![0; size])
        })
    });
    open.unwrap_err()
}

const FILES: [&str; 6] = [
    "manifest.json",
    "resident.bin",
    "experts-00001.bin",
    "tokenizer/tokenizer.json",
    "LICENSE",
    "source-metadata.gguf",
];

fn names_file(error: &ReadError, file: &str) {
    let message = error.to_string();
    assert!(message.contains(file), "{file}: {message}");
    assert_eq!(error.exit(), Exit::Invalid, "{message}");
}

#[test]
fn a_missing_file_is_named() {
    for file in FILES {
        let error = refused(|out| fs::remove_file(out.join(file)).unwrap());
        names_file(&error, file);
    }
    let error = refused(|out| fs::remove_dir_all(out.join("tokenizer")).unwrap());
    names_file(&error, "tokenizer/tokenizer.json");
}

#[test]
fn a_link_is_refused_wherever_it_leads() {
    for file in FILES {
        let error = refused(|out| {
            let file = out.join(file);
            let moved = out.parent().unwrap().join("moved");
            fs::rename(&file, &moved).unwrap();
            symlink(&moved, &file).unwrap();
        });
        assert!(matches!(error, ReadError::NotRegular { .. }), "{error}");
        names_file(&error, file);
    }
    let error = refused(|out| {
        let moved = out.parent().unwrap().join("moved");
        fs::rename(out.join("tokenizer"), &moved).unwrap();
        symlink(&moved, out.join("tokenizer")).unwrap();
    });
    names_file(&error, "tokenizer/tokenizer.json");
}

#[test]
fn a_pipe_a_directory_and_a_socket_are_refused_without_waiting() {
    for file in FILES {
        let error = refused(|out| {
            let file = out.join(file);
            fs::remove_file(&file).unwrap();
            let made = std::process::Command::new("mkfifo").arg(&file).status();
            assert!(made.unwrap().success());
        });
        assert!(matches!(error, ReadError::NotRegular { .. }), "{error}");
        names_file(&error, file);
        let error = refused(|out| {
            fs::remove_file(out.join(file)).unwrap();
            fs::create_dir(out.join(file)).unwrap();
        });
        assert!(matches!(error, ReadError::NotRegular { .. }), "{error}");
    }
    let error = refused(|out| {
        fs::remove_file(out.join("resident.bin")).unwrap();
        std::os::unix::net::UnixListener::bind(out.join("resident.bin")).unwrap();
    });
    assert!(matches!(error, ReadError::NotRegular { .. }), "{error}");
}

#[test]
fn c65_a_size_that_is_not_the_stated_one_is_refused() {
    for file in &FILES[1..] {
        for change in [-1, 1] {
            let error = refused(|out| {
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(out.join(file))
                    .unwrap();
                let bytes = file.metadata().unwrap().len();
                file.set_len(bytes.checked_add_signed(change).unwrap())
                    .unwrap();
            });
            assert!(matches!(error, ReadError::Size { .. }), "{error}");
            names_file(&error, file);
        }
    }
}

#[test]
fn what_is_no_bundle_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| BundleReader::open(path).unwrap_err();
    let not_bundle = open(dir.path());
    assert!(
        matches!(not_bundle, ReadError::NotABundle { .. }),
        "{not_bundle}"
    );
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(open(&file), ReadError::NotABundle { .. }));
    let nothing = open(&dir.path().join("nothing"));
    assert_eq!(nothing.exit(), Exit::Usage, "{nothing}");
    for (text, exit) in [
        ("{}", Exit::Invalid),
        (
            r#"{"format":"estream-bundle","version":2,"kernel_abi":1}"#,
            Exit::CannotRun,
        ),
        (
            r#"{"format":"other","version":1,"kernel_abi":1}"#,
            Exit::Invalid,
        ),
    ] {
        fs::write(dir.path().join("manifest.json"), text).unwrap();
        assert_eq!(open(dir.path()).exit(), exit, "{text}");
    }
}

#[test]
fn a_file_that_shrinks_in_use_is_truncated_and_no_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    written(&out);
    let reader = BundleReader::open(&out).unwrap();
    let part = fs::OpenOptions::new()
        .write(true)
        .open(out.join("experts-00001.bin"));
    part.unwrap().set_len(49152 + 100).unwrap();
    let mut record = vec![0; 49152];
    reader.read_record(0, 0, &mut record).unwrap();
    let error = reader.read_record(0, 1, &mut record).unwrap_err();
    assert!(
        matches!(error, ReadError::Truncated { offset: 49152, .. }),
        "{error}"
    );
}

#[test]
fn what_the_bundle_does_not_have_is_an_error_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    written(&dir.path().join("out"));
    let reader = BundleReader::open(&dir.path().join("out")).unwrap();
    let small = &mut [0; 8][..];
    for result in [
        reader.read_resident(99, small),
        reader.read_resident(0, small),
        reader.read_resident_at(0, u64::MAX, small),
        reader.read_record(9, 0, small),
        reader.read_record(0, 4, small),
        reader.read_record(0, u64::MAX, small),
        reader.read_record(0, 0, small),
        reader.read_region(1, 9, Projection::Up, small),
        reader.check_record(0, 4, small),
        reader.records(0, 3, 2).map(drop),
        reader.records(0, 1, u64::MAX).map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, ReadError::NoSuch { .. }), "{error}");
        assert_eq!(error.exit(), Exit::Internal);
    }
    assert_eq!(reader.records(0, 1, 3).unwrap().bytes(), 3 * 49152);
}

/// Flips a bit of `file`.
fn flip(out: &Path, file: &str, offset: u64) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(out.join(file))
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn verify_reports_everything_that_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    written(&out);
    let manifest = BundleReader::open(&out)
        .unwrap()
        .bundle()
        .manifest()
        .clone();
    flip(&out, "resident.bin", 0);
    flip(
        &out,
        "resident.bin",
        manifest.resident.tensors[1].offset - 1,
    );
    flip(&out, "experts-00001.bin", 49152 + 7);
    flip(&out, "experts-00001.bin", 2 * 49152 + 16384 - 1);
    flip(
        &out,
        "experts-00001.bin",
        manifest.experts.parts[0].bytes - 1,
    );
    flip(&out, "LICENSE", 1);
    fs::remove_file(out.join("tokenizer/merges.txt")).unwrap();
    let text = serde_json::to_vec(&manifest).unwrap();
    fs::write(out.join("manifest.json"), &text).unwrap();

    let reader = BundleReader::open(&out).unwrap();
    let mut last = (0, 0);
    let report = reader
        .verify_all(&mut |done, total| {
            assert!(done > last.0 && done <= total);
            last = (done, total);
        })
        .unwrap();
    let said: Vec<String> = report.problems.iter().map(Problem::to_string).collect();
    let expected = [
        "not in the one form",
        "tensor \"embed\" has digest",
        "resident.bin: the padding at 16383 is not zero",
        "record 1 of layer 0 (expert 0) has digest",
        "the padding at 114687 is not zero",
        "record 2 of layer 0 (expert 3) has digest",
        "is not zero",
        "record 8 of layer 2 (expert 0, shard 2) has digest",
        "tokenizer/merges.txt: missing",
        "LICENSE: the file has digest",
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(report.exit(), Exit::Integrity);
    assert_eq!(report.bytes, last.0);
    assert_eq!(report.strays, Vec::<PathBuf>::new());
}

#[test]
fn a_descriptor_that_is_not_the_stated_one_is_refused() {
    let error = refused(|out| {
        let manifest = out.join("manifest.json");
        let text = fs::read_to_string(&manifest).unwrap();
        let other = text.replace(r#"family = \"tiny\""#, r#"family = \"tidy\""#);
        assert_ne!(text, other);
        fs::write(manifest, other).unwrap();
    });
    assert!(matches!(error, ReadError::Integrity { .. }), "{error}");
    assert_eq!(error.exit(), Exit::Integrity);
    assert!(
        error.to_string().contains("the descriptor's text"),
        "{error}"
    );
    assert!(error.to_string().contains("manifest.json"), "{error}");
}

#[test]
fn a_record_with_a_flipped_bit_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    written(&out);
    let reader = BundleReader::open(&out).unwrap();
    flip(&out, "experts-00001.bin", 49152 + 16384 - 1);
    let mut record = vec![0; 49152];
    reader.read_record_verified(0, 0, &mut record).unwrap();
    let error = reader.read_record_verified(0, 1, &mut record).unwrap_err();
    assert_eq!(error.exit(), Exit::Integrity, "{error}");
    assert!(error.to_string().contains("(expert 0)"), "{error}");
    flip(&out, "LICENSE", 0);
    let license = &reader.bundle().manifest().license.files[0];
    let read = reader.read_file(license, &mut [0; 8]).unwrap_err();
    assert_eq!(read.exit(), Exit::Integrity, "{read}");
}

#[test]
fn the_manifest_is_canonical_and_its_digest_the_identity() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let done = written(&out);
    let reader = BundleReader::open(&out).unwrap();
    let text = reader.manifest_bytes().unwrap();
    assert_eq!(text, canonical::to_vec(reader.bundle().manifest()).unwrap());
    assert_eq!(blake3::hash(&text).as_bytes(), &done.identity.0);
    fs::write(out.join("manifest.json"), b"{}").unwrap();
    assert_eq!(reader.manifest_bytes().unwrap_err().exit(), Exit::Integrity);
}
