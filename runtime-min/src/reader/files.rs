//! Opening and reading the files of a bundle, which may be anything but what they should be.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::ReadError;

/// What asks for reads past the page cache, where there is such a flag.
#[cfg(any(target_os = "linux", target_os = "android"))]
const DIRECT: Option<OFlags> = Some(OFlags::DIRECT);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const DIRECT: Option<OFlags> = None;

/// The bundle's directory, held open so that every file is found in the same one.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens what the user named, which may be a symbolic link to a directory.
    pub(super) fn open(path: &Path) -> Result<Dir, ReadError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Dir {
                fd,
                path: path.to_owned(),
            }),
            Err(Errno::NOENT) => Err(ReadError::NotFound {
                path: path.to_owned(),
            }),
            Err(Errno::NOTDIR) => Err(ReadError::NotABundle {
                path: path.to_owned(),
                why: "it is not a directory",
            }),
            Err(errno) => Err(io_error(path, "open", errno.into())),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens `name`, or `folder/name`, as a regular file; follows no link and
    /// waits for no writer of a pipe.
    pub(super) fn file(&self, name: &str) -> Result<OpenFile, ReadError> {
        let path = self.path.join(name);
        let refused = |errno| match errno {
            Errno::NOENT => ReadError::Missing { path: path.clone() },
            Errno::LOOP | Errno::NOTDIR | Errno::NXIO => {
                ReadError::NotRegular { path: path.clone() }
            }
            errno => io_error(&path, "open", errno.into()),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match name.split_once('/') {
            None => rustix::fs::openat(&self.fd, name, flags, Mode::empty()),
            Some((folder, name)) => {
                rustix::fs::openat(&self.fd, folder, flags | OFlags::DIRECTORY, Mode::empty())
                    .and_then(|folder| rustix::fs::openat(folder, name, flags, Mode::empty()))
            }
        };
        let file = File::from(fd.map_err(refused)?);
        let about = file
            .metadata()
            .map_err(|source| io_error(&path, "examine", source))?;
        if !about.is_file() {
            return Err(ReadError::NotRegular { path });
        }
        Ok(OpenFile {
            file,
            bytes: about.len(),
            path,
        })
    }

    /// `name`, which was opened before, for reading past the page cache.
    pub(super) fn direct(&self, name: &str) -> io::Result<File> {
        let direct = DIRECT.ok_or(io::ErrorKind::Unsupported)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = flags | direct;
        Ok(File::from(rustix::fs::openat(
            &self.fd,
            name,
            flags,
            Mode::empty(),
        )?))
    }

    /// [`Dir::file`], of which the manifest says how large it is.
    pub(super) fn file_of(&self, name: &str, expected: u64) -> Result<OpenFile, ReadError> {
        let file = self.file(name)?;
        if file.bytes != expected {
            return Err(ReadError::Size {
                path: file.path,
                found: file.bytes,
                expected,
            });
        }
        Ok(file)
    }
}

/// A regular file, open for reading.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    /// Size when it was opened.
    pub(super) bytes: u64,
    pub(super) path: PathBuf,
}

impl OpenFile {
    /// Fills `out` from `offset` on; a read that returns early is continued.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let bytes = out.len() as u64;
        let read = self.file.read_exact_at(out, offset);
        read.map_err(|source| self.failed(offset, bytes, source))
    }

    /// Why a read of `bytes` at `offset` failed.
    pub(super) fn failed(&self, offset: u64, bytes: u64, source: io::Error) -> ReadError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => ReadError::Truncated {
                path: self.path.clone(),
                offset,
                bytes,
            },
            _ => ReadError::Failed {
                path: self.path.clone(),
                offset,
                bytes,
                source,
            },
        }
    }

    /// Errors unless `other` is this file, opened once more.
    pub(super) fn is(&self, other: &File) -> Result<(), ReadError> {
        let of = |file: &File| {
            let about = file.metadata();
            about.map_err(|source| io_error(&self.path, "examine", source))
        };
        let (this, other) = (of(&self.file)?, of(other)?);
        match (this.dev(), this.ino()) == (other.dev(), other.ino()) {
            true => Ok(()),
            false => Err(ReadError::Replaced {
                path: self.path.clone(),
            }),
        }
    }
}

pub(super) fn io_error(path: &Path, doing: &'static str, source: io::Error) -> ReadError {
    ReadError::Io {
        path: path.to_owned(),
        doing,
        source,
    }
}
