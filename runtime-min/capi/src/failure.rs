//! A status and a text: why a call failed.

use std::any::Any;
use std::cell::RefCell;

use estream_runtime::RunError;
use estream_runtime::reader::ReadError;
use estream_schemas::exit::Exit;

use crate::abi::{ESTREAM_CANCELLED, ESTREAM_INTERNAL, ESTREAM_NO, ESTREAM_USAGE, Status};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// For people; no NUL in it.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Failure {
        let mut message = message.into();
        if message.contains('\0') {
            message = message.replace('\0', "\\0");
        }
        Failure { status, message }
    }

    /// The caller's mistake.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(ESTREAM_USAGE, message)
    }

    /// The answer is no.
    pub(crate) fn no(message: impl Into<String>) -> Failure {
        Failure::new(ESTREAM_NO, message)
    }

    /// No runtime has this handle.
    pub(crate) fn no_handle() -> Failure {
        Failure::usage("the handle is none of an open runtime: it was closed, or never given out")
    }

    /// A panic, by what it was told.
    pub(crate) fn bug(payload: &(dyn Any + Send)) -> Failure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("a panic without a text");
        Failure::new(
            ESTREAM_INTERNAL,
            format!("{text}; this is a bug in estream: close the handle, and report it"),
        )
    }
}

fn of_exit(exit: Exit, message: String) -> Failure {
    Failure::new(Status::from(exit.code()), message)
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Cancelled => Failure::new(ESTREAM_CANCELLED, error.to_string()),
            error => of_exit(error.exit(), error.to_string()),
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        of_exit(error.exit(), error.to_string())
    }
}

thread_local! {
    /// Of the last call that failed on this thread.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the text for [`last`].
pub(crate) fn remember(message: String) {
    // A thread that ends has nobody left to ask.
    let _ = LAST.try_with(|last| *last.borrow_mut() = message);
}

/// What this thread's last failure was, empty if there was none.
pub(crate) fn last() -> String {
    LAST.try_with(|last| last.borrow().clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_can_always_be_a_string_of_c() {
        assert_eq!(Failure::usage("a\0b").message, "a\\0b");
    }

    #[test]
    fn a_thread_remembers_its_own_failures_only() {
        remember("here".to_owned());
        let other = std::thread::spawn(last).join().unwrap();
        assert_eq!((last().as_str(), other.as_str()), ("here", ""));
    }
}
