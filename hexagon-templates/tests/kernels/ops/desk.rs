//! The memory of one operator: a buffer that is spoilt wherever nothing was put.

use std::ops::Range;

use estream_hexagon::abi::{LayoutCode, Ref, Reply, Rows, Status, Weight};
use estream_hexagon::message::{MAP_ALIGN, Message};
use estream_hexagon::toolchain::Machine;
use estream_hexagon::wire::Described;

use super::stored::Matrix;
use crate::process::{Serve, reals};

const SPOILT: u8 = 0xee;

/// Operands, put one after another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk {
    bytes: Vec<u8>,
    /// Where results may be.
    results: Vec<Range<usize>>,
}

/// The memory after an operator.
#[derive(Debug)]
pub(crate) struct Done(Vec<u8>);

impl Desk {
    /// Bytes at a multiple of a vector, with something between.
    fn put(&mut self, bytes: &[u8]) -> Ref {
        let offset = (self.bytes.len() + 1).next_multiple_of(128);
        self.bytes.resize(offset, SPOILT);
        self.bytes.extend_from_slice(bytes);
        Ref {
            buffer: 0,
            offset: u32::try_from(offset).expect("buffers of tests are small"),
        }
    }

    /// Rows of numbers, at a stride of a vector more than they take.
    pub(crate) fn rows(&mut self, values: &[f32], width: usize) -> Rows {
        let stride = 4 * width.next_multiple_of(32) + 128;
        let mut bytes = Vec::new();
        for row in values.chunks_exact(width) {
            let end = bytes.len() + stride;
            bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
            bytes.resize(end - 128, 0);
            bytes.resize(end, SPOILT);
        }
        Rows {
            at: self.put(&bytes),
            stride: stride as u32,
            width: width as u32,
        }
    }

    /// Rows that the operator may change.
    pub(crate) fn changing(&mut self, values: &[f32], width: usize) -> Rows {
        let rows = self.rows(values, width);
        let start = rows.at.offset as usize;
        let stride = rows.stride as usize;
        let starts = (0..values.len() / width).map(|t| start + t * stride);
        self.results
            .extend(starts.map(|start| start..start + stride - 128));
        rows
    }

    /// Rows for results, with numbers that nobody wants.
    pub(crate) fn results(&mut self, tokens: u32, width: usize) -> Rows {
        let rows = self.changing(&vec![f32::NAN; tokens as usize * width], width);
        for range in &self.results {
            self.bytes[range.clone()].fill(0xff);
        }
        rows
    }

    /// Bytes for a result that is no rows.
    pub(crate) fn result_bytes(&mut self, count: usize) -> Ref {
        let at = self.put(&vec![0xff; count]);
        let start = at.offset as usize;
        self.results.push(start..start + count);
        at
    }

    pub(crate) fn list(&mut self, values: &[f32]) -> Ref {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.put(&bytes)
    }

    pub(crate) fn words(&mut self, values: &[u32]) -> Ref {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.put(&bytes)
    }

    pub(crate) fn weight(&mut self, matrix: &Matrix) -> Weight {
        Weight {
            at: self.put(&matrix.bytes),
            layout: LayoutCode::of(matrix.layout).expect("known").code(),
            rows: matrix.rows as u32,
            cols: matrix.cols as u32,
            zero: 0,
        }
    }

    /// The memory as it is before, a page longer than any message says.
    pub(crate) fn memory(&self) -> Vec<u8> {
        let page = MAP_ALIGN as usize;
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(page) + page, SPOILT);
        bytes
    }

    /// A process with this memory.
    pub(crate) fn serve(&self, machine: Machine, vtcm_bytes: u32) -> Serve {
        let mut serve = Serve::start(machine, vtcm_bytes);
        serve.share(&self.memory());
        serve
    }

    /// The memory after `op`, in which nothing but results may have changed; or what was wrong.
    pub(crate) fn run<T: Described>(
        &self,
        machine: Machine,
        vtcm_bytes: u32,
        op: &T,
    ) -> Result<Done, Reply> {
        let mut serve = self.serve(machine, vtcm_bytes);
        let reply = serve.run(&message(&serve, op));
        let before = self.memory();
        let after = serve.read(0, 0, before.len());
        let mut untouched = after.clone();
        for range in &self.results {
            untouched[range.clone()].copy_from_slice(&before[range.clone()]);
        }
        let changed = untouched.iter().zip(&before).position(|(a, b)| a != b);
        assert_eq!(changed, None, "a byte that is no result was written");
        assert_eq!(serve.process.finish(), Some(0), "the process ends well");
        match status(&reply) {
            Status::Ok => Ok(Done(after)),
            refused => {
                assert_eq!(reply.op, 0);
                assert!(refused == Status::NotFinite || after == before);
                Err(reply)
            }
        }
    }
}

/// A batch of one operator, whose buffer ends a page before its file.
pub(crate) fn message<T: Described>(serve: &Serve, op: &T) -> Vec<u8> {
    let mut buffers = serve.buffers();
    buffers[0].bytes -= MAP_ALIGN as u32;
    let mut message = Message::new(&buffers);
    message.push(op);
    message.bytes(3).expect("one operator fits a batch")
}

pub(crate) fn status(reply: &Reply) -> Status {
    Status::from_code(reply.status).expect("a status that abi.h has")
}

impl Done {
    /// Numbers of some rows, behind which there are zeros.
    pub(crate) fn rows(&self, rows: &Rows, tokens: u32) -> Vec<f32> {
        let (stride, width) = (rows.stride as usize, rows.width as usize);
        let starts = (0..tokens as usize).map(|t| rows.at.offset as usize + t * stride);
        let row = |start: usize| {
            let values = reals(&self.0[start..start + stride - 128]);
            assert!(values[width..].iter().all(|x| x.to_bits() == 0));
            values[..width].to_vec()
        };
        starts.flat_map(row).collect()
    }

    pub(crate) fn bytes(&self, at: Ref, count: usize) -> &[u8] {
        &self.0[at.offset as usize..][..count]
    }
}
