//! Which part of a stored tensor a role is, checked against the tensor's shape.

use super::view::View;
use crate::arch::{Encoding, Expr, Keys, TensorRole};
use crate::ingest::SourceTensor;

/// Where the sizes of a role's form get their values.
#[derive(Clone, Copy)]
pub(super) struct Sizes<'a> {
    pub(super) keys: &'a Keys,
    pub(super) layer: Option<u64>,
}

impl Sizes<'_> {
    fn of(self, expr: &Expr) -> Result<u64, String> {
        let value = expr.value(self.keys, self.layer);
        value.map_err(|error| error.to_string())
    }

    fn of_or(self, expr: &Option<Expr>, otherwise: u64) -> Result<u64, String> {
        expr.as_ref().map_or(Ok(otherwise), |expr| self.of(expr))
    }

    fn shape(self, shape: &[Expr]) -> Result<Vec<u64>, String> {
        shape.iter().map(|size| self.of(size)).collect()
    }

    /// The shape of `role`'s matrix as `encoding` stores it.
    pub(super) fn stored(self, role: &TensorRole, encoding: &Encoding) -> Result<Vec<u64>, String> {
        if let Some(stored) = &encoding.stored {
            return self.shape(stored);
        }
        let mut shape = self.shape(&role.shape)?;
        if encoding.transposed {
            shape.reverse();
        }
        Ok(shape)
    }
}

/// Where `role` is in `source`, of whose stacked matrices it may be one (index and
/// count). The view names no tensor yet.
pub(super) fn window(
    sizes: Sizes<'_>,
    role: &TensorRole,
    source: &SourceTensor,
    encoding: &Encoding,
    place: Option<(u64, u64)>,
) -> Result<View, String> {
    let shape = sizes.shape(&role.shape)?;
    let stored = sizes.stored(role, encoding)?;
    let first_row = sizes.of_or(&encoding.first_row, 0)?;
    let row_step = sizes.of_or(&encoding.row_step, 1)?;
    let rope_pairs = encoding.rope_pairs_of_heads.as_ref();
    let heads = rope_pairs.map(|size| sizes.of(size)).transpose()?;

    let count = place.map(|(_, count)| count);
    let expected: Vec<u64> = count.into_iter().chain(stored.iter().copied()).collect();
    if source.shape != expected {
        return Err(format!(
            "wrong shape: {:?} is {:?}, {} must be {expected:?}",
            source.name, source.shape, role.role
        ));
    }
    let (Some((&last, rest)), false) = (stored.split_last(), source.shape.contains(&0)) else {
        return Err(format!("{:?} has no elements", source.name));
    };
    // The shape is that of a tensor in a file, so no product of its sizes overflows.
    let stored_rows: u64 = rest.iter().product();
    let ((rows, cols), (stored_rows, stored_cols)) = match shape[..] {
        [rows, cols] => ((rows, cols), (stored_rows, last)),
        // A vector that is stored as it is, is one row. Of any other, elements are rows.
        [len] if heads.is_none() && (first_row, row_step, len) == (0, 1, stored_rows * last) => {
            ((1, len), (1, len))
        }
        [len] => ((len, 1), (stored_rows * last, 1)),
        _ => return Err(format!("descriptor: {} is no matrix", role.role)),
    };
    let (limit, length) = match encoding.transposed {
        true => (stored_cols, stored_rows),
        false => (stored_rows, stored_cols),
    };
    let end = rows
        .checked_sub(1)
        .and_then(|last| last.checked_mul(row_step)?.checked_add(first_row));
    if row_step == 0 || length != cols || end.is_none_or(|end| end >= limit) {
        return Err(format!(
            "descriptor: {} is {rows} rows of {cols} from row {first_row} in steps of {row_step}, {:?} has {limit} of {length}",
            role.role, source.name
        ));
    }
    let moves_elements = encoding.transposed || (shape.len() == 1 && cols == 1);
    if moves_elements && source.dtype.is_quantised() {
        return Err(format!(
            "{:?} is {} in another order than {}, and blocks cannot be taken apart without quantising again",
            source.name, source.dtype, role.role
        ));
    }
    let rope_head_rows = heads
        .map(|heads| head_rows(role, rows, heads))
        .transpose()?;
    let (index, count) = place.unwrap_or((0, 1));
    Ok(View {
        tensor: 0,
        dtype: source.dtype,
        rows,
        cols,
        base_bytes: source.bytes / count.max(1) * index,
        stored_cols,
        first_row,
        row_step,
        transposed: encoding.transposed,
        rope_head_rows,
        scales: None,
    })
}

/// Rows of one of `heads` heads, whose halves are to be paired.
fn head_rows(role: &TensorRole, rows: u64, heads: u64) -> Result<u64, String> {
    match rows.checked_rem(heads) {
        Some(0) if (rows / heads).is_multiple_of(2) => Ok(rows / heads),
        _ => Err(format!(
            "descriptor: {} has {rows} rows, not {heads} heads of pairs",
            role.role
        )),
    }
}
