//! Ends the process, and says the seed, when a request does not end.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// No request runs.
const NONE: u64 = u64::MAX;

static SEED: AtomicU64 = AtomicU64::new(NONE);

/// Aborts once the same request runs for longer than `limit`.
pub(crate) fn start(limit: Duration) {
    std::thread::spawn(move || {
        let mut last = NONE;
        loop {
            std::thread::sleep(limit);
            let seed = SEED.load(Ordering::Relaxed);
            if seed == last && seed != NONE {
                let mut out = std::io::stderr();
                let _ = writeln!(out, "seed {seed}: the request does not end");
                std::process::abort();
            }
            last = seed;
        }
    });
}

/// The request of a seed begins.
pub(crate) fn begins(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// The last request has ended.
pub(crate) fn ends() {
    begins(NONE);
}
