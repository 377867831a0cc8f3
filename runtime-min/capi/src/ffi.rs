//! The functions that C calls: pointers in, a status out.
#![expect(
    unsafe_code,
    reason = "C hands over pointers, and finds functions by their plain names"
)]

mod pointers;

use std::cell::Cell;
use std::ffi::{CString, OsStr, c_char, c_void};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use estream_runtime::reader::Verify;
use estream_runtime::{Choice, Positions};
use estream_schemas::plan::Schedule;

use crate::abi::{
    ESTREAM_ABI_VERSION, ESTREAM_CANNOT_RUN, ESTREAM_LOG_INFO, ESTREAM_OK, ESTREAM_POSITIONS_ALL,
    ESTREAM_POSITIONS_LAST, ESTREAM_POSITIONS_LIST, ESTREAM_VERIFY_ALWAYS,
    ESTREAM_VERIFY_FIRST_USE, ESTREAM_VERIFY_NEVER, Handle, Info, LogFn, Options, Request, Status,
};
use crate::failure::{self, Failure};
use crate::handles::Handles;
use crate::runtime::{Log, Open, Runtime, Wanted};
use pointers::{Buffer, Out};

static HANDLES: LazyLock<Mutex<Handles<Runtime>>> = LazyLock::new(|| Mutex::new(Handles::new()));

fn handles() -> MutexGuard<'static, Handles<Runtime>> {
    // A table is whole between any two of its statements.
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime(handle: Handle) -> Result<Arc<Runtime>, Failure> {
    handles().get(handle).ok_or_else(Failure::no_handle)
}

thread_local! {
    /// Whether a log function runs on this thread.
    static LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`; no panic leaves it, and what went wrong is kept for `estream_last_error`.
fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        if LOGGING.get() {
            let text = "a log function called estream; let it return first";
            return Err(Failure::usage(text));
        }
        body()
    }));
    match caught.unwrap_or_else(|panic| Err(Failure::bug(&*panic))) {
        Ok(()) => ESTREAM_OK,
        Err(failure) => {
            failure::remember(failure.message);
            failure.status
        }
    }
}

/// `ESTREAM_ABI_VERSION` of the library that is loaded. A program that was made for a later one
/// should not go on.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn estream_abi_version() -> u32 {
    ESTREAM_ABI_VERSION
}

/// Version of estream, as `0.1.0`.
///
/// Memory: the string is estream's and stays as long as the library is loaded. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn estream_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Copies the text of the last failure on the calling thread to `buffer`, empty if there was none.
/// A call that succeeds leaves it as it was, and so does this one if it fails.
///
/// Strings are copied like this everywhere: UTF-8 that ends with a NUL, for which `buffer` has
/// `capacity` bytes. `needed`, unless NULL, gets the bytes of the string with its NUL, also if they
/// are too many or `buffer` is NULL, which are `ESTREAM_USAGE` and leave `buffer` untouched.
///
/// Memory: the copy is the caller's. Threads: any, each has its own text. May be called by a log
/// function.
///
/// # Safety
/// `buffer` has `capacity` bytes, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_last_error(
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> Status {
    let copied = catch_unwind(|| {
        // SAFETY: the caller promises what `Buffer` wants.
        let buffer = unsafe { Buffer::new(buffer.cast::<u8>(), capacity, needed) };
        buffer?.fill_text(&failure::last())
    });
    match copied.unwrap_or_else(|panic| Err(Failure::bug(&*panic))) {
        Ok(()) => ESTREAM_OK,
        Err(failure) => failure.status,
    }
}

/// Opens the bundle in directory `path` and reads its weights, which can take seconds; `options`
/// may be NULL for defaults. `runtime` gets a handle, or 0 if this fails. Any number of runtimes
/// may be open, also of one bundle; they share nothing.
///
/// Memory: the handle is the caller's to close. Strings and structs are used during the call alone,
/// `log` and `log_user` until `estream_close` returns. The bundle's files stay open until then and
/// must not be changed; no byte of them is trusted, so changing them is an error of a later call.
/// Threads: any, several at once.
///
/// # Safety
/// `path` and the strings of `options` end with a NUL; `options->size` bytes of `options` can be
/// read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_open(
    path: *const c_char,
    options: *const Options,
    runtime: *mut Handle,
) -> Status {
    call(|| {
        // SAFETY: the caller promises a place for a handle.
        let out = unsafe { Out::new(runtime, "runtime") }?;
        out.write(0);
        // SAFETY: the caller promises a string.
        let path = unsafe { pointers::text(path) };
        let path = path.ok_or_else(|| Failure::usage("path is NULL"))?;
        let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
        // SAFETY: the caller promises `size` bytes, which are null pointers where they are zeros.
        let options: Options = unsafe { pointers::sized(options, "options") }?;
        // SAFETY: the caller promises strings.
        let plan = unsafe { pointers::utf8(options.plan, "plan") }?;
        // SAFETY: as before.
        let schedule = unsafe { pointers::utf8(options.schedule, "schedule") }?;
        let opened = Arc::new(Runtime::open(Open {
            path,
            threads: NonZeroUsize::new(options.threads),
            choice: choice(&options, plan, schedule)?,
            budget_bytes: Some(options.budget_bytes).filter(|bytes| *bytes > 0),
            expected: NonZeroUsize::new(options.expected_tokens)
                .map(|tokens| (tokens.get(), NonZeroUsize::new(options.expected_chunk))),
            verify: verify(options.verify)?,
            log: log(&options),
        })?);
        let handle = handles().insert(opened).ok_or_else(|| {
            Failure::new(ESTREAM_CANNOT_RUN, "too many runtimes are open; close some")
        })?;
        out.write(handle);
        Ok(())
    })
}

/// Writes the numbers of the model to `info`, whose `size` the caller has set.
///
/// Memory: `info` is the caller's. Threads: any; waits while another call uses the handle.
///
/// # Safety
/// `info->size` bytes of `info` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_model_info(handle: Handle, info: *mut Info) -> Status {
    call(|| {
        let found = runtime(handle)?.with(|session| {
            let model = session.model();
            Ok(Info {
                size: size_of::<Info>(),
                vocab: model.vocab(),
                hidden_width: model.hidden_width(),
                threads: model.backend().1,
                context: model.context(),
            })
        })?;
        // SAFETY: the caller promises `size` bytes, and all bytes of an `Info` may be written.
        unsafe { pointers::write_sized(info, &found, "info") }
    })
}

/// Copies a JSON object to `buffer` that says how a prompt of `tokens` tokens would be run: `why`,
/// `stream` (null if all experts stay in memory), `hot` (the same on a hot device; null if nothing is
/// said of one), `chunk`, `arena_bytes`. If `plan` is NULL it is about the runtime as it was opened,
/// and has `memory_bytes`; else about the plan of the bundle with that name, which is read and checked,
/// and not used. Copies as `estream_last_error` does.
///
/// Memory: the copy is the caller's; `plan` is used during the call alone. Threads: any; waits
/// while another call uses the handle.
///
/// # Safety
/// `plan` ends with a NUL; `buffer` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_plan(
    handle: Handle,
    plan: *const c_char,
    tokens: usize,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises what `Buffer` wants.
        let buffer = unsafe { Buffer::new(buffer.cast::<u8>(), capacity, needed) }?;
        // SAFETY: the caller promises a string.
        let plan = unsafe { pointers::utf8(plan, "plan") }?;
        if tokens == 0 {
            return Err(Failure::usage("tokens is 0; say how long the prompt is"));
        }
        let report = runtime(handle)?.with(|session| session.plan(plan, tokens))?;
        buffer.fill_text(&report)
    })
}

/// Runs the prompt of `count` token ids; `request` may be NULL for the logits of the last position.
/// Requests of a runtime run in turn and use the same arena.
///
/// Memory: the results are estream's, and stay until the next `estream_prefill` or `estream_close`
/// of the handle; a request that fails leaves none. `ids` and `request` are used during the call
/// alone. Threads: any; waits while another call uses the handle. Another thread can end it, see
/// `estream_cancel`.
///
/// # Safety
/// `ids` has `count` elements, `request->list` `request->list_len`, and nobody changes them
/// meanwhile; `request->size` bytes of `request` can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_prefill(
    handle: Handle,
    ids: *const u32,
    count: usize,
    request: *const Request,
) -> Status {
    call(|| {
        let runtime = runtime(handle)?;
        // SAFETY: the caller promises the elements.
        let ids = unsafe { pointers::slice(ids, count, "ids") }?;
        // SAFETY: the caller promises `size` bytes, which are null pointers where they are zeros.
        let request: Request = unsafe { pointers::sized(request, "request") }?;
        let positions = match request.positions {
            ESTREAM_POSITIONS_LIST => {
                // SAFETY: the caller promises the elements.
                let list = unsafe { pointers::slice(request.list, request.list_len, "list") }?;
                Positions::Some(list.to_vec())
            }
            _ if !request.list.is_null() || request.list_len > 0 => {
                let text = "there is a list, but positions is not ESTREAM_POSITIONS_LIST";
                return Err(Failure::usage(text));
            }
            ESTREAM_POSITIONS_LAST => Positions::Last,
            ESTREAM_POSITIONS_ALL => Positions::All,
            other => return Err(Failure::usage(format!("positions cannot be {other}"))),
        };
        let wanted = Wanted {
            positions,
            hidden: request.hidden != 0,
            chunk: NonZeroUsize::new(request.chunk),
            hot: request.hot != 0,
        };
        runtime.prefill(ids, wanted)
    })
}

/// Copies the logits at `position` of the last prompt, counted from 0, to `buffer`, which has room
/// for `capacity` floats; there are `vocab` of them, which `needed` gets unless it is NULL. Too
/// small a buffer is `ESTREAM_USAGE` and stays untouched; a position that was not asked for is
/// `ESTREAM_USAGE` too.
///
/// Memory: the copy is the caller's and outlives the handle. Threads: any; waits while another call
/// uses the handle.
///
/// # Safety
/// `buffer` has room for `capacity` floats, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_logits(
    handle: Handle,
    position: usize,
    buffer: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises what `Buffer` wants.
        let buffer = unsafe { Buffer::new(buffer, capacity, needed) }?;
        runtime(handle)?.with(|session| buffer.fill(session.logits(position)?))
    })
}

/// Copies the row that the head read at `position`, `hidden_width` floats, as `estream_logits`
/// does. The request must have asked for it.
///
/// Memory and threads: as `estream_logits`.
///
/// # Safety
/// As `estream_logits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_hidden(
    handle: Handle,
    position: usize,
    buffer: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises what `Buffer` wants.
        let buffer = unsafe { Buffer::new(buffer, capacity, needed) }?;
        runtime(handle)?.with(|session| buffer.fill(session.hidden(position)?))
    })
}

/// Copies a JSON object to `buffer` that says what the last request took: the members of `stats`
/// that `estream-run --stats --json` prints, and `bundle`, `tokens`, `rows` and `result_bytes`.
/// Copies as `estream_last_error` does.
///
/// Memory: the copy is the caller's. Threads: any; waits while another call uses the handle.
///
/// # Safety
/// `buffer` has `capacity` bytes, and nobody else uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estream_stats(
    handle: Handle,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the caller promises what `Buffer` wants.
        let buffer = unsafe { Buffer::new(buffer.cast::<u8>(), capacity, needed) }?;
        runtime(handle)?.with(|session| buffer.fill_text(session.stats()?))
    })
}

/// Asks the request that runs to end, and does not wait for that: its `estream_prefill` returns
/// `ESTREAM_CANCELLED` once the expert at work is done and reads under way have returned, or
/// `ESTREAM_OK` if it was about to end. The next request is not concerned. `ESTREAM_NO` if none
/// runs.
///
/// Threads: any; never waits for another call.
#[unsafe(no_mangle)]
pub extern "C" fn estream_cancel(handle: Handle) -> Status {
    call(|| runtime(handle)?.cancel())
}

/// Ends the request that runs as `estream_cancel` does, waits until it has ended, and frees
/// everything.
///
/// Memory: all of the handle's is freed, its files are closed, and the log function is not called
/// again; copies stay the caller's. Threads: any; the handle is none for every thread from the
/// start of this call, and calls that waited for it fail.
#[unsafe(no_mangle)]
pub extern "C" fn estream_close(handle: Handle) -> Status {
    call(|| {
        let runtime = handles().remove(handle).ok_or_else(Failure::no_handle)?;
        runtime.close();
        Ok(())
    })
}

fn choice(
    options: &Options,
    plan: Option<String>,
    schedule: Option<String>,
) -> Result<Choice, Failure> {
    let count = |number: usize| Some(number).filter(|number| *number > 0);
    let schedule = schedule.map(|name| {
        let known = Schedule::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or_else(|| {
            let names = Schedule::ALL.map(Schedule::name).join(", ");
            Failure::usage(format!("schedule {name:?}: name one of {names}"))
        })
    });
    let choice = Choice {
        plan,
        schedule: schedule.transpose()?,
        group: count(options.group),
        depth: count(options.depth),
        banks: count(options.banks),
        pin: None,
        throttle: None,
    };
    let numbers = [choice.group, choice.depth, choice.banks];
    let stated = choice.schedule.is_some() || numbers.iter().any(Option::is_some);
    if choice.plan.is_some() && stated {
        let text = "a plan says what schedule, group, depth and banks say; use one or the others";
        return Err(Failure::usage(text));
    }
    Ok(choice)
}

fn verify(when: u32) -> Result<Verify, Failure> {
    match when {
        ESTREAM_VERIFY_FIRST_USE => Ok(Verify::FirstUse),
        ESTREAM_VERIFY_ALWAYS => Ok(Verify::Always),
        ESTREAM_VERIFY_NEVER => Ok(Verify::Never),
        other => Err(Failure::usage(format!("verify cannot be {other}"))),
    }
}

/// A log function and what the caller wants back with each line.
struct Callback(LogFn, *mut c_void);

// SAFETY: the caller of `estream_open` promises that the function may be called on every thread that
// calls estream with the handle, and estream does not look behind the pointer.
unsafe impl Send for Callback {}

impl Callback {
    fn say(&self, level: u32, line: &str) {
        let Callback(Some(function), user) = *self else {
            return;
        };
        let line = CString::new(line.replace('\0', "\\0")).unwrap_or_default();
        LOGGING.set(true);
        // SAFETY: the caller of `estream_open` promises that it can be called until the runtime is
        // closed; lines are written while the runtime is opened, used, or being closed.
        unsafe { function(user, level, line.as_ptr()) };
        LOGGING.set(false);
    }
}

fn log(options: &Options) -> Log {
    let callback = Callback(options.log, options.log_user);
    let least = match options.log_level {
        0 => ESTREAM_LOG_INFO,
        level => level,
    };
    Log(Box::new(move |level, line| {
        if level <= least {
            callback.say(level, line);
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{ESTREAM_INTERNAL, ESTREAM_USAGE};

    #[test]
    fn a_panic_becomes_a_status_and_a_text() {
        assert_eq!(call(|| panic!("slot 7 is lost")), ESTREAM_INTERNAL);
        let text = failure::last();
        assert!(text.starts_with("slot 7 is lost; this is a bug"), "{text}");
    }

    #[test]
    fn names_of_this_version_are_taken_and_others_named() {
        assert_eq!(verify(ESTREAM_VERIFY_NEVER), Ok(Verify::Never));
        let failure = verify(3).unwrap_err();
        assert_eq!(
            (failure.status, &*failure.message),
            (ESTREAM_USAGE, "verify cannot be 3")
        );
    }
}
