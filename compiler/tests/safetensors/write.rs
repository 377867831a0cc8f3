//! Writes the bytes of a safetensors file, right or wrong.

/// A file with this header text and this data.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A header of one tensor, its fields as JSON text.
pub(crate) fn entry(name: &str, dtype: &str, shape: &str, range: &str) -> String {
    format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}}}"#)
}
