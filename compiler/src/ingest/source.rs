//! Opening files that others wrote.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::IngestError;
use super::sniff::{FileKind, SNIFF_BYTES, sniff};

/// An open regular file, its size, and what its first bytes say it is.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: File,
    pub(super) bytes: u64,
    pub(super) kind: FileKind,
}

impl Source {
    /// Opens the regular file at `path`, through links if need be.
    ///
    /// A pipe would block the open and a device may act on it, so the kind is
    /// asked first; since the path can change hands between the two calls, the
    /// open itself does not wait either, and the kind is asked again.
    pub(super) fn open(path: &Path) -> Result<Source, IngestError> {
        let read = |source| IngestError::Read {
            path: path.to_owned(),
            source,
        };
        require_regular(path, stat(path)?.file_type())?;
        let nonblocking = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(nonblocking.bits().cast_signed())
            .open(path)
            .map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        require_regular(path, metadata.file_type())?;
        let mut first = [0; SNIFF_BYTES];
        let filled = fill_at(&file, &mut first, 0).map_err(read)?;
        Ok(Source {
            file,
            bytes: metadata.len(),
            kind: sniff(first.get(..filled).unwrap_or_default()),
        })
    }

    /// Opens a file of at most `max_bytes` that is to be read, or copied, as a whole.
    pub(super) fn open_small(
        path: &Path,
        what: &'static str,
        max_bytes: u64,
    ) -> Result<Source, IngestError> {
        let source = Source::open(path)?;
        if source.kind == FileKind::GitLfsPointer {
            return Err(IngestError::WrongKind {
                path: path.to_owned(),
                found: source.kind,
            });
        }
        if source.bytes > max_bytes {
            return Err(IngestError::TooLarge {
                path: path.to_owned(),
                what,
                bytes: source.bytes,
                max_bytes,
            });
        }
        Ok(source)
    }
}

/// What is at `path`, links followed.
pub(super) fn stat(path: &Path) -> Result<fs::Metadata, IngestError> {
    fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound if fs::symlink_metadata(path).is_ok() => {
            IngestError::DanglingLink {
                path: path.to_owned(),
            }
        }
        _ => IngestError::Read {
            path: path.to_owned(),
            source,
        },
    })
}

fn require_regular(path: &Path, kind: FileType) -> Result<(), IngestError> {
    if kind.is_file() {
        return Ok(());
    }
    Err(IngestError::NotRegular {
        path: path.to_owned(),
        kind: if kind.is_dir() {
            "a directory"
        } else if kind.is_fifo() {
            "a pipe"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a device"
        },
    })
}

/// Reads up to `out.len()` bytes from `offset` on; fewer only at the end of the file.
pub(super) fn fill_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A section of a file as a stream, read by position.
pub(super) struct Section<'a> {
    file: &'a File,
    offset: u64,
    end: u64,
}

impl<'a> Section<'a> {
    /// The `bytes` bytes from `offset` on, or what the file has of them.
    pub(super) fn new(file: &'a File, offset: u64, bytes: u64) -> Section<'a> {
        Section {
            file,
            offset,
            end: offset.saturating_add(bytes),
        }
    }
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let wanted = left.min(out.len());
        let count = self
            .file
            .read_at(out.get_mut(..wanted).unwrap_or_default(), self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// Whether `name` is one component of a path on every system, so that joining it
/// to a directory cannot lead out of it.
pub(super) fn is_plain_name(name: &str) -> bool {
    const MAX_BYTES: usize = 255;
    !matches!(name, "" | "." | "..")
        && name.len() <= MAX_BYTES
        && !name.contains(|c: char| matches!(c, '/' | '\\' | ':') || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_has_no_way_out_of_its_directory() {
        for name in ["model.safetensors", "...", "mtp", "mögel.safetensors"] {
            assert!(is_plain_name(name), "{name:?}");
        }
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/../../b",
            "a/b",
            "C:\\x",
            "C:x",
            "\\\\srv\\x",
            "x\0y",
            "x\ny",
        ] {
            assert!(!is_plain_name(name), "{name:?}");
        }
        assert!(!is_plain_name(&"x".repeat(256)));
    }
}
