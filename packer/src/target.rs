//! The place a bundle goes to: nothing of the user's is ever written to or replaced.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use estream_schemas::limits::MAX_MANIFEST_BYTES;
use estream_schemas::manifest::{FORMAT, MANIFEST_FILE, PLANS_DIR, RESIDENT_FILE};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::OutputError;

/// Names tried for a staging directory before giving up.
const MAX_STAGING_NAMES: u32 = 1000;

/// What a directory beside the target is called while a bundle is written to it.
const STAGING: &str = "tmp";
/// What it is called while it holds the old bundle, which no later run may take for dead.
const REPLACED: &str = "old";
/// The folder of tokenizer files in a bundle.
const TOKENIZER_DIR: &str = "tokenizer";

/// A path that a bundle may be renamed to.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    parent: PathBuf,
    name: OsString,
    /// There is a bundle, and it is to be replaced.
    replaces: bool,
}

impl Target {
    /// Looks at `out` and what is there; changes nothing.
    pub(crate) fn claim(
        out: &Path,
        inputs: &[PathBuf],
        force: bool,
    ) -> Result<Target, OutputError> {
        let name = name_of(out).ok_or_else(|| OutputError::NoName {
            out: out.to_owned(),
        })?;
        let parent = match out.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        refuse_inputs(out, inputs)?;
        let replaces = match fs::symlink_metadata(out) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(OutputError::io(out, "examine")(error)),
            Ok(about) => {
                let bundle = refuse_non_bundle(out, &about);
                if !force {
                    // Only a bundle may be told to be replaced with --force.
                    bundle?;
                    return Err(OutputError::Exists {
                        out: out.to_owned(),
                    });
                }
                bundle?;
                true
            }
        };
        Ok(Target {
            path: out.to_owned(),
            parent: parent.to_owned(),
            name: name.to_owned(),
            replaces,
        })
    }

    /// The bundle that is to be replaced, if there is one.
    pub(crate) fn replaced(&self) -> Option<&Path> {
        self.replaces.then_some(&*self.path)
    }

    /// Makes the directories above the target, where there are none.
    pub(crate) fn make_parent(&self) -> Result<(), OutputError> {
        fs::create_dir_all(&self.parent)
            .map_err(OutputError::io(&self.parent, "create the directory"))
    }

    /// The nearest directory above the target that exists: the file system it will be on.
    pub(crate) fn existing_parent(&self) -> &Path {
        let above = self.parent.ancestors().find(|path| path.is_dir());
        above.unwrap_or(Path::new("."))
    }

    /// A new directory beside the target, so that a rename suffices to publish it.
    ///
    /// What earlier runs for the same target left when they were killed goes first.
    pub(crate) fn stage(&self) -> Result<Staging, OutputError> {
        self.remove_dead();
        self.beside(STAGING)
    }

    /// A new directory beside the target, called for what it holds.
    fn beside(&self, what: &str) -> Result<Staging, OutputError> {
        for attempt in 0..MAX_STAGING_NAMES {
            let mut name = self.prefix(what);
            name.push(format!("{}-{attempt}", std::process::id()));
            let path = self.parent.join(name);
            match fs::create_dir(&path) {
                Ok(()) => {
                    let lock = lock(&path).ok().flatten();
                    return Ok(Staging { path, _lock: lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(OutputError::io(path, "create the directory")(error)),
            }
        }
        let taken = io::Error::from(io::ErrorKind::AlreadyExists);
        Err(OutputError::io(
            &self.parent,
            "find a name for a temporary directory",
        )(taken))
    }

    fn prefix(&self, what: &str) -> OsString {
        let mut prefix = OsString::from(".");
        prefix.push(&self.name);
        prefix.push(format!(".{what}-"));
        prefix
    }

    /// Removes staging directories of this target whose process is no more. One that
    /// cannot be removed is in nobody's way, so that is no error.
    fn remove_dead(&self) {
        let prefix = self.prefix(STAGING);
        for (name, about) in list(&self.parent).unwrap_or_default() {
            let rest = name.as_bytes().strip_prefix(prefix.as_bytes());
            let process = rest.and_then(process_of);
            if !about.is_dir() || !process.is_some_and(is_dead) {
                continue;
            }
            let path = self.parent.join(name);
            if matches!(lock(&path), Ok(Some(_))) {
                let _ = fs::remove_dir_all(path);
            }
        }
    }

    /// Moves a finished bundle to the target in one step and removes what was there;
    /// where that is now, if it cannot be removed.
    pub(crate) fn publish(&self, mut staging: Staging) -> Result<Option<PathBuf>, OutputError> {
        let flags = match self.replaces {
            true => RenameFlags::EXCHANGE,
            false => RenameFlags::NOREPLACE,
        };
        match renameat_with(CWD, &staging.path, CWD, &self.path, flags) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                return Err(OutputError::Exists {
                    out: self.path.clone(),
                });
            }
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                self.publish_stepwise(&mut staging)?;
            }
            Err(errno) => return Err(OutputError::io(&self.path, "rename to it")(errno.into())),
        }
        sync_dir(&self.parent)?;
        let old = staging.path.clone();
        drop(staging);
        Ok(fs::symlink_metadata(&old).is_ok().then_some(old))
    }

    /// For file systems that cannot exchange or refuse in one step: the old bundle is
    /// aside for a moment, and put back if the new one cannot take its place.
    fn publish_stepwise(&self, staging: &mut Staging) -> Result<(), OutputError> {
        let rename = |from: &Path, to: &Path| {
            fs::rename(from, to).map_err(OutputError::io(to, "rename to it"))
        };
        if !self.replaces {
            if fs::symlink_metadata(&self.path).is_ok() {
                return Err(OutputError::Exists {
                    out: self.path.clone(),
                });
            }
            return rename(&staging.path, &self.path);
        }
        let mut aside = self.beside(REPLACED)?;
        rename(&self.path, &aside.path)?;
        match rename(&staging.path, &self.path) {
            Ok(()) => {
                // As after an exchange: `staging` is where the old bundle is.
                std::mem::swap(staging, &mut aside);
                Ok(())
            }
            Err(error) => {
                let back = rename(&aside.path, &self.path);
                // Whether it is back or not, the old bundle is not to be removed.
                std::mem::forget(aside);
                Err(back.err().unwrap_or(error))
            }
        }
    }
}

/// A directory that is removed unless it was renamed away.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    /// Tells other containers, which do not see this process, that it is in use.
    _lock: Option<File>,
}

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // It is gone already after a rename, and nobody could be told of another error.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The process of a staging directory whose name ends in `PROCESS-ATTEMPT`.
fn process_of(rest: &[u8]) -> Option<u32> {
    let (process, attempt) = std::str::from_utf8(rest).ok()?.split_once('-')?;
    attempt.parse::<u32>().ok()?;
    process.parse().ok()
}

/// Whether no process has that number; where that cannot be known, none is dead.
fn is_dead(process: u32) -> bool {
    let processes = Path::new("/proc");
    let is_missing = |path: &Path| {
        fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    processes.join("self").exists() && is_missing(&processes.join(process.to_string()))
}

/// Locks a directory for as long as the file is open; `None` if another process has.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let dir = File::open(path)?;
    match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(dir)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Syncs a directory, so that the names in it outlive a power cut.
pub(crate) fn sync_dir(path: &Path) -> Result<(), OutputError> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(OutputError::io(path, "sync the directory"))
}

/// The last component of a path, unless that is `.` or `..`, to which nothing is renamed.
fn name_of(path: &Path) -> Option<&OsStr> {
    // `file_name` skips a dot at the end: that of `new/.` is `new`.
    let bytes = path.as_os_str().as_bytes();
    let last = bytes
        .rsplit(|byte| *byte == b'/')
        .find(|part| !part.is_empty());
    path.file_name()
        .filter(|name| last == Some(name.as_bytes()))
}

/// Errors if `out` is one of `inputs` under whatever name: a link to it, too.
fn refuse_inputs(out: &Path, inputs: &[PathBuf]) -> Result<(), OutputError> {
    let Ok(target) = fs::metadata(out) else {
        return Ok(());
    };
    let same = |input: &&PathBuf| {
        fs::metadata(input)
            .is_ok_and(|input| (input.dev(), input.ino()) == (target.dev(), target.ino()))
    };
    match inputs.iter().find(same) {
        None => Ok(()),
        Some(input) => Err(OutputError::IsInput {
            out: out.to_owned(),
            input: input.clone(),
        }),
    }
}

/// Errors unless what is at `out` is a bundle through and through: a directory with a
/// manifest of ours and not one file that it does not name, since all of it goes.
fn refuse_non_bundle(out: &Path, about: &Metadata) -> Result<(), OutputError> {
    let refuse = |why: String| OutputError::NotABundle {
        out: out.to_owned(),
        why,
    };
    if about.is_symlink() {
        return Err(refuse("it is a symbolic link".into()));
    }
    if !about.is_dir() {
        return Err(refuse("it is not a directory".into()));
    }
    let named =
        named_files(out).ok_or_else(|| refuse(format!("it has no {MANIFEST_FILE} of one")))?;
    let is_ours = |file: &Path, about: &Metadata| {
        let is_plan = file.parent() == Some(Path::new(PLANS_DIR))
            && file
                .extension()
                .is_some_and(|extension| extension == "json");
        about.is_file() && (is_plan || named.contains(file))
    };
    let mut strays = Vec::new();
    for (name, about) in list(out)? {
        let name = PathBuf::from(name);
        let is_folder = name == Path::new(TOKENIZER_DIR) || name == Path::new(PLANS_DIR);
        if !(is_folder && about.is_dir()) {
            if !is_ours(&name, &about) {
                strays.push(name);
            }
            continue;
        }
        for (inside, about) in list(&out.join(&name))? {
            let inside = name.join(inside);
            if !is_ours(&inside, &about) {
                strays.push(inside);
            }
        }
    }
    strays.sort();
    match strays.is_empty() {
        true => Ok(()),
        false => Err(OutputError::Strays {
            out: out.to_owned(),
            strays,
        }),
    }
}

/// The files that the manifest in `out` says the bundle has, if it is one of ours.
///
/// Fields it lacks or that read differently name no file: of a manifest of another
/// version or a spoilt one, less is taken for ours, never more.
fn named_files(out: &Path) -> Option<BTreeSet<PathBuf>> {
    let path = out.join(MANIFEST_FILE);
    let small = fs::symlink_metadata(&path)
        .is_ok_and(|about| about.is_file() && about.len() <= MAX_MANIFEST_BYTES);
    if !small {
        return None;
    }
    let text = fs::read(&path).ok()?;
    let head: Head = serde_json::from_slice(&text).ok()?;
    if head.format != FORMAT {
        return None;
    }
    let files = serde_json::from_slice::<Files>(&text).unwrap_or_default();
    let carried = files.tokenizer.into_iter().chain(files.license.files);
    let carried = carried.chain(files.source.metadata);
    let parts = files.experts.parts.into_iter();
    let own = [MANIFEST_FILE, RESIDENT_FILE].map(PathBuf::from);
    let named = parts.chain(carried).map(|file| file.file);
    Some(named.chain(own).collect())
}

#[derive(serde::Deserialize)]
struct Head {
    format: String,
}

/// Where a manifest names files.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Files {
    experts: Parts,
    tokenizer: Vec<Named>,
    license: Licences,
    source: FromSource,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Parts {
    parts: Vec<Named>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Licences {
    files: Vec<Named>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct FromSource {
    metadata: Option<Named>,
}

#[derive(serde::Deserialize)]
struct Named {
    file: PathBuf,
}

/// Everything in a directory.
pub(crate) fn list(path: &Path) -> Result<Vec<(OsString, Metadata)>, OutputError> {
    let entries = path.read_dir().and_then(|entries| {
        entries
            .map(|entry| {
                let entry = entry?;
                Ok((entry.file_name(), entry.metadata()?))
            })
            .collect::<io::Result<Vec<_>>>()
    });
    entries.map_err(OutputError::io(path, "list"))
}
