//! Whatever bytes a GGUF file has, reading it ends, and what is read is in the file.

use std::cell::Cell;

use estream_compiler::ingest::gguf::{Gguf, MAX_ALIGNMENT, MIN_ALIGNMENT};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

mod gguf_cases;

use gguf_cases::{Case, U32, valid};

/// The cases are mutated too.
fn check(case: &Case) {
    let fault = Gguf::read(case.bytes.as_slice(), case.bytes.len() as u64).unwrap_err();
    let message = fault.to_string();
    assert!(message.contains(case.message), "{}: {message}", case.name);
    if case.bytes.len() < 4096 {
        mutate(&case.bytes, 64);
    }
}

/// Integers at which arithmetic goes wrong.
const EXTREMES: [u64; 14] = [
    0,
    1,
    2,
    5,
    31,
    33,
    1 << 16,
    1 << 30,
    (1 << 32) - 1,
    1 << 32,
    1 << 62,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// Positions are fractions of the length, which earlier mutations change.
#[derive(Clone, Debug)]
enum Mutation {
    Flip { at: u16, bit: u8 },
    Splice { at: u16, value: u64, width: usize },
    Truncate { at: u16 },
    Insert { at: u16, count: u8 },
    Remove { at: u16, count: u8 },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<u16>;
    let extreme = prop::sample::select(EXTREMES.as_slice());
    let width = prop::sample::select(vec![4usize, 8]);
    prop_oneof![
        6 => (at(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip { at, bit }),
        6 => (at(), extreme, width)
            .prop_map(|(at, value, width)| Mutation::Splice { at, value, width }),
        1 => at().prop_map(|at| Mutation::Truncate { at }),
        1 => (at(), 1u8..64).prop_map(|(at, count)| Mutation::Insert { at, count }),
        1 => (at(), 1u8..64).prop_map(|(at, count)| Mutation::Remove { at, count }),
    ]
}

fn apply(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let place = |at: u16| bytes.len() * usize::from(at) / (1 << 16);
    match *mutation {
        Mutation::Flip { at, bit } => {
            let at = place(at);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        Mutation::Splice { at, value, width } => {
            let at = place(at);
            if let Some(target) = bytes.get_mut(at..at + width) {
                target.copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
        Mutation::Truncate { at } => bytes.truncate(place(at)),
        Mutation::Insert { at, count } => {
            let at = place(at);
            bytes.splice(at..at, std::iter::repeat_n(0, count.into()));
        }
        Mutation::Remove { at, count } => {
            let at = place(at);
            let end = bytes.len().min(at + usize::from(count));
            bytes.drain(at..end);
        }
    }
}

/// What holding a [`Gguf`] is said to prove, asked of it.
fn assert_sound(gguf: &Gguf, file_bytes: u64) {
    assert!((MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&gguf.alignment()));
    let mut extents: Vec<(u64, u64)> = Vec::new();
    for tensor in gguf.tensors() {
        let start = gguf.data_start().checked_add(tensor.offset).unwrap();
        let end = start.checked_add(tensor.bytes).unwrap();
        assert!(tensor.bytes > 0 && end <= file_bytes, "{tensor:?}");
        assert!(start.is_multiple_of(gguf.alignment()), "{tensor:?}");
        let elements: u128 = tensor.dims.iter().map(|dim| u128::from(*dim)).product();
        let blocks = elements / u128::from(tensor.dtype.block_len());
        assert_eq!(
            blocks * u128::from(tensor.dtype.block_bytes()),
            u128::from(tensor.bytes)
        );
        extents.push((start, end));
    }
    extents.sort_unstable();
    assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    for (key, value) in gguf.pairs() {
        assert_eq!(gguf.kv(key).unwrap().value_type(), value.value_type());
        if let Some(array) = value.as_array() {
            assert_eq!(array.iter().count() as u64, array.count());
        }
    }
}

/// Reads `cases` mutations of `base`; how many were read and how many refused.
fn mutate(base: &[u8], cases: u32) -> (u32, u32) {
    let (read, refused) = (Cell::new(0), Cell::new(0));
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    // The same mutations in every run: a failure here can be run again.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mutations = prop::collection::vec(mutation(), 1..4);
    TestRunner::new_with_rng(config, rng)
        .run(&mutations, |mutations| {
            let mut bytes = base.to_vec();
            for mutation in &mutations {
                apply(&mut bytes, mutation);
            }
            let file_bytes = bytes.len() as u64;
            match Gguf::read(bytes.as_slice(), file_bytes) {
                Ok(gguf) => {
                    read.set(read.get() + 1);
                    assert_sound(&gguf, file_bytes);
                    let metadata = gguf.into_metadata();
                    Gguf::read(metadata.as_slice(), metadata.len() as u64).unwrap();
                }
                Err(_) => refused.set(refused.get() + 1),
            }
            Ok(())
        })
        .unwrap();
    (read.get(), refused.get())
}

#[test]
fn mutations_are_refused_or_sound() {
    let mut aligned = valid().pair("general.alignment", U32, &32u32.to_le_bytes());
    aligned.version = [2, 0, 0, 0];
    for base in [valid().bytes(), aligned.bytes()] {
        let (read, refused) = mutate(&base, 8192);
        // Both outcomes happen often, or the mutations prove nothing.
        assert!(
            read > 500 && refused > 2000,
            "{read} read, {refused} refused"
        );
    }
}
