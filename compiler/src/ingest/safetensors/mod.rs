//! Safetensors directories, as the Hugging Face hub has them.
//!
//! The index, where there is one, says which files belong to the checkpoint; it is
//! never guessed from their names. Absent files are reported before any is opened.
//!
//! Headers are read here and not by the `safetensors` crate, which serves the tests
//! as an oracle instead. Its reader wants the whole file as one buffer. Its
//! `Metadata` alone can be read from a header, but by way of serde's `flatten`,
//! which keeps a copy of every value: a header of 24 MiB that is one long shape
//! makes it take several hundred MiB. It keeps the last of two entries with one
//! name, and it takes tensors without elements, which may share an offset. The
//! reader here streams: it holds the tensors found so far and no text.

mod carried;
mod directory;
mod header;
mod index;
mod merge;

use std::path::Path;

use estream_schemas::manifest::SourceFormat;

pub(super) use directory::PICKLE_EXTENSIONS;
pub use header::{MAX_DIMS, MAX_HEADER_BYTES, MAX_TENSORS, MAX_TEXT_BYTES};
pub use index::{MAX_FILES, MAX_INDEX_BYTES};

use super::error::MissingShard;
use super::source::Source;
use super::{Checkpoint, Config, IngestError, Notice, WeightFile, gguf};
use directory::Weights;
use header::Table;
use index::Index;

/// Opens the checkpoint in directory `dir`. If `named` is a file of it, that file
/// must belong to the checkpoint.
pub(super) fn open(dir: &Path, named: Option<&str>) -> Result<Checkpoint, IngestError> {
    let names = directory::list(dir)?;
    let weights = directory::choose(dir, &names)?;
    let (index, file_names) = match &weights {
        Weights::Gguf(name) => return Ok(gguf::open(&dir.join(name))?),
        Weights::Single(name) => (None, vec![name.clone()]),
        Weights::Indexed(name) => {
            let index = Index::read(&dir.join(name))?;
            require_all_files(dir, name, &index)?;
            let files = index.files.clone();
            (Some((dir.join(name), index)), files)
        }
    };
    let chosen = weights.name();
    if let Some(named) = named
        && named != chosen
        && !file_names.iter().any(|name| name == named)
    {
        return Err(IngestError::NotInSet {
            path: dir.join(named),
            chosen: chosen.to_owned(),
        });
    }
    let config = Config::read_json(dir)?;

    let mut notices: Vec<Notice> = names
        .iter()
        .filter(|name| name.ends_with(directory::EXTENSION) && !file_names.contains(name))
        .map(|name| Notice::Unused { file: name.clone() })
        .collect();
    let mut table = Table::default();
    let mut files = Vec::with_capacity(file_names.len());
    for name in file_names {
        let path = dir.join(&name);
        let Source { file, bytes, kind } = Source::open(&path)?;
        let file = WeightFile {
            name,
            path,
            bytes,
            file,
        };
        table.add(&file, files.len(), kind)?;
        files.push(file);
    }
    let tensors = match &index {
        Some((path, index)) => merge::merge(path, index, table.tensors, &files, &mut notices)?,
        None => table.tensors,
    };
    if tensors.is_empty() {
        return Err(IngestError::NoWeights {
            path: dir.join(chosen),
        });
    }
    let tokenizer = carried::tokenizer(dir, &names)?;
    let license_files = carried::license_files(dir, &names, &mut notices)?;
    let license = carried::declared_license(dir, &names, &mut notices)?;
    Ok(Checkpoint {
        format: SourceFormat::Safetensors,
        path: dir.to_owned(),
        files,
        tensors,
        config,
        tokenizer,
        license_files,
        license,
        metadata: Some(carried::config(dir)),
        notices,
    })
}

/// Refuses unless every file of `index` is there, without opening any.
fn require_all_files(dir: &Path, index_name: &str, index: &Index) -> Result<(), IngestError> {
    let mut tensor_counts = vec![0; index.files.len()];
    for place in &index.places {
        tensor_counts[place.file as usize] += 1;
    }
    let mut missing = Vec::new();
    for (name, tensor_count) in index.files.iter().zip(tensor_counts) {
        let path = dir.join(name);
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => missing.push(MissingShard {
                name: name.clone(),
                tensor_count,
            }),
            Err(source) => return Err(IngestError::Read { path, source }),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(IngestError::MissingShards {
        path: dir.join(index_name),
        total: index.files.len(),
        missing,
    })
}
