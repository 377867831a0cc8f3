//! Random changes to a valid manifest never panic, and what is accepted holds its promises.

use estream_schemas::manifest::ALIGN;
use estream_schemas::valid::Bundle;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::sample::sample;

/// Every leaf of `value`, as a pointer.
fn leaves(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                leaves(value, &format!("{at}/{index}"), out);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(value, &format!("{at}/{name}"), out);
            }
        }
        _ => out.push(at.to_owned()),
    }
}

const EXTREMES: [u64; 12] = [
    0,
    1,
    2,
    31,
    16383,
    16384,
    1 << 24,
    1 << 32,
    u64::MAX - 16384,
    u64::MAX - 16383,
    u64::MAX - 1,
    u64::MAX,
];

fn mutate(manifest: &mut Value, leaf: &str, other: &str, choice: usize) {
    let swapped = manifest.pointer(other).unwrap().clone();
    let place = manifest.pointer_mut(leaf).unwrap();
    *place = match &*place {
        Value::Number(number) if choice == 0 => {
            json!(number.as_u64().unwrap().wrapping_add(1))
        }
        Value::Number(_) => json!(EXTREMES[choice % EXTREMES.len()]),
        _ => swapped,
    };
}

/// What readers rely on without another look.
fn promises_hold(bundle: &Bundle) {
    let manifest = bundle.manifest();
    let mut end = 0;
    for tensor in &manifest.resident.tensors {
        assert_eq!(tensor.offset, end);
        end = (tensor.offset + tensor.bytes).next_multiple_of(ALIGN);
    }
    assert_eq!(end, manifest.resident.bytes);
    for layer in &manifest.experts.layers {
        let part = &manifest.experts.parts[usize::try_from(layer.part).unwrap()];
        assert!(layer.offset + layer.records() * layer.record_bytes <= part.bytes);
        assert_eq!(layer.digests.len() as u64, layer.records());
        assert!(layer.record_bytes <= manifest.experts.slot_bytes);
        for region in layer.regions() {
            assert!(region.offset.is_multiple_of(ALIGN));
            assert!(region.offset + region.bytes <= layer.record_bytes);
            assert_eq!(
                region.layout.bytes(region.rows, region.cols),
                Some(region.bytes)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_changes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..13_usize), 1..4),
    ) {
        let mut manifest = sample();
        let mut all = Vec::new();
        leaves(&manifest, "", &mut all);
        for (leaf, other, choice) in changes {
            mutate(&mut manifest, &all[leaf.index(all.len())], &all[other.index(all.len())], choice);
        }
        if let Ok(bundle) = Bundle::parse(&serde_json::to_vec(&manifest).unwrap()) {
            promises_hold(&bundle);
        }
    }

    #[test]
    fn random_bytes_in_the_text_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = sample().to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        if let Ok(bundle) = Bundle::parse(&text) {
            promises_hold(&bundle);
        }
    }
}

#[test]
fn every_number_at_every_extreme_never_panics() {
    let mut all = Vec::new();
    leaves(&sample(), "", &mut all);
    let mut tried = 0;
    for leaf in &all {
        let sample = sample();
        if !sample.pointer(leaf).unwrap().is_number() {
            continue;
        }
        for extreme in EXTREMES {
            let mut manifest = sample.clone();
            *manifest.pointer_mut(leaf).unwrap() = json!(extreme);
            if let Ok(bundle) = Bundle::parse(&serde_json::to_vec(&manifest).unwrap()) {
                promises_hold(&bundle);
            }
            tried += 1;
        }
    }
    assert!(tried > 1000, "{tried}");
}
