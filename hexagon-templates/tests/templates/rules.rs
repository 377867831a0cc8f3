//! Where regions lie, and how many rows there are.

use std::ops::Range;

use estream_hexagon::{Buffer, ExpertShape, MAX_VTCM_BYTES, Refused, Region, Stored, Template};
use proptest::prelude::*;

use crate::cases::{shape, vtcm};

const TILE_BYTES: u64 = 2048;
const BANK_BYTES: u64 = 4 << 20;

/// Bytes that a buffer must have, and the tiles of its rows if the matrix unit walks them; of D there are two ways.
fn needs(template: &Template, buffer: Buffer) -> (u64, Vec<(u64, u64)>) {
    let shape = template.shape();
    let (d, f) = (shape.hidden().div_ceil(32), shape.ff().div_ceil(32));
    let rows = template.capacity() / 32;
    let (wide, down) = (template.gate_up_strips(), template.down_strips());
    let [gate, up, of_down] = shape.stored().map(Stored::vtcm_tile_bytes);
    match buffer {
        Buffer::Z => (rows * d * TILE_BYTES, vec![(d, rows)]),
        Buffer::H => (rows * f * TILE_BYTES, vec![(f, rows)]),
        Buffer::C(_) => ((wide * d * gate.max(up)).max(down * f * of_down), vec![]),
        Buffer::D(_) => {
            let bytes = (wide * d).max(down * f) * TILE_BYTES;
            (bytes, vec![(d, wide), (f, down)])
        }
        Buffer::O(0 | 1) => (rows * wide.max(down) * TILE_BYTES, vec![]),
        Buffer::O(_) => (rows * wide * TILE_BYTES, vec![]),
        Buffer::Scales => (256, vec![]),
    }
}

fn alignment(buffer: Buffer) -> u64 {
    match buffer {
        Buffer::Z | Buffer::H | Buffer::D(_) | Buffer::O(_) => 2048,
        Buffer::C(_) => 128,
        Buffer::Scales => 256,
    }
}

/// Bytes of each range that one instruction walks.
fn ranges(at: u64, (row_tiles, rows): (u64, u64)) -> impl Iterator<Item = Range<u64>> {
    (0..rows).flat_map(move |row| {
        let first = at + row * row_tiles * TILE_BYTES;
        (0..row_tiles).step_by(32).map(move |tile| {
            let tiles = (row_tiles - tile).min(32);
            let from = first + tile * TILE_BYTES;
            from..from + tiles * TILE_BYTES
        })
    })
}

/// Everything that a template promises.
#[track_caller]
pub(crate) fn check(template: &Template) {
    let mut all = template.regions().to_vec();
    let buffers = all.iter().map(|region| region.buffer);
    let mut buffers: Vec<Buffer> = buffers.collect();
    buffers.sort_unstable();
    let [c, d] = [Buffer::C, Buffer::D].map(|of| [0, 1].map(of));
    let o = [0, 1, 2, 3].map(Buffer::O);
    let one = [Buffer::Z, Buffer::H, Buffer::Scales];
    let mut expected = [&one[..], &c, &d, &o].concat();
    expected.sort_unstable();
    assert_eq!(buffers, expected);

    for Region {
        buffer,
        offset,
        bytes,
    } in &all
    {
        let (needed, walks) = needs(template, *buffer);
        assert_eq!(*bytes, needed, "{buffer:?}");
        assert!(
            offset.is_multiple_of(alignment(*buffer)),
            "{buffer:?} at {offset}"
        );
        assert!(offset + bytes <= template.vtcm_bytes(), "{buffer:?}");
        assert_eq!(template.offset(*buffer), *offset);
        for range in walks.into_iter().flat_map(|walk| ranges(*offset, walk)) {
            let banks = [range.start, range.end - 1].map(|byte| byte / BANK_BYTES);
            assert_eq!(banks[0], banks[1], "{buffer:?}: {range:?}");
        }
    }
    all.sort_unstable_by_key(|region| region.offset);
    for pair in all.windows(2) {
        assert!(pair[0].offset + pair[0].bytes <= pair[1].offset, "{pair:?}");
    }
    assert!(template.capacity() >= 32 && template.capacity().is_multiple_of(32));
    let shape = template.shape();
    assert!(template.gate_up_strips() <= shape.ff().div_ceil(32));
    assert!(template.down_strips() <= shape.hidden().div_ceil(32));
}

fn capacity(shape: &ExpertShape, vtcm_bytes: u64) -> u64 {
    Template::new(shape, vtcm_bytes).map_or(0, |template| template.capacity())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn regions_lie_apart_and_where_the_hardware_wants_them(shape in shape(), vtcm in vtcm()) {
        match Template::new(&shape, vtcm) {
            Ok(template) => check(&template),
            Err(refused) => prop_assert_eq!(refused.exit().code(), 3),
        }
    }

    #[test]
    fn more_memory_never_takes_fewer_rows(shape in shape(), vtcm in vtcm(), more in 0..5u64 << 20) {
        prop_assert!(capacity(&shape, vtcm) <= capacity(&shape, vtcm + more));
    }

    #[test]
    fn a_refusal_names_the_least_that_would_do(shape in shape(), vtcm in 1..3u64 << 20) {
        let Err(refused) = Template::new(&shape, vtcm) else { return Ok(()) };
        let Refused::Vtcm { needed_bytes, shards, .. } = &refused else { panic!("{refused}") };
        if let Some(needed) = needed_bytes {
            prop_assert!(*needed > vtcm);
            prop_assert_eq!(capacity(&shape, *needed), 32);
            prop_assert_eq!(capacity(&shape, *needed - 1), 0);
        }
        let cut = |shards: u64| {
            let layouts = shape.stored().map(Stored::layout);
            let tiles = shape.ff() / 32;
            let fits = shape.ff().is_multiple_of(32) && tiles.is_multiple_of(shards);
            fits.then(|| ExpertShape::new(shape.hidden(), shape.ff() / shards, shards, layouts).unwrap())
        };
        let fitting = (2..=256).filter_map(cut).find(|cut| capacity(cut, vtcm) > 0);
        prop_assert_eq!(shards.map(|(shards, _)| shards), fitting.map(|cut| cut.shards()));
        if let (Some((_, bytes)), Some(cut)) = (shards, fitting) {
            prop_assert_eq!(capacity(&cut, *bytes), 32);
            prop_assert_eq!(capacity(&cut, *bytes - 1), 0);
        }
    }

    #[test]
    fn steps_are_widened_only_by_memory_that_rows_cannot_use(shape in shape(), vtcm in vtcm()) {
        let Ok(template) = Template::new(&shape, vtcm) else { return Ok(()) };
        for (strips, tiles) in [
            (template.gate_up_strips(), shape.hidden().div_ceil(32)),
            (template.down_strips(), shape.ff().div_ceil(32)),
        ] {
            // One strip fewer would be less than a range.
            prop_assert!(strips == 1 || (strips - 1) * tiles < 32, "{strips} strips of {tiles} tiles");
        }
    }
}

#[test]
fn what_no_template_is_made_for_is_refused_with_numbers() {
    let q4_0 = "q4_0.t32.direct".parse().unwrap();
    let shape = |hidden, ff, shards| ExpertShape::new(hidden, ff, shards, [q4_0; 3]).unwrap();
    let error = Template::new(&shape(2048, 1024, 1), MAX_VTCM_BYTES + 1).unwrap_err();
    assert_eq!(error.exit().code(), 2);
    assert!(error.to_string().contains("67108865"), "{error}");

    // Mixtral on 1 MiB. Of 32 rows and 4 shards: Z and H 240 tiles, D 256, O 4, C 163,840 bytes, and scales.
    let error = Template::new(&shape(4096, 14_336, 1), 1 << 20).unwrap_err();
    assert_eq!(error.exit().code(), 3);
    let text = error.to_string();
    let whole = (128 + 448 + 2 * 448 + 4) * 2048 + 2 * 448 * 640 + 256;
    let needs = format!("needs {whole} bytes of VTCM for 32 rows, and there are 1048576");
    assert!(text.contains(&needs), "{text}");
    assert!(!text.contains("--shards 4 "), "{text}");
    assert!(text.contains("take an NPU with at least"), "{text}");

    // No message has more than 65,536 tokens.
    let tiny = Template::new(&shape(32, 32, 1), MAX_VTCM_BYTES).unwrap();
    assert_eq!(tiny.capacity(), 1 << 16);
    check(&tiny);

    // Nothing helps a model that is too wide.
    let text = Template::new(&shape(1 << 20, 32, 1), 8 << 20)
        .unwrap_err()
        .to_string();
    assert!(text.contains("more than 67108864 bytes"), "{text}");
    assert!(text.contains("no number of shards would do"), "{text}");
}
