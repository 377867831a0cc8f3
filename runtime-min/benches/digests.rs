//! What comparing records with their digests costs beside reading them:
//! `cargo bench -p estream-runtime --bench digests`.
//!
//! Gigabytes (10⁹) a second of one thread that hashes, of one that reads past the page cache where the
//! file system lets it, and of one of each at the same time; the best of five.

use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

/// A record of OLMoE's shape, and how many: enough not to stay in a cache.
const RECORD_BYTES: usize = 3_538_944;
const RECORDS: usize = 64;
/// Of direct reads.
const ALIGN: usize = 4096;

fn best(mut work: impl FnMut()) -> f64 {
    let seconds = (0..5).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    (RECORDS * RECORD_BYTES) as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}

fn open(path: &std::path::Path) -> io::Result<(File, &'static str)> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()) {
        return Ok((file.into(), "direct"));
    }
    let file = rustix::fs::open(path, OFlags::RDONLY, Mode::empty())?;
    Ok((file.into(), "buffered"))
}

fn read(file: &File, slot: &mut [u8]) {
    use std::os::unix::fs::FileExt;
    for record in 0..RECORDS {
        let offset = (record * RECORD_BYTES) as u64;
        file.read_exact_at(slot, offset).expect("a record");
    }
}

fn hash(record: &[u8]) {
    for _ in 0..RECORDS {
        std::hint::black_box(blake3::hash(std::hint::black_box(record)));
    }
}

fn main() -> io::Result<()> {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("digests");
    let record: Vec<u8> = (0..RECORD_BYTES).map(|i| (i % 251) as u8).collect();
    let mut made = File::create(&path)?;
    for _ in 0..RECORDS {
        made.write_all(&record)?;
    }
    made.sync_all()?;
    let (file, mode) = open(&path)?;
    let mut memory = vec![0; RECORD_BYTES + ALIGN];
    let start = memory.as_ptr().align_offset(ALIGN);
    let slot = &mut memory[start..start + RECORD_BYTES];
    let hashing = best(|| hash(&record));
    let reading = best(|| read(&file, slot));
    let both = best(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| hash(&record));
            read(&file, slot);
        });
    });
    std::fs::remove_file(&path)?;
    let mut out = io::stdout();
    writeln!(out, "hashing      {hashing:6.2} GB/s")?;
    writeln!(out, "reading      {reading:6.2} GB/s ({mode})")?;
    writeln!(out, "both at once {both:6.2} GB/s of each")
}
