//! JSON from files that others wrote.
//!
//! `serde_json` bounds nesting. What it leaves open is closed here: the length of
//! a string, keys that appear twice, and the memory that a tree of values takes,
//! which for small objects is a hundred times their text.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::path::Path;

use serde::de::{self, DeserializeSeed, Deserializer as _, MapAccess, SeqAccess, Visitor};
use serde_json::de::IoRead;
use serde_json::{Deserializer, Map, Number, Value};

use super::IngestError;
use super::sniff::FileKind;
use super::source::{Section, Source};

/// The longest string, key or value, in any JSON text.
const MAX_STRING_BYTES: u32 = 1 << 20;

/// Memory that the values of one document may take, by the estimates below.
const MAX_TREE_BYTES: u64 = 32 << 20;
/// A value in its parent, which may have grown to twice what it holds.
const VALUE_BYTES: u64 = 2 * size_of::<Value>() as u64;
/// A map's first node has room for eleven pairs.
const OBJECT_BYTES: u64 = 1 << 10;

/// The deserializer that [`parse`] hands out.
pub(super) type Text<'a> = Deserializer<IoRead<BufReader<Guard<'a>>>>;

/// Where a visitor leaves the reason for which it stops: serde can carry text only.
pub(super) struct Refusal<'a> {
    pub(super) path: &'a Path,
    error: Option<IngestError>,
}

impl Refusal<'_> {
    /// Keeps `error` and makes the error that stops the parser.
    pub(super) fn refuse<E: de::Error>(&mut self, error: IngestError) -> E {
        self.error = Some(error);
        E::custom("refused")
    }

    /// Refuses `key` because its object has it already.
    pub(super) fn duplicate<E: de::Error>(&mut self, key: &str) -> E {
        self.refuse(IngestError::DuplicateKey {
            path: self.path.to_owned(),
            key: key.to_owned(),
        })
    }

    /// Refuses because there are more than `max` of `what`.
    pub(super) fn too_many<E: de::Error>(&mut self, what: &'static str, max: u64) -> E {
        self.refuse(IngestError::TooMany {
            path: self.path.to_owned(),
            what,
            max,
        })
    }
}

/// Reads one JSON document from `section` with `read`, without holding its text,
/// and says which byte other than a space came last.
pub(super) fn parse<'a, T>(
    path: &'a Path,
    section: Section<'_>,
    read: impl FnOnce(&mut Text<'_>, &mut Refusal<'a>) -> serde_json::Result<T>,
) -> Result<(T, u8), IngestError> {
    let mut refusal = Refusal { path, error: None };
    let last = Cell::new(b' ');
    let guard = Guard {
        inner: section,
        last: &last,
        in_string: false,
        escaped: false,
        string_bytes: 0,
    };
    let mut text = Deserializer::from_reader(BufReader::new(guard));
    let value = read(&mut text, &mut refusal).and_then(|value| text.end().map(|()| value));
    match value {
        Ok(value) => Ok((value, last.get())),
        Err(error) => Err(refusal.error.unwrap_or_else(|| json_error(path, error))),
    }
}

/// Opens a JSON file of at most `max_bytes`; a web page or an archive in its place
/// is called by its name.
pub(super) fn open(path: &Path, what: &'static str, max_bytes: u64) -> Result<Source, IngestError> {
    let source = Source::open_small(path, what, max_bytes)?;
    match source.kind {
        FileKind::Json | FileKind::Short | FileKind::Unknown => Ok(source),
        found => Err(IngestError::WrongKind {
            path: path.to_owned(),
            found,
        }),
    }
}

/// Reads the JSON object in the file at `path`.
pub(super) fn read_object(
    path: &Path,
    what: &'static str,
    max_bytes: u64,
) -> Result<Map<String, Value>, IngestError> {
    let source = open(path, what, max_bytes)?;
    let section = Section::new(&source.file, 0, source.bytes);
    let (map, _) = parse(path, section, |text, refusal| {
        let mut left_bytes = MAX_TREE_BYTES;
        text.deserialize_map(ObjectVisitor(&mut Tree {
            refusal,
            left_bytes: &mut left_bytes,
        }))
    })?;
    Ok(map)
}

fn json_error(path: &Path, error: serde_json::Error) -> IngestError {
    let (line, column) = (error.line(), error.column());
    let mut reason = error.to_string();
    if error.is_io() {
        let source = io::Error::from(error);
        if !source
            .get_ref()
            .is_some_and(|inner| inner.is::<LongString>())
        {
            return IngestError::Read {
                path: path.to_owned(),
                source,
            };
        }
        reason = source.to_string();
    }
    // serde_json ends with the position, and may quote any part of the file.
    const MAX_REASON_CHARS: usize = 200;
    let reason = reason
        .rfind(" at line ")
        .map_or(&*reason, |end| &reason[..end]);
    IngestError::Json {
        path: path.to_owned(),
        line,
        column,
        reason: reason
            .chars()
            .take(MAX_REASON_CHARS)
            .flat_map(char::escape_debug)
            .collect(),
    }
}

/// Passes text through and stops at a string that is too long to keep.
pub(super) struct Guard<'a> {
    inner: Section<'a>,
    last: &'a Cell<u8>,
    in_string: bool,
    escaped: bool,
    string_bytes: u32,
}

impl Read for Guard<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(out)?;
        for &byte in out.iter().take(count) {
            if byte != b' ' {
                self.last.set(byte);
            }
            if !self.in_string {
                self.in_string = byte == b'"';
                self.string_bytes = 0;
                continue;
            }
            self.string_bytes += 1;
            if self.string_bytes > MAX_STRING_BYTES {
                return Err(io::Error::other(LongString));
            }
            if self.escaped {
                self.escaped = false;
            } else if byte == b'"' {
                self.in_string = false;
            } else {
                self.escaped = byte == b'\\';
            }
        }
        Ok(count)
    }
}

#[derive(Debug)]
struct LongString;

impl fmt::Display for LongString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string is longer than {MAX_STRING_BYTES} bytes")
    }
}

impl Error for LongString {}

/// What reading a tree of values shares.
struct Tree<'a, 'p> {
    refusal: &'a mut Refusal<'p>,
    left_bytes: &'a mut u64,
}

impl Tree<'_, '_> {
    fn charge<E: de::Error>(&mut self, bytes: u64) -> Result<(), E> {
        match self.left_bytes.checked_sub(bytes) {
            Some(left) => {
                *self.left_bytes = left;
                Ok(())
            }
            None => Err(self
                .refusal
                .too_many("bytes of JSON values", MAX_TREE_BYTES)),
        }
    }
}

/// Reads and drops a value, whatever it is, as strictly as one that is kept.
pub(super) struct Discard<'a, 'p>(pub(super) &'a mut Refusal<'p>);

impl<'de> DeserializeSeed<'de> for Discard<'_, '_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        let mut left_bytes = MAX_TREE_BYTES;
        let mut tree = Tree {
            refusal: self.0,
            left_bytes: &mut left_bytes,
        };
        ValueSeed(&mut tree).deserialize(d).map(drop)
    }
}

struct ValueSeed<'a, 'b, 'p>(&'a mut Tree<'b, 'p>);

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_, '_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_, '_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value);
        let number = number.ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.0.charge(value.len() as u64)?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(ValueSeed(self.0))? {
            self.0.charge(VALUE_BYTES)?;
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, pairs: A) -> Result<Value, A::Error> {
        ObjectVisitor(self.0).visit_map(pairs).map(Value::Object)
    }
}

struct ObjectVisitor<'a, 'b, 'p>(&'a mut Tree<'b, 'p>);

impl<'de> Visitor<'de> for ObjectVisitor<'_, '_, '_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
        let tree = self.0;
        tree.charge(OBJECT_BYTES)?;
        let mut map = Map::new();
        while let Some(key) = pairs.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(tree.refusal.duplicate(&key));
            }
            tree.charge(2 * VALUE_BYTES + key.len() as u64)?;
            let value = pairs.next_value_seed(ValueSeed(tree))?;
            map.insert(key, value);
        }
        Ok(map)
    }
}
