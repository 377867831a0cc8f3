//! What is written is what is read, to the byte and every time.

use std::fs;

use crate::common::{Synthetic, names, region_bytes, resident_bytes, spec, written};
use estream_packer::{PlanError, WriteOptions, plan, write};
use estream_runtime::reader::{BundleReader, Projection};
use std::ops::ControlFlow;

#[test]
fn every_byte_that_was_pushed_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("tiny.estream");
    let done = written(&out);
    let reader = BundleReader::open(&out).unwrap();
    assert_eq!(reader.identity(), done.identity);
    let manifest = reader.bundle().manifest();
    for (index, tensor) in manifest.resident.tensors.iter().enumerate() {
        let mut found = vec![0; usize::try_from(tensor.bytes).unwrap()];
        reader.read_resident(index, &mut found).unwrap();
        assert_eq!(
            found,
            resident_bytes(index, tensor.bytes),
            "{}",
            tensor.name
        );
        reader.check_resident(index, &found).unwrap();
        let mut tail = [0; 3];
        let from = tensor.bytes - 3;
        reader.read_resident_at(index, from, &mut tail).unwrap();
        assert_eq!(tail, found[found.len() - 3..]);
    }
    let mut seen = 0;
    for (index, layer) in manifest.experts.layers.iter().enumerate() {
        let mut record_index = 0;
        for &expert in &layer.order {
            for shard in 0..layer.shards {
                let mut record = vec![0; usize::try_from(layer.record_bytes).unwrap()];
                reader
                    .read_record_verified(index, record_index, &mut record)
                    .unwrap();
                for projection in Projection::ALL {
                    let region = projection.region(layer);
                    let expected = region_bytes(index, expert, shard, projection, region.bytes);
                    let mut found = vec![0; expected.len()];
                    reader
                        .read_region(index, record_index, projection, &mut found)
                        .unwrap();
                    assert!(found == expected, "{index} {expert} {shard} {projection:?}");
                    let start = usize::try_from(region.offset).unwrap();
                    assert!(record[start..].starts_with(&expected));
                }
                record_index += 1;
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 4 + 3 * 3);
    for (file, content) in manifest.tokenizer.iter().zip([&b"{}"[..], b""]) {
        let mut found = vec![0; content.len()];
        reader.read_file(file, &mut found).unwrap();
        assert_eq!(found, content);
    }
    let on_disk: u64 = [
        "resident.bin",
        "experts-00001.bin",
        "manifest.json",
        "LICENSE",
    ]
    .into_iter()
    .chain([
        "tokenizer/tokenizer.json",
        "tokenizer/merges.txt",
        "source-metadata.gguf",
    ])
    .map(|name| fs::metadata(out.join(name)).unwrap().len())
    .sum();
    assert_eq!(done.bytes, on_disk);
}

#[test]
fn the_same_spec_gives_the_same_bytes_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("deep/er/b.estream"));
    assert_eq!(written(&a), written(&b));
    for name in names(&a).iter().filter(|name| *name != "tokenizer") {
        assert!(
            fs::read(a.join(name)).unwrap() == fs::read(b.join(name)).unwrap(),
            "{name}"
        );
    }
    assert_eq!(names(&a), names(&b));
}

#[test]
fn parts_are_split_only_between_layers() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("parts");
    let mut spec = spec();
    let layers = plan(&spec).unwrap().experts.layers;
    let bytes: Vec<u64> = layers
        .iter()
        .map(|layer| layer.records() * layer.record_bytes)
        .collect();
    spec.max_part_bytes = bytes.iter().copied().max();
    let whole = |_, _| ControlFlow::Continue(());
    write(&spec, &Synthetic, &out, &WriteOptions::default(), &mut {
        whole
    })
    .unwrap();
    let reader = BundleReader::open(&out).unwrap();
    let parts = &reader.bundle().manifest().experts.parts;
    assert_eq!(
        parts.iter().map(|part| part.bytes).collect::<Vec<_>>(),
        bytes
    );
    assert!(reader.verify_all(&mut |_, _| {}).unwrap().is_whole());

    spec.max_part_bytes = bytes.iter().copied().min();
    let refused = plan(&spec).unwrap_err();
    assert!(
        matches!(refused, PlanError::PartTooSmall { .. }),
        "{refused}"
    );
}

#[test]
fn shards_that_do_not_divide_the_width_are_refused_with_the_arithmetic() {
    for shards in [0, 2, 4, 96] {
        let mut spec = spec();
        spec.layers[1].shards = shards;
        let refused = plan(&spec).unwrap_err().to_string();
        assert!(refused.contains("width of 96"), "{refused}");
        assert!(refused.ends_with("choose a divisor of 3"), "{refused}");
    }
}
