//! What later chunks of a prompt need of earlier ones.
//!
//! A prompt in one piece needs none of it: keys and values live in registers, for the
//! layer at work.

use crate::error::{RunError, resize};
use crate::ops::{Graph, HistoryForm, HistoryId};

const WHAT: &str = "the history of a prompt";

/// Of every operator that looks back, what it looks back on.
#[derive(Debug, Default)]
pub(crate) struct History {
    keep: bool,
    entries: Vec<[Vec<f32>; 2]>,
}

impl History {
    /// Forgets the last prompt. Rows of this one, which has `tokens` tokens, are kept
    /// only if there will be another chunk.
    pub(crate) fn begin(
        &mut self,
        graph: &Graph,
        tokens: usize,
        keep: bool,
    ) -> Result<(), RunError> {
        self.keep = keep;
        self.entries
            .resize_with(graph.histories.len(), Default::default);
        for (entry, form) in self.entries.iter_mut().zip(&graph.histories) {
            entry.iter_mut().for_each(Vec::clear);
            let lens = match *form {
                HistoryForm::State { len } => [len, 0],
                HistoryForm::Rows { .. } if !keep => [0, 0],
                HistoryForm::Rows { widths } => widths.map(|width| width.saturating_mul(tokens)),
            };
            for (part, len) in entry.iter_mut().zip(lens) {
                resize(WHAT, part, len)?;
            }
            if let HistoryForm::Rows { .. } = form {
                // Room for all of them, and none there yet.
                entry.iter_mut().for_each(Vec::clear);
            }
        }
        Ok(())
    }

    /// All rows so far, of which `rows` are the latest.
    pub(crate) fn rows<'a>(&'a mut self, id: HistoryId, rows: [&'a [f32]; 2]) -> [&'a [f32]; 2] {
        if !self.keep {
            return rows;
        }
        let entry = &mut self.entries[id.0];
        for (all, latest) in entry.iter_mut().zip(rows) {
            all.extend_from_slice(latest);
        }
        [&entry[0], &entry[1]]
    }

    /// What an operator left for itself; zeros at the start of a prompt.
    pub(crate) fn state(&mut self, id: HistoryId) -> &mut [f32] {
        &mut self.entries[id.0][0]
    }
}
