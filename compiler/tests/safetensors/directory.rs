//! What a path stands for, and what is said where it stands for nothing.

use std::fs;
use std::path::{Path, PathBuf};

use estream_compiler::ingest::{Checkpoint, IngestError};
use estream_schemas::exit::Exit;
use estream_schemas::manifest::SourceFormat;

use super::{Dir, refused, says};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

#[test]
fn a_published_checkpoint_opens_by_directory_and_by_file() {
    let dir = fixtures().join("olmoe");
    for path in [dir.clone(), dir.join("model.safetensors")] {
        let checkpoint = Checkpoint::open(&path).expect("opens");
        assert_eq!(checkpoint.format, SourceFormat::Safetensors);
        assert_eq!(checkpoint.files.len(), 1);
        let embed = checkpoint.tensor("model.embed_tokens.weight");
        assert_eq!(embed.expect("the embedding").shape, [544, 128]);
        let experts = checkpoint.config.get("num_experts");
        assert_eq!(experts, Some(&16.into()));
        let carried: Vec<_> = checkpoint
            .tokenizer
            .iter()
            .map(|file| &*file.name)
            .collect();
        assert_eq!(
            carried,
            [
                "generation_config.json",
                "tokenizer.json",
                "tokenizer_config.json"
            ]
        );
    }
}

#[test]
fn a_directory_of_one_gguf_file_is_that_file() {
    let file = fixtures().join("gguf/olmoe-q4_0.gguf");
    let dir = Dir::empty();
    fs::copy(&file, dir.path("olmoe.gguf")).expect("copies");
    let text = |path: &Path| match Checkpoint::open(path) {
        Ok(checkpoint) => format!("{:?}", checkpoint.tensors),
        Err(error) => error.to_string(),
    };
    assert_eq!(text(&dir.path("")), text(&dir.path("olmoe.gguf")));
}

#[test]
fn a_path_to_nothing_is_a_usage_error() {
    let dir = Dir::new();
    let error = refused(&dir.path("absent"), Exit::Usage);
    assert!(matches!(error, IngestError::NotFound { .. }));
    says(&error, &["absent", "no such file"]);
}

#[test]
fn pickled_weights_are_refused_with_the_way_out() {
    for name in ["pytorch_model.bin", "a.pt", "a.pth", "a.ckpt"] {
        let dir = Dir::new().with(name, b"PK\x03\x04");
        for path in [dir.path(""), dir.path(name)] {
            let error = refused(&path, Exit::Invalid);
            says(&error, &[name, "never read", "safe_serialization=True"]);
        }
    }
}

#[test]
fn a_bundle_is_not_taken_for_a_checkpoint() {
    let bundle = || {
        let files = ["manifest.json", "resident.bin", "experts-00001.bin"];
        files
            .iter()
            .fold(Dir::empty(), |dir, name| dir.with(name, b"x"))
    };
    for dir in [bundle(), bundle().with("source-metadata.gguf", b"GGUF")] {
        let error = dir.refused(Exit::Invalid);
        assert!(matches!(error, IngestError::Bundle { .. }), "{error}");
        says(&error, &["is a bundle already"]);
    }
}

#[test]
fn a_pickle_under_another_name_is_not_read_either() {
    for content in [
        b"PK\x03\x04\0\0\0\0\0\0\0\0".as_slice(),
        b"\x80\x02}q\0X\x06\0\0\0",
    ] {
        let dir = Dir::new().with("model.safetensors", content);
        let error = dir.refused(Exit::Invalid);
        says(&error, &["model.safetensors", "never read"]);
        let dir = Dir::new().with("weights", content);
        says(
            &refused(&dir.path("weights"), Exit::Invalid),
            &["never read"],
        );
    }
}

#[test]
fn a_directory_without_weights_says_what_it_should_hold() {
    let error = Dir::new().refused(Exit::Invalid);
    says(&error, &["neither safetensors nor GGUF", "config.json"]);
}

#[test]
fn a_missing_config_is_named() {
    let error = Dir::empty()
        .shard("model.safetensors", &[("a", 1)])
        .refused(Exit::Invalid);
    assert!(matches!(error, IngestError::MissingConfig { .. }));
    says(&error, &["config.json"]);
}

#[test]
fn a_web_page_in_the_place_of_a_file_is_called_one() {
    let page = "<!DOCTYPE html><html><body>Sign in</body></html>";
    let weights = Dir::new().with("model.safetensors", page);
    let config = Dir::empty()
        .shard("model.safetensors", &[("a", 1)])
        .with("config.json", page);
    let index = Dir::new().with("model.safetensors.index.json", page);
    for dir in [weights, config, index] {
        says(&dir.refused(Exit::Invalid), &["web page", "login"]);
    }
}

#[test]
fn what_cannot_be_read_is_the_machines_fault() {
    // A path through a file fails for root and others alike.
    let dir = Dir::new();
    let error = refused(&dir.path("config.json/x"), Exit::Io);
    assert!(matches!(error, IngestError::Read { .. }));
}
