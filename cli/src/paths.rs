//! Paths in JSON answers. A path is bytes and JSON is text, so what is no UTF-8 reads there as on a terminal: a name
//! must not make an answer fail whose work is done.

use std::path::Path;

use serde::Serializer;

/// `#[serde(serialize_with = "paths::one")]`
pub(crate) fn one<S: Serializer>(path: impl AsRef<Path>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.as_ref().display())
}

/// The same of a path that may be none.
pub(crate) fn maybe<S: Serializer>(
    path: &Option<impl AsRef<Path>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => one(path, to),
        None => to.serialize_none(),
    }
}

/// The same of several.
pub(crate) fn all<S: Serializer>(paths: &[impl AsRef<Path>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| path.as_ref().display().to_string()))
}
