//! Types and constants that C sees.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

use estream_schemas::exit::Exit;

/// Version of this header. A library with the same version has everything in it; see
/// `estream_abi_version`.
pub const ESTREAM_ABI_VERSION: u32 = 1;

/// Done.
pub const ESTREAM_OK: i32 = 0;
/// Done, and the answer is no: there was nothing to cancel.
pub const ESTREAM_NO: i32 = 1;
/// The call is wrong: a null pointer, a handle that is none, a buffer that is too small, a
/// prompt that the model cannot have.
pub const ESTREAM_USAGE: i32 = 2;
/// This machine or this budget cannot do it.
pub const ESTREAM_CANNOT_RUN: i32 = 3;
/// The bundle or a plan is invalid or corrupt.
pub const ESTREAM_INVALID: i32 = 4;
/// The machine failed: permissions, a read error.
pub const ESTREAM_IO: i32 = 5;
/// Bytes do not have the digest that the bundle states.
pub const ESTREAM_INTEGRITY: i32 = 6;
/// A bug in estream. Close the handle.
pub const ESTREAM_INTERNAL: i32 = 70;
/// The request was cancelled: what a shell says of a program that was interrupted.
pub const ESTREAM_CANCELLED: i32 = 130;

const _: () = {
    assert!(ESTREAM_OK == Exit::Ok as i32);
    assert!(ESTREAM_NO == Exit::No as i32);
    assert!(ESTREAM_USAGE == Exit::Usage as i32);
    assert!(ESTREAM_CANNOT_RUN == Exit::CannotRun as i32);
    assert!(ESTREAM_INVALID == Exit::Invalid as i32);
    assert!(ESTREAM_IO == Exit::Io as i32);
    assert!(ESTREAM_INTEGRITY == Exit::Integrity as i32);
    assert!(ESTREAM_INTERNAL == Exit::Internal as i32);
};

/// What a function says: one of `ESTREAM_OK` to `ESTREAM_CANCELLED`. The numbers are the exit codes of
/// the estream programs.
pub type Status = i32;

/// A runtime: an open bundle with its weights, and the results of its last request. 0 is none, and
/// a number that was closed is never given out again.
pub type Handle = u64;

/// Records are compared with their digests the first time they are read.
pub const ESTREAM_VERIFY_FIRST_USE: u32 = 0;
/// Each time they are read.
pub const ESTREAM_VERIFY_ALWAYS: u32 = 1;
/// Not at all.
pub const ESTREAM_VERIFY_NEVER: u32 = 2;

/// Results for the last position.
pub const ESTREAM_POSITIONS_LAST: u32 = 0;
/// Results for every position.
pub const ESTREAM_POSITIONS_ALL: u32 = 1;
/// Results for the positions in `list`.
pub const ESTREAM_POSITIONS_LIST: u32 = 2;

/// A call on the handle failed.
pub const ESTREAM_LOG_ERROR: u32 = 1;
/// Something is slower than it could be.
pub const ESTREAM_LOG_WARNING: u32 = 2;
/// What was done.
pub const ESTREAM_LOG_INFO: u32 = 3;

/// Takes a line of a runtime's log: `user` is `log_user` of its options, `level` one of
/// `ESTREAM_LOG_ERROR` to `ESTREAM_LOG_INFO`, `message` UTF-8 that is gone when the function returns.
///
/// It is called on the thread that called estream, before that call returns, for one line of a
/// runtime at a time. It must return: no exception, no `longjmp`. Calls of estream in it fail with
/// `ESTREAM_USAGE`, `estream_last_error` excepted.
pub type LogFn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: u32, message: *const c_char)>;

/// How a runtime is opened. Zeros are defaults: set `size`, then what should differ. A later
/// version may add members at the end; what is beyond `size` counts as zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `sizeof(estream_options)`.
    pub size: usize,
    /// Threads to compute with; 0 is as many as the machine has. Results do not depend on it.
    pub threads: usize,
    /// Name of a plan in the bundle, or NULL. It says what the next four say.
    pub plan: *const c_char,
    /// `resident`, `on-demand`, `prefetch`, `early`, `compact` or `ahead`; NULL is `ahead`.
    pub schedule: *const c_char,
    /// G, experts a group; 0 is a quarter of a layer, but at most 8.
    pub group: usize,
    /// Q, reads at a time; 0 is 2.
    pub depth: usize,
    /// B, groups in memory; 0 is 3.
    pub banks: usize,
    /// The most memory a request may take, weights and results included; 0 is no limit.
    pub budget_bytes: u64,
    /// Tokens of the longest prompt to come, or 0: a budget that is too small for it is refused
    /// before any weight is read. Results are not counted yet.
    pub expected_tokens: usize,
    /// `chunk` of that request.
    pub expected_chunk: usize,
    /// Takes the log, or NULL.
    pub log: LogFn,
    /// The first argument of `log`; estream does not look at it.
    pub log_user: *mut c_void,
    /// The least important level to log; 0 is all.
    pub log_level: u32,
    /// One of `ESTREAM_VERIFY_FIRST_USE` to `ESTREAM_VERIFY_NEVER`. Weights outside experts are
    /// compared when they are read, which is once, unless it is the last.
    pub verify: u32,
}

/// What to compute for a prompt. Zeros are defaults, as for `estream_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// `sizeof(estream_request)`.
    pub size: usize,
    /// With `ESTREAM_POSITIONS_LIST`, positions in any order, counted from 0; else NULL.
    pub list: *const usize,
    /// How many.
    pub list_len: usize,
    /// Tokens that go through the model together; 0 is what the plan says, or all. Results do not
    /// depend on it, memory does, and each chunk goes through the experts again.
    pub chunk: usize,
    /// One of `ESTREAM_POSITIONS_LAST` to `ESTREAM_POSITIONS_LIST`.
    pub positions: u32,
    /// Not 0 to keep the rows that the head reads too.
    pub hidden: u32,
    /// Not 0 if the device is hot: experts are streamed as the plan says for that, where it says so; else
    /// this changes nothing. Results do not depend on it.
    pub hot: usize,
}

// Members fill it, so that one to come is not where this version has padding.
const _: () = assert!(size_of::<Request>() == offset_of!(Request, hot) + size_of::<usize>());

/// Numbers of an open model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// `sizeof(estream_info)`, set by the caller.
    pub size: usize,
    /// Logits a position, and ids there are.
    pub vocab: usize,
    /// Elements of a hidden row.
    pub hidden_width: usize,
    /// Threads it computes with.
    pub threads: usize,
    /// Tokens a prompt may have.
    pub context: u64,
}
