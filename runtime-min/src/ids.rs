//! Token ids as text.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use estream_schemas::exit::Exit;

/// Bytes of a file of ids: more than two million of them.
pub const MAX_IDS_BYTES: u64 = 16 << 20;

/// Text that is not a list of token ids.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdsError {
    /// Something that is no id.
    #[error("token {index} is {text:?}, not a number below 2^32; separate ids by commas or spaces")]
    NotAnId {
        /// Which one, from 0.
        index: usize,
        /// What is there, cut short.
        text: String,
    },
    /// In a file.
    #[error("{}: {source}", path.display())]
    In {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: Box<IdsError>,
    },
    /// The file is larger than any prompt.
    #[error("{}: more than the {MAX_IDS_BYTES} bytes a file of ids may have; shorten it", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: cannot read token ids: {source}; check the path and its permissions", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl IdsError {
    /// The exit code a binary should end with.
    pub fn exit(&self) -> Exit {
        match self {
            // As with any other path that was mistyped.
            IdsError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Exit::Usage,
            IdsError::Io { .. } => Exit::Io,
            IdsError::NotAnId { .. } | IdsError::In { .. } | IdsError::TooLarge { .. } => {
                Exit::Usage
            }
        }
    }
}

/// Ids separated by commas, white space, or both; a comma follows an id. No text is no ids.
///
/// ```
/// use estream_runtime::ids::parse;
///
/// assert_eq!(parse("510, 5347\n273").unwrap(), [510, 5347, 273]);
/// assert!(parse("-1").is_err());
/// ```
pub fn parse(text: &str) -> Result<Vec<u32>, IdsError> {
    let not_an_id = |index, word: &str| IdsError::NotAnId {
        index,
        text: word.chars().take(32).collect(),
    };
    let mut ids = Vec::new();
    let mut pieces = text.split(',').peekable();
    while let Some(piece) = pieces.next() {
        // Nothing before a comma is an id that got lost; after the last it ends a line.
        if piece.trim().is_empty() && pieces.peek().is_some() {
            return Err(not_an_id(ids.len(), ""));
        }
        for word in piece.split_whitespace() {
            // A plus sign is a number to Rust and a mistake in a list of ids.
            let id = word.parse().ok().filter(|_| !word.starts_with('+'));
            ids.push(id.ok_or_else(|| not_an_id(ids.len(), word))?);
        }
    }
    Ok(ids)
}

/// [`parse`] of a file of at most [`MAX_IDS_BYTES`]; the path `-` is standard input.
pub fn read(path: &Path) -> Result<Vec<u32>, IdsError> {
    let io = |source| IdsError::Io {
        path: path.to_owned(),
        source,
    };
    let file: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(io)?)
    };
    let mut bytes = Vec::new();
    file.take(MAX_IDS_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_IDS_BYTES {
        return Err(IdsError::TooLarge {
            path: path.to_owned(),
        });
    }
    // What is not UTF-8 is not a digit either, and is named like any other such word.
    parse(&String::from_utf8_lossy(&bytes)).map_err(|source| IdsError::In {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_may_repeat_and_mix() {
        for (text, ids) in [
            ("", &[][..]),
            (" \n", &[]),
            ("7", &[7]),
            ("1,2, 3\t4\r\n5,", &[1, 2, 3, 4, 5]),
            ("4294967295 0", &[u32::MAX, 0]),
        ] {
            assert_eq!(parse(text).unwrap(), ids, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_id_is_named_with_its_index() {
        for (text, expected) in [
            ("1,-2", "token 1 is \"-2\""),
            ("4294967296", "token 0 is \"4294967296\""),
            ("1 +2", "token 1 is \"+2\""),
            ("1,,2", "token 1 is \"\""),
            (", 1", "token 0 is \"\""),
            ("1;2", "token 0 is \"1;2\""),
            ("\u{1b}[2J", "token 0 is \"\\u{1b}[2J\""),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_file_is_bounded_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids");
        std::fs::write(&path, b"1 2\xff").unwrap();
        let error = read(&path).unwrap_err();
        assert!(error.to_string().contains("token 1"), "{error}");
        assert_eq!(error.exit(), Exit::Usage);
        let file = File::create(&path).unwrap();
        file.set_len(MAX_IDS_BYTES + 1).unwrap();
        assert!(matches!(read(&path), Err(IdsError::TooLarge { .. })));
        let gone = read(&dir.path().join("gone")).unwrap_err();
        assert_eq!(gone.exit(), Exit::Usage);
        let directory = read(dir.path()).unwrap_err();
        assert_eq!(directory.exit(), Exit::Io);
    }
}
