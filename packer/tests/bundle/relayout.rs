//! The order of nibbles changes; nothing else does.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use estream_compiler::layout::untile_strip;
use estream_packer::{
    OutputError, PackError, RelayoutError, WriteOptions, Written, relayout, write,
};
use estream_runtime::reader::{BundleReader, ReadError};
use estream_schemas::exit::Exit;
use estream_schemas::layout::{Layout, NibbleOrder};

use crate::common::{Synthetic, names, spec};

fn converted(
    from: &Path,
    to: &Path,
    order: NibbleOrder,
) -> Result<Written, PackError<RelayoutError>> {
    let reader = BundleReader::open(from).unwrap();
    let (spec, payload) = relayout(&reader, order).map_err(PackError::Payload)?;
    let options = WriteOptions {
        force: true,
        verify: true,
        inputs: vec![from.to_owned()],
    };
    write(&spec, &payload, to, &options, &mut |_, _| {
        ControlFlow::Continue(())
    })
}

/// A bundle in two parts.
fn direct(dir: &Path) -> (PathBuf, Written) {
    let out = dir.join("direct");
    let mut spec = spec();
    spec.max_part_bytes = Some(1 << 19);
    let done = write(
        &spec,
        &Synthetic,
        &out,
        &WriteOptions::default(),
        &mut |_, _| ControlFlow::Continue(()),
    );
    (out, done.unwrap())
}

#[test]
fn there_and_back_is_the_same_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let (direct, written) = direct(dir.path());
    let (pair, back) = (dir.path().join("pair"), dir.path().join("back"));
    let other = converted(&direct, &pair, NibbleOrder::Pair).unwrap();
    assert_ne!(other.identity, written.identity);
    let again = converted(&pair, &back, NibbleOrder::Direct).unwrap();
    assert_eq!(again, written);
    let same = converted(&direct, &back, NibbleOrder::Direct).unwrap();
    assert_eq!(same, written);
}

#[test]
fn blocks_keep_their_bits_and_all_else_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (direct, _) = direct(dir.path());
    let pair = dir.path().join("pair");
    converted(&direct, &pair, NibbleOrder::Pair).unwrap();
    let (a, b) = (
        BundleReader::open(&direct).unwrap(),
        BundleReader::open(&pair).unwrap(),
    );
    let (before, after) = (a.bundle().manifest(), b.bundle().manifest());
    let tensors = before.resident.tensors.iter().zip(&after.resident.tensors);
    let mut changed = 0;
    for (index, (old, new)) in tensors.enumerate() {
        let mut bytes = [&a, &b].map(|reader| {
            let mut bytes = vec![0; usize::try_from(old.bytes).unwrap()];
            reader.read_resident(index, &mut bytes).unwrap();
            bytes
        });
        if old.layout == new.layout {
            assert!(bytes[0] == bytes[1], "{}", old.name);
            continue;
        }
        changed += 1;
        assert_eq!(new.layout, "q4_0.t32.pair".parse::<Layout>().unwrap());
        assert!(bytes[0] != bytes[1]);
        let cols = usize::try_from(old.shape[1]).unwrap();
        let strip = usize::try_from(old.layout.bytes(32, old.shape[1]).unwrap()).unwrap();
        let rows = [old.layout, new.layout].map(|layout| {
            let of = usize::from(layout == new.layout);
            let mut rows = vec![0; strip];
            bytes[of].truncate(strip);
            untile_strip(layout, &bytes[of], 32, cols, &mut rows).unwrap();
            rows
        });
        assert!(rows[0] == rows[1], "{}", old.name);
    }
    assert_eq!(changed, 1);
    assert_eq!(
        after.experts.layers[1].up.layout.to_string(),
        "mxfp4.t32.pair"
    );
    assert_eq!(after.experts.layers[1].down, before.experts.layers[1].down);
    assert_eq!(after.experts.parts, before.experts.parts);
    assert_eq!(after.ledger, before.ledger);
    assert_eq!(after.tokenizer, before.tokenizer);
}

#[test]
fn corrupt_bytes_are_not_given_a_digest_that_fits() {
    for (file, offset) in [
        ("resident.bin", 5),
        ("experts-00001.bin", 40_000),
        ("experts-00002.bin", 5),
        ("tokenizer/tokenizer.json", 1),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (direct, _) = direct(dir.path());
        let path = direct.join(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[offset] ^= 1;
        fs::write(&path, bytes).unwrap();
        let pair = dir.path().join("pair");
        let error = converted(&direct, &pair, NibbleOrder::Pair).unwrap_err();
        assert!(
            matches!(
                &error,
                PackError::Payload(RelayoutError::Read(ReadError::Integrity { .. }))
            ),
            "{error}"
        );
        assert_eq!(error.exit(RelayoutError::exit), Exit::Integrity);
        assert_eq!(names(dir.path()), ["direct"]);
    }
}

#[test]
fn c49_a_bundle_is_not_converted_onto_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (direct, _) = direct(dir.path());
    let error = converted(&direct, &direct, NibbleOrder::Pair).unwrap_err();
    let ours = matches!(&error, PackError::Output(OutputError::IsInput { .. }));
    assert!(ours, "{error}");
    BundleReader::open(&direct).unwrap();
}
