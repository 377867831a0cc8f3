//! Records move; nothing in them changes.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use estream_packer::{
    OutputError, PackError, RelayoutError, WriteOptions, Written, reorder, write,
};
use estream_runtime::reader::{BundleReader, ReadError};
use estream_schemas::digest::Digest;
use estream_schemas::manifest::Manifest;

use crate::common::{Synthetic, names, spec};

type Orders = BTreeMap<u64, Vec<u64>>;

fn reordered(from: &Path, to: &Path, orders: &Orders) -> Result<Written, PackError<RelayoutError>> {
    let reader = BundleReader::open(from).unwrap();
    let (spec, payload) = reorder(&reader, orders).map_err(PackError::Payload)?;
    let options = WriteOptions {
        verify: true,
        inputs: vec![from.to_owned()],
        ..WriteOptions::default()
    };
    let go_on = &mut |_, _| ControlFlow::Continue(());
    write(&spec, &payload, to, &options, go_on)
}

/// A bundle in two parts, whose layers are stored as 2 0 3 1 and, in 3 shards each, 1 2 0.
fn stored(dir: &Path) -> (PathBuf, Written) {
    let out = dir.join("stored");
    let mut spec = spec();
    spec.max_part_bytes = Some(1 << 19);
    let options = WriteOptions::default();
    let done = write(&spec, &Synthetic, &out, &options, &mut |_, _| {
        ControlFlow::Continue(())
    });
    (out, done.unwrap())
}

fn others() -> Orders {
    Orders::from([(0, vec![3, 1, 0, 2]), (2, vec![0, 1, 2])])
}

/// Bytes of every record by layer, expert and shard.
fn records(reader: &BundleReader) -> BTreeMap<(usize, u64, u64), Vec<u8>> {
    let mut all = BTreeMap::new();
    for (index, layer) in reader.bundle().manifest().experts.layers.iter().enumerate() {
        for record in 0..layer.records() {
            let mut bytes = vec![0; usize::try_from(layer.record_bytes).unwrap()];
            reader
                .read_record_verified(index, record, &mut bytes)
                .unwrap();
            let expert = layer.order[usize::try_from(record / layer.shards).unwrap()];
            all.insert((index, expert, record % layer.shards), bytes);
        }
    }
    all
}

/// The manifest but for where experts are.
fn without_order(reader: &BundleReader) -> Manifest {
    let mut manifest = reader.bundle().manifest().clone();
    for layer in &mut manifest.experts.layers {
        layer.order.clear();
        layer.digests.clear();
    }
    manifest
}

fn digests(reader: &BundleReader, layer: usize) -> Vec<Digest> {
    let mut digests = reader.bundle().manifest().experts.layers[layer]
        .digests
        .clone();
    digests.sort_unstable();
    digests
}

#[test]
fn every_expert_has_its_bytes_at_another_place() {
    let dir = tempfile::tempdir().unwrap();
    let (stored, written) = stored(dir.path());
    let out = dir.path().join("out");
    let done = reordered(&stored, &out, &others()).unwrap();
    assert_ne!(done.identity, written.identity);
    assert_eq!(done.bytes, written.bytes);
    let (before, after) = (
        BundleReader::open(&stored).unwrap(),
        BundleReader::open(&out).unwrap(),
    );
    let layers = &after.bundle().manifest().experts.layers;
    assert_eq!(layers[0].order, [3, 1, 0, 2]);
    assert_eq!(layers[1].order, [0, 1, 2]);
    assert!(records(&before) == records(&after));
    for layer in 0..2 {
        assert_eq!(digests(&before, layer), digests(&after, layer));
    }
    assert_eq!(without_order(&before), without_order(&after));
    let resident = |path: &Path| fs::read(path.join("resident.bin")).unwrap();
    assert!(resident(&stored) == resident(&out));
}

#[test]
fn there_and_back_is_the_same_to_the_byte_and_a_layer_without_an_order_keeps_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (stored, written) = stored(dir.path());
    let (out, back, same) = (
        dir.path().join("out"),
        dir.path().join("back"),
        dir.path().join("same"),
    );
    reordered(&stored, &out, &others()).unwrap();
    let orders = Orders::from([(0, vec![2, 0, 3, 1]), (2, vec![1, 2, 0])]);
    assert_eq!(reordered(&out, &back, &orders).unwrap(), written);
    assert_eq!(reordered(&stored, &same, &Orders::new()).unwrap(), written);
}

#[test]
fn what_is_no_order_of_the_layer_is_refused_before_anything_is_written() {
    for order in [vec![0, 1, 2], vec![0, 1, 2, 2], vec![0, 1, 2, 4]] {
        let dir = tempfile::tempdir().unwrap();
        let (stored, _) = stored(dir.path());
        let orders = Orders::from([(0, order)]);
        let error = reordered(&stored, &dir.path().join("out"), &orders).unwrap_err();
        assert!(matches!(error, PackError::Plan(_)), "{error}");
        assert!(error.to_string().contains("layer 0"), "{error}");
        assert_eq!(names(dir.path()), ["stored"]);
    }
}

#[test]
fn c49_a_bundle_is_not_reordered_onto_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (stored, _) = stored(dir.path());
    let error = reordered(&stored, &stored, &others()).unwrap_err();
    let ours = matches!(&error, PackError::Output(OutputError::IsInput { .. }));
    assert!(ours, "{error}");
}

#[test]
fn corrupt_bytes_are_not_moved_under_a_digest_that_fits() {
    let dir = tempfile::tempdir().unwrap();
    let (stored, _) = stored(dir.path());
    let path = stored.join("experts-00002.bin");
    let mut bytes = fs::read(&path).unwrap();
    bytes[5] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = reordered(&stored, &dir.path().join("out"), &others()).unwrap_err();
    assert!(
        matches!(
            &error,
            PackError::Payload(RelayoutError::Read(ReadError::Integrity { .. }))
        ),
        "{error}"
    );
    assert_eq!(names(dir.path()), ["stored"]);
}
