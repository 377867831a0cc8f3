//! Words in, words out: the tokenizer that a bundle carries.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use estream_runtime::reader::BundleReader;
use estream_schemas::exit::Exit;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::failure::Failure;

/// Bytes of a prompt: more than any context holds. The tokenizer takes over a hundred
/// times as much memory.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Bytes of a tokenizer file.
const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// A bundle's tokenizer, or why it has none.
#[derive(Debug)]
pub(crate) struct Text {
    tokenizer: Option<Tokenizer>,
    /// Put before a prompt.
    bos: Option<u32>,
}

impl Text {
    /// The tokenizer of `reader`'s bundle, its digest checked.
    pub(crate) fn of(reader: &BundleReader) -> Result<Text, Failure> {
        let read = |name: &str| -> Result<Option<Vec<u8>>, Failure> {
            let carried = &reader.bundle().manifest().tokenizer;
            let Some(file) = carried.iter().find(|file| file.file == name) else {
                return Ok(None);
            };
            if file.bytes > MAX_TOKENIZER_BYTES {
                return Err(Failure::new(
                    Exit::Invalid,
                    anyhow::anyhow!("{name}: {} bytes, more than any tokenizer has", file.bytes),
                ));
            }
            let mut bytes = vec![0; usize::try_from(file.bytes).unwrap_or(0)];
            reader.read_file(file, &mut bytes)?;
            Ok(Some(bytes))
        };
        let Some(bytes) = read("tokenizer/tokenizer.json")? else {
            return Ok(Text {
                tokenizer: None,
                bos: None,
            });
        };
        let invalid = |name: &str, why: String| {
            Failure::new(
                Exit::Invalid,
                anyhow::anyhow!("{name}: cannot be used: {why}"),
            )
        };
        let tokenizer = Tokenizer::from_bytes(&bytes)
            .map_err(|error| invalid("tokenizer/tokenizer.json", error.to_string()))?;
        let config = match read("tokenizer/tokenizer_config.json")? {
            None => Value::Null,
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| invalid("tokenizer/tokenizer_config.json", error.to_string()))?,
        };
        let bos = bos(&config).and_then(|token| tokenizer.token_to_id(token));
        Ok(Text {
            tokenizer: Some(tokenizer),
            bos,
        })
    }

    fn tokenizer(&self) -> Result<&Tokenizer, Failure> {
        self.tokenizer.as_ref().ok_or_else(|| {
            Failure::usage("the bundle carries no tokenizer.json, so it cannot read words; give token ids with --ids-file")
        })
    }

    /// Ids of a prompt, with the token that begins a text if the tokenizer's configuration says so.
    pub(crate) fn prompt(&self, words: &str) -> Result<Vec<u32>, Failure> {
        let ids = self.encode(words)?;
        let bos = self.bos.filter(|bos| ids.first() != Some(bos));
        Ok(bos.into_iter().chain(ids).collect())
    }

    /// The token that begins a prompt, if the tokenizer's configuration asks for one.
    pub(crate) fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Ids of what follows a prompt.
    pub(crate) fn continuation(&self, words: &str) -> Result<Vec<u32>, Failure> {
        self.encode(words)
    }

    fn encode(&self, words: &str) -> Result<Vec<u32>, Failure> {
        let encoding = self
            .tokenizer()?
            .encode(words, false)
            .map_err(|error| Failure::usage(format!("the text cannot be tokenized: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// A token as text, escaped.
    pub(crate) fn token(&self, id: u32) -> String {
        let tokenizer = self.tokenizer.as_ref();
        let text = tokenizer.and_then(|tokenizer| tokenizer.decode(&[id], false).ok());
        text.map(|text| format!("{text:?}")).unwrap_or_default()
    }
}

/// The token that begins a text, if `tokenizer_config.json` asks for one.
fn bos(config: &Value) -> Option<&str> {
    if config.get("add_bos_token") != Some(&Value::Bool(true)) {
        return None;
    }
    match config.get("bos_token")? {
        Value::String(token) => Some(token),
        token => token.get("content")?.as_str(),
    }
}

/// A prompt from a file, or from standard input for `-`.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let open: io::Result<Box<dyn Read>> = match path == Path::new("-") {
        true => Ok(Box::new(io::stdin())),
        false => File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let mut text = String::new();
    open.and_then(|file| file.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| Failure::usage(format!("{}: cannot be read: {error}", path.display())))?;
    match text.len() as u64 > MAX_TEXT_BYTES {
        true => Err(Failure::usage(format!(
            "{}: more than {MAX_TEXT_BYTES} bytes",
            path.display()
        ))),
        false => Ok(text),
    }
}
