//! Safetensors checkpoints, right and wrong, through `Checkpoint::open`.
//!
//! One module a property; names begin with the id of the fault they rule out.

mod carried;
mod directory;
mod headers;
mod json;
mod mutation;
mod paths;
mod reading;
mod shards;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

use estream_compiler::ingest::{Checkpoint, IngestError};
use estream_schemas::exit::Exit;
use tempfile::TempDir;

/// A checkpoint directory that goes away with the test.
struct Dir {
    dir: TempDir,
}

impl Dir {
    /// A directory that holds an empty `config.json`.
    fn new() -> Dir {
        Dir::empty().with("config.json", "{}")
    }

    fn empty() -> Dir {
        Dir {
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    fn with(self, name: &str, content: impl AsRef<[u8]>) -> Dir {
        fs::write(self.path(name), content).expect("a file in it");
        self
    }

    /// Adds a weight file of these tensors, one byte each, in this order.
    fn shard(self, name: &str, tensors: &[(&str, u8)]) -> Dir {
        let entries: Vec<String> = tensors
            .iter()
            .enumerate()
            .map(|(at, (tensor, _))| {
                let end = at + 1;
                let tensor = serde_json::Value::from(*tensor);
                format!(r#"{tensor}:{{"dtype":"U8","shape":[1],"data_offsets":[{at},{end}]}}"#)
            })
            .collect();
        let header = format!("{{{}}}", entries.join(","));
        let data: Vec<u8> = tensors.iter().map(|(_, byte)| *byte).collect();
        self.with(name, write::file(&header, &data))
    }

    /// Adds `model.safetensors.index.json`.
    fn index(self, places: &[(&str, &str)]) -> Dir {
        let map: serde_json::Map<_, _> = places
            .iter()
            .map(|(tensor, file)| (tensor.to_string(), (*file).into()))
            .collect();
        let index = serde_json::json!({ "metadata": { "total_size": 0 }, "weight_map": map });
        self.with("model.safetensors.index.json", index.to_string())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self) -> Result<Checkpoint, IngestError> {
        Checkpoint::open(self.dir.path())
    }

    /// Opens, and expects a refusal with this exit code.
    #[track_caller]
    fn refused(&self, exit: Exit) -> IngestError {
        refused(self.dir.path(), exit)
    }
}

#[track_caller]
fn refused(path: &Path, exit: Exit) -> IngestError {
    let error = Checkpoint::open(path).expect_err("a refusal");
    let message = error.to_string();
    assert_eq!(error.exit(), exit, "{message}");
    assert!(
        !message.ends_with('.') && !message.contains(char::is_control),
        "{message:?}"
    );
    error
}

/// Whether `error`'s message has all of `parts`.
#[track_caller]
fn says(error: &IngestError, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

/// The names of a checkpoint's tensors.
fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint
        .tensors
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect()
}
