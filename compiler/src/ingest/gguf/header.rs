//! The parsed header of one GGUF file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use estream_schemas::dtype::DType;

use super::error::{GgufError, GgufFault};
use super::head::{Head, Span, give_back};
use super::value::{Value, ValueType};
use super::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_PAIRS,
    MAX_TENSORS, VERSION, extents, split,
};
use crate::ingest::sniff::{FileKind, SNIFF_BYTES, is_byte_swapped, sniff};

/// Bytes of the smallest pair: a key of one byte and a value of one byte.
const MIN_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;
/// Bytes of the smallest tensor info: a name of one byte and one dimension.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Where the pairs start.
const PAIRS_START: usize = 24;

/// The header of a GGUF file.
///
/// Holding one proves that every value is whole, that keys and names are unique
/// UTF-8, that every tensor has a size, and that the tensors' extents are aligned,
/// disjoint and within a file of the size the header was read with. It says
/// nothing about what the pairs mean or whether tensors are missing.
#[derive(Debug)]
pub struct Gguf {
    /// From the magic to the last tensor info.
    header: Vec<u8>,
    version: u32,
    alignment: u64,
    pairs: Vec<Pair>,
    /// Indices into `pairs`, ascending by key.
    by_key: Vec<u32>,
    tensors: Vec<Entry>,
    data_start: u64,
}

/// Where a pair is in the header.
#[derive(Clone, Copy, Debug)]
struct Pair {
    key: Span,
    value_type: ValueType,
    value: Span,
    whole: Span,
}

/// A tensor info whose name is still in the header.
#[derive(Clone, Copy, Debug)]
struct Entry {
    name: Span,
    dtype: DType,
    dims: [u64; 4],
    dim_count: usize,
    offset: u64,
    bytes: u64,
}

/// A tensor as the header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub dtype: DType,
    /// One to four dimensions, fastest first: the reverse of a shape.
    pub dims: &'a [u64],
    /// Where its bytes start, from the start of the data.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
}

impl Gguf {
    /// Reads the header of the file at `path`.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        Gguf::open_within(path, MAX_HEADER_BYTES).map(|(gguf, _, _)| gguf)
    }

    /// Reads a header of at most `max_bytes`; also returns the open file and its size.
    pub(super) fn open_within(
        path: &Path,
        max_bytes: usize,
    ) -> Result<(Gguf, File, u64), GgufError> {
        let read = || {
            // Opening a pipe would wait for a writer, so the kind comes first.
            if !std::fs::metadata(path)?.is_file() {
                return Err(GgufFault::NotAFile);
            }
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            let gguf = Gguf::read_within(&file, bytes, max_bytes)?;
            Ok((gguf, file, bytes))
        };
        read().map_err(|fault| GgufError {
            path: path.to_owned(),
            fault,
        })
    }

    /// Reads the header from the start of `reader`, which has `file_bytes` bytes.
    /// Reads ahead, but never more than [`MAX_HEADER_BYTES`].
    pub fn read(reader: impl Read, file_bytes: u64) -> Result<Gguf, GgufFault> {
        Gguf::read_within(reader, file_bytes, MAX_HEADER_BYTES)
    }

    fn read_within(
        reader: impl Read,
        file_bytes: u64,
        max_bytes: usize,
    ) -> Result<Gguf, GgufFault> {
        let mut head = Head::new(reader, file_bytes, max_bytes);
        let first = head.peek(SNIFF_BYTES)?;
        if !first.starts_with(&MAGIC) {
            return Err(match sniff(first) {
                FileKind::GgufBigEndian => GgufFault::BigEndian,
                kind => GgufFault::NotGguf(kind),
            });
        }
        head.skip("the magic", MAGIC.len() as u64)?;
        let version = head.u32("the version")?;
        match version {
            2 | VERSION => {}
            swapped if is_byte_swapped(swapped) => return Err(GgufFault::BigEndian),
            other => return Err(GgufFault::Version(other)),
        }
        let tensor_count = head.u64("the number of tensors")?;
        let pair_count = head.u64("the number of pairs")?;
        let pairs = read_pairs(&mut head, pair_count)?;
        // The infos come after the pairs, so their count is held against less.
        let tensors = read_tensors(&mut head, tensor_count)?;
        let header_bytes = head.at();
        let header = head.into_bytes();

        let by_key = sorted_by(&pairs, |pair| &header[pair.key.range()])
            .map_err(|pair| GgufFault::DuplicateKey(text(&header[pair.key.range()])))?;
        sorted_by(&tensors, |tensor| &header[tensor.name.range()])
            .map_err(|tensor| GgufFault::DuplicateTensor(text(&header[tensor.name.range()])))?;
        let mut gguf = Gguf {
            header,
            version,
            alignment: DEFAULT_ALIGNMENT,
            pairs,
            by_key,
            tensors,
            data_start: 0,
        };
        if let Some(value) = gguf.kv(ALIGNMENT_KEY) {
            gguf.alignment = alignment(&value)?;
        }
        // Both are far below 2^63.
        gguf.data_start = header_bytes.next_multiple_of(gguf.alignment);
        extents::check(&gguf, file_bytes)?;
        Ok(gguf)
    }

    /// The version the file states: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of the data and of every tensor in it.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Where the data starts in the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Bytes of the header, from the magic to the last tensor info.
    pub fn header_bytes(&self) -> usize {
        self.header.len()
    }

    /// How many pairs there are.
    pub fn pair_count(&self) -> usize {
        self.pairs.len()
    }

    /// The pairs, in the order of the file.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.pairs.iter().map(|pair| {
            let key = self.name(pair.key);
            (key, self.value(pair))
        })
    }

    /// The value of `key`.
    pub fn kv(&self, key: &str) -> Option<Value<'_>> {
        self.pair(key).map(|pair| self.value(pair))
    }

    /// The pair of `key` as the file has it: key, type and value.
    pub fn kv_bytes(&self, key: &str) -> Option<&[u8]> {
        self.pair(key).map(|pair| &self.header[pair.whole.range()])
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        self.tensors.iter().map(|entry| TensorInfo {
            name: self.name(entry.name),
            dtype: entry.dtype,
            dims: &entry.dims[..entry.dim_count],
            offset: entry.offset,
            bytes: entry.bytes,
        })
    }

    /// A GGUF file with the same pairs and no tensors. The pairs that say which part
    /// of a split set this was are left out: the file stands for the whole set.
    pub fn into_metadata(mut self) -> Vec<u8> {
        let end = self
            .pairs
            .last()
            .map_or(PAIRS_START, |pair| pair.whole.range().end);
        self.header.truncate(end);
        let mut count = self.pairs.len() as u64;
        for pair in self.pairs.iter().rev() {
            let key = &self.header[pair.key.range()];
            if split::KEYS.iter().any(|split| split.as_bytes() == key) {
                self.header.drain(pair.whole.range());
                count -= 1;
            }
        }
        self.header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        self.header[8..16].copy_from_slice(&0u64.to_le_bytes());
        self.header[16..24].copy_from_slice(&count.to_le_bytes());
        give_back(&mut self.header);
        // The alignment is at most a MiB, so that this is a usize like the length.
        let padded = (self.header.len() as u64).next_multiple_of(self.alignment) as usize;
        self.header.reserve_exact(padded - self.header.len());
        self.header.resize(padded, 0);
        self.header
    }

    fn pair(&self, key: &str) -> Option<&Pair> {
        let pair = |index: &u32| &self.pairs[*index as usize];
        let found = self
            .by_key
            .binary_search_by(|index| self.header[pair(index).key.range()].cmp(key.as_bytes()))
            .ok()?;
        self.by_key.get(found).map(pair)
    }

    fn value(&self, pair: &Pair) -> Value<'_> {
        let mut bytes = &self.header[pair.value.range()];
        Value::decode(pair.value_type, &mut bytes).expect("the header's walk accepted this value")
    }

    fn name(&self, span: Span) -> &str {
        str::from_utf8(&self.header[span.range()]).expect("names were checked to be UTF-8")
    }
}

/// The indices of `items` in the order of their names, or the item whose name is another's.
fn sorted_by<'a, 'n, T>(items: &'a [T], name: impl Fn(&T) -> &'n [u8]) -> Result<Vec<u32>, &'a T> {
    // There are at most 2^16 of either kind.
    let mut order: Vec<u32> = (0u32..).take(items.len()).collect();
    let named = |index: u32| name(&items[index as usize]);
    order.sort_unstable_by(|a, b| named(*a).cmp(named(*b)));
    match order
        .windows(2)
        .find(|pair| named(pair[0]) == named(pair[1]))
    {
        Some(pair) => Err(&items[pair[0] as usize]),
        None => Ok(order),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn alignment(value: &Value<'_>) -> Result<u64, GgufFault> {
    super::alignment_of(value).ok_or_else(|| {
        GgufFault::Alignment(match value.as_u64() {
            Some(number) => format!("{number} ({:?})", value.value_type()),
            None => format!("a value of type {:?}", value.value_type()),
        })
    })
}

fn checked_count(what: &'static str, count: u64, max: u64) -> Result<u64, GgufFault> {
    if count > max {
        return Err(GgufFault::TooMany { what, count, max });
    }
    Ok(count)
}

fn read_pairs<R: Read>(head: &mut Head<R>, count: u64) -> Result<Vec<Pair>, GgufFault> {
    head.expect("the list of pairs", count, MIN_PAIR_BYTES)?;
    let count = checked_count("pairs", count, MAX_PAIRS)?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let key = read_name(head, "key")?;
        let type_id = head.u32("a value's type")?;
        let value_type = ValueType::from_id(type_id).ok_or_else(|| GgufFault::ValueType {
            key: text(head.bytes(key)),
            id: type_id,
        })?;
        let value = skip_value(head, key, value_type)?;
        pairs.push(Pair {
            key,
            value_type,
            value,
            whole: key.with_length().to(value),
        });
    }
    Ok(pairs)
}

fn read_name<R: Read>(head: &mut Head<R>, what: &'static str) -> Result<Span, GgufFault> {
    let at = head.at();
    let count = head.u64(what)?;
    let refused = |problem| GgufFault::Name { what, at, problem };
    if count == 0 {
        return Err(refused("empty"));
    }
    // Reported as missing bytes rather than as too long where it is both.
    head.expect(what, count, 1)?;
    if count > MAX_NAME_BYTES {
        return Err(refused("too long"));
    }
    let span = head.skip(what, count)?;
    match str::from_utf8(head.bytes(span)) {
        Ok(_) => Ok(span),
        Err(_) => Err(refused("not UTF-8")),
    }
}

/// Steps over a value and checks that it is whole.
fn skip_value<R: Read>(
    head: &mut Head<R>,
    key: Span,
    value_type: ValueType,
) -> Result<Span, GgufFault> {
    match value_type {
        ValueType::Array => skip_array(head, key),
        ValueType::String => skip_string(head, "a string"),
        fixed => skip_fixed(head, key, fixed, 1, "a value"),
    }
}

fn skip_string<R: Read>(head: &mut Head<R>, what: &'static str) -> Result<Span, GgufFault> {
    let start = head.skip(what, 0)?;
    let count = head.u64(what)?;
    Ok(start.to(head.skip(what, count)?))
}

fn skip_fixed<R: Read>(
    head: &mut Head<R>,
    key: Span,
    element: ValueType,
    count: u64,
    what: &'static str,
) -> Result<Span, GgufFault> {
    let need = head.expect(what, count, element.fixed_bytes().unwrap_or(1))?;
    let span = head.skip(what, need)?;
    if element == ValueType::Bool
        && let Some(byte) = head.bytes(span).iter().copied().find(|byte| *byte > 1)
    {
        return Err(GgufFault::Bool {
            key: text(head.bytes(key)),
            byte,
        });
    }
    Ok(span)
}

fn skip_array<R: Read>(head: &mut Head<R>, key: Span) -> Result<Span, GgufFault> {
    let start = head.skip("an array", 0)?;
    let type_id = head.u32("an array's element type")?;
    let count = head.u64("an array's length")?;
    let last = match ValueType::from_id(type_id) {
        Some(ValueType::Array) => {
            return Err(GgufFault::NestedArray(text(head.bytes(key))));
        }
        Some(ValueType::String) => {
            head.expect("an array of strings", count, 8)?;
            for _ in 0..count {
                skip_string(head, "a string of an array")?;
            }
            head.skip("an array", 0)?
        }
        Some(fixed) => skip_fixed(head, key, fixed, count, "an array")?,
        None => {
            return Err(GgufFault::ValueType {
                key: text(head.bytes(key)),
                id: type_id,
            });
        }
    };
    Ok(start.to(last))
}

fn read_tensors<R: Read>(head: &mut Head<R>, count: u64) -> Result<Vec<Entry>, GgufFault> {
    head.expect("the list of tensors", count, MIN_TENSOR_BYTES)?;
    let count = checked_count("tensors", count, MAX_TENSORS)?;
    let mut tensors = Vec::new();
    for _ in 0..count {
        tensors.push(read_tensor(head)?);
    }
    Ok(tensors)
}

fn read_tensor<R: Read>(head: &mut Head<R>) -> Result<Entry, GgufFault> {
    let name = read_name(head, "tensor name")?;
    let count = head.u32("a tensor's number of dimensions")?;
    let mut dims = [1; 4];
    let Some(used) = usize::try_from(count)
        .ok()
        .filter(|count| *count > 0)
        .and_then(|count| dims.get_mut(..count))
    else {
        return Err(GgufFault::DimensionCount {
            tensor: text(head.bytes(name)),
            count,
        });
    };
    for dim in used.iter_mut() {
        *dim = head.u64("a tensor's dimension")?;
    }
    let dim_count = used.len();
    let type_id = head.u32("a tensor's element type")?;
    let offset = head.u64("a tensor's offset")?;

    let tensor = || text(head.bytes(name));
    if dims.contains(&0) {
        return Err(GgufFault::ZeroDimension {
            tensor: tensor(),
            dims: dims[..dim_count].to_vec(),
        });
    }
    let dtype = DType::from_ggml_id(type_id).ok_or_else(|| match type_id {
        // Q4_2, Q4_3, and the repacked forms of Q4_0 and IQ4_NL.
        4 | 5 | 31..=33 | 36..=38 => GgufFault::RemovedType {
            tensor: tensor(),
            id: type_id,
        },
        _ => GgufFault::UnknownType {
            tensor: tensor(),
            id: type_id,
        },
    })?;
    if !dims[0].is_multiple_of(dtype.block_len()) {
        return Err(GgufFault::PartialBlock {
            tensor: tensor(),
            dtype,
            columns: dims[0],
        });
    }
    let bytes = dims[1..]
        .iter()
        .try_fold(1u64, |rows, dim| rows.checked_mul(*dim))
        .and_then(|rows| dtype.matrix_bytes(rows, dims[0]))
        .ok_or_else(|| GgufFault::TensorTooLarge {
            tensor: tensor(),
            dims: dims[..dim_count].to_vec(),
        })?;
    Ok(Entry {
        name,
        dtype,
        dims,
        dim_count,
        offset,
        bytes,
    })
}
