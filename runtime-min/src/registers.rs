//! The registers of a pass: T × width f32 each, allocated once.

use crate::error::{RunError, resize};
use crate::ops::{Graph, RegisterId};

/// Every register of a program, for the same rows.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    data: Vec<Vec<f32>>,
}

impl Registers {
    /// Makes room for `rows` rows; memory of an earlier pass is used again.
    pub(crate) fn reset(&mut self, graph: &Graph, rows: usize) -> Result<(), RunError> {
        const WHAT: &str = "registers";
        self.data.resize_with(graph.registers.len(), Vec::new);
        for (register, form) in self.data.iter_mut().zip(&graph.registers) {
            let len = form.width.checked_mul(rows).ok_or(RunError::Memory {
                what: WHAT,
                bytes: u64::MAX,
            })?;
            resize(WHAT, register, len)?;
        }
        Ok(())
    }

    pub(crate) fn get(&self, id: RegisterId) -> &[f32] {
        &self.data[id.0]
    }

    pub(crate) fn get_mut(&mut self, id: RegisterId) -> &mut [f32] {
        &mut self.data[id.0]
    }

    /// Lets `write` fill `out` while it reads the others; `out` reads as empty then.
    pub(crate) fn write<R>(
        &mut self,
        out: RegisterId,
        write: impl FnOnce(&Registers, &mut [f32]) -> R,
    ) -> R {
        let mut taken = std::mem::take(&mut self.data[out.0]);
        let result = write(self, &mut taken);
        self.data[out.0] = taken;
        result
    }

    /// Makes these registers hold rows `chosen` of `from`, in that order.
    pub(crate) fn gather(
        &mut self,
        graph: &Graph,
        from: &Registers,
        chosen: &[usize],
    ) -> Result<(), RunError> {
        self.reset(graph, chosen.len())?;
        let pairs = self.data.iter_mut().zip(&from.data);
        for ((out, from), form) in pairs.zip(&graph.registers) {
            let width = form.width;
            for (out, &row) in out.chunks_exact_mut(width).zip(chosen) {
                out.copy_from_slice(&from[row * width..(row + 1) * width]);
            }
        }
        Ok(())
    }
}
