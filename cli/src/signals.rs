//! Hang-up, interrupt and termination: long work stops at the next piece and cleans up.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use estream_runtime::Cancel;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// How often a running request is asked whether it is still wanted.
const LOOK_UP: Duration = Duration::from_millis(20);

static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Starts to watch. A second signal ends the process at once.
pub(crate) fn watch() -> io::Result<()> {
    let which = SIGNAL.get_or_init(Arc::default);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // `nohup` has it ignored, and means it.
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        let code = 128 + usize::try_from(signal).unwrap_or(0);
        let again = Arc::new(AtomicBool::new(false));
        // Order matters: the first signal arms the second's end of the process.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
        signal_hook::flag::register(signal, again)?;
        signal_hook::flag::register_usize(signal, Arc::clone(which), code)?;
    }
    // A file that grows too large is an error to report, not a reason to die half way.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// The exit code of the signal that was received, if one was.
pub(crate) fn received() -> Option<u8> {
    let code = SIGNAL.get()?.load(Ordering::Relaxed);
    u8::try_from(code).ok().filter(|code| *code != 0)
}

/// Whether work goes on.
pub(crate) fn go_on() -> ControlFlow<()> {
    match received() {
        None => ControlFlow::Continue(()),
        Some(_) => ControlFlow::Break(()),
    }
}

/// Does `work`, whose request `cancel` ends; a signal, of those that are watched, does so.
///
/// # Errors
/// If there is no thread to look out for one.
pub(crate) fn cancelling<R>(cancel: &Cancel, work: impl FnOnce() -> R) -> io::Result<R> {
    thread::scope(|scope| {
        // Dropped, be it by a panic, when the work is done.
        let (works, done) = channel::<()>();
        let look_out = move || {
            while done.recv_timeout(LOOK_UP) == Err(RecvTimeoutError::Timeout) {
                if received().is_some() {
                    cancel.cancel();
                }
            }
        };
        thread::Builder::new().spawn_scoped(scope, look_out)?;
        let result = work();
        drop(works);
        Ok(result)
    })
}

/// Whether the process was started with `signal` ignored, where the system says so.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signals count from 1.
    let bit = u32::try_from(signal - 1)
        .ok()
        .and_then(|at| 1_u64.checked_shl(at));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}
