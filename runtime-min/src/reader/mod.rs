//! The one reader of bundles.
//!
//! [`BundleReader::open`] reads and checks the manifest and the sizes of the weight
//! files, and nothing else: opening costs the same for 1 GB and 100 GB. Weights are
//! read by position into memory the caller owns, and are worth nothing until
//! their digest is known; when to look at it is the caller's choice ([`Verify`]).
//!
//! A bundle is a directory of regular files. A symbolic link, a pipe or a device
//! in it is refused when it is opened, before it can block or lead elsewhere.

mod error;
mod files;
mod plans;
mod verify;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use estream_schemas::digest::Digest;
use estream_schemas::limits::MAX_MANIFEST_BYTES;
use estream_schemas::manifest::{
    CarriedFile, ExpertLayer, MANIFEST_FILE, Manifest, RESIDENT_FILE, ResidentTensor,
};
use estream_schemas::valid::{Bundle, InvalidManifest};

pub use error::ReadError;
pub use estream_schemas::manifest::Projection;
use files::{Dir, OpenFile};
pub use plans::MAX_PLANS;
pub use verify::{Problem, VerifyReport};

/// When a loader compares bytes with the digests of the manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Each time they are read.
    Always,
    /// The first time they are read.
    #[default]
    FirstUse,
    /// Not at all.
    Never,
}

/// Where bytes are: inside one open file of the bundle.
///
/// Holding one proves that the manifest has this extent and that the file was large
/// enough for it when it was opened.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    file: &'a OpenFile,
    offset: u64,
    bytes: u64,
}

impl<'a> Extent<'a> {
    /// The open file, for a loader with its own way of reading.
    pub fn file(&self) -> &'a File {
        &self.file.file
    }

    /// The file's path, for messages.
    pub fn path(&self) -> &'a Path {
        &self.file.path
    }

    /// Where it starts in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `out`, `from` bytes into the extent.
    pub fn read_at(&self, from: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let end = from.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(self.no_such(format!(
                "range of {} bytes at {from} in an extent of {}",
                out.len(),
                self.bytes
            )));
        }
        self.file.read_at(self.offset + from, out)
    }

    /// Reads all of it into `out`, which must have exactly its size.
    pub fn read(&self, out: &mut [u8]) -> Result<(), ReadError> {
        if out.len() as u64 != self.bytes {
            return Err(self.no_such(format!(
                "extent of {} bytes, but one of {}",
                out.len(),
                self.bytes
            )));
        }
        self.read_at(0, out)
    }

    /// What it means that a loader's own way of reading it failed.
    pub fn failed(&self, source: io::Error) -> ReadError {
        self.file.failed(self.offset, self.bytes, source)
    }

    fn no_such(&self, what: String) -> ReadError {
        ReadError::NoSuch {
            path: self.file.path.clone(),
            what,
        }
    }
}

/// An open bundle; a clone is the same open files.
///
/// Holding one proves what [`Bundle`] proves, and that `resident.bin` and all parts
/// of the experts were regular files of the stated sizes when it was opened. It
/// does not prove that their content has the stated digests.
#[derive(Clone, Debug)]
pub struct BundleReader {
    dir: Arc<Dir>,
    bundle: Arc<Bundle>,
    identity: Digest,
    resident: Arc<OpenFile>,
    parts: Arc<[OpenFile]>,
}

impl BundleReader {
    /// Opens the bundle in directory `dir`: reads and checks the manifest, compares the
    /// descriptor in it with its digest, and checks kinds and sizes of the weight files.
    /// Reads no weight.
    pub fn open(dir: &Path) -> Result<BundleReader, ReadError> {
        let dir = Dir::open(dir)?;
        let text = read_manifest(&dir)?;
        let identity = digest(&text);
        let bundle = Bundle::parse(&text).map_err(|source| ReadError::Manifest {
            path: dir.path().join(MANIFEST_FILE),
            source,
        })?;
        let manifest = bundle.manifest();
        compare(
            manifest.descriptor.text.as_bytes(),
            manifest.descriptor.digest,
            &dir.path().join(MANIFEST_FILE),
            || "the descriptor's text".into(),
        )?;
        let resident = dir.file_of(RESIDENT_FILE, manifest.resident.bytes)?;
        let parts = manifest.experts.parts.iter();
        let parts = parts
            .map(|part| dir.file_of(&part.file, part.bytes))
            .collect::<Result<_, _>>()?;
        Ok(BundleReader {
            dir: Arc::new(dir),
            bundle: Arc::new(bundle),
            identity,
            resident: Arc::new(resident),
            parts,
        })
    }

    /// The checked manifest.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// The BLAKE3 of the manifest that was read: what plans and logs call this bundle.
    pub fn identity(&self) -> Digest {
        self.identity
    }

    /// The directory, as it was named.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The text of the manifest, read again.
    ///
    /// Errors if it is no longer the text that was opened.
    pub fn manifest_bytes(&self) -> Result<Vec<u8>, ReadError> {
        let text = read_manifest(&self.dir)?;
        compare(
            &text,
            self.identity,
            &self.dir.path().join(MANIFEST_FILE),
            || "the manifest".into(),
        )?;
        Ok(text)
    }

    /// Where resident tensor `index` of the manifest is.
    pub fn resident(&self, index: usize) -> Result<Extent<'_>, ReadError> {
        let tensor = self.tensor(index)?;
        Ok(Extent {
            file: &self.resident,
            offset: tensor.offset,
            bytes: tensor.bytes,
        })
    }

    /// Where record `record` of the `layer`-th entry of the manifest's expert layers is,
    /// counted in storage order.
    pub fn record(&self, layer: usize, record: u64) -> Result<Extent<'_>, ReadError> {
        self.records(layer, record, 1)
    }

    /// Where `count` records from `first` on are: one extent, because they are adjacent.
    pub fn records(&self, layer: usize, first: u64, count: u64) -> Result<Extent<'_>, ReadError> {
        let stated = self.layer(layer)?;
        let end = first.checked_add(count);
        let part = usize::try_from(stated.part).ok();
        let file = part.and_then(|part| self.parts.get(part));
        match file {
            Some(file) if end.is_some_and(|end| end <= stated.records()) => Ok(Extent {
                file,
                offset: stated.offset + first * stated.record_bytes,
                bytes: count * stated.record_bytes,
            }),
            _ => Err(self.no_such(format!("run of {count} records at {first} of {layer}"))),
        }
    }

    /// A part of the experts, opened once more to be read past the page cache.
    ///
    /// # Errors
    /// Of kind [`io::ErrorKind::InvalidInput`] or [`io::ErrorKind::Unsupported`] where the
    /// file system refuses that.
    pub fn open_direct(&self, part: usize) -> io::Result<File> {
        let part = self.manifest().experts.parts.get(part);
        self.dir.direct(&part.ok_or(io::ErrorKind::NotFound)?.file)
    }

    /// What [`BundleReader::open_direct`] led to, if it was not refused: the file.
    ///
    /// # Errors
    /// If it failed, or the file is another one than that of the part.
    pub fn reopened(&self, part: usize, file: io::Result<File>) -> Result<File, ReadError> {
        let known = self.parts.get(part);
        let known = known.ok_or_else(|| self.no_such(format!("part {part}")))?;
        let file = file.map_err(|source| files::io_error(&known.path, "open", source))?;
        known.is(&file)?;
        Ok(file)
    }

    /// The part that holds the records of a layer.
    pub fn part_of(&self, layer: usize) -> Option<usize> {
        usize::try_from(self.layer(layer).ok()?.part).ok()
    }

    /// Where the bytes of one projection of a record are, without padding.
    pub fn region(
        &self,
        layer: usize,
        record: u64,
        projection: Projection,
    ) -> Result<Extent<'_>, ReadError> {
        let whole = self.record(layer, record)?;
        let region = projection.region(self.layer(layer)?);
        Ok(Extent {
            offset: whole.offset + region.offset,
            bytes: region.bytes,
            ..whole
        })
    }

    /// Reads resident tensor `index` into `out`, which must have exactly its size.
    pub fn read_resident(&self, index: usize, out: &mut [u8]) -> Result<(), ReadError> {
        self.resident(index)?.read(out)
    }

    /// Fills `out` from resident tensor `index`, `from` bytes into it.
    pub fn read_resident_at(
        &self,
        index: usize,
        from: u64,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        self.resident(index)?.read_at(from, out)
    }

    /// Reads a whole record, padding included, into `out` of exactly its size.
    pub fn read_record(&self, layer: usize, record: u64, out: &mut [u8]) -> Result<(), ReadError> {
        self.record(layer, record)?.read(out)
    }

    /// Reads one projection of a record into `out` of exactly its size.
    pub fn read_region(
        &self,
        layer: usize,
        record: u64,
        projection: Projection,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        self.region(layer, record, projection)?.read(out)
    }

    /// [`BundleReader::read_record`], then [`BundleReader::check_record`].
    pub fn read_record_verified(
        &self,
        layer: usize,
        record: u64,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        self.read_record(layer, record, out)?;
        self.check_record(layer, record, out)
    }

    /// Reads a carried file into `out` of exactly its size, then checks its digest.
    pub fn read_file(&self, carried: &CarriedFile, out: &mut [u8]) -> Result<(), ReadError> {
        let file = self.dir.file_of(&carried.file, carried.bytes)?;
        let all = Extent {
            file: &file,
            offset: 0,
            bytes: file.bytes,
        };
        all.read(out)?;
        compare(out, carried.digest, &file.path, || "the file".into())
    }

    /// Errors unless a carried file has the digest the manifest states. Memory stays
    /// within 1 MiB.
    pub fn check_file(&self, carried: &CarriedFile) -> Result<(), ReadError> {
        verify::file(self, carried)
    }

    /// Errors unless `bytes` have the digest of resident tensor `index`.
    pub fn check_resident(&self, index: usize, bytes: &[u8]) -> Result<(), ReadError> {
        let tensor = self.tensor(index)?;
        compare(bytes, tensor.digest, &self.resident.path, || {
            format!("tensor {:?}", tensor.name)
        })
    }

    /// Errors unless `bytes`, padding included, have the digest of a record.
    pub fn check_record(&self, layer: usize, record: u64, bytes: &[u8]) -> Result<(), ReadError> {
        self.check_record_pieces(layer, record, &[bytes])
    }

    /// [`BundleReader::check_record`] of a record in pieces, which are in order.
    pub fn check_record_pieces(
        &self,
        layer: usize,
        record: u64,
        pieces: &[&[u8]],
    ) -> Result<(), ReadError> {
        let stated = self.layer(layer)?;
        let extent = self.record(layer, record)?;
        let digests = usize::try_from(record).ok();
        let expected = digests
            .and_then(|record| stated.digests.get(record))
            .ok_or_else(|| self.no_such(format!("record {record} of {layer}")))?;
        compare_pieces(pieces, *expected, extent.path(), || {
            record_name(stated, record)
        })
    }

    /// Reads everything there is and reports all that is wrong with it. Memory stays
    /// within 1 MiB whatever the bundle's size. `progress` gets bytes done and bytes
    /// in all.
    ///
    /// Errors only where the bundle cannot be examined at all.
    pub fn verify_all(
        &self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VerifyReport, ReadError> {
        verify::all(self, progress)
    }

    fn manifest(&self) -> &Manifest {
        self.bundle.manifest()
    }

    fn tensor(&self, index: usize) -> Result<&ResidentTensor, ReadError> {
        let tensors = &self.manifest().resident.tensors;
        tensors
            .get(index)
            .ok_or_else(|| self.no_such(format!("resident tensor {index}")))
    }

    fn layer(&self, layer: usize) -> Result<&ExpertLayer, ReadError> {
        let layers = &self.manifest().experts.layers;
        layers
            .get(layer)
            .ok_or_else(|| self.no_such(format!("expert layer {layer}")))
    }

    fn no_such(&self, what: String) -> ReadError {
        ReadError::NoSuch {
            path: self.path().to_owned(),
            what,
        }
    }
}

/// Errors unless `bytes`, which messages call `what`, have the digest that is stated.
fn compare(
    bytes: &[u8],
    expected: Digest,
    path: &Path,
    what: impl FnOnce() -> String,
) -> Result<(), ReadError> {
    compare_pieces(&[bytes], expected, path, what)
}

/// [`compare`] of bytes in pieces.
fn compare_pieces(
    pieces: &[&[u8]],
    expected: Digest,
    path: &Path,
    what: impl FnOnce() -> String,
) -> Result<(), ReadError> {
    let mut hash = blake3::Hasher::new();
    for piece in pieces {
        hash.update(piece);
    }
    let found = Digest(*hash.finalize().as_bytes());
    if found == expected {
        return Ok(());
    }
    Err(ReadError::Integrity {
        path: path.to_owned(),
        what: what(),
        expected,
        found,
    })
}

/// How messages call a record: by what it holds and by where it is.
fn record_name(layer: &ExpertLayer, record: u64) -> String {
    let position = usize::try_from(record / layer.shards).ok();
    let expert = position.and_then(|position| layer.order.get(position));
    match expert {
        Some(expert) if layer.shards == 1 => {
            format!("record {record} of layer {} (expert {expert})", layer.layer)
        }
        Some(expert) => format!(
            "record {record} of layer {} (expert {expert}, shard {})",
            layer.layer,
            record % layer.shards
        ),
        None => format!("record {record} of layer {}", layer.layer),
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

fn read_manifest(dir: &Dir) -> Result<Vec<u8>, ReadError> {
    let file = dir.file(MANIFEST_FILE).map_err(|error| match error {
        ReadError::Missing { .. } => ReadError::NotABundle {
            path: dir.path().to_owned(),
            why: "it holds no manifest",
        },
        other => other,
    })?;
    let fits = usize::try_from(file.bytes).ok();
    let size = fits.filter(|_| file.bytes <= MAX_MANIFEST_BYTES);
    let size = size.ok_or_else(|| ReadError::Manifest {
        path: file.path.clone(),
        source: InvalidManifest::TooLarge { bytes: file.bytes },
    })?;
    let mut text = vec![0; size];
    file.read_at(0, &mut text)?;
    Ok(text)
}
