//! The plans in a bundle: what is there, and the text of one. They are no part of its identity, so anyone may have put
//! them there.

use std::collections::BTreeSet;
use std::path::PathBuf;

use estream_schemas::plan::{MAX_PLAN_BYTES, PLANS};

use super::files::io_error;
use super::{BundleReader, ReadError};

/// Plans of a bundle that are listed.
pub const MAX_PLANS: usize = 1000;

impl BundleReader {
    /// Path and text of the plan called `name`.
    pub fn plan(&self, name: &str) -> Result<(PathBuf, Vec<u8>), ReadError> {
        let file = format!("{PLANS}/{name}.json");
        let path = self.path().join(&file);
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(ReadError::NotFound { path });
        }
        let file = self.dir.file(&file).map_err(|error| match error {
            ReadError::Missing { path } => ReadError::NotFound { path },
            other => other,
        })?;
        if file.bytes > MAX_PLAN_BYTES {
            return Err(ReadError::Size {
                path,
                found: file.bytes,
                expected: MAX_PLAN_BYTES,
            });
        }
        let mut text = vec![0; usize::try_from(file.bytes).unwrap_or(0)];
        file.read_at(0, &mut text)?;
        Ok((path, text))
    }

    /// Names of the plans there are, ascending; of more than [`MAX_PLANS`] the first.
    ///
    /// # Errors
    /// If their folder is there and cannot be listed.
    pub fn plans(&self) -> Result<Vec<String>, ReadError> {
        let folder = self.path().join(PLANS);
        let failed = |source| io_error(&folder, "list", source);
        match folder.symlink_metadata() {
            Ok(about) if about.is_dir() => {}
            _ => return Ok(Vec::new()),
        }
        let mut names = BTreeSet::new();
        for entry in folder.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let file = entry.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(".json"));
            let name = name.filter(|name| !name.is_empty() && !name.starts_with('.'));
            if let Some(name) = name.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file()))
            {
                names.insert(name.to_owned());
            }
            if names.len() > MAX_PLANS {
                names.pop_last();
            }
        }
        Ok(names.into_iter().collect())
    }
}
