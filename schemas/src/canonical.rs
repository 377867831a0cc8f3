//! Canonical JSON: the one way estream writes a file that has a digest.

use serde::Serialize;

/// `value` with fields in declaration order, two spaces, LF, and a final LF.
pub fn to_vec<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut out = serde_json::to_vec_pretty(value)?;
    out.push(b'\n');
    Ok(out)
}
