//! The header of one weight file.
//!
//! ```text
//! 0          8                  8+N                                end of file
//! | N: u64   | JSON, then spaces | tensor | tensor | …  no gap, no rest |
//! ```
//!
//! The JSON is `{"__metadata__": {…}, "NAME": {"dtype", "shape", "data_offsets": [begin, end]}, …}`,
//! offsets counted from 8+N.

use std::fmt;
use std::path::Path;

use serde::de::{self, DeserializeSeed, Deserializer as _, MapAccess, SeqAccess, Visitor};

use estream_schemas::dtype::DType;
use estream_schemas::limits::MAX_NAME_BYTES;

use super::super::error::TensorFault;
use super::super::json::{self, Refusal};
use super::super::sniff::FileKind;
use super::super::source::Section;
use super::super::{IngestError, SourceTensor, WeightFile};

/// The longest header that is read. An entry takes about 140 bytes, so this is
/// room for 170,000 tensors in one file; the largest checkpoints have that many
/// over a hundred files.
pub const MAX_HEADER_BYTES: u64 = 24 << 20;
/// Tensors of a checkpoint. Together with [`MAX_TEXT_BYTES`], and with the index
/// that lists the names once more, this keeps everything that headers can ask
/// for below 64 MiB.
pub const MAX_TENSORS: usize = 1 << 18;
/// Bytes of all names and shapes of a checkpoint.
pub const MAX_TEXT_BYTES: usize = 12 << 20;
/// Dimensions of a tensor.
pub const MAX_DIMS: usize = 8;

/// Where the header's length ends and its text starts.
const TEXT_OFFSET: u64 = 8;
/// A length and `{}`.
const MIN_FILE_BYTES: u64 = TEXT_OFFSET + 2;
const METADATA: &str = "__metadata__";

/// The tensors of all files read so far.
#[derive(Default)]
pub(super) struct Table {
    pub(super) tensors: Vec<SourceTensor>,
    text_bytes: usize,
}

impl Table {
    /// Reads the header of `file`, number `file_index` of the checkpoint, and adds
    /// its tensors in name order.
    pub(super) fn add(
        &mut self,
        file: &WeightFile,
        file_index: usize,
        kind: FileKind,
    ) -> Result<(), IngestError> {
        let path = &file.path;
        let header_bytes = header_bytes(file, kind)?;
        let first = self.tensors.len();
        let section = Section::new(&file.file, TEXT_OFFSET, header_bytes);
        let (_, last) = json::parse(path, section, |text, refusal| {
            text.deserialize_map(HeaderVisitor {
                table: self,
                refusal,
                file_index,
            })
        })?;
        if last != b'}' {
            return Err(IngestError::HeaderPadding { path: path.clone() });
        }
        let tensors = self.tensors.get_mut(first..).unwrap_or_default();
        place(file, TEXT_OFFSET + header_bytes, tensors)?;
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        match tensors.array_windows().find(|[a, b]| a.name == b.name) {
            Some([twice, _]) => Err(IngestError::DuplicateKey {
                path: path.clone(),
                key: twice.name.clone(),
            }),
            None => Ok(()),
        }
    }

    fn charge(&mut self, bytes: usize) -> bool {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        self.text_bytes <= MAX_TEXT_BYTES
    }
}

/// The length of the header, which fits into the file.
fn header_bytes(file: &WeightFile, kind: FileKind) -> Result<u64, IngestError> {
    let truncated = |expected_bytes| IngestError::Truncated {
        path: file.path.clone(),
        expected_bytes,
        bytes: file.bytes,
    };
    match kind {
        FileKind::Safetensors => {}
        FileKind::Empty | FileKind::Short | FileKind::Unknown if file.bytes < MIN_FILE_BYTES => {
            return Err(truncated(MIN_FILE_BYTES));
        }
        found => {
            return Err(IngestError::WrongKind {
                path: file.path.clone(),
                found,
            });
        }
    }
    let mut length = [0; TEXT_OFFSET as usize];
    file.read_exact_at(0, &mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(IngestError::TooLarge {
            path: file.path.clone(),
            what: "the safetensors header",
            bytes: header_bytes,
            max_bytes: MAX_HEADER_BYTES,
        });
    }
    if TEXT_OFFSET + header_bytes > file.bytes {
        return Err(truncated(TEXT_OFFSET + header_bytes));
    }
    Ok(header_bytes)
}

/// Turns offsets that count from `data_offset` into offsets in the file, and
/// refuses unless the tensors cover the rest of the file exactly once.
fn place(
    file: &WeightFile,
    data_offset: u64,
    tensors: &mut [SourceTensor],
) -> Result<(), IngestError> {
    tensors.sort_unstable_by_key(|tensor| tensor.offset);
    let mut end = 0;
    let mut before: Option<&SourceTensor> = None;
    for tensor in tensors.iter() {
        let begin = tensor.offset;
        if begin != end {
            let fault = match before {
                Some(other) if begin < end => TensorFault::Overlap {
                    begin,
                    other: other.name.clone(),
                    other_end: end,
                },
                _ => TensorFault::Gap {
                    begin,
                    expected: end,
                },
            };
            return Err(IngestError::Tensor {
                path: file.path.clone(),
                tensor: tensor.name.clone(),
                fault,
            });
        }
        // A range's end was read from the file, so that this sum is no larger.
        end = begin.saturating_add(tensor.bytes);
        before = Some(tensor);
    }
    let expected_bytes = data_offset.saturating_add(end);
    let (path, bytes) = (file.path.clone(), file.bytes);
    if expected_bytes > bytes {
        return Err(IngestError::Truncated {
            path,
            expected_bytes,
            bytes,
        });
    }
    if expected_bytes < bytes {
        return Err(IngestError::TrailingBytes {
            path,
            expected_bytes,
            bytes,
        });
    }
    for tensor in tensors {
        tensor.offset += data_offset;
    }
    Ok(())
}

struct HeaderVisitor<'a, 'p> {
    table: &'a mut Table,
    refusal: &'a mut Refusal<'p>,
    file_index: usize,
}

impl<'de> Visitor<'de> for HeaderVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        let (table, refusal) = (self.table, self.refusal);
        let mut has_metadata = false;
        while let Some(name) = pairs.next_key::<String>()? {
            if name == METADATA {
                if has_metadata {
                    return Err(refusal.duplicate(&name));
                }
                has_metadata = true;
                pairs.next_value_seed(Metadata(refusal))?;
                continue;
            }
            if name.len() > MAX_NAME_BYTES {
                let fault = TensorFault::LongName {
                    bytes: name.len(),
                    max_bytes: MAX_NAME_BYTES,
                };
                let start = name.chars().take(MAX_NAME_BYTES / 4).collect::<String>() + "…";
                return Err(refuse_tensor(refusal, &start, fault));
            }
            if table.tensors.len() >= MAX_TENSORS {
                return Err(refusal.too_many("tensors", MAX_TENSORS as u64));
            }
            let entry = pairs.next_value_seed(EntrySeed {
                name: &name,
                refusal,
            })?;
            if !table.charge(name.len() + size_of_val(&*entry.shape)) {
                let what = "bytes of tensor names and shapes";
                return Err(refusal.too_many(what, MAX_TEXT_BYTES as u64));
            }
            let bytes = match entry.check() {
                Ok(bytes) => bytes,
                Err(fault) => return Err(refuse_tensor(refusal, &name, fault)),
            };
            table.tensors.push(SourceTensor {
                name,
                dtype: entry.dtype,
                shape: entry.shape,
                file: self.file_index,
                offset: entry.range.0,
                bytes,
            });
        }
        Ok(())
    }
}

fn refuse_tensor<E: de::Error>(refusal: &mut Refusal<'_>, name: &str, fault: TensorFault) -> E {
    let path: &Path = refusal.path;
    refusal.refuse(IngestError::Tensor {
        path: path.to_owned(),
        tensor: name.to_owned(),
        fault,
    })
}

/// What the header says of one tensor.
struct Entry {
    dtype: DType,
    shape: Vec<u64>,
    /// First byte and the byte after the last one, counted after the header.
    range: (u64, u64),
}

impl Entry {
    /// The bytes that type and shape ask for, if the range has as many.
    fn check(&self) -> Result<u64, TensorFault> {
        if self.shape.contains(&0) {
            return Err(TensorFault::NoElements(self.shape.clone()));
        }
        // No type of this format has blocks, so the shape is irrelevant to a row's size.
        let element_bytes = self.dtype.block_bytes();
        let shape_bytes = self
            .shape
            .iter()
            .try_fold(element_bytes, |bytes, &dim| bytes.checked_mul(dim));
        let shape_bytes =
            shape_bytes.ok_or_else(|| TensorFault::SizeOverflow(self.shape.clone()))?;
        let (begin, end) = self.range;
        if end.checked_sub(begin) == Some(shape_bytes) {
            return Ok(shape_bytes);
        }
        Err(TensorFault::RangeMismatch {
            dtype: self.dtype,
            shape: self.shape.clone(),
            shape_bytes,
            begin,
            end,
        })
    }
}

/// Reads the three fields of tensor `name`, each once, and nothing else.
struct EntrySeed<'a, 'p> {
    name: &'a str,
    refusal: &'a mut Refusal<'p>,
}

impl<'de> DeserializeSeed<'de> for EntrySeed<'_, '_> {
    type Value = Entry;

    fn deserialize<D: de::Deserializer<'de>>(self, d: D) -> Result<Entry, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntrySeed<'_, '_> {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Entry, A::Error> {
        const DTYPE: &str = "dtype";
        const SHAPE: &str = "shape";
        const RANGE: &str = "data_offsets";
        let EntrySeed { name, refusal } = self;
        let (mut dtype, mut shape, mut range) = (None, None, None);
        while let Some(key) = pairs.next_key::<String>()? {
            let repeated = match key.as_str() {
                DTYPE => dtype.replace(pairs.next_value::<String>()?).is_some(),
                SHAPE => shape.replace(pairs.next_value_seed(Shape)?).is_some(),
                RANGE => range.replace(pairs.next_value::<(u64, u64)>()?).is_some(),
                _ => return Err(de::Error::unknown_field(&key, &[DTYPE, SHAPE, RANGE])),
            };
            if repeated {
                return Err(refusal.duplicate(&key));
            }
        }
        let missing = |field| TensorFault::MissingField(field);
        let entry = (|| {
            let dtype = dtype.ok_or(missing(DTYPE))?;
            Ok(Entry {
                dtype: dtype_of(&dtype).ok_or_else(|| unknown(dtype))?,
                shape: shape
                    .ok_or(missing(SHAPE))?
                    .ok_or(TensorFault::TooManyDims(MAX_DIMS))?,
                range: range.ok_or(missing(RANGE))?,
            })
        })();
        entry.map_err(|fault| refuse_tensor(refusal, name, fault))
    }
}

fn unknown(mut dtype: String) -> TensorFault {
    const SHOWN_BYTES: usize = 32;
    dtype.truncate(dtype.floor_char_boundary(SHOWN_BYTES));
    TensorFault::UnknownDType(dtype)
}

/// The element type that a header calls `name`.
fn dtype_of(name: &str) -> Option<DType> {
    Some(match name {
        "F64" => DType::F64,
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F8_E4M3" => DType::F8_E4M3,
        "F8_E5M2" => DType::F8_E5M2,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I16" => DType::I16,
        "I8" => DType::I8,
        "U64" => DType::U64,
        "U32" => DType::U32,
        "U16" => DType::U16,
        "U8" => DType::U8,
        "BOOL" => DType::Bool,
        _ => return None,
    })
}

/// Reads a shape, or `None` if it has too many dimensions.
struct Shape;

impl<'de> DeserializeSeed<'de> for Shape {
    type Value = Option<Vec<u64>>;

    fn deserialize<D: de::Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape {
    type Value = Option<Vec<u64>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut dims = [0; MAX_DIMS];
        let mut count = 0;
        while let Some(dim) = items.next_element()? {
            // Too many are counted, and read to their end, so that the tensor can be named.
            if let Some(slot) = dims.get_mut(count) {
                *slot = dim;
            }
            count += 1;
        }
        Ok(dims.get(..count).map(<[u64]>::to_vec))
    }
}

/// Reads `__metadata__`: strings by name, of no use here.
struct Metadata<'a, 'p>(&'a mut Refusal<'p>);

impl<'de> DeserializeSeed<'de> for Metadata<'_, '_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        /// Enough for notes; more would be a payload.
        const MAX_KEYS: usize = 1 << 12;
        let mut keys: Vec<String> = Vec::new();
        let mut key_bytes = 0_usize;
        while let Some(key) = pairs.next_key::<String>()? {
            pairs.next_value::<String>()?;
            key_bytes = key_bytes.saturating_add(key.len());
            if keys.len() >= MAX_KEYS || key_bytes > MAX_KEYS * MAX_NAME_BYTES {
                return Err(self.0.too_many("metadata keys", MAX_KEYS as u64));
            }
            keys.push(key);
        }
        keys.sort_unstable();
        match keys.array_windows().find(|[a, b]| a == b) {
            Some([twice, _]) => Err(self.0.duplicate(twice)),
            None => Ok(()),
        }
    }
}
