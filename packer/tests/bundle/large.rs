//! Offsets are 64 bits wide from end to end.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use estream_packer::{BundleSpec, plan};
use estream_runtime::reader::{BundleReader, Projection};
use estream_schemas::canonical;
use estream_schemas::digest::Digest;

use crate::common::{bytes, layer, spec};

/// One layer of real width whose records end beyond 4 GiB.
fn wide() -> BundleSpec {
    const EXPERTS: u64 = 1300;
    let mut spec = spec();
    let mut layer = layer(0, EXPERTS, 1, &[], "q4_0.t32.direct");
    layer.order = (0..EXPERTS).collect();
    (layer.hidden, layer.ff, layer.down) = (2048, 1024, layer.gate);
    spec.layers = vec![layer];
    // Only the router is left of the other layer.
    spec.ledger
        .retain(|entry| !entry.tensor.contains("layers.2.expert"));
    spec.program.layers.truncate(1);
    for register in &mut spec.program.registers {
        register.width = 2048;
    }
    for tensor in &mut spec.resident {
        if let Some(cols) = tensor.shape.last_mut() {
            *cols = 2048;
        }
    }
    spec.resident[2].shape[0] = EXPERTS;
    spec.tokenizer.clear();
    spec.license.files.clear();
    spec.source.metadata = None;
    spec
}

#[test]
fn c67_a_record_beyond_4_gib_is_read_from_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = plan(&wide()).unwrap();
    let layer = &mut manifest.experts.layers[0];
    assert_eq!(layer.record_bytes, 3_538_944);
    let last = layer.records() - 1;
    let offset = last * layer.record_bytes;
    assert!(offset > 1 << 32);
    // All records are holes but the last.
    let zeros = vec![0; usize::try_from(layer.record_bytes).unwrap()];
    let content = bytes("last", layer.record_bytes);
    let digest = |bytes: &[u8]| Digest(*blake3::hash(bytes).as_bytes());
    layer.digests.fill(digest(&zeros));
    *layer.digests.last_mut().unwrap() = digest(&content);
    let part = File::create_new(dir.path().join("experts-00001.bin")).unwrap();
    part.write_all_at(&content, offset).unwrap();
    assert_eq!(
        part.metadata().unwrap().len(),
        manifest.experts.parts[0].bytes
    );
    let resident = File::create_new(dir.path().join("resident.bin")).unwrap();
    resident.set_len(manifest.resident.bytes).unwrap();
    let text = canonical::to_vec(&manifest).unwrap();
    fs::write(dir.path().join("manifest.json"), text).unwrap();

    let reader = BundleReader::open(dir.path()).unwrap();
    let mut record = zeros;
    reader.read_record_verified(0, last, &mut record).unwrap();
    assert!(record == content);
    // The same place modulo 2^32 is a hole.
    let wrapped = (offset % (1 << 32)) / manifest.experts.slot_bytes;
    reader
        .read_record_verified(0, wrapped, &mut record)
        .unwrap();
    assert!(record.iter().all(|&byte| byte == 0));
    let down = reader.bundle().manifest().experts.layers[0].down.clone();
    let mut region = vec![0; usize::try_from(down.bytes).unwrap()];
    reader
        .read_region(0, last, Projection::Down, &mut region)
        .unwrap();
    let start = usize::try_from(down.offset).unwrap();
    assert!(region == content[start..][..region.len()]);
}
