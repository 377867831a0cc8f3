//! No malformed GGUF file makes the reader hold 64 MiB.
//!
//! The peak is counted by thread: tests run beside each other.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;

use estream_compiler::ingest::gguf::open;

mod gguf_cases;

use gguf_cases::{ARRAY, Case, F32, Raw, STRING, U8, U16, array, string, valid};

const LIMIT_BYTES: isize = 64 << 20;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

fn size(bytes: usize) -> isize {
    isize::try_from(bytes).expect("a layout is never larger than isize::MAX")
}

// SAFETY: every call goes to the system's allocator as it is. Growing in place is
// left to the default, which takes the new block before it gives back the old one:
// the count is of the worst case. The counters have no destructor and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout.size()));
        // SAFETY: the caller keeps `alloc`'s promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(size(layout.size()));
        // SAFETY: the caller keeps `alloc_zeroed`'s promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-size(layout.size()));
        // SAFETY: the caller keeps `dealloc`'s promises, and all blocks are the system's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes held at the most while `work` ran, beyond those held before.
fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

fn check(case: &Case) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, &case.bytes).unwrap();
    let (error, peak) = peak_bytes(|| open(&path).expect_err(case.name));
    assert!(error.to_string().contains(case.message), "{error}");
    assert!(peak > 0, "{}: nothing was counted", case.name);
    assert!(peak < LIMIT_BYTES, "{}: {peak} bytes", case.name);
}

#[test]
fn an_allocation_is_counted() {
    let (_, peak) = peak_bytes(|| std::hint::black_box(vec![1u8; 5 << 20]));
    assert!((5 << 20..6 << 20).contains(&peak), "{peak}");
    let (_, peak) = peak_bytes(|| {
        let mut grown = std::hint::black_box(vec![1u8; 5 << 20]);
        grown.reserve_exact(2 << 20);
        grown
    });
    assert!(peak >= 12 << 20, "{peak}");
}

#[test]
fn opening_needs_little_more_than_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, valid().bytes()).unwrap();
    let (checkpoint, peak) = peak_bytes(|| open(&path).unwrap());
    assert_eq!(checkpoint.tensors.len(), 3);
    assert!(peak < 128 << 10, "{peak}");
}

/// A header full of strings, each short enough for a configuration.
fn strings(count: usize) -> Raw {
    let value = string(&vec![b'x'; 4096]);
    (0..count).fold(Raw::new(), |raw, number| {
        raw.pair(&format!("{number}"), STRING, &value)
    })
}

#[test]
fn the_largest_headers_stay_within_the_limit_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let names = (0u64..1 << 16).fold(strings(900), |raw, number| {
        raw.info(&format!("{number:0256}"), &[1], F32, number * 32)
    });
    for raw in [names.data(1 << 21), strings(6100)] {
        let bytes = raw.bytes();
        assert!(bytes.len() > 23 << 20, "{}", bytes.len());
        fs::write(&path, bytes).unwrap();
        let (_, peak) = peak_bytes(|| open(&path).unwrap());
        assert!(peak < LIMIT_BYTES, "{peak} bytes");
    }
}

#[test]
fn a_set_whose_second_part_is_wrong_stays_within_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let part = |number: u16, claims: u16, raw: Raw| {
        let raw = raw.pair("split.no", U16, &claims.to_le_bytes()).pair(
            "split.count",
            U16,
            &2u16.to_le_bytes(),
        );
        let path = dir.path().join(format!("m-{number:05}-of-00002.gguf"));
        fs::write(&path, raw.bytes()).unwrap();
        path
    };
    let path = part(1, 0, strings(4000));
    let table = array(U8, 7 << 20, &vec![0; 7 << 20]);
    part(2, 2, Raw::new().pair("table", ARRAY, &table));
    let (error, peak) = peak_bytes(|| open(&path).unwrap_err());
    assert!(error.to_string().contains("split.no is 2"), "{error}");
    assert!((16 << 20..LIMIT_BYTES).contains(&peak), "{peak} bytes");
}
