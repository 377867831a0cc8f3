//! A disk that does as it is told.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use estream_runtime::reader::BundleReader;
use estream_runtime::{Disk, IoMode};

pub(crate) const EIO: i32 = 5;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EOPNOTSUPP: i32 = 95;

/// What becomes of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Right,
    /// At most so many bytes.
    Early(usize),
    Interrupted,
    Refused(i32),
    Failed(i32),
    /// The end of the file.
    End,
    /// All bytes, and a bit of the first is another.
    Flipped,
    Panic,
}

type Script = dyn FnMut(usize, IoMode) -> Answer + Send;

/// Answers the n-th read, counted from 0, as a script says.
pub(crate) struct Scripted {
    /// Error number of opening for direct reads.
    open: Option<i32>,
    script: Mutex<Box<Script>>,
    reads: AtomicUsize,
    direct: AtomicUsize,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Scripted {
    pub(crate) fn new(
        open: Option<i32>,
        script: impl FnMut(usize, IoMode) -> Answer + Send + 'static,
    ) -> Scripted {
        Scripted {
            open,
            script: Mutex::new(Box::new(script)),
            reads: AtomicUsize::new(0),
            direct: AtomicUsize::new(0),
        }
    }

    /// Another script, and reads are counted from 0 again.
    pub(crate) fn tell(&self, script: impl FnMut(usize, IoMode) -> Answer + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
        self.reads.store(0, Ordering::Relaxed);
        self.direct.store(0, Ordering::Relaxed);
    }

    /// Direct reads that were tried.
    pub(crate) fn direct_reads(&self) -> usize {
        self.direct.load(Ordering::Relaxed)
    }
}

impl Disk for Scripted {
    /// Not really direct, so that tests find the same on every file system.
    fn open_direct(&self, reader: &BundleReader, part: usize) -> io::Result<File> {
        let part = &reader.bundle().manifest().experts.parts[part];
        match self.open {
            None => File::open(reader.path().join(&part.file)),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn read(
        &self,
        file: &File,
        mode: IoMode,
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        if mode == IoMode::Direct {
            self.direct.fetch_add(1, Ordering::Relaxed);
        }
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let answer = (self.script.lock().unwrap())(read, mode);
        match answer {
            Answer::Right => System.read(file, mode, offset, slices),
            Answer::Early(most) => {
                let first = slices.iter_mut().find(|slice| !slice.is_empty()).unwrap();
                let most = most.min(first.len());
                let first = &mut [IoSliceMut::new(&mut first[..most])];
                System.read(file, mode, offset, first)
            }
            Answer::Interrupted => Err(io::ErrorKind::Interrupted.into()),
            Answer::Refused(errno) | Answer::Failed(errno) => {
                Err(io::Error::from_raw_os_error(errno))
            }
            Answer::End => Ok(0),
            Answer::Flipped => {
                let count = System.read(file, mode, offset, slices)?;
                slices.iter_mut().find(|slice| !slice.is_empty()).unwrap()[0] ^= 1;
                Ok(count)
            }
            Answer::Panic => panic!("as told"),
        }
    }
}

/// The disk as the runtime has it.
#[derive(Debug)]
struct System;

impl Disk for System {}
