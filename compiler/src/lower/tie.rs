//! Tied embeddings: one table that is read as the embedding and as the head.
//!
//! A tied table is stored once, as the head. Checkpoints state a tie in a
//! configuration key, by leaving a tensor out, or by storing it twice.

use super::resolve::Resolver;
use crate::arch::{Descriptor, Keys, TensorRole};
use crate::ingest::{Checkpoint, IngestError, Notice};

/// Bytes compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Which tensor serves for both roles, if one does.
pub(super) struct Tie<'a> {
    /// The role that is stored (the head).
    pub(super) stored: &'a TensorRole,
    /// The role that is not, because the stored one serves for it (the embedding).
    pub(super) spared: &'a TensorRole,
    /// The role whose tensor is in the checkpoint.
    pub(super) present: &'a TensorRole,
}

/// The tie of this checkpoint.
pub(super) fn find<'a>(
    checkpoint: &Checkpoint,
    descriptor: &'a Descriptor,
    keys: &Keys,
    resolver: &mut Resolver<'a>,
    notices: &mut Vec<Notice>,
) -> Result<Option<Tie<'a>>, IngestError> {
    let tie = descriptor.tensor.iter().find_map(|stored| {
        let spared = descriptor.role(stored.tied_to.as_deref()?)?;
        Some((stored, spared))
    });
    let Some((stored, spared)) = tie else {
        return Ok(None);
    };
    let tied = |present| {
        Ok(Some(Tie {
            stored,
            spared,
            present,
        }))
    };
    let key = stored.tied_if.as_deref().filter(|key| keys.has(key));
    let stated = key.map(|key| resolver.problems.or(keys.boolean(key), true));
    match (resolver.find(stored), resolver.find(spared)) {
        (Some(_), None) => tied(stored),
        (None, Some(_)) => {
            if stated == Some(false) {
                resolver.problems.push(format!(
                    "no {} tensor, and the configuration does not tie it to {}",
                    stored.role, spared.role
                ));
            }
            // What is wrong is said above, once, rather than again as a missing tensor.
            tied(spared)
        }
        (Some(head), Some(table)) if stated == Some(true) => {
            let (head_name, table_name) = (name(checkpoint, head), name(checkpoint, table));
            if equal(checkpoint, head, table)? {
                notices.push(Notice::Other(format!(
                    "{table_name:?} and {head_name:?} are tied and equal: stored once"
                )));
                resolver.alias(table, &head_name);
                tied(stored)
            } else {
                notices.push(Notice::Surprise(format!(
                    "the configuration ties {table_name:?} and {head_name:?}, but they differ: both are kept"
                )));
                Ok(None)
            }
        }
        _ => Ok(None),
    }
}

fn name(checkpoint: &Checkpoint, tensor: usize) -> String {
    checkpoint.tensors[tensor].name.clone()
}

fn equal(checkpoint: &Checkpoint, a: usize, b: usize) -> Result<bool, IngestError> {
    let (a, b) = (&checkpoint.tensors[a], &checkpoint.tensors[b]);
    if (a.dtype, &a.shape) != (b.dtype, &b.shape) {
        return Ok(false);
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut offset = 0;
    while offset < a.bytes {
        let now = (a.bytes - offset).min(CHUNK_BYTES as u64);
        let len = usize::try_from(now).unwrap_or(CHUNK_BYTES);
        left.resize(len, 0);
        right.resize(len, 0);
        checkpoint.read(a, offset, &mut left)?;
        checkpoint.read(b, offset, &mut right)?;
        if left != right {
            return Ok(false);
        }
        offset += now;
    }
    Ok(true)
}
