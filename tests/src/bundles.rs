//! Bundles: made by the command line, opened through the library.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use estream_runtime::backend::Backend;
use estream_runtime::reader::BundleReader;
use estream_runtime::{LoadOptions, Model};
use serde_json::Value;

use crate::{estream, finish};

/// Compiles `source` into `bundle`.
///
/// # Panics
///
/// If it cannot be compiled.
#[track_caller]
pub fn compile(source: &Path, bundle: &Path, flags: &[&str]) {
    let mut command = estream();
    command.arg("compile").arg(source).arg("-o").arg(bundle);
    finish(command.args(flags)).success();
}

/// Every file at or below `dir`: its content by its path from there.
///
/// # Panics
///
/// If one cannot be read.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{dir:?}: {error}")) {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a plain name");
        if entry.path().is_dir() {
            let below = files(&entry.path()).into_iter();
            all.extend(below.map(|(path, bytes)| (format!("{name}/{path}"), bytes)));
        } else {
            all.insert(name, fs::read(entry.path()).expect("a readable file"));
        }
    }
    all
}

/// A bundle's manifest.
///
/// # Panics
///
/// If it is no JSON.
pub fn manifest(bundle: &Path) -> Value {
    let text = fs::read(bundle.join("manifest.json")).expect("a manifest");
    serde_json::from_slice(&text).expect("a manifest is JSON")
}

/// The model in a bundle, every byte of it compared with its digest.
///
/// # Panics
///
/// If it cannot be loaded.
#[track_caller]
pub fn model(bundle: &Path) -> Model {
    let reader = BundleReader::open(bundle).expect("a bundle");
    Model::load(&reader, &LoadOptions::default()).expect("a model")
}

/// [`model`] on `backend`.
///
/// # Panics
///
/// If it cannot be loaded.
#[track_caller]
pub fn model_on(bundle: &Path, backend: impl Backend + 'static) -> Model {
    let reader = BundleReader::open(bundle).expect("a bundle");
    Model::load_on(&reader, &LoadOptions::default(), Box::new(backend)).expect("a model")
}
