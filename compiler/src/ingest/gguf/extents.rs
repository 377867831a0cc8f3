//! Where tensors lie: aligned, disjoint, without room to hide anything, in the file.

use super::error::GgufFault;
use super::header::{Gguf, TensorInfo};

/// Checks the extents of all tensors against each other and a file of `file_bytes`.
///
/// Up to one alignment of padding may precede each tensor and follow the last:
/// some writers pad where no padding is due.
pub(super) fn check(gguf: &Gguf, file_bytes: u64) -> Result<(), GgufFault> {
    let alignment = gguf.alignment();
    let mut tensors: Vec<TensorInfo<'_>> = gguf.tensors().collect();
    tensors.sort_by_key(|tensor| tensor.offset);

    let mut end = 0u64;
    let mut previous: Option<&TensorInfo<'_>> = None;
    for tensor in &tensors {
        let name = || tensor.name.to_owned();
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(GgufFault::Misaligned {
                tensor: name(),
                offset: tensor.offset,
                alignment,
            });
        }
        let Some(gap_bytes) = tensor.offset.checked_sub(end) else {
            return Err(GgufFault::Overlap {
                tensor: name(),
                previous: previous.map_or_else(String::new, |tensor| tensor.name.to_owned()),
            });
        };
        if gap_bytes > alignment {
            return Err(GgufFault::Gap {
                tensor: name(),
                gap_bytes,
                alignment,
            });
        }
        end = tensor
            .offset
            .checked_add(tensor.bytes)
            .ok_or_else(|| GgufFault::TensorTooLarge {
                tensor: name(),
                dims: tensor.dims.to_vec(),
            })?;
        previous = Some(tensor);
    }

    // A file without tensors may end with its header, before any padding.
    let expected = match previous {
        None => gguf.data_start().min(file_bytes),
        Some(_) => gguf.data_start().saturating_add(end),
    };
    match file_bytes.checked_sub(expected) {
        None => Err(GgufFault::Truncated {
            expected,
            have: file_bytes,
        }),
        Some(trailing) if trailing > alignment => Err(GgufFault::Trailing(trailing)),
        Some(_) => Ok(()),
    }
}
