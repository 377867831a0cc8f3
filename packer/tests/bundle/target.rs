//! The output is a whole bundle or nothing, and nothing of the user's is lost to it.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{Synthetic, SyntheticError, carried, names, spec, written, written_with};
use estream_compiler::ingest::{Carried, CarriedContent};
use estream_packer::{OutputError, PackError, Payload, Sink, WriteOptions, write};
use estream_runtime::reader::{BundleReader, Projection};
use estream_schemas::exit::Exit;

fn refusal(out: &Path, options: &WriteOptions) -> OutputError {
    match written_with(out, options) {
        Err(PackError::Output(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn inputs(inputs: &[&Path]) -> WriteOptions {
    WriteOptions {
        force: true,
        verify: false,
        inputs: inputs.iter().map(PathBuf::from).collect(),
    }
}

fn force() -> WriteOptions {
    inputs(&[])
}

#[test]
fn c48_nothing_but_a_bundle_is_replaced_even_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model-00002.safetensors");
    fs::write(&file, b"weights").unwrap();
    let folder = dir.path().join("checkpoint");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("model.safetensors"), b"weights").unwrap();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let dangling = dir.path().join("dangling");
    symlink("nowhere", &dangling).unwrap();
    let before = names(dir.path());
    for out in [&file, &folder, &empty, &dangling] {
        for options in [WriteOptions::default(), force()] {
            let error = refusal(out, &options);
            assert!(matches!(error, OutputError::NotABundle { .. }), "{error}");
            assert_eq!(error.exit(), Exit::Usage);
        }
    }
    assert_eq!(names(dir.path()), before);
    assert_eq!(fs::read(&file).unwrap(), b"weights");
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        b"weights"
    );
}

#[test]
fn c48_a_bundle_with_a_file_of_the_users_in_it_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    written(&out);
    let files = [
        "COPYING",
        "LICENSE-notes.txt",
        "experts-backup.bin",
        "notes.txt",
        "plans/notes.odt",
        "tokenizer/my-vocab.txt",
    ];
    fs::create_dir_all(out.join("plans/folder.json")).unwrap();
    fs::create_dir_all(out.join("tokenizer")).unwrap();
    for file in files {
        fs::write(out.join(file), b"mine").unwrap();
    }
    symlink("/etc", out.join("tokenizer/link")).unwrap();
    fs::write(out.join("plans/phone.json"), b"{}").unwrap();
    for options in [WriteOptions::default(), force()] {
        let error = refusal(&out, &options);
        let message = error.to_string();
        assert_eq!(error.exit(), Exit::Usage);
        let OutputError::Strays { strays, .. } = error else {
            panic!("{message}");
        };
        let mut expected: Vec<PathBuf> = files.map(PathBuf::from).to_vec();
        expected.extend(["plans/folder.json", "tokenizer/link"].map(PathBuf::from));
        expected.sort();
        assert_eq!(strays, expected);
        assert!(
            message.contains(r#""experts-backup.bin", "notes.txt""#),
            "{message}"
        );
    }
    for file in files {
        assert_eq!(fs::read(out.join(file)).unwrap(), b"mine", "{file}");
    }
}

#[test]
fn c48_of_a_spoilt_manifest_no_file_is_taken_for_the_bundles() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    written(&out);
    let manifest = out.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"parts\":", "\"pieces\":")).unwrap();
    let error = refusal(&out, &force());
    let OutputError::Strays { strays, .. } = error else {
        panic!("{error}");
    };
    assert!(
        strays.contains(&PathBuf::from("experts-00001.bin")),
        "{strays:?}"
    );
    // What it still names may go, so a manifest of another version may be replaced.
    fs::write(&manifest, text.replace("\"version\":1", "\"version\":99")).unwrap();
    written_with(&out, &force()).unwrap();
}

#[test]
fn c49_an_input_under_any_name_is_never_the_output() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source.gguf");
    fs::write(&source, b"weights").unwrap();
    let (soft, hard) = (dir.path().join("soft"), dir.path().join("hard"));
    symlink(&source, &soft).unwrap();
    fs::hard_link(&source, &hard).unwrap();
    let folder = dir.path().join("folder");
    let to_folder = dir.path().join("to-folder");
    written(&folder);
    symlink(&folder, &to_folder).unwrap();
    let identity = BundleReader::open(&folder).unwrap().identity();
    for out in [&source, &soft, &hard, &folder, &to_folder] {
        let error = refusal(out, &inputs(&[&source, &folder]));
        assert!(matches!(error, OutputError::IsInput { .. }), "{error}");
        assert_eq!(error.exit(), Exit::Usage);
    }
    assert_eq!(fs::read(&source).unwrap(), b"weights");
    assert_eq!(BundleReader::open(&folder).unwrap().identity(), identity);
    // Inside the source's directory there is room for an output.
    let inside = dir.path().join("out");
    written_with(&inside, &inputs(&[dir.path(), &source])).unwrap();
}

#[test]
fn c50_a_replaced_bundle_leaves_no_file_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut old = spec();
    old.max_part_bytes = Some(1 << 19);
    old.license.files.push(carried("NOTICE", b"old"));
    write(
        &old,
        &Synthetic,
        &out,
        &WriteOptions::default(),
        &mut |_, _| ControlFlow::Continue(()),
    )
    .unwrap();
    assert!(out.join("experts-00002.bin").exists());
    fs::create_dir(out.join("plans")).unwrap();
    fs::write(out.join("plans/phone.json"), b"{}").unwrap();

    let kept = BundleReader::open(&out).unwrap().identity();
    let error = refusal(&out, &WriteOptions::default());
    assert!(matches!(error, OutputError::Exists { .. }), "{error}");
    assert_eq!(BundleReader::open(&out).unwrap().identity(), kept);

    let done = written_with(&out, &force()).unwrap();
    assert_eq!(done.leftover, None);
    let reader = BundleReader::open(&out).unwrap();
    assert_ne!(reader.identity(), kept);
    let report = reader.verify_all(&mut |_, _| {}).unwrap();
    assert!(report.is_whole() && report.strays.is_empty(), "{report:?}");
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn c50_strays_are_reported_and_plans_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    written(&out);
    fs::create_dir(out.join("plans")).unwrap();
    fs::write(out.join("plans/phone.json"), b"{}").unwrap();
    for stray in ["experts-00002.bin", "plans/readme", "tokenizer/vocab.json"] {
        fs::write(out.join(stray), b"stray").unwrap();
    }
    symlink("phone.json", out.join("plans/link.json")).unwrap();
    let reader = BundleReader::open(&out).unwrap();
    let report = reader.verify_all(&mut |_, _| {}).unwrap();
    assert!(report.is_whole());
    let expected = [
        "experts-00002.bin",
        "plans/link.json",
        "plans/readme",
        "tokenizer/vocab.json",
    ];
    assert_eq!(report.strays, expected.map(PathBuf::from));
}

/// Fails in one place of the payload, or has a wrong size there.
struct Broken {
    pushes: i64,
}

impl Payload for Broken {
    type Error = SyntheticError;

    fn resident(&self, index: usize, sink: &mut Sink<'_, '_>) -> Result<(), SyntheticError> {
        Synthetic.resident(index, sink)
    }

    fn region(
        &self,
        layer: usize,
        expert: u64,
        shard: u64,
        projection: Projection,
        sink: &mut Sink<'_, '_>,
    ) -> Result<(), SyntheticError> {
        if (layer, projection) != (1, Projection::Up) {
            return Synthetic.region(layer, expert, shard, projection, sink);
        }
        if self.pushes < 0 {
            return Err(SyntheticError::Broken);
        }
        for _ in 0..self.pushes {
            sink.push(&[1; 1000])?;
        }
        Ok(())
    }
}

#[test]
fn c54_a_failed_payload_leaves_nothing_and_keeps_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let old = written(&out);
    let run = |pushes| {
        write(&spec(), &Broken { pushes }, &out, &force(), &mut |_, _| {
            ControlFlow::Continue(())
        })
        .unwrap_err()
    };
    assert!(matches!(
        run(-1),
        PackError::Payload(SyntheticError::Broken)
    ));
    for (pushes, why) in [
        (0, "has 0 bytes"),
        (1, "has 1000 bytes"),
        (999, "are planned"),
    ] {
        let error = run(pushes);
        assert!(
            matches!(&error, PackError::Output(OutputError::PayloadSize { .. })),
            "{error}"
        );
        assert!(error.to_string().contains(why), "{error}");
    }
    assert_eq!(BundleReader::open(&out).unwrap().identity(), old.identity);
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn c66_cancelling_at_any_piece_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut pieces = 0;
    let mut last = (0, 0);
    let count = &mut |done, total| {
        last = (done, total);
        pieces += 1;
        ControlFlow::Continue(())
    };
    write(&spec(), &Synthetic, &out, &WriteOptions::default(), count).unwrap();
    fs::remove_dir_all(&out).unwrap();
    assert!(pieces > 100);
    assert_eq!(last.0, last.1);
    for stop_at in [1, 2, pieces / 2, pieces] {
        let mut left = stop_at;
        let stop = &mut |_, _| {
            left -= 1;
            if left == 0 {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let error = write(&spec(), &Synthetic, &out, &WriteOptions::default(), stop).unwrap_err();
        assert!(
            matches!(&error, PackError::Output(OutputError::Cancelled)),
            "{error}"
        );
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn c58_a_bundle_larger_than_the_disk_is_refused_before_it_is_begun() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut spec = spec();
    spec.layers[0].ff = 1 << 24;
    spec.layers[0].gate = "f32.t32".parse().unwrap();
    spec.layers[0].experts = 4096;
    spec.layers[0].order = (0..4096).collect();
    spec.resident[2].shape = vec![4096, crate::common::HIDDEN];
    let error = write(
        &spec,
        &Synthetic,
        &out,
        &WriteOptions::default(),
        &mut |_, _| panic!("nothing is to be written"),
    )
    .unwrap_err();
    let PackError::Output(OutputError::NoSpace {
        need_bytes,
        free_bytes,
        ..
    }) = error
    else {
        panic!("{error}");
    };
    assert!(need_bytes > 4096 * (4 << 30) && need_bytes > free_bytes);
    assert_eq!(error.exit(|_| Exit::Internal), Exit::Io);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn c58_a_write_that_fails_midway_names_the_file_and_leaves_nothing() {
    const DIR: &str = "ESTREAM_TEST_LIMITED_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        // The child: files may have 64 KiB here.
        let dir = PathBuf::from(dir);
        let error = refusal(&dir.join("out"), &WriteOptions::default());
        let message = error.to_string();
        assert!(message.contains("resident.bin: cannot write"), "{message}");
        assert_eq!(error.exit(), Exit::Io);
        assert!(names(&dir).is_empty());
        fs::write(dir.join("reached"), b"").unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let this = "target::c58_a_write_that_fails_midway_names_the_file_and_leaves_nothing";
    // The signal of the limit is ignored, as a tool that reports the error does.
    let script = "trap '' XFSZ; ulimit -f 128; exec \"$0\" --exact \"$1\"";
    let child = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(this)
        .env(DIR, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    assert_eq!(names(dir.path()), ["reached"], "{said}");
}

#[test]
fn c59_directories_above_the_output_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("not/yet/there/out.estream");
    written(&out);
    BundleReader::open(&out).unwrap();
    let blocked = dir
        .path()
        .join("not/yet/there/out.estream/resident.bin/out");
    let error = refusal(&blocked, &WriteOptions::default());
    assert_eq!(error.exit(), Exit::Io, "{error}");
}

#[test]
fn a_path_without_a_name_is_no_output() {
    for out in ["/", "..", ""] {
        let error = refusal(Path::new(out), &WriteOptions::default());
        assert_eq!(error.exit(), Exit::Usage, "{error}");
    }
}

#[test]
fn a_carried_file_is_copied_from_a_regular_file_only() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("blob"), dir.path().join("tokenizer.json"));
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    symlink(&file, &link).unwrap();
    let from = |path: &Path| {
        let mut spec = spec();
        spec.tokenizer = vec![Carried {
            name: "tokenizer.json".into(),
            content: CarriedContent::File(path.to_owned()),
        }];
        let out = dir.path().join("out");
        let done = write(&spec, &Synthetic, &out, &force(), &mut |_, _| {
            ControlFlow::Continue(())
        });
        done.map(|_| fs::read(out.join("tokenizer/tokenizer.json")).unwrap())
    };
    // A source file may be a link to a regular file, as a download cache has them.
    assert!(from(&link).unwrap() == vec![7; 3 << 20]);
    for (path, exit) in [
        (Path::new("/dev/zero"), Exit::Invalid),
        (dir.path(), Exit::Invalid),
        (Path::new("/nowhere/at/all"), Exit::Io),
    ] {
        let error = from(path).unwrap_err();
        assert_eq!(error.exit(|_| Exit::Internal), exit, "{error}");
    }
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next_for_the_same_output() {
    let dir = tempfile::tempdir().unwrap();
    // Beyond the largest process number Linux gives.
    let dead = u32::MAX;
    let mine = std::process::id();
    let kept = [
        format!(".out.tmp-{mine}-0"),
        format!(".out.tmp-{dead}"),
        format!(".out.tmp-{dead}-x"),
        format!(".other.tmp-{dead}-0"),
        format!("out.tmp-{dead}-0"),
    ];
    let gone = [format!(".out.tmp-{dead}-0"), format!(".out.tmp-{dead}-17")];
    for name in kept.iter().chain(&gone) {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("resident.bin"), b"half").unwrap();
    }
    // A process of another container has no number here, but a lock.
    let locked = dir.path().join(format!(".out.tmp-{dead}-2"));
    fs::create_dir(&locked).unwrap();
    let lock = fs::File::open(&locked).unwrap();
    lock.try_lock().unwrap();
    let file = dir.path().join(format!(".out.tmp-{dead}-1"));
    fs::write(&file, b"no directory").unwrap();
    written(&dir.path().join("out"));
    for name in &kept {
        assert!(
            dir.path().join(name).join("resident.bin").exists(),
            "{name}"
        );
    }
    for name in &gone {
        assert!(!dir.path().join(name).exists(), "{name}");
    }
    assert!(file.exists() && locked.exists());
}

#[test]
fn an_output_that_ends_in_a_dot_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for end in ["new/.", "new/./", "new/..", ".", ".."] {
        let out = dir.path().join(end);
        let error = refusal(&out, &WriteOptions::default());
        assert!(
            matches!(error, OutputError::NoName { .. }),
            "{end}: {error}"
        );
        assert_eq!(error.exit(), Exit::Usage);
    }
    assert!(names(dir.path()).is_empty());
    written(&dir.path().join("./new/"));
    assert_eq!(names(dir.path()), ["new"]);
}
