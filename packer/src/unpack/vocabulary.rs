//! Tokens as GGUF has them.

/// Tokens of a vocabulary.
pub(super) const MAX_TOKENS: usize = 1 << 20;

/// What a token is to llama.cpp, by its number in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) token_type: TokenType,
    /// What SentencePiece merges by.
    pub(super) score: f32,
}

impl Token {
    /// A token that is found before the rest of a text is taken apart.
    pub(super) fn added(content: &str, is_special: bool) -> Token {
        const SCORE: f32 = -1_000.0;
        let looks_special = [("<|", "|>"), ("<｜", "｜>"), ("<unused", ">")]
            .iter()
            .any(|(start, end)| content.starts_with(start) && content.ends_with(end))
            || ["<pad>", "<mask>"].contains(&content);
        let (text, token_type) = match is_special || looks_special {
            true => (content.to_owned(), TokenType::Control),
            // llama.cpp looks for these in the text itself.
            false => (content.replace('▁', " "), TokenType::UserDefined),
        };
        Token {
            text,
            token_type,
            score: SCORE,
        }
    }

    /// What stands for an id that no text becomes.
    fn padding(id: usize) -> Token {
        const SCORE: f32 = -10_000.0;
        Token {
            text: format!("[PAD{id}]"),
            token_type: TokenType::Unused,
            score: SCORE,
        }
    }
}

/// The tokens of a model of `count` by id, ids that have none padded; an added token stands
/// in for one of its id.
pub(super) fn by_id(
    tokens: impl IntoIterator<Item = (u64, Token)>,
    added: impl IntoIterator<Item = (u64, Token)>,
    count: u64,
) -> Result<Vec<Token>, String> {
    let size = usize::try_from(count).ok();
    let size = size.filter(|size| *size <= MAX_TOKENS);
    let size = size.ok_or_else(|| format!("{count} tokens are more than {MAX_TOKENS}"))?;
    let mut places: Vec<Option<Token>> = vec![None; size];
    let mut put = |id: u64, token: Token, may_replace: bool| {
        let place = usize::try_from(id).ok().and_then(|id| places.get_mut(id));
        let place = place.ok_or_else(|| format!("token {id} is beyond the model's {count}"))?;
        match place {
            Some(other) if !may_replace => {
                let (one, two) = (&other.text, &token.text);
                Err(format!("token {id} is both {one:?} and {two:?}"))
            }
            _ => {
                *place = Some(token);
                Ok(())
            }
        }
    };
    for (id, token) in tokens {
        put(id, token, false)?;
    }
    for (id, token) in added {
        put(id, token, true)?;
    }
    let filled = places.into_iter().enumerate();
    Ok(filled
        .map(|(id, token)| token.unwrap_or_else(|| Token::padding(id)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> Token {
        Token {
            text: text.to_owned(),
            token_type: TokenType::Normal,
            score: 0.0,
        }
    }

    #[test]
    fn ids_without_a_token_are_padded_and_added_tokens_stand_in() {
        let tokens = [(1, normal("b")), (0, normal("a"))];
        let added = [(1, Token::added("<|b|>", false))];
        let all = by_id(tokens, added, 3).unwrap();
        let texts: Vec<&str> = all.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(texts, ["a", "<|b|>", "[PAD2]"]);
        let types = all.iter().map(|token| token.token_type);
        let expected = [TokenType::Normal, TokenType::Control, TokenType::Unused];
        assert!(types.eq(expected));
    }

    #[test]
    fn two_tokens_of_one_id_and_ids_beyond_the_model_are_refused() {
        let twice = [(0, normal("a")), (0, normal("b"))];
        let why = by_id(twice, [], 2).unwrap_err();
        assert!(why.contains("\"a\" and \"b\""), "{why}");
        let why = by_id([(2, normal("a"))], [], 2).unwrap_err();
        assert!(why.contains("beyond"), "{why}");
        assert!(by_id([], [], u64::MAX).is_err());
    }

    #[test]
    fn what_is_not_special_is_looked_for_with_spaces() {
        let token = Token::added("▁hello▁", false);
        assert_eq!(token.text, " hello ");
        assert_eq!(token.token_type, TokenType::UserDefined);
        assert_eq!(Token::added("x", true).token_type, TokenType::Control);
    }
}
