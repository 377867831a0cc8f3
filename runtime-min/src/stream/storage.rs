//! Reading records into slots: direct where the file system can, and as slow as a
//! profile says where somebody asks for that.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use estream_schemas::profile::Storage as StorageProfile;

use crate::reader::{BundleReader, Extent, ReadError};

/// Slices of one vectored read, which Linux bounds.
const MAX_SLICES: usize = 1024;

/// A direct read goes on only from a multiple of this, the block of most devices.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Where a loader gets bytes from.
pub(crate) trait Storage: Sync {
    /// Fills `slots`, each with the regions of a record, from the records of `layer` from `first` on.
    fn read(&self, layer: usize, first: u64, slots: &mut [[&mut [u8]; 3]])
    -> Result<(), ReadError>;
}

/// How the parts of a bundle's experts are opened and read: one call of the system each, whose
/// answer is passed on as it is. What to make of an answer is decided above.
///
/// The methods as they are ask the system; who reads by other means, or tests what becomes of a
/// bad answer, has their own.
pub trait Disk: Debug + Send + Sync {
    /// Opens a part once more, for reads past the page cache.
    ///
    /// # Errors
    /// Of kind [`ErrorKind::InvalidInput`] or [`ErrorKind::Unsupported`] where the file system
    /// has no such reads.
    fn open_direct(&self, reader: &BundleReader, part: usize) -> io::Result<File> {
        reader.open_direct(part)
    }

    /// Reads into `slices` from `offset` on. Returns how many bytes; 0 at the end of the file.
    ///
    /// # Errors
    /// Of the kinds above where the file system has no reads like this one.
    fn read(
        &self,
        file: &File,
        _mode: IoMode,
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        Ok(rustix::io::preadv(file, slices, offset)?)
    }
}

/// The disk of the system.
#[derive(Debug)]
pub(super) struct System;

impl Disk for System {}

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// Past the page cache.
    Direct,
    /// Through it.
    Buffered,
    /// Some of this and some of that.
    Mixed,
}

impl IoMode {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            IoMode::Direct => "direct",
            IoMode::Buffered => "buffered",
            IoMode::Mixed => "mixed",
        }
    }
}

/// Whether the system said that it does not read so, rather than that it cannot read.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidInput | ErrorKind::Unsupported
    )
}

/// A part's file for direct reads, or why there are none.
#[derive(Debug)]
struct Direct {
    file: Option<File>,
    /// Error number of the refusal; 0 while there is none. Refused once is refused for good.
    refused: AtomicI32,
}

impl Direct {
    fn refuse(&self, error: &io::Error) {
        // EINVAL, which a refusal without a number comes nearest to.
        let errno = error.raw_os_error().unwrap_or(22);
        self.refused.store(errno, Ordering::Relaxed);
    }

    fn refusal(&self) -> Option<io::Error> {
        let errno = self.refused.load(Ordering::Relaxed);
        (errno != 0).then(|| io::Error::from_raw_os_error(errno))
    }
}

/// The ways to the parts of a bundle's experts, and how often each was taken.
#[derive(Debug)]
pub(super) struct Parts {
    direct: Vec<Direct>,
    /// Reads past the page cache, since [`Parts::begin`].
    direct_reads: AtomicU64,
    /// Reads through it.
    buffered_reads: AtomicU64,
}

impl Parts {
    /// Opens every part.
    ///
    /// Errors if that fails in another way than by refusal.
    pub(super) fn open(reader: &BundleReader, disk: &dyn Disk) -> Result<Parts, ReadError> {
        let parts = 0..reader.bundle().manifest().experts.parts.len();
        let direct = parts.map(|part| {
            let mut direct = Direct {
                file: None,
                refused: AtomicI32::new(0),
            };
            match disk.open_direct(reader, part) {
                Err(error) if is_refusal(&error) => direct.refuse(&error),
                opened => direct.file = Some(reader.reopened(part, opened)?),
            }
            Ok(direct)
        });
        Ok(Parts {
            direct: direct.collect::<Result<_, _>>()?,
            direct_reads: AtomicU64::new(0),
            buffered_reads: AtomicU64::new(0),
        })
    }

    /// Counts from 0 again.
    pub(super) fn begin(&self) {
        self.direct_reads.store(0, Ordering::Relaxed);
        self.buffered_reads.store(0, Ordering::Relaxed);
    }

    /// How the reads that were counted went; before the first, how it would.
    pub(super) fn mode(&self) -> IoMode {
        let reads = [&self.direct_reads, &self.buffered_reads];
        match reads.map(|reads| reads.load(Ordering::Relaxed) > 0) {
            [true, false] => IoMode::Direct,
            [false, true] => IoMode::Buffered,
            [true, true] => IoMode::Mixed,
            [false, false] => match self.refusal() {
                None => IoMode::Direct,
                Some(_) => IoMode::Buffered,
            },
        }
    }

    /// Why reads went through the page cache, if any did.
    pub(super) fn why(&self) -> Option<String> {
        match (self.mode(), self.refusal()) {
            (IoMode::Direct, _) => None,
            (_, None) => Some("a direct read returned early".to_owned()),
            (_, Some(error)) => Some(format!("the file system refuses direct reads: {error}")),
        }
    }

    fn refusal(&self) -> Option<io::Error> {
        self.direct.iter().find_map(Direct::refusal)
    }
}

/// The records of a bundle's parts.
#[derive(Debug)]
pub(super) struct Files<'a> {
    pub(super) reader: &'a BundleReader,
    pub(super) parts: &'a Parts,
    pub(super) disk: &'a dyn Disk,
}

impl Storage for Files<'_> {
    fn read(
        &self,
        layer: usize,
        first: u64,
        slots: &mut [[&mut [u8]; 3]],
    ) -> Result<(), ReadError> {
        let extent = self.reader.records(layer, first, slots.len() as u64)?;
        let part = self.reader.part_of(layer);
        let direct = part.and_then(|part| self.parts.direct.get(part));
        let regions = slots.iter_mut().flatten();
        let mut slices: Vec<_> = regions.map(|region| IoSliceMut::new(region)).collect();
        self.fill(&extent, direct, &mut slices)
            .map_err(|source| extent.failed(source))
    }
}

impl Files<'_> {
    /// Fills `slices` with an extent. A read that returns early is continued: past the page
    /// cache while it stopped at the end of a block, else through it. What is refused is read
    /// through it too; every other error is one.
    fn fill(
        &self,
        extent: &Extent<'_>,
        direct: Option<&Direct>,
        mut slices: &mut [IoSliceMut<'_>],
    ) -> io::Result<()> {
        let mut offset = extent.offset();
        let mut direct = direct.filter(|direct| direct.refusal().is_none());
        IoSliceMut::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let (file, mode, reads) = match direct.and_then(|direct| direct.file.as_ref()) {
                Some(file) => (file, IoMode::Direct, &self.parts.direct_reads),
                None => (extent.file(), IoMode::Buffered, &self.parts.buffered_reads),
            };
            let some = slices.len().min(MAX_SLICES);
            match self.disk.read(file, mode, offset, &mut slices[..some]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    reads.fetch_add(1, Ordering::Relaxed);
                    offset += count as u64;
                    IoSliceMut::advance_slices(&mut slices, count);
                    direct = direct.filter(|_| offset.is_multiple_of(BLOCK_BYTES));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => match direct.take() {
                    Some(direct) if is_refusal(&error) => {
                        // A device of larger blocks refuses to go on, not to begin.
                        if offset == extent.offset() {
                            direct.refuse(&error);
                        }
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }
}

/// Storage made as slow as a profile's. Reads really happen.
pub(crate) struct Throttled<'a> {
    storage: &'a dyn Storage,
    profile: &'a StorageProfile,
    outstanding: AtomicU64,
}

impl<'a> Throttled<'a> {
    pub(crate) fn new(storage: &'a dyn Storage, profile: &'a StorageProfile) -> Throttled<'a> {
        Throttled {
            storage,
            profile,
            outstanding: AtomicU64::new(0),
        }
    }
}

impl Storage for Throttled<'_> {
    fn read(
        &self,
        layer: usize,
        first: u64,
        slots: &mut [[&mut [u8]; 3]],
    ) -> Result<(), ReadError> {
        let issued = Instant::now();
        let outstanding = 1 + self.outstanding.fetch_add(1, Ordering::Relaxed);
        let bytes = slots
            .iter()
            .flatten()
            .map(|region| region.len() as u64)
            .sum();
        let result = self.storage.read(layer, first, slots);
        let wanted = Duration::from_nanos(self.profile.read_ns(bytes, outstanding));
        std::thread::sleep(wanted.saturating_sub(issued.elapsed()));
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        result
    }
}
