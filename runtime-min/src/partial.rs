//! Files that are whole or absent.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A name for a file that is being written under another one beside it.
///
/// The file gets its name when it is whole, and only if nothing has that name by then:
/// what a user has is never written over. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    partial: PathBuf,
}

impl PartialFile {
    /// Starts a file that will be called `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something has that name; else what the file
    /// system says.
    pub fn beside(path: &Path) -> io::Result<(PartialFile, File)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        if fs::symlink_metadata(path).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut partial = OsString::from(".");
        partial.push(name);
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(partial);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&partial)?;
        let path = path.to_owned();
        Ok((PartialFile { path, partial }, file))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// As [`PartialFile::beside`].
    pub fn publish(self) -> io::Result<()> {
        // A link, unlike a rename, fails if somebody took the name meanwhile.
        fs::hard_link(&self.partial, &self.path)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Published or not, the other name goes; nothing more can be done if it does not.
        let _ = fs::remove_file(&self.partial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_gets_its_name_when_it_is_whole_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let names = || fs::read_dir(dir.path()).unwrap().count();
        let (partial, mut file) = PartialFile::beside(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(partial);
        assert_eq!(names(), 0);

        let (partial, mut file) = PartialFile::beside(&path).unwrap();
        file.write_all(b"whole").unwrap();
        partial.publish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names()), (b"whole".to_vec(), 1));
        let again = PartialFile::beside(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);

        let late = dir.path().join("late");
        let (partial, _) = PartialFile::beside(&late).unwrap();
        fs::write(&late, b"theirs").unwrap();
        partial.publish().unwrap_err();
        assert_eq!((fs::read(&late).unwrap(), names()), (b"theirs".to_vec(), 2));
    }
}
