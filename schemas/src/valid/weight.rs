//! How much memory a text may take once it is parsed.
//!
//! A few bytes of JSON can become many in memory: each `"",` of a list of strings is
//! three bytes of text and 24 of `String`. Counted before anything is parsed, the values
//! of a manifest and the length of its strings bound what parsing allocates:
//! 16 MiB of text, as much in strings, and at most 48 bytes a value in lists while they
//! grow stay below 64 MiB. (Types that serde buffers, such as internally tagged enums,
//! would break this bound; no type of a manifest is one.)

use super::{InvalidManifest, invalid};
use crate::limits::{MAX_MANIFEST_VALUES, MAX_TEXT_BYTES};

/// Errors if `text` has more values or a longer string than a manifest may have.
/// Text that is no JSON passes: the parser says what is wrong with it.
pub(super) fn check(text: &[u8]) -> Result<(), InvalidManifest> {
    let mut values = 0_u64;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' | b'[' | b'{' => values += 1,
            b'"' => {
                let start = bytes.len();
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
                if start - bytes.len() > MAX_TEXT_BYTES {
                    let why = format!("a string of more than {MAX_TEXT_BYTES} bytes");
                    return Err(invalid("the manifest", why));
                }
            }
            _ => {}
        }
    }
    if values > MAX_MANIFEST_VALUES {
        let why = format!("{values} values, more than {MAX_MANIFEST_VALUES}");
        return Err(invalid("the manifest", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_strings_only() {
        let many = MAX_MANIFEST_VALUES as usize;
        let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert!(check(list(many).as_bytes()).is_ok());
        assert!(check(list(many + 1).as_bytes()).is_err());
        let text = format!(r#"["{}\"{}"]"#, ",[{".repeat(100_000), ",".repeat(500_000));
        assert!(check(text.as_bytes()).is_ok());
    }

    #[test]
    fn long_strings_are_refused_and_broken_ones_left_to_the_parser() {
        let string = |size: usize| format!("\"{}\"", "x".repeat(size));
        assert!(check(string(MAX_TEXT_BYTES - 1).as_bytes()).is_ok());
        assert!(check(string(MAX_TEXT_BYTES).as_bytes()).is_err());
        for text in ["\"", "\"\\", "\"\\\"", "", "]"] {
            assert!(check(text.as_bytes()).is_ok(), "{text}");
        }
    }
}
