//! Messages to a process that runs the kernels: batches, and what its pipe has besides (`c/pipe.h`).

use crate::abi::{Batch, Buffer, MAGIC, MAX_BATCH_BYTES, VERSION};
use crate::wire::{Described, Wire, wire};

/// Begins a message that maps a file.
pub const MAP_MAGIC: u32 = 0x2050_414d;
/// Begins a message that forgets one.
pub const UNMAP_MAGIC: u32 = 0x5041_4d55;
/// Handles are below this.
pub const MAX_HANDLES: u32 = 64;
/// Bytes of a file's name.
pub const MAX_PATH_BYTES: u32 = 4096;
/// A file's size is a multiple of this, or it is refused: a page of the emulator.
pub const MAP_ALIGN: u64 = 65_536;

wire! {
    /// Makes a file the memory `handle`; its name follows. Or forgets it, with no name.
    Map = "pipe_map" {
        /// [`MAP_MAGIC`] or [`UNMAP_MAGIC`].
        magic: u32,
        /// Comes back in the reply.
        sequence: u32,
        /// What [`Buffer::handle`] names it by.
        handle: u32,
        /// Bytes that follow.
        path_bytes: u32,
    }
}

impl Map {
    /// The message that maps the file `path` names; `None` if the name is too long.
    pub fn file(sequence: u32, handle: u32, path: &[u8]) -> Option<Vec<u8>> {
        let path_bytes = u32::try_from(path.len()).ok();
        let head = Map {
            magic: MAP_MAGIC,
            sequence,
            handle,
            path_bytes: path_bytes.filter(|n| *n <= MAX_PATH_BYTES)?,
        };
        Some([head.to_bytes().as_slice(), path].concat())
    }

    /// The message that forgets it.
    pub fn forget(sequence: u32, handle: u32) -> Vec<u8> {
        let head = Map {
            magic: UNMAP_MAGIC,
            sequence,
            handle,
            path_bytes: 0,
        };
        head.to_bytes()
    }
}

/// A message of operators, built one after another.
#[derive(Clone, Debug, Default)]
pub struct Message {
    buffers: Vec<Buffer>,
    ops: Vec<u8>,
    op_count: u32,
}

impl Message {
    /// One that names `buffers`, in this order.
    pub fn new(buffers: &[Buffer]) -> Message {
        Message {
            buffers: buffers.to_vec(),
            ..Message::default()
        }
    }

    /// Appends an operator.
    pub fn push<T: Described>(&mut self, op: &T) {
        op.put(&mut self.ops);
        self.op_count += 1;
    }

    /// The bytes to send; `None` if they are more than [`MAX_BATCH_BYTES`].
    pub fn bytes(&self, sequence: u32) -> Option<Vec<u8>> {
        let bytes = Batch::BYTES + self.buffers.len() * Buffer::BYTES + self.ops.len();
        let head = Batch {
            magic: MAGIC,
            version: VERSION,
            bytes: u32::try_from(bytes)
                .ok()
                .filter(|n| *n <= MAX_BATCH_BYTES)?,
            sequence,
            buffer_count: u32::try_from(self.buffers.len()).ok()?,
            op_count: self.op_count,
            zero: [0; 2],
        };
        let mut out = head.to_bytes();
        self.buffers.iter().for_each(|buffer| buffer.put(&mut out));
        out.extend_from_slice(&self.ops);
        Some(out)
    }
}
