//! Reading a whole bundle to say all that is wrong with it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use estream_schemas::canonical;
use estream_schemas::digest::Digest;
use estream_schemas::exit::Exit;
use estream_schemas::manifest::{
    CarriedFile, ExpertLayer, MANIFEST_FILE, PLANS_DIR, RESIDENT_FILE,
};

use super::files::io_error;
use super::{BundleReader, Extent, ReadError, record_name};

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What [`BundleReader::verify_all`] found.
#[derive(Debug)]
pub struct VerifyReport {
    /// Bytes that were compared with the manifest.
    pub bytes: u64,
    /// Everything that is wrong, in file order; empty if the bundle is whole.
    pub problems: Vec<Problem>,
    /// Paths in the bundle's directory that the manifest does not name, ascending.
    /// No runtime looks at them; they may be left from another build.
    pub strays: Vec<PathBuf>,
}

impl VerifyReport {
    /// Whether every byte the manifest covers is as it says. Strays do not count.
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }

    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        let exits = || self.problems.iter().map(Problem::exit);
        // A digest that differs says more than a file that could not be read.
        [Exit::Integrity, Exit::Io, Exit::Invalid]
            .into_iter()
            .find(|exit| exits().any(|other| other == *exit))
            .unwrap_or(Exit::Ok)
    }
}

/// One thing that is wrong with a bundle.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// Bytes do not have the digest the manifest states.
    Digest {
        /// Which file.
        path: PathBuf,
        /// Which part of it.
        what: String,
        /// The manifest's digest.
        expected: Digest,
        /// The digest of what is there.
        found: Digest,
    },
    /// Padding is not zero.
    Padding {
        /// Which file.
        path: PathBuf,
        /// First byte in the file that is not zero.
        offset: u64,
    },
    /// The manifest says the same as estream would write, in other bytes.
    NotCanonical,
    /// A file could not be read.
    Unreadable(ReadError),
}

impl Problem {
    fn exit(&self) -> Exit {
        match self {
            Problem::Digest { .. } | Problem::Padding { .. } | Problem::NotCanonical => {
                Exit::Integrity
            }
            Problem::Unreadable(error) => error.exit(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Digest {
                path,
                what,
                expected,
                found,
            } => write!(
                f,
                "{}: {what} has digest {found}, the manifest says {expected}",
                path.display()
            ),
            Problem::Padding { path, offset } => {
                write!(f, "{}: the padding at {offset} is not zero", path.display())
            }
            Problem::NotCanonical => write!(
                f,
                "{MANIFEST_FILE}: not in the one form estream writes, so another program wrote it"
            ),
            Problem::Unreadable(error) => error.fmt(f),
        }
    }
}

pub(super) fn all(
    reader: &BundleReader,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, ReadError> {
    let strays = strays(reader)?;
    let mut walk = Walk {
        reader,
        buffer: vec![0; PIECE_BYTES],
        done: 0,
        total: total_bytes(reader),
        progress,
        problems: Vec::new(),
    };
    walk.manifest();
    walk.resident();
    for index in 0..reader.manifest().experts.layers.len() {
        walk.layer(index);
    }
    for file in reader.manifest().carried() {
        walk.carried(file);
    }
    Ok(VerifyReport {
        bytes: walk.done,
        problems: walk.problems,
        strays,
    })
}

/// Checks one carried file, in pieces.
pub(super) fn file(reader: &BundleReader, carried: &CarriedFile) -> Result<(), ReadError> {
    let file = reader.dir.file_of(&carried.file, carried.bytes)?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut hasher = blake3::Hasher::new();
    let mut from = 0;
    while from < file.bytes {
        let left = usize::try_from(file.bytes - from).unwrap_or(usize::MAX);
        let piece = &mut buffer[..left.min(PIECE_BYTES)];
        file.read_at(from, piece)?;
        hasher.update(piece);
        from += piece.len() as u64;
    }
    let found = Digest(*hasher.finalize().as_bytes());
    if found == carried.digest {
        return Ok(());
    }
    Err(ReadError::Integrity {
        path: file.path,
        what: "the file".into(),
        expected: carried.digest,
        found,
    })
}

fn total_bytes(reader: &BundleReader) -> u64 {
    let manifest = reader.manifest();
    let parts = manifest.experts.parts.iter().map(|part| part.bytes);
    let files = reader.manifest().carried().map(|file| file.bytes);
    // Sizes of carried files are claims until the files are opened.
    parts
        .chain(files)
        .fold(manifest.resident.bytes, u64::saturating_add)
}

struct Walk<'a, 'p> {
    reader: &'a BundleReader,
    buffer: Vec<u8>,
    done: u64,
    total: u64,
    progress: &'p mut dyn FnMut(u64, u64),
    problems: Vec<Problem>,
}

impl Walk<'_, '_> {
    fn manifest(&mut self) {
        let text = self.reader.manifest_bytes();
        match text
            .map(|text| canonical::to_vec(self.reader.manifest()).is_ok_and(|ours| ours == text))
        {
            Ok(true) => {}
            Ok(false) => self.problems.push(Problem::NotCanonical),
            Err(error) => self.problems.push(Problem::Unreadable(error)),
        }
    }

    fn resident(&mut self) {
        let resident = &self.reader.manifest().resident;
        let starts = resident.tensors.iter().map(|tensor| tensor.offset);
        let ends = starts.skip(1).chain([resident.bytes]);
        for (tensor, end) in resident.tensors.iter().zip(ends) {
            let at = |offset, bytes| Extent {
                file: &self.reader.resident,
                offset,
                bytes,
            };
            let data = at(tensor.offset, tensor.bytes);
            let padding = at(
                tensor.offset + tensor.bytes,
                end - tensor.offset - tensor.bytes,
            );
            self.compare(data, tensor.digest, &[], || {
                format!("tensor {:?}", tensor.name)
            });
            self.pieces(padding, std::slice::from_ref(&(0..padding.bytes)), |_| {});
        }
    }

    fn layer(&mut self, index: usize) {
        let Some(layer) = self.reader.manifest().experts.layers.get(index) else {
            return;
        };
        let padding = padding(layer);
        for (record, digest) in (0..).zip(&layer.digests) {
            match self.reader.record(index, record) {
                Ok(extent) => {
                    self.compare(extent, *digest, &padding, || record_name(layer, record));
                }
                Err(error) => self.problems.push(Problem::Unreadable(error)),
            }
        }
    }

    fn carried(&mut self, carried: &CarriedFile) {
        match self.reader.dir.file_of(&carried.file, carried.bytes) {
            Err(error) => self.problems.push(Problem::Unreadable(error)),
            Ok(file) => {
                let all = Extent {
                    file: &file,
                    offset: 0,
                    bytes: file.bytes,
                };
                self.compare(all, carried.digest, &[], || "the file".into());
            }
        }
    }

    fn compare(
        &mut self,
        extent: Extent<'_>,
        expected: Digest,
        zeros: &[Range<u64>],
        what: impl FnOnce() -> String,
    ) {
        let mut hasher = blake3::Hasher::new();
        let whole = self.pieces(extent, zeros, |piece| {
            hasher.update(piece);
        });
        let found = Digest(*hasher.finalize().as_bytes());
        if whole && found != expected {
            self.problems.push(Problem::Digest {
                path: extent.path().to_owned(),
                what: what(),
                expected,
                found,
            });
        }
    }

    /// Reads `extent` in pieces, of which the ranges `zeros` must be zero. False if it
    /// could not be read to its end.
    fn pieces(
        &mut self,
        extent: Extent<'_>,
        zeros: &[Range<u64>],
        mut each: impl FnMut(&[u8]),
    ) -> bool {
        let mut from = 0;
        let mut clean = true;
        while from < extent.bytes {
            let left = usize::try_from(extent.bytes - from).unwrap_or(usize::MAX);
            let piece = &mut self.buffer[..left.min(PIECE_BYTES)];
            if let Err(error) = extent.read_at(from, piece) {
                self.problems.push(Problem::Unreadable(error));
                return false;
            }
            each(piece);
            if clean && let Some(offset) = first_nonzero(piece, from, zeros) {
                // One problem an extent: the rest of it is likely no better.
                clean = false;
                self.problems.push(Problem::Padding {
                    path: extent.path().to_owned(),
                    offset: extent.offset + offset,
                });
            }
            from += piece.len() as u64;
            self.done += piece.len() as u64;
            (self.progress)(self.done, self.total);
        }
        true
    }
}

/// Where in an extent the first byte within `zeros` is that is not zero, looking at the
/// piece that starts at `from`.
fn first_nonzero(piece: &[u8], from: u64, zeros: &[Range<u64>]) -> Option<u64> {
    let clip = |at: u64| {
        usize::try_from(at.saturating_sub(from)).map_or(piece.len(), |at| at.min(piece.len()))
    };
    zeros.iter().find_map(|range| {
        let start = clip(range.start);
        let inside = &piece[start..clip(range.end)];
        let at = inside.iter().position(|&byte| byte != 0)?;
        Some(from + (start + at) as u64)
    })
}

/// The ranges of a record that no projection covers.
fn padding(layer: &ExpertLayer) -> [Range<u64>; 3] {
    let regions = layer.regions();
    let ends = [layer.up.offset, layer.down.offset, layer.record_bytes];
    std::array::from_fn(|i| regions[i].offset + regions[i].bytes..ends[i])
}

/// Everything in the directory that neither the manifest names nor is a plan.
fn strays(reader: &BundleReader) -> Result<Vec<PathBuf>, ReadError> {
    let manifest = reader.manifest();
    let mut known = BTreeSet::new();
    known.extend([MANIFEST_FILE, RESIDENT_FILE].map(Path::new));
    known.extend(manifest.carried().map(|file| Path::new(&file.file)));
    known.extend(
        manifest
            .experts
            .parts
            .iter()
            .map(|part| Path::new(&part.file)),
    );
    // A folder is known if a known file is in it; what else is in it is looked at too.
    let mut folders = BTreeSet::new();
    folders.insert(Path::new(PLANS_DIR));
    let parents = known.iter().filter_map(|file| file.parent());
    folders.extend(parents.filter(|folder| *folder != Path::new("")));
    known.extend(&folders);
    let mut strays = BTreeSet::new();
    for folder in [Path::new("")].into_iter().chain(folders.iter().copied()) {
        let path = reader.path().join(folder);
        // A folder that is a link or no folder is refused when its files are opened.
        let plain = folder == Path::new("") || is(&path, std::fs::FileType::is_dir);
        if !plain {
            if folder == Path::new(PLANS_DIR) && path.symlink_metadata().is_ok() {
                strays.insert(folder.to_owned());
            }
            continue;
        }
        let entries = path
            .read_dir()
            .map_err(|source| io_error(&path, "list", source))?;
        for entry in entries {
            let entry = entry.map_err(|source| io_error(&path, "list", source))?;
            let name = folder.join(entry.file_name());
            let plan = folder == Path::new(PLANS_DIR)
                && name
                    .extension()
                    .is_some_and(|extension| extension == "json")
                && is(&entry.path(), std::fs::FileType::is_file);
            if !plan && !known.contains(&*name) {
                strays.insert(name);
            }
        }
    }
    Ok(strays.into_iter().collect())
}

/// Whether there is something at `path` of this kind; links are their own kind.
fn is(path: &Path, kind: fn(&std::fs::FileType) -> bool) -> bool {
    path.symlink_metadata()
        .is_ok_and(|about| kind(&about.file_type()))
}
