//! `tokenizer.model`: SentencePiece's protocol buffer, as far as GGUF has what is in it.
//!
//! A message is fields; a field is a tag (`number << 3 | wire type`) and a value: a
//! varint (0), 8 bytes (1), a length and as many bytes (2), or 4 bytes (5). Of the
//! model only field 1 is read, once a piece: its text (1), score (2, a float) and type (3).

use super::vocabulary::{MAX_TOKENS, Token, TokenType};

/// The pieces of the file, in the order of their ids.
pub(super) fn pieces(file: &[u8]) -> Result<Vec<Token>, String> {
    let mut pieces = Vec::new();
    let mut fields = Fields(file);
    while let Some((number, value)) = fields.next_field()? {
        if let (1, Value::Bytes(message)) = (number, value) {
            if pieces.len() == MAX_TOKENS {
                return Err(format!("it has more than {MAX_TOKENS} pieces"));
            }
            let piece = piece(message);
            pieces.push(piece.map_err(|why| format!("piece {}: {why}", pieces.len()))?);
        }
    }
    match pieces.is_empty() {
        true => Err("it has no pieces".into()),
        false => Ok(pieces),
    }
}

fn piece(message: &[u8]) -> Result<Token, String> {
    let mut token = Token {
        text: String::new(),
        token_type: TokenType::Normal,
        score: 0.0,
    };
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next_field()? {
        match (number, value) {
            (1, Value::Bytes(text)) => {
                let text = str::from_utf8(text).map_err(|_| "its text is not UTF-8")?;
                text.clone_into(&mut token.text);
            }
            (2, Value::Four(bits)) => token.score = f32::from_le_bytes(bits),
            (3, Value::Varint(kind)) => token.token_type = token_type(kind)?,
            _ => {}
        }
    }
    match token.score.is_finite() {
        true => Ok(token),
        false => Err(format!("its score is {}", token.score)),
    }
}

/// The numbers are those of GGUF. A user-defined piece is a normal one to llama.cpp,
/// unless a configuration names it.
fn token_type(number: u64) -> Result<TokenType, String> {
    Ok(match number {
        1 | 4 => TokenType::Normal,
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => return Err(format!("{number} is no type of a piece")),
    })
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Varint(u64),
    Eight,
    Bytes(&'a [u8]),
    Four([u8; 4]),
}

impl<'a> Fields<'a> {
    /// The next field's number and value.
    fn next_field(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Eight
            }
            2 => {
                let len = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                Value::Bytes(self.take(len)?)
            }
            5 => {
                let (bytes, rest) = self.0.split_first_chunk().ok_or_else(cut)?;
                self.0 = rest;
                Value::Four(*bytes)
            }
            other => return Err(format!("wire type {other} is none of a field's")),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?.first().copied().unwrap_or_default();
            let bits = u64::from(byte & 127);
            if bits.leading_zeros() < shift {
                break;
            }
            value |= bits << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err("a number has more than 64 bits".into())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        self.0.split_off(..len).ok_or_else(cut)
    }
}

fn cut() -> String {
    "it ends within a field".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pieces and a field of each other wire type.
    const FILE: &[u8] = &[
        0x0a, 0x0a, 0x0a, 0x01, b'a', 0x15, 0, 0, 0x80, 0xbf, 0x18, 0x06, // "a", -1.0, a byte
        0x0a, 0x03, 0x0a, 0x01, b'b', // "b"
        0x10, 0x96, 0x01, // field 2: 150
        0x19, 1, 2, 3, 4, 5, 6, 7, 8, // field 3: eight bytes
    ];

    #[test]
    fn pieces_have_text_score_and_type() {
        let pieces = pieces(FILE).unwrap();
        let expected = [("a", -1.0, TokenType::Byte), ("b", 0.0, TokenType::Normal)];
        assert_eq!(pieces.len(), expected.len());
        for (piece, (text, score, token_type)) in pieces.iter().zip(expected) {
            assert_eq!((piece.text.as_str(), piece.token_type), (text, token_type));
            assert!((piece.score - score).abs() < 1e-9);
        }
    }

    #[test]
    fn a_file_that_is_cut_or_damaged_is_an_error_and_never_a_panic() {
        // These are where a field ends.
        let whole = [12, 17, 20, 29];
        for len in 0..FILE.len() {
            assert_eq!(pieces(&FILE[..len]).is_ok(), whole.contains(&len), "{len}");
        }
        for at in 0..FILE.len() {
            for bit in 0..8 {
                let mut damaged = FILE.to_vec();
                damaged[at] ^= 1 << bit;
                let _ = pieces(&damaged);
            }
        }
        let endless = [&[0x10][..], &[0xff; 10], &[0x7f]].concat();
        assert!(pieces(&endless).unwrap_err().contains("64 bits"));
    }
}
