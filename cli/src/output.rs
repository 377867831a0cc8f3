//! New files: there when they are whole, and never instead of another.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use estream_runtime::partial::PartialFile;

use crate::failure::Failure;

/// A file that is being made. Dropped before it is written, it leaves nothing.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    path: &'a Path,
    partial: PartialFile,
    file: File,
}

impl NewFile<'_> {
    /// Begins a file at `path`, where none may be.
    pub(crate) fn new(path: &Path) -> Result<NewFile<'_>, Failure> {
        let (partial, file) = PartialFile::beside(path).map_err(|error| about(path, &error))?;
        Ok(NewFile {
            path,
            partial,
            file,
        })
    }

    /// What it will be called.
    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// Gives it its content.
    pub(crate) fn write(self, content: &[u8]) -> Result<(), Failure> {
        self.write_with(|out| out.write_all(content))
    }

    /// Gives it what `content` writes.
    pub(crate) fn write_with(
        self,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = BufWriter::with_capacity(1 << 20, self.file);
        let written = content(&mut out).and_then(|()| out.into_inner()?.sync_all());
        let published = written.and_then(|()| self.partial.publish());
        published.map_err(|error| about(self.path, &error))
    }
}

/// A file that cannot be written, by name.
fn about(path: &Path, error: &io::Error) -> Failure {
    let message = format!("{}: cannot be written: {error}", path.display());
    match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::InvalidFilename => {
            Failure::usage(message + "; name another file")
        }
        kind => Failure::io(io::Error::new(kind, message)),
    }
}
