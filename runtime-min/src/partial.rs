//! Files that are whole or absent.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Names tried for what is not whole yet.
const TRIES: usize = 1000;

/// A name for a file that is being written under another one beside it.
///
/// The file gets its name when it is whole, and only if nothing has that name by then:
/// what a user has is never written over. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    partial: PathBuf,
    published: bool,
}

impl PartialFile {
    /// Starts a file that will be called `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if something has that name, and only then;
    /// [`io::ErrorKind::InvalidFilename`] if it cannot be a file's; else what the file
    /// system says.
    pub fn beside(path: &Path) -> io::Result<(PartialFile, File)> {
        if !names_a_file(path) {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        match fs::symlink_metadata(path) {
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Process ids come again, so what a killed run has left may have any of the names.
        // The file's own name is no part of them: it may be as long as names can be.
        for index in 0..TRIES {
            let name = format!(".estream-{}-{index}.partial", std::process::id());
            let partial = path.with_file_name(name);
            let created = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&partial);
            match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let unfinished = PartialFile {
                        path: path.to_owned(),
                        partial,
                        published: false,
                    };
                    return Ok((unfinished, file));
                }
            }
        }
        Err(io::Error::other(
            "its directory is full of what killed runs have left; remove .estream-*.partial there",
        ))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// As [`PartialFile::beside`].
    pub fn publish(mut self) -> io::Result<()> {
        rename_new(&self.partial, &self.path, &WAYS)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.published {
            // Nothing more can be done if it stays.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Whether the last part of `path` is a name: `a/.` and `a/` mean a directory, which
/// [`Path::file_name`] does not tell.
fn names_a_file(path: &Path) -> bool {
    let whole = path.as_os_str().as_encoded_bytes();
    path.file_name()
        .is_some_and(|name| whole.ends_with(name.as_encoded_bytes()))
}

/// A way to rename a file, failing if the new name is taken.
type Way = fn(&Path, &Path) -> io::Result<()>;

/// The best first: not every file system has the flag, and FAT has no links either.
const WAYS: [Way; 3] = [exclusive, link, checked];

/// Renames in the first way that works here.
fn rename_new(from: &Path, to: &Path, ways: &[Way]) -> io::Result<()> {
    let mut last = Err(io::ErrorKind::Unsupported.into());
    for way in ways {
        last = way(from, to);
        match &last {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => break,
            // A trouble that is not of this way alone comes again in the next.
            Err(_) => {}
        }
    }
    last
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn exclusive(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn exclusive(_from: &Path, _to: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)?;
    // The file has its name; a second one does no harm.
    let _ = fs::remove_file(from);
    Ok(())
}

/// Somebody may take the name between the look and the rename: the last resort.
fn checked(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
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

    #[test]
    fn what_a_killed_run_has_left_is_passed_over_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let (killed, _) = PartialFile::beside(&path).unwrap();
        let left = killed.partial.clone();
        drop(killed);
        fs::write(&left, b"left").unwrap();
        let (partial, mut file) = PartialFile::beside(&path).unwrap();
        file.write_all(b"whole").unwrap();
        partial.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read(&left).unwrap(), b"left");
    }

    #[test]
    fn a_directory_full_of_leftovers_is_not_an_output_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..TRIES {
            let name = format!(".estream-{}-{index}.partial", std::process::id());
            fs::write(dir.path().join(name), b"").unwrap();
        }
        let error = PartialFile::beside(&dir.path().join("out")).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("remove .estream-"), "{error}");
    }

    #[test]
    fn a_name_may_be_as_long_as_names_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n".repeat(255));
        PartialFile::beside(&path).unwrap().0.publish().unwrap();
        assert!(path.is_file());
        PartialFile::beside(&dir.path().join("n".repeat(256))).unwrap_err();
    }

    #[test]
    fn what_names_a_directory_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "new/", "new/.", "new/.."] {
            let mut path = dir.path().as_os_str().to_owned();
            path.push("/");
            path.push(name);
            let error = PartialFile::beside(path.as_ref()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidFilename, "{name:?}");
        }
    }

    #[test]
    fn every_way_renames_and_none_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let lacking: Way = |_, _| Err(io::ErrorKind::InvalidInput.into());
        for way in WAYS {
            fs::write(&from, b"new").unwrap();
            rename_new(&from, &to, &[lacking, way]).unwrap();
            assert!(!from.exists());
            fs::write(&from, b"newer").unwrap();
            let error = rename_new(&from, &to, &[lacking, way, lacking]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&to).unwrap(), b"new");
            fs::remove_file(&to).unwrap();
        }
    }
}
