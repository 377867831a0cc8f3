//! The index of a sharded checkpoint: which file holds which tensor.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{self, DeserializeSeed, Deserializer as _, MapAccess, Visitor};

use super::super::IngestError;
use super::super::json::{self, Discard, Refusal};
use super::super::source::{Section, is_plain_name};
use super::header::{MAX_TENSORS, MAX_TEXT_BYTES};

/// The largest index that is read.
pub const MAX_INDEX_BYTES: u64 = 24 << 20;
/// Files of a checkpoint.
pub const MAX_FILES: usize = 1 << 12;

/// An index: every file name in it is a plain one, and no tensor is listed twice.
pub(super) struct Index {
    /// Weight files, ascending.
    pub(super) files: Vec<String>,
    /// Tensors, ascending by name.
    pub(super) places: Vec<Place>,
}

/// Where a tensor is said to be.
pub(super) struct Place {
    pub(super) tensor: Box<str>,
    /// Index into [`Index::files`].
    pub(super) file: u32,
}

impl Index {
    /// Reads the index at `path`.
    pub(super) fn read(path: &Path) -> Result<Index, IngestError> {
        let source = json::open(path, "the index", MAX_INDEX_BYTES)?;
        let section = Section::new(&source.file, 0, source.bytes);
        let mut raw = Raw::default();
        json::parse(path, section, |text, refusal| {
            text.deserialize_map(IndexVisitor {
                raw: &mut raw,
                refusal,
            })
        })?;
        raw.sorted(path)
    }
}

/// An index in the order of its text.
#[derive(Default)]
struct Raw {
    numbers: BTreeMap<String, u32>,
    places: Vec<Place>,
    text_bytes: usize,
}

impl Raw {
    fn sorted(self, path: &Path) -> Result<Index, IngestError> {
        let Raw {
            numbers,
            mut places,
            ..
        } = self;
        places.sort_unstable_by(|a, b| a.tensor.cmp(&b.tensor));
        if let Some([twice, _]) = places.array_windows().find(|[a, b]| a.tensor == b.tensor) {
            return Err(IngestError::DuplicateKey {
                path: path.to_owned(),
                key: twice.tensor.to_string(),
            });
        }
        // Files were numbered as they came; from here on they are in name order.
        let mut rank_of = vec![0; numbers.len()];
        for (rank, &number) in (0..).zip(numbers.values()) {
            if let Some(slot) = rank_of.get_mut(number as usize) {
                *slot = rank;
            }
        }
        for place in &mut places {
            place.file = rank_of
                .get(place.file as usize)
                .copied()
                .unwrap_or_default();
        }
        Ok(Index {
            files: numbers.into_keys().collect(),
            places,
        })
    }
}

struct IndexVisitor<'a, 'p> {
    raw: &'a mut Raw,
    refusal: &'a mut Refusal<'p>,
}

impl<'de> Visitor<'de> for IndexVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        const WEIGHT_MAP: &str = "weight_map";
        /// `metadata` and whatever else a tool may add.
        const MAX_KEYS: usize = 64;
        let (raw, refusal) = (self.raw, self.refusal);
        let mut keys: Vec<String> = Vec::new();
        while let Some(key) = pairs.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(refusal.duplicate(&key));
            }
            if keys.len() >= MAX_KEYS {
                return Err(refusal.too_many("keys in an index", MAX_KEYS as u64));
            }
            if key == WEIGHT_MAP {
                pairs.next_value_seed(WeightMap {
                    raw: &mut *raw,
                    refusal,
                })?;
            } else {
                pairs.next_value_seed(Discard(refusal))?;
            }
            keys.push(key);
        }
        if raw.places.is_empty() {
            return Err(de::Error::custom("the index lists no tensors"));
        }
        Ok(())
    }
}

struct WeightMap<'a, 'p> {
    raw: &'a mut Raw,
    refusal: &'a mut Refusal<'p>,
}

impl<'de> DeserializeSeed<'de> for WeightMap<'_, '_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of file names by tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        let (raw, refusal) = (self.raw, self.refusal);
        while let Some((tensor, file)) = pairs.next_entry::<String, String>()? {
            if !is_plain_name(&file) {
                let path = refusal.path.to_owned();
                return Err(refusal.refuse(IngestError::UnsafeName {
                    path,
                    name: short(file),
                }));
            }
            if raw.places.len() >= MAX_TENSORS {
                return Err(refusal.too_many("tensors", MAX_TENSORS as u64));
            }
            raw.text_bytes = raw.text_bytes.saturating_add(tensor.len());
            if raw.text_bytes > MAX_TEXT_BYTES {
                let what = "bytes of tensor names";
                return Err(refusal.too_many(what, MAX_TEXT_BYTES as u64));
            }
            let file = match raw.numbers.get(&file) {
                Some(&number) => number,
                None if raw.numbers.len() >= MAX_FILES => {
                    return Err(refusal.too_many("weight files", MAX_FILES as u64));
                }
                None => {
                    let number = u32::try_from(raw.numbers.len()).unwrap_or(u32::MAX);
                    raw.numbers.insert(file, number);
                    number
                }
            };
            raw.places.push(Place {
                tensor: tensor.into_boxed_str(),
                file,
            });
        }
        Ok(())
    }
}

/// The start of `name`, for a message.
fn short(mut name: String) -> String {
    const SHOWN_BYTES: usize = 80;
    if name.len() > SHOWN_BYTES {
        name.truncate(name.floor_char_boundary(SHOWN_BYTES));
        name.push('…');
    }
    name
}
