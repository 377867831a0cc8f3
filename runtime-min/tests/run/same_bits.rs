//! What may not change a bit of a result, and what may change it a little.

use std::num::NonZeroUsize;

use estream_runtime::backend::CpuBackend;
use estream_runtime::backend::cpu::{Simd, SimdPath};
use estream_runtime::reader::BundleReader;
use estream_runtime::{LoadOptions, Model, Positions, Request};

use crate::rows::{Rows, load};
use crate::toy::{EXPERTS, HIDDEN, Packing, Toy, VOCAB};

/// Enough rows for more than one block of everything that works in blocks.
fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 7 + i * i) % VOCAB as u32).collect()
}

#[test]
fn threads_do_not_change_a_bit() {
    let dir = Toy::new().bundle(&Packing::default());
    let all = |threads| {
        let mut model = load(dir.path(), threads);
        assert_eq!(model.backend(), ("cpu", threads));
        Rows::of(&mut model, &ids(64), Positions::All).bits()
    };
    let one = all(1);
    assert_eq!(all(2), one);
    assert_eq!(all(3), one);
}

#[test]
fn neither_the_instruction_set_nor_the_routes_together_change_a_bit() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let run = |path, expert_rows| {
        let simd = Simd::new(path)?;
        let backend = CpuBackend::new(2, simd).unwrap();
        let backend = Box::new(backend.with_expert_rows(expert_rows));
        let mut model = Model::load_on(&reader, &LoadOptions::default(), backend).unwrap();
        Some(Rows::of(&mut model, &ids(40), Positions::All).bits())
    };
    let expected = run(SimdPath::Portable, 256).unwrap();
    for path in [SimdPath::Portable, SimdPath::Avx2, SimdPath::Avx512] {
        for expert_rows in [1, 7, 256] {
            if let Some(bits) = run(path, expert_rows) {
                assert!(bits == expected, "{path:?}, {expert_rows}");
            }
        }
    }
}

#[test]
fn a_position_has_the_same_bits_whichever_others_are_chosen() {
    let dir = Toy::new().bundle(&Packing::default());
    let mut model = load(dir.path(), 2);
    let ids = ids(64);
    let all = Rows::of(&mut model, &ids, Positions::All);
    let chosen = vec![63, 0, 17, 17];
    let some = Rows::of(&mut model, &ids, Positions::Some(chosen.clone()));
    assert_eq!(some.positions, chosen);
    for (at, position) in chosen.iter().enumerate() {
        assert_eq!(
            some.logits[at * VOCAB..][..VOCAB],
            all.logits[position * VOCAB..][..VOCAB]
        );
        assert_eq!(
            some.hidden[at * HIDDEN..][..HIDDEN],
            all.hidden[position * HIDDEN..][..HIDDEN]
        );
    }
    let last = Rows::of(&mut model, &ids, Positions::Last);
    assert_eq!(last.positions, [63]);
    assert_eq!(last.logits, all.logits[63 * VOCAB..]);
}

#[test]
fn a_request_leaves_nothing_that_another_could_see() {
    let dir = Toy::new().bundle(&Packing::default());
    let fresh = |ids: &[u32]| Rows::of(&mut load(dir.path(), 1), ids, Positions::All).bits();
    let mut model = load(dir.path(), 1);
    for count in [5, 64, 1, 12] {
        let ids = ids(count);
        let again = Rows::of(&mut model, &ids, Positions::All).bits();
        assert_eq!(again, fresh(&ids), "{count} tokens");
    }
}

#[test]
fn a_longer_prompt_does_not_change_what_came_before() {
    let dir = Toy::new().bundle(&Packing::default());
    let mut model = load(dir.path(), 2);
    let long = Rows::of(&mut model, &ids(64), Positions::All);
    let short = Rows::of(&mut model, &ids(33), Positions::All);
    assert_eq!(short.logits, long.logits[..33 * VOCAB]);
}

#[test]
fn a_prompt_in_chunks_has_the_bits_of_one_in_one_piece() {
    let dir = Toy::new().bundle(&Packing::default());
    let mut model = load(dir.path(), 2);
    let ids = ids(64);
    let whole = Rows::of(&mut model, &ids, Positions::All).bits();
    for chunk in [1, 2, 3, 7, 32, 63, 64, 1000] {
        let mut rows = Rows::default();
        let request = Request {
            positions: Positions::All,
            hidden: true,
            chunk: NonZeroUsize::new(chunk),
            ..Request::default()
        };
        let outcome = model.prefill(&ids, &request, &mut rows).unwrap();
        assert_eq!(outcome.chunks, 64usize.div_ceil(chunk));
        assert_eq!(rows.positions, (0..64).collect::<Vec<_>>());
        assert!(rows.bits() == whole, "chunks of {chunk}");
    }
}

#[test]
fn shards_and_storage_order_change_no_more_than_rounding() {
    let toy = Toy::new();
    let all = |packing: &Packing| {
        let dir = toy.bundle(packing);
        Rows::of(&mut load(dir.path(), 2), &ids(64), Positions::All).logits
    };
    let expected = all(&Packing::default());
    let largest = expected.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let order: Vec<u64> = (0..EXPERTS as u64).rev().collect();
    for (shards, order) in [(2, order.clone()), (2, vec![0, 1, 2, 3]), (1, order)] {
        let packing = Packing {
            shards,
            order,
            ..Packing::default()
        };
        let found = all(&packing);
        for (found, expected) in found.iter().zip(&expected) {
            let error = (found - expected).abs() / largest;
            assert!(error < 1e-4, "{packing:?}: {found}, not {expected}");
        }
    }
}

#[test]
fn layouts_hold_the_same_numbers() {
    let toy = Toy::new();
    let all = |tiles| {
        let dir = toy.bundle(&Packing {
            tiles,
            ..Packing::default()
        });
        Rows::of(&mut load(dir.path(), 1), &ids(20), Positions::All).bits()
    };
    assert_eq!(all(true), all(false));
}
