//! What opening a safetensors checkpoint allocates, counted by the allocator:
//! below 64 MiB whatever the files ask for, and little for large weights.
#![expect(
    unsafe_code,
    reason = "a global allocator that counts is an unsafe trait's implementation"
)]

#[path = "safetensors/write.rs"]
mod write;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use estream_compiler::ingest::safetensors::{
    MAX_HEADER_BYTES, MAX_INDEX_BYTES, MAX_TENSORS, MAX_TEXT_BYTES,
};
use estream_compiler::ingest::{Checkpoint, IngestError, MAX_CONFIG_BYTES};
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const BOUND_BYTES: usize = 64 * MIB;

/// Bytes that are allocated now, and the most since the last [`peak_of`] began.
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Counting {
    fn add(bytes: usize) {
        let live = LIVE_BYTES.fetch_add(bytes, Relaxed) + bytes;
        PEAK_BYTES.fetch_max(live, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came; the counters
// allocate nothing. `realloc` is the default one, which allocates and copies, so
// that a growing vector counts with its old and its new memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::add(layout.size());
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counters are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most that `work` had allocated at a time, and its result.
fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    let result = work();
    (PEAK_BYTES.load(Relaxed) - before, result)
}

fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("config.json"), "{}").expect("writes");
    for (name, content) in files {
        fs::write(dir.path().join(name), content).expect("writes");
    }
    dir
}

/// Opens `dir`, and expects a refusal that stayed within the bound.
#[track_caller]
fn refused_within_bound(what: &str, dir: &Path) -> IngestError {
    let (peak, result) = peak_of(|| Checkpoint::open(dir));
    let error = result.err().unwrap_or_else(|| panic!("{what} opened"));
    assert!(peak < BOUND_BYTES, "{what}: {peak} bytes, {error}");
    error
}

/// `unit` as often as it fits between `start` and `end` into `bytes` bytes.
fn filled(start: &str, unit: &str, end: &str, bytes: u64) -> String {
    let bytes = usize::try_from(bytes).expect("a small size");
    let count = (bytes - start.len() - end.len() - 1) / unit.len();
    let text = format!("{start}{}0{end}", unit.repeat(count));
    assert!(text.len() <= bytes && text.len() > bytes - 2 * unit.len() - 2);
    text
}

#[test]
fn the_counter_counts_what_is_allocated() {
    let _alone = alone();
    let (peak, _) = peak_of(|| drop(black_box(vec![1_u8; 100 * MIB])));
    assert!((100 * MIB..101 * MIB).contains(&peak), "{peak}");
}

#[test]
fn a_header_that_is_one_long_shape_stays_within_the_bound() {
    let _alone = alone();
    let header = filled(
        r#"{"a":{"dtype":"U8","shape":["#,
        "0,",
        r#"],"data_offsets":[0,0]}}"#,
        MAX_HEADER_BYTES,
    );
    let dir = directory(&[("model.safetensors", &write::file(&header, &[]))]);
    let (peak, result) = peak_of(|| Checkpoint::open(dir.path()));
    let error = result.expect_err("a refusal");
    assert!(error.to_string().contains("dimensions"), "{error}");
    assert!(peak < MIB, "{peak}");

    // Why the header is read here: the published reader of the same text.
    let (peak, result) =
        peak_of(|| serde_json::from_str::<safetensors::tensor::Metadata>(&header).is_ok());
    assert!(result && peak > 4 * BOUND_BYTES, "{peak}");
}

#[test]
fn a_header_length_is_no_reason_to_allocate() {
    let _alone = alone();
    for length in [MAX_HEADER_BYTES, u64::from(u32::MAX), u64::MAX] {
        let mut bytes = write::file("{", &[]);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let dir = directory(&[("model.safetensors", &bytes)]);
        let (peak, result) = peak_of(|| Checkpoint::open(dir.path()));
        assert!(result.is_err() && peak < MIB, "{length}: {peak}");
    }
}

#[test]
fn long_strings_stay_within_the_bound() {
    let _alone = alone();
    let entry = r#"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    for (what, start, unit, end) in [
        ("a name", r#"{""#, "x", entry),
        ("an escaped name", r#"{""#, "\\n", entry),
        ("metadata", r#"{"__metadata__":{"k":""#, "x", r#""}}"#),
        ("an element type", r#"{"a":{"dtype":""#, "x", r#""}}"#),
        ("an unknown key", r#"{"a":{""#, "x", r#"":1}}"#),
        ("an open string", r#"{""#, "x", ""),
        ("text of no kind", "{", "x", ""),
    ] {
        let header = filled(start, unit, end, MAX_HEADER_BYTES);
        let dir = directory(&[("model.safetensors", &write::file(&header, &[0]))]);
        refused_within_bound(what, dir.path());
    }
}

#[test]
fn metadata_of_many_keys_stays_within_the_bound() {
    let _alone = alone();
    let header = filled(r#"{"__metadata__":{"#, r#""":"","#, "}}", MAX_HEADER_BYTES);
    let dir = directory(&[("model.safetensors", &write::file(&header, &[]))]);
    refused_within_bound("metadata", dir.path());
}

#[test]
fn trees_of_values_stay_within_the_bound() {
    let _alone = alone();
    let units = [
        "0,",
        "[],",
        "{},",
        r#"{"":0},"#,
        r#""x","#,
        "[[[[[[{}]]]]]],",
        r#"{"a":[0,0,0]},"#,
    ];
    let model = write::file(&write::entry("a", "U8", "[1]", "[0,1]"), &[0]);
    for unit in units {
        let config = filled(r#"{"a":["#, unit, "]}", MAX_CONFIG_BYTES);
        let index = filled(
            r#"{"metadata":["#,
            unit,
            r#"],"weight_map":{"a":"model.safetensors"}}"#,
            MAX_INDEX_BYTES,
        );
        let by_config = directory(&[
            ("model.safetensors", &model),
            ("config.json", config.as_bytes()),
        ]);
        let by_index = directory(&[
            ("model.safetensors", &model),
            ("model.safetensors.index.json", index.as_bytes()),
        ]);
        for dir in [by_config, by_index] {
            let error = refused_within_bound(unit, dir.path());
            assert!(error.to_string().contains("JSON values"), "{unit}: {error}");
        }
    }
}

/// As many tensors as a checkpoint may have, under names as long as it may have so
/// many of, in two shards; an index; and both shards' entries.
struct Most {
    index: String,
    shards: [String; 2],
}

const SHARDS: [&str; 2] = ["a.safetensors", "b.safetensors"];
const INDEX: &str = "model.safetensors.index.json";

impl Most {
    fn get() -> &'static Most {
        static MOST: LazyLock<Most> = LazyLock::new(Most::new);
        &MOST
    }

    fn new() -> Most {
        const NAME_BYTES: usize = MAX_TEXT_BYTES / MAX_TENSORS;
        let name = |number: usize| format!("{number:0NAME_BYTES$}");
        let half = MAX_TENSORS / 2;
        let shards = [0, half].map(|first| {
            let entries: Vec<String> = (0..half)
                .map(|at| {
                    let (name, end) = (name(first + at), at + 1);
                    format!(r#""{name}":{{"dtype":"U8","shape":[],"data_offsets":[{at},{end}]}}"#)
                })
                .collect();
            entries.join(",")
        });
        let places: Vec<String> = (0..MAX_TENSORS)
            .map(|number| format!(r#""{}":"{}""#, name(number), SHARDS[number / half]))
            .collect();
        Most {
            index: format!(r#"{{"weight_map":{{{}}}}}"#, places.join(",")),
            shards,
        }
    }

    /// Writes all of it, with `end` after the last entry of the last shard.
    fn write(&self, end: &str) -> TempDir {
        let data = vec![1; MAX_TENSORS / 2];
        let [first, last] = &self.shards;
        directory(&[
            (INDEX, self.index.as_bytes()),
            (SHARDS[0], &write::file(&format!("{{{first}}}"), &data)),
            (SHARDS[1], &write::file(&format!("{{{last}{end}}}"), &data)),
        ])
    }
}

#[test]
fn the_most_tensors_that_a_checkpoint_may_have_stay_within_the_bound() {
    let _alone = alone();
    let most = Most::get();
    let dir = most.write("");
    let (peak, result) = peak_of(|| Checkpoint::open(dir.path()));
    let checkpoint = result.expect("opens");
    assert_eq!(checkpoint.tensors.len(), MAX_TENSORS);
    assert!((48 * MIB..BOUND_BYTES).contains(&peak), "{peak}");
}

#[test]
fn a_fault_after_the_most_tensors_stays_within_the_bound() {
    let _alone = alone();
    let most = Most::get();
    let one_more = r#","x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}"#;
    let long_string = format!(r#","x":{{"dtype":"{}"}}"#, "x".repeat(MIB - 2));
    for end in [r#","x":{}"#, one_more, &long_string, ","] {
        let dir = most.write(end);
        refused_within_bound(end.get(..40).unwrap_or(end), dir.path());
    }
}

#[test]
fn many_tensors_that_the_index_does_not_list_or_lists_elsewhere_stay_within_the_bound() {
    let _alone = alone();
    let most = Most::get();
    let dir = most.write("");
    // No listed tensor is there.
    let index = format!(
        r#"{{"weight_map":{{"x":"{}","y":"{}"}}}}"#,
        SHARDS[0], SHARDS[1]
    );
    fs::write(dir.path().join(INDEX), index).expect("writes");
    refused_within_bound("unlisted tensors", dir.path());
    // Every tensor is in the other shard.
    let swapped = most
        .index
        .replace(SHARDS[0], "")
        .replace(SHARDS[1], SHARDS[0]);
    let swapped = swapped.replace(":\"\"", &format!(":\"{}\"", SHARDS[1]));
    fs::write(dir.path().join(INDEX), swapped).expect("writes");
    let error = refused_within_bound("swapped shards", dir.path());
    assert!(
        error.to_string().contains("lists 262144 tensors"),
        "{error}"
    );
}

#[test]
fn many_tensors_in_two_files_stay_within_the_bound() {
    let _alone = alone();
    let most = Most::get();
    let dir = most.write("");
    fs::copy(dir.path().join(SHARDS[0]), dir.path().join(SHARDS[1])).expect("copies");
    let error = refused_within_bound("equal shards", dir.path());
    assert!(
        error.to_string().contains("lists 131072 tensors"),
        "{error}"
    );
}

#[test]
fn many_shards_share_one_limit() {
    let _alone = alone();
    // Each header is within its own limit; together they hold too much.
    let most = Most::get();
    let dir = most.write("");
    let third = dir.path().join("c.safetensors");
    fs::copy(dir.path().join(SHARDS[0]), third).expect("copies");
    let places =
        [SHARDS[0], SHARDS[1], "c.safetensors"].map(|name| format!(r#""{name}":"{name}""#));
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, places.join(","));
    fs::write(dir.path().join(INDEX), index).expect("writes");
    let error = refused_within_bound("three shards", dir.path());
    assert!(error.to_string().contains("262144 tensors"), "{error}");
}

#[test]
fn an_index_of_many_files_stays_within_the_bound() {
    let _alone = alone();
    let places: Vec<String> = (0..80_000)
        .map(|i| format!(r#""{i}":"{i:0200}.safetensors""#))
        .collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, places.join(","));
    let dir = directory(&[("model.safetensors.index.json", index.as_bytes())]);
    let error = refused_within_bound("an index", dir.path());
    assert!(error.to_string().contains("4096 weight files"), "{error}");
}

#[test]
fn a_large_tensor_costs_no_memory_to_open() {
    let _alone = alone();
    const BYTES: u64 = (4 << 30) + 64;
    let header = write::entry("a", "U8", &format!("[{BYTES}]"), &format!("[0,{BYTES}]"));
    let head = write::file(&header, &[]);
    let dir = directory(&[]);
    let path = dir.path().join("model.safetensors");
    let mut sparse = File::create(path).expect("creates");
    sparse.write_all(&head).expect("writes");
    sparse.set_len(head.len() as u64 + BYTES).expect("a hole");
    let (peak, result) = peak_of(|| Checkpoint::open(dir.path()));
    assert_eq!(result.expect("opens").tensors[0].bytes, BYTES);
    assert!(peak < 256 << 10, "{peak}");
}
