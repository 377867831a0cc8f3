//! No manifest makes a reader allocate more than 64 MiB, measured by the allocator.
//!
//! The only test of its binary: what others allocate would count too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use estream_runtime::reader::BundleReader;
use estream_schemas::limits::{MAX_MANIFEST_BYTES, MAX_MANIFEST_VALUES};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

#[expect(unsafe_code, reason = "an allocator is an unsafe trait")]
// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist while one is copied to the other.
        grown(size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HEAD: &str = r#"{"format":"estream-bundle","version":1,"kernel_abi":1,"#;

/// The head, what opens a list, as many `items` as a manifest may have, and what closes
/// all that is open: JSON to its end, since only that is looked at twice.
fn hostile(open: &str, item: &str) -> String {
    let values = item.bytes().filter(|byte| b",[{".contains(byte)).count() as u64;
    let by_values = (MAX_MANIFEST_VALUES - 100).checked_div(values);
    let by_bytes = (MAX_MANIFEST_BYTES - 1000) / item.len() as u64;
    let count = by_bytes.min(by_values.unwrap_or(u64::MAX));
    let mut text = format!(
        "{HEAD}{open}{}",
        item.repeat(usize::try_from(count).unwrap())
    );
    if text.ends_with(',') {
        text.pop();
    }
    let mut closers = Vec::new();
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'[' if !quoted => closers.push(']'),
            b'{' if !quoted => closers.push('}'),
            b']' | b'}' if !quoted => drop(closers.pop()),
            _ => {}
        }
    }
    text.extend(quoted.then_some('"'));
    text.extend(closers.iter().rev());
    text
}

#[test]
fn no_manifest_takes_more_than_64_mib_to_open() {
    let program =
        r#""model":{"family":"","parameters":0},"program":{"vocab":1,"context":1,"registers":[],"#;
    let in_layers = |open: &str| format!(r#"{program}"prologue":[],"layers":[{open}"#);
    let ledger = r#""ledger":["#;
    let entry = r#"{"tensor":"","type":"f32","shape":[1],"fate":{"became":[""]}},"#;
    let op = r#"{"add":{"input":"","out":"","scale":"1"}},"#;
    let long = format!(r#""{}","#, "x".repeat(20));
    let digest = format!(r#""{}","#, "0".repeat(64));
    let tensor = format!(
        r#"{{"name":"","layout":"f32.rows","shape":[1],"offset":0,"bytes":0,"digest":{digest}}},"#
    )
    .replace(",}", "}");
    let experts = r#""experts":{"layers":[{"digests":["#;
    let escapes = format!(r#"{HEAD}"format":"{}"}}"#, r"\n".repeat(500_000));
    let cases = [
        ("entries", hostile(ledger, entry)),
        (
            "strings",
            hostile(&format!(r#"{ledger}{{"fate":{{"became":["#), r#""","#),
        ),
        (
            "long strings",
            hostile(&format!(r#"{ledger}{{"fate":{{"became":["#), &long),
        ),
        (
            "dimensions",
            hostile(&format!(r#"{ledger}{{"shape":["#), "0,"),
        ),
        ("order", hostile(r#""experts":{"layers":[{"order":["#, "0,")),
        ("digests", hostile(experts, &digest)),
        (
            "layers",
            hostile(&in_layers(""), &format!("[{}],", op.trim_end_matches(','))),
        ),
        ("empty layers", hostile(&in_layers(""), "[],")),
        ("operators", hostile(&in_layers("["), op)),
        (
            "operands",
            hostile(&in_layers(r#"[{"add":{"input":["#), r#"{"a":0},"#),
        ),
        ("fields", hostile(&in_layers(r#"[{"add":{"#), r#""a":0,"#)),
        ("unknown", hostile(r#""unknown":["#, r#"{"a":0},"#)),
        (
            "escapes",
            hostile(&format!(r#"{ledger}{{"tensor":""#), r"\n"),
        ),
        ("string of escapes", escapes),
        (
            "resident",
            hostile(r#""resident":{"bytes":0,"tensors":["#, &tensor),
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut largest = 0;
    for (name, text) in &cases {
        assert!(text.len() as u64 <= MAX_MANIFEST_BYTES, "{name}");
        fs::write(dir.path().join("manifest.json"), text).unwrap();
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        assert!(BundleReader::open(dir.path()).is_err(), "{name}");
        let peak = PEAK.load(Relaxed) - before;
        assert!(peak <= 64 << 20, "{name}: {} MiB", mib(peak));
        assert!(peak >= text.len(), "{name}: nothing was measured");
        largest = largest.max(peak);
    }
    assert!(
        largest >= 24 << 20,
        "no case is hostile: {} MiB",
        mib(largest)
    );

    let too_large = vec![b' '; usize::try_from(MAX_MANIFEST_BYTES).unwrap() + 1];
    fs::write(dir.path().join("manifest.json"), too_large).unwrap();
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    assert!(BundleReader::open(dir.path()).is_err());
    assert!(PEAK.load(Relaxed) - before < 1 << 20);
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
