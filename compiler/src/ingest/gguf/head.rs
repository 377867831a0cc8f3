//! A header that is read as far as it is asked for, and no further than allowed.

use std::io::Read;
use std::ops::Range;

use super::error::GgufFault;

/// Bytes of the first read: enough for a header without a vocabulary.
const FIRST_READ_BYTES: usize = 64 << 10;

/// A range of the header. 32 bits hold every offset into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The span with the length before it that every string has.
    pub(super) fn with_length(self) -> Span {
        Span {
            start: self.start.saturating_sub(8),
            end: self.end,
        }
    }

    /// From the start of `self` to the end of `last`.
    pub(super) fn to(self, last: Span) -> Span {
        Span {
            start: self.start,
            end: last.end,
        }
    }
}

const _: () = assert!(super::MAX_HEADER_BYTES <= u32::MAX as usize);

/// A cursor over the first bytes of a file, which it reads on demand.
#[derive(Debug)]
pub(super) struct Head<R> {
    reader: R,
    file_bytes: u64,
    max_bytes: usize,
    buffer: Vec<u8>,
    at: usize,
}

impl<R: Read> Head<R> {
    /// A cursor at the start of `reader`, which has `file_bytes` bytes, of which
    /// at most `max_bytes` may be asked for.
    pub(super) fn new(reader: R, file_bytes: u64, max_bytes: usize) -> Head<R> {
        Head {
            reader,
            file_bytes,
            max_bytes,
            buffer: Vec::new(),
            at: 0,
        }
    }

    /// Where the cursor is.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// The bytes at the cursor, up to `max`, without moving it.
    pub(super) fn peek(&mut self, max: usize) -> Result<&[u8], GgufFault> {
        let count = self.remaining().min(max as u64);
        let range = self.reach("the file", count)?;
        Ok(&self.buffer[range])
    }

    /// Steps over `count` bytes.
    pub(super) fn skip(&mut self, what: &'static str, count: u64) -> Result<Span, GgufFault> {
        let range = self.reach(what, count)?;
        self.at = range.end;
        let span = |offset| u32::try_from(offset).map_err(|_| GgufFault::HeaderTooLarge);
        Ok(Span {
            start: span(range.start)?,
            end: span(range.end)?,
        })
    }

    /// The bytes of a span this cursor returned.
    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        &self.buffer[span.range()]
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufFault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufFault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Refuses `count` things of at least `each` bytes that the rest of the file,
    /// or of an acceptable header, cannot hold.
    pub(super) fn expect(
        &self,
        what: &'static str,
        count: u64,
        each: u64,
    ) -> Result<u64, GgufFault> {
        let need = count.saturating_mul(each);
        self.check(what, need)?;
        Ok(need)
    }

    /// The header up to the cursor.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.buffer.truncate(self.at);
        give_back(&mut self.buffer);
        self.buffer
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufFault> {
        let range = self.reach(what, N as u64)?;
        self.at = range.end;
        let mut out = [0; N];
        out.copy_from_slice(&self.buffer[range]);
        Ok(out)
    }

    fn remaining(&self) -> u64 {
        self.file_bytes.saturating_sub(self.at())
    }

    fn check(&self, what: &'static str, need: u64) -> Result<usize, GgufFault> {
        let remain = self.remaining();
        if need > remain {
            return Err(GgufFault::Exhausted {
                what,
                at: self.at(),
                need,
                remain,
            });
        }
        usize::try_from(need)
            .ok()
            .and_then(|need| self.at.checked_add(need))
            .filter(|end| *end <= self.max_bytes)
            .ok_or(GgufFault::HeaderTooLarge)
    }

    /// Reads until `count` bytes after the cursor are in the buffer.
    fn reach(&mut self, what: &'static str, count: u64) -> Result<Range<usize>, GgufFault> {
        let end = self.check(what, count)?;
        let have = self.buffer.len();
        if end > have {
            let file_bytes = usize::try_from(self.file_bytes).unwrap_or(usize::MAX);
            // Doubling keeps the number of reads small; `end` is within both limits.
            let target = FIRST_READ_BYTES
                .max(have.saturating_mul(2))
                .min(file_bytes)
                .min(self.max_bytes)
                .max(end);
            self.buffer.reserve_exact(target - have);
            self.buffer.resize(target, 0);
            self.reader.read_exact(&mut self.buffer[have..])?;
        }
        Ok(self.at..end)
    }
}

/// Frees what a buffer no longer needs where it is at least half: shrinking may copy,
/// and for less the copy would be the larger cost.
pub(super) fn give_back(buffer: &mut Vec<u8>) {
    if buffer.capacity() / 2 >= buffer.len() {
        buffer.shrink_to_fit();
    }
}
