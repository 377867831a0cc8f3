//! BLAKE3 digests, as values; computing them is left to those who read bytes.

use std::fmt;
use std::str::FromStr;

/// A BLAKE3 digest of 32 bytes: 64 lower-case hexadecimal digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// The text is not 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a digest of 64 lower-case hexadecimal digits")]
pub struct NotADigest;

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Digest, NotADigest> {
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(NotADigest),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(NotADigest);
        }
        for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = nibble(high)? << 4 | nibble(low)?;
        }
        Ok(Digest(bytes))
    }
}

crate::text::serde_as_text!(
    Digest,
    "Digest",
    "A BLAKE3 digest as 64 lower-case hexadecimal digits",
    "^[0-9a-f]{64}$"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_leads_back_to_the_same_digest() {
        let digest = Digest(std::array::from_fn(|i| (i * 37) as u8));
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for text in ["", "00", &"G".repeat(64), &"A".repeat(64), &"0".repeat(66)] {
            assert_eq!(text.parse::<Digest>(), Err(NotADigest));
        }
    }
}
