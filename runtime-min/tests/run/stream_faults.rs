//! What storage, the system and the caller do to a streamed request: how it ends, and that the
//! next one is right.

use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use estream_runtime::reader::{BundleReader, ReadError, Verify};
use estream_runtime::{
    Cancel, IoMode, LoadOptions, Model, Observer, Place, Positions, Request, RunError, Streaming,
};
use estream_schemas::exit::Exit;
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};

use crate::disk::{Answer, EINVAL, EIO, EOPNOTSUPP, Scripted};
use crate::rows::{Rows, load};
use crate::toy::{Packing, Toy};

const IDS: [u32; 12] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];
const PART: &str = "experts-00001.bin";

fn streaming((group, depth, banks): (usize, usize, usize)) -> Streaming {
    let row = PlanRow {
        max_tokens: 1,
        stream: StreamConfig::new(Schedule::Ahead, group, depth, banks, 1000),
        hot: None,
        chunk: None,
    };
    Streaming::new(vec![row]).unwrap()
}

fn open(reader: &BundleReader, streaming: Streaming) -> Result<Model, RunError> {
    let options = LoadOptions {
        threads: NonZeroUsize::new(1),
        streaming: Some(streaming),
        verify: Verify::Always,
        ..LoadOptions::default()
    };
    Model::load(reader, &options)
}

fn run(model: &mut Model) -> Result<Vec<u32>, RunError> {
    watched(model, &mut ())
}

fn watched(model: &mut Model, observer: &mut dyn Observer) -> Result<Vec<u32>, RunError> {
    let mut rows = Rows::default();
    let request = Request {
        positions: Positions::All,
        hidden: true,
        chunk: None,
        kept_bytes: 0,
        hot: false,
    };
    model.prefill_observed(&IDS, &request, &mut rows, observer)?;
    Ok(rows.bits())
}

/// A bundle, and what comes out of it.
struct Sound {
    dir: tempfile::TempDir,
    bits: Vec<u32>,
}

impl Sound {
    fn new() -> Sound {
        let dir = Toy::new().bundle(&Packing::default());
        let bits = Rows::of(&mut load(dir.path(), 1), &IDS, Positions::All).bits();
        Sound { dir, bits }
    }

    fn reader(&self) -> BundleReader {
        BundleReader::open(self.dir.path()).unwrap()
    }

    /// One read at a time, so that it is known which is the n-th.
    fn open(&self, disk: &Arc<Scripted>) -> Result<Model, RunError> {
        let disk = Arc::clone(disk);
        open(&self.reader(), streaming((2, 1, 2)).through(disk))
    }
}

fn once(at: usize, answer: Answer) -> impl FnMut(usize, IoMode) -> Answer {
    move |read, _| if read == at { answer } else { Answer::Right }
}

#[test]
fn a_read_that_returns_early_is_continued() {
    let sound = Sound::new();
    for most in [1, 511, 512, 4096, 5000, 16384, 20480] {
        // Only the first bytes of a record come one by one.
        let early = move |read, _| match read % 8 {
            7 => Answer::Right,
            _ => Answer::Early(most),
        };
        for (refused, aligned) in [(None, IoMode::Direct), (Some(EOPNOTSUPP), IoMode::Buffered)] {
            let disk = Arc::new(Scripted::new(refused, early));
            let mut model = sound.open(&disk).unwrap();
            assert!(run(&mut model).unwrap() == sound.bits, "{most}");
            let why = model.io_why();
            match (most % 4096, aligned) {
                (0, _) | (_, IoMode::Buffered) => assert_eq!(model.io_mode(), aligned),
                _ => {
                    assert_eq!(model.io_mode(), IoMode::Mixed, "{most}");
                    assert_eq!(why.as_deref(), Some("a direct read returned early"));
                }
            }
        }
    }
}

#[test]
fn a_refusal_to_continue_says_nothing_of_the_next_read() {
    let sound = Sound::new();
    // As a device with blocks of 16 KiB.
    let disk = Arc::new(Scripted::new(None, |read, _| match read {
        0 => Answer::Early(4096),
        1 => Answer::Refused(EINVAL),
        _ => Answer::Right,
    }));
    let mut model = sound.open(&disk).unwrap();
    assert!(run(&mut model).unwrap() == sound.bits);
    assert_eq!(model.io_mode(), IoMode::Mixed);
    assert!(run(&mut model).unwrap() == sound.bits);
    assert_eq!((model.io_mode(), model.io_why()), (IoMode::Direct, None));
}

#[test]
fn what_refuses_direct_reads_is_read_through_the_page_cache_and_not_asked_again() {
    let sound = Sound::new();
    for errno in [EINVAL, EOPNOTSUPP] {
        let refused = "the file system refuses direct reads: ";
        let refused = |model: &Model| model.io_why().unwrap().starts_with(refused);

        let disk = Arc::new(Scripted::new(Some(errno), |_, _| Answer::Right));
        let mut model = sound.open(&disk).unwrap();
        assert_eq!(model.io_mode(), IoMode::Buffered);
        assert!(run(&mut model).unwrap() == sound.bits);
        assert_eq!(model.io_mode(), IoMode::Buffered);
        assert!(refused(&model));
        assert_eq!(disk.direct_reads(), 0);

        let disk = Arc::new(Scripted::new(None, once(2, Answer::Refused(errno))));
        let mut model = sound.open(&disk).unwrap();
        assert_eq!(model.io_mode(), IoMode::Direct);
        assert!(run(&mut model).unwrap() == sound.bits);
        assert_eq!(model.io_mode(), IoMode::Mixed);
        assert!(run(&mut model).unwrap() == sound.bits);
        assert_eq!(model.io_mode(), IoMode::Buffered);
        assert!(refused(&model));
        assert_eq!(disk.direct_reads(), 3);
    }
}

#[test]
fn a_read_that_is_interrupted_is_tried_again() {
    let sound = Sound::new();
    let disk = Arc::new(Scripted::new(None, |read, _| match read % 3 {
        2 => Answer::Right,
        _ => Answer::Interrupted,
    }));
    let mut model = sound.open(&disk).unwrap();
    assert!(run(&mut model).unwrap() == sound.bits);
    assert_eq!(model.io_mode(), IoMode::Direct);
}

#[test]
fn a_fault_ends_one_request_and_says_where_it_is() {
    let sound = Sound::new();
    for refused in [None, Some(EINVAL)] {
        for at in [0, 2] {
            for (answer, exit, says) in [
                (Answer::Failed(EIO), Exit::Io, "Input/output error"),
                (Answer::End, Exit::Invalid, "truncated"),
                (Answer::Flipped, Exit::Integrity, "digest"),
                (Answer::Panic, Exit::Internal, "panicked"),
            ] {
                let disk = Arc::new(Scripted::new(refused, |_, _| Answer::Right));
                let mut model = sound.open(&disk).unwrap();
                disk.tell(once(at, answer));
                let error = run(&mut model).unwrap_err();
                let text = error.to_string();
                assert_eq!(error.exit(), exit, "{text}");
                assert!(text.contains(says), "{text}");
                if answer != Answer::Panic {
                    assert!(text.contains(PART), "{text}");
                    // Two records a read; a digest names the record and not its offset.
                    let place = match (answer, at) {
                        (Answer::Flipped, 0) => "record 0 of layer 0 (expert 0)",
                        (Answer::Flipped, _) => "record 0 of layer 1 (expert 0)",
                        (_, 0) => " bytes at 0",
                        _ => " bytes at 196608",
                    };
                    assert!(text.contains(place), "{text}");
                }
                disk.tell(|_, _| Answer::Right);
                assert!(run(&mut model).unwrap() == sound.bits, "{answer:?}");
            }
        }
    }
}

#[test]
fn a_part_that_cannot_be_opened_again_is_an_error_and_no_refusal() {
    let sound = Sound::new();
    let disk = Arc::new(Scripted::new(Some(EIO), |_, _| Answer::Right));
    let error = sound.open(&disk).unwrap_err();
    assert_eq!(error.exit(), Exit::Io);
    let text = error.to_string();
    assert!(
        text.contains(PART) && text.contains("cannot open"),
        "{text}"
    );
}

fn replace(path: &Path) {
    let other = path.with_extension("new");
    let mut bytes = std::fs::read(path).unwrap();
    bytes.fill(7);
    std::fs::write(&other, bytes).unwrap();
    std::fs::rename(other, path).unwrap();
}

#[test]
fn a_part_that_is_replaced_is_told_or_does_no_harm() {
    let sound = Sound::new();
    let part = sound.dir.path().join(PART);
    let disk = Arc::new(Scripted::new(None, |_, _| Answer::Right));
    let (early, late) = (sound.reader(), sound.reader());
    let through = streaming((2, 1, 2)).through(disk);
    let mut loaded = open(&early, through.clone()).unwrap();
    replace(&part);
    // What is open stays what it was.
    assert!(run(&mut loaded).unwrap() == sound.bits);
    let error = open(&late, through).unwrap_err();
    assert!(
        matches!(error, RunError::Read(ReadError::Replaced { .. })),
        "{error}"
    );
    assert_eq!(error.exit(), Exit::Invalid);
    assert!(error.to_string().contains(PART), "{error}");
}

/// A disk that cancels what it learns of during its second read, which then takes a while.
fn cancelling(cancel: &Arc<OnceLock<Arc<Cancel>>>, then: Duration) -> Arc<Scripted> {
    let cancel = Arc::clone(cancel);
    Arc::new(Scripted::new(None, move |read, _| {
        if read == 1 {
            cancel.get().unwrap().cancel();
            std::thread::sleep(then);
        }
        Answer::Right
    }))
}

#[test]
fn a_request_is_cancelled_while_it_reads_or_waits() {
    let sound = Sound::new();
    for (config, then) in [((1, 1, 1), 0), ((1, 1, 1), 100), ((2, 2, 2), 100)] {
        let cancel = Arc::default();
        let disk = cancelling(&cancel, Duration::from_millis(then));
        let through = streaming(config).through(disk);
        let mut model = open(&sound.reader(), through).unwrap();
        let cancel = cancel.get_or_init(|| model.canceller());
        let error = run(&mut model).unwrap_err();
        assert!(matches!(error, RunError::Cancelled), "{error}");
        cancel.reset();
        assert!(run(&mut model).unwrap() == sound.bits);
    }
}

#[test]
fn a_request_is_cancelled_while_it_computes() {
    struct Cancels(Arc<Cancel>, usize);
    impl Observer for Cancels {
        fn after_op(&mut self, _: Place, _: usize, _: &str, _: &[f32]) {
            if self.1 == 0 {
                self.0.cancel();
            }
            self.1 = self.1.wrapping_sub(1);
        }
    }
    let sound = Sound::new();
    let mut model = open(&sound.reader(), streaming((1, 2, 2))).unwrap();
    let cancel = model.canceller();
    for op in 0..10 {
        let mut cancels = Cancels(model.canceller(), op);
        let error = watched(&mut model, &mut cancels).unwrap_err();
        assert!(matches!(error, RunError::Cancelled), "{error}");
        cancel.reset();
    }
    assert!(run(&mut model).unwrap() == sound.bits);
}

#[test]
fn an_arena_beyond_the_address_space_is_refused() {
    let sound = Sound::new();
    let most = 1 << 16;
    let error = open(&sound.reader(), streaming((most, 1, most))).unwrap_err();
    assert_eq!(error.exit(), Exit::CannotRun);
    let text = error.to_string();
    assert!(text.contains("memory for the arena"), "{text}");
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error() {
    // The system counts threads by user, and lets its administrator start any number: where the test
    // is that, the runner is somebody else, who can read a copy of all it needs.
    let bundle = Toy::new().bundle(&Packing::default());
    let open = |path: &Path| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    let runner = bundle.path().join("runner");
    std::fs::copy(env!("CARGO_BIN_EXE_estream-run"), &runner).unwrap();
    open(&runner);
    open(bundle.path());
    // One thread is the runner, and one touches the arena before loaders are started.
    for most in ["1", "2"] {
        let mut command = Command::new("bash");
        command
            .args([
                "-c",
                "ulimit -u $0 && exec ./runner . --ids 1,2 --threads 1 -Q 3",
            ])
            .arg(most)
            .current_dir(bundle.path());
        if rustix::process::geteuid().is_root() {
            command.uid(54_321);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(text.contains("cannot start"), "{text}");
    }
}
