//! Reading records into slots: direct where the file system can, and as slow as a
//! profile says where somebody asks for that.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use estream_schemas::profile::Storage as StorageProfile;

use crate::reader::{BundleReader, ReadError};

/// Slices of one vectored read, which Linux bounds.
const MAX_SLICES: usize = 1024;

/// Where a loader gets bytes from.
pub(crate) trait Storage: Sync {
    /// Fills `slots`, each with the regions of a record, from the records of `layer` from `first` on.
    fn read(&self, layer: usize, first: u64, slots: &mut [[&mut [u8]; 3]])
    -> Result<(), ReadError>;
}

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// Past the page cache.
    Direct,
    /// Through it, because the file system refused the other way.
    Buffered,
}

impl IoMode {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            IoMode::Direct => "direct",
            IoMode::Buffered => "buffered",
        }
    }
}

/// The parts of a bundle's experts.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    reader: &'a BundleReader,
    /// By part; none where the file system refuses.
    direct: &'a [Option<File>],
}

impl<'a> Files<'a> {
    pub(crate) fn new(reader: &'a BundleReader, direct: &'a [Option<File>]) -> Files<'a> {
        Files { reader, direct }
    }
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
        let direct = part.and_then(|part| self.direct.get(part)?.as_ref());
        let regions = slots.iter_mut().flatten();
        let mut slices: Vec<_> = regions.map(|region| IoSliceMut::new(region)).collect();
        let mut slices = &mut slices[..];
        let mut offset = extent.offset();
        if let Some(file) = direct {
            // What a device refuses in the middle is read the other way.
            let _ = fill(file, &mut offset, &mut slices);
        }
        fill(extent.file(), &mut offset, &mut slices).map_err(|source| extent.failed(source))
    }
}

/// Fills `slices` from `offset` on, and moves both past what was filled. A read that
/// returns early is continued.
fn fill(file: &File, offset: &mut u64, slices: &mut &mut [IoSliceMut<'_>]) -> io::Result<()> {
    IoSliceMut::advance_slices(slices, 0);
    while !slices.is_empty() {
        let some = slices.len().min(MAX_SLICES);
        match rustix::io::preadv(file, &mut slices[..some], *offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                *offset += count as u64;
                IoSliceMut::advance_slices(slices, count);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
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
