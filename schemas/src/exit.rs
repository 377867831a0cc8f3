//! Exit codes, the same for every estream binary.

/// What a process says with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, and the answer is yes.
    Ok = 0,
    /// Done, and the answer is no: files differ, a check fails.
    No = 1,
    /// The command line or a recipe is wrong.
    Usage = 2,
    /// The target or the budget cannot run this.
    CannotRun = 3,
    /// The input is invalid or corrupt.
    Invalid = 4,
    /// The machine failed: disk full, permissions, a read error.
    Io = 5,
    /// A digest or signature does not match.
    Integrity = 6,
    /// A bug of ours.
    Internal = 70,
}

impl Exit {
    /// The number the process exits with.
    pub fn code(self) -> u8 {
        self as u8
    }
}
