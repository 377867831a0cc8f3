//! `tokenizer.json`, as far as GGUF has what is in it.
//!
//! The file was written by others: lists are bounded, and what is not used is skipped.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::vocabulary::{MAX_TOKENS, Token, TokenType, by_id};

/// Merges of a vocabulary.
const MAX_MERGES: usize = 1 << 21;
/// Pieces of a template.
const MAX_PIECES: usize = 64;

/// The file.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerJson {
    model: Model,
    #[serde(default)]
    added_tokens: Bounded<AddedToken, MAX_TOKENS>,
    #[serde(default)]
    post_processor: Option<PostProcessor>,
}

#[derive(Debug, Deserialize)]
struct Model {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    vocab: Ids,
    #[serde(default)]
    merges: Bounded<Merge, MAX_MERGES>,
}

/// A token that is found before the rest of a text is taken apart.
#[derive(Debug, Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

/// What is put around a text.
#[derive(Debug, Deserialize)]
struct PostProcessor {
    #[serde(default)]
    processors: Bounded<PostProcessor, MAX_PIECES>,
    #[serde(default)]
    single: Bounded<Piece, MAX_PIECES>,
}

#[derive(Debug, Deserialize)]
struct Piece {
    #[serde(default, rename = "SpecialToken")]
    special: Option<SpecialToken>,
}

#[derive(Debug, Deserialize)]
struct SpecialToken {
    id: String,
}

impl TokenizerJson {
    /// Reads the text of the file.
    pub(super) fn parse(text: &[u8]) -> Result<TokenizerJson, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }

    /// The tokens and merges of byte-level BPE, for a model of `count` tokens.
    pub(super) fn bpe(&self, count: u64) -> Result<(Vec<Token>, Vec<String>), String> {
        if self.model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
            return Err("its model is no BPE".into());
        }
        let tokens = self.model.vocab.0.iter().map(|(text, id)| {
            let token = Token {
                text: text.clone(),
                token_type: TokenType::Normal,
                score: 0.0,
            };
            (*id, token)
        });
        let tokens = by_id(tokens, self.added(), count)?;
        let merges = self.model.merges.0.iter().map(Merge::joined);
        Ok((tokens, merges.collect()))
    }

    /// Added tokens by id.
    pub(super) fn added(&self) -> impl Iterator<Item = (u64, Token)> {
        let added = self.added_tokens.0.iter();
        added.map(|token| (token.id, Token::added(&token.content, token.special)))
    }

    /// The special tokens that are put before and after a text.
    pub(super) fn around(&self) -> (Option<&str>, Option<&str>) {
        fn text(piece: Option<&Piece>) -> Option<&str> {
            Some(piece?.special.as_ref()?.id.as_str())
        }
        let own = self.post_processor.iter();
        let mut all = own.flat_map(|own| own.processors.0.iter().chain([own]));
        match all.find(|processor| processor.single.0.len() > 1) {
            Some(template) => (
                text(template.single.0.first()),
                text(template.single.0.last()),
            ),
            None => (None, None),
        }
    }
}

impl Merge {
    /// Both halves with a space between. One within a half is written as the byte-level
    /// alphabet has it.
    fn joined(&self) -> String {
        match self {
            Merge::Joined(both) => both.clone(),
            Merge::Pair(left, right) => {
                format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ"))
            }
        }
    }
}

/// A list of at most `MAX` elements.
#[derive(Debug)]
struct Bounded<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for Bounded<T, MAX> {
    fn default() -> Self {
        Bounded(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Bounded<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(element) = list.next_element()? {
                    if all.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    all.push(element);
                }
                Ok(Bounded(all))
            }
        }

        d.deserialize_seq(List(PhantomData))
    }
}

/// Ids by text, in the order of the file. A text that is there twice has two ids here.
#[derive(Debug)]
struct Ids(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Ids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "ids of at most {MAX_TOKENS} tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ids, A::Error> {
                let mut all = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    if all.len() == MAX_TOKENS {
                        return Err(A::Error::invalid_length(MAX_TOKENS + 1, &self));
                    }
                    all.push(pair);
                }
                Ok(Ids(all))
            }
        }

        d.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{
        "added_tokens": [{"id": 2, "content": "<s>", "special": true, "lstrip": false}],
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}]}
        ]},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b c"], "a b"]}
    }"#;

    #[test]
    fn merges_are_pairs_or_joined_and_a_template_says_what_begins_a_text() {
        let file = TokenizerJson::parse(FILE.as_bytes()).unwrap();
        let (tokens, merges) = file.bpe(4).unwrap();
        assert_eq!(merges, ["a bĠc", "a b"]);
        let texts: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(texts, ["a", "b", "<s>", "[PAD3]"]);
        assert_eq!(file.around(), (Some("<s>"), None));
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let pieces = vec!["{}"; MAX_PIECES + 1].join(",");
        let text = format!(
            r#"{{"model": {{"vocab": {{}}}}, "post_processor": {{"single": [{pieces}]}}}}"#
        );
        let why = TokenizerJson::parse(text.as_bytes()).unwrap_err();
        assert!(why.contains("at most 64"), "{why}");
    }

    #[test]
    fn another_model_than_bpe_is_refused() {
        let text = r#"{"model": {"type": "Unigram", "vocab": {}}}"#;
        let file = TokenizerJson::parse(text.as_bytes()).unwrap();
        assert!(file.bpe(1).unwrap_err().contains("BPE"));
    }
}
