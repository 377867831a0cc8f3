//! Mutated files never panic, and what opens is what it claims.

use std::cell::Cell;
use std::collections::BTreeMap;

use estream_compiler::ingest::{Checkpoint, IngestError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use safetensors::SafeTensors;

use super::write::file;
use super::{Dir, names};

/// One change to a file.
#[derive(Clone, Debug)]
enum Change {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Truncate(prop::sample::Index),
    /// Replaces the header's length.
    Length(u64),
    /// Replaces a digit, so that the text stays JSON.
    Digit(prop::sample::Index, u8),
    /// Copies a stretch of the file elsewhere, which makes repeated keys.
    Copy(prop::sample::Index, prop::sample::Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), prop::sample::select(b"{}[]\",:0a \\".to_vec()))
            .prop_map(|(at, byte)| Change::Insert(at, byte)),
        at().prop_map(Change::Remove),
        at().prop_map(Change::Truncate),
        prop_oneof![0..400_u64, any::<u64>()].prop_map(Change::Length),
        (at(), b'0'..=b'9').prop_map(|(at, digit)| Change::Digit(at, digit)),
        (at(), at(), any::<u8>()).prop_map(|(from, to, count)| Change::Copy(from, to, count)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    match *change {
        Change::Set(at, byte) => *at.get_mut(bytes) = byte,
        Change::Insert(at, byte) => bytes.insert(at.index(bytes.len()), byte),
        Change::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
        Change::Truncate(at) => bytes.truncate(at.index(bytes.len())),
        Change::Length(length) => {
            if let Some(field) = bytes.first_chunk_mut() {
                *field = length.to_le_bytes();
            }
        }
        Change::Digit(at, digit) => {
            let mut digits: Vec<&mut u8> =
                bytes.iter_mut().filter(|b| b.is_ascii_digit()).collect();
            if !digits.is_empty() {
                **at.get_mut(&mut digits) = digit;
            }
        }
        Change::Copy(from, to, count) => {
            let from = from.index(bytes.len());
            let stretch: Vec<u8> = bytes[from..].iter().copied().take(count.into()).collect();
            let to = to.index(bytes.len());
            bytes.splice(to..to, stretch);
        }
    }
}

/// A file of three tensors with some metadata.
fn seed() -> Vec<u8> {
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"#,
        r#""x":{"dtype":"F32","shape":[20,3],"data_offsets":[0,240]},"#,
        r#""y.weight":{"dtype":"BF16","shape":[4],"data_offsets":[240,248]},"#,
        r#""z":{"dtype":"U8","shape":[],"data_offsets":[248,249]}}  "#,
    );
    file(header, &[7; 249])
}

/// Every extent lies in its file, and the published reader agrees on all of it.
fn check(checkpoint: &Checkpoint, bytes: &[u8]) {
    let (header_bytes, oracle) = SafeTensors::read_metadata(bytes).expect("a valid file");
    let data_offset = 8 + header_bytes as u64;
    let oracle: BTreeMap<String, _> = oracle.tensors().into_iter().collect();
    assert_eq!(oracle.len(), checkpoint.tensors.len());
    for tensor in &checkpoint.tensors {
        let end = tensor.offset.checked_add(tensor.bytes).expect("an end");
        assert!(tensor.offset >= data_offset && end <= bytes.len() as u64);
        let info = &oracle[&tensor.name];
        let shape: Vec<u64> = info.shape.iter().map(|&dim| dim as u64).collect();
        assert_eq!(tensor.shape, shape);
        let (begin, oracle_end) = info.data_offsets;
        assert_eq!(tensor.offset - data_offset, begin as u64);
        assert_eq!(end - data_offset, oracle_end as u64);
        assert_eq!(tensor.dtype.block_bytes() * 8, info.dtype.bitsize() as u64);
        let mut last = [0];
        checkpoint
            .read(tensor, tensor.bytes - 1, &mut last)
            .expect("reads");
    }
}

#[test]
fn the_seed_opens() {
    let dir = Dir::new().with("model.safetensors", seed());
    check(&dir.open().expect("opens"), &seed());
}

/// Runs `open` on mutations of `seed`, and expects that some open and some do not,
/// since a test that only ever sees one of these says nothing.
fn mutate(seed: &[u8], open: impl Fn(Vec<u8>) -> bool) {
    let config = ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let (opened, refused) = (Cell::new(0), Cell::new(0));
    let result = TestRunner::new(config).run(&vec(change(), 1..4), |changes| {
        let mut bytes = seed.to_vec();
        for change in &changes {
            apply(&mut bytes, change);
        }
        let count = if open(bytes) { &opened } else { &refused };
        count.set(count.get() + 1);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let (opened, refused) = (opened.get(), refused.get());
    assert!(
        opened > 20 && refused > 20,
        "{opened} opened, {refused} refused"
    );
}

fn has_clean_message(error: &IngestError) {
    let message = error.to_string();
    assert!(!message.contains(char::is_control), "{message:?}");
}

#[test]
fn a_mutated_file_is_refused_or_agrees_with_the_published_reader() {
    mutate(&seed(), |bytes| {
        let dir = Dir::new().with("model.safetensors", &bytes);
        let result = dir.open();
        match &result {
            Ok(checkpoint) => check(checkpoint, &bytes),
            Err(error) => has_clean_message(error),
        }
        result.is_ok()
    });
}

/// Mutates one file of a good checkpoint of two shards.
fn mutate_text(name: &str, seed: &str) {
    mutate(seed.as_bytes(), |bytes| {
        let dir = Dir::new()
            .shard("a.safetensors", &[("a", 1)])
            .shard("b.safetensors", &[("b", 2)])
            .index(&[("a", "a.safetensors"), ("b", "b.safetensors")])
            .with(name, bytes);
        let result = dir.open();
        match &result {
            Ok(checkpoint) => assert_eq!(names(checkpoint), ["a", "b"]),
            Err(error) => has_clean_message(error),
        }
        result.is_ok()
    });
}

#[test]
fn a_mutated_index_is_refused_or_leads_to_the_tensors() {
    let index = concat!(
        r#"{"metadata":{"total_size":2},"#,
        r#""weight_map":{"a":"a.safetensors","b":"b.safetensors"}}"#,
    );
    mutate_text("model.safetensors.index.json", index);
}

#[test]
fn a_mutated_config_is_refused_or_read() {
    let config = r#"{"hidden_size":64,"rope":{"theta":1e4,"list":[1,2]},"name":"olmoe"}"#;
    mutate_text("config.json", config);
}
