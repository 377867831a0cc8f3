//! Writing GGUF files: pairs and tensor infos first, then the data in order.

use std::collections::BTreeSet;
use std::io::{self, Write};

use estream_schemas::dtype::DType;

use super::header::Gguf;
use super::value::{Value, ValueType};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_NAME_BYTES, VERSION};

/// What cannot be written as GGUF. All but [`WriteFault::Io`] are mistakes of the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteFault {
    /// The output failed.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
    /// A key or tensor name is there already, empty or too long.
    #[error(
        "name {0:?} is used already, or does not have 1 to {MAX_NAME_BYTES} bytes; use another"
    )]
    Name(String),
    /// A value that a GGUF file cannot hold under this key.
    #[error("key {key:?} cannot hold {problem}; give it another value")]
    Value {
        /// Which key.
        key: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// GGUF has no such tensor.
    #[error(
        "tensor {name:?} of type {dtype} and shape {shape:?} cannot be stored; give it 1 to 4 dimensions, a type of ggml's and whole blocks"
    )]
    Tensor {
        /// Which tensor.
        name: String,
        /// Its type.
        dtype: DType,
        /// Slowest dimension first.
        shape: Vec<u64>,
    },
    /// The data does not end where a tensor ends, or there is too much or too little.
    #[error(
        "tensor {tensor:?} takes {expected} more bytes of data, got {got}; write its bytes whole and in order"
    )]
    Data {
        /// Which tensor, or nothing after the last.
        tensor: String,
        /// Bytes it still takes.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
}

/// A header in the making.
///
/// ```
/// use estream_compiler::ingest::gguf::{Gguf, GgufBuilder, Value};
/// use estream_schemas::dtype::DType;
///
/// let mut header = GgufBuilder::new();
/// header.pair("general.architecture", Value::String(b"olmoe"))?;
/// header.tensor("output_norm.weight", DType::F32, &[2])?;
/// let mut writer = header.begin(Vec::new())?;
/// writer.write_tensor_data(&[0; 8])?;
/// let file = writer.finish()?;
///
/// let read = Gguf::read(file.as_slice(), file.len() as u64).unwrap();
/// assert_eq!(read.kv("general.architecture").unwrap().as_str(), Some("olmoe"));
/// # Ok::<(), estream_compiler::ingest::gguf::WriteFault>(())
/// ```
#[derive(Debug)]
pub struct GgufBuilder {
    pairs: Vec<u8>,
    keys: BTreeSet<String>,
    alignment: u64,
    tensors: Vec<Planned>,
    names: BTreeSet<String>,
}

#[derive(Debug)]
struct Planned {
    name: String,
    dtype_id: u32,
    /// Fastest first.
    dims: Vec<u64>,
    bytes: u64,
}

impl Default for GgufBuilder {
    fn default() -> GgufBuilder {
        GgufBuilder::new()
    }
}

impl GgufBuilder {
    /// A header without pairs and tensors, with an alignment of 32.
    pub fn new() -> GgufBuilder {
        GgufBuilder {
            pairs: Vec::new(),
            keys: BTreeSet::new(),
            alignment: DEFAULT_ALIGNMENT,
            tensors: Vec::new(),
            names: BTreeSet::new(),
        }
    }

    /// Adds a pair. `general.alignment` also changes the alignment of this file.
    pub fn pair(&mut self, key: &str, value: Value<'_>) -> Result<(), WriteFault> {
        if key == ALIGNMENT_KEY {
            self.alignment = super::alignment_of(&value).ok_or_else(|| WriteFault::Value {
                key: key.to_owned(),
                problem: "what is not an alignment",
            })?;
        }
        self.start_pair(key, value.value_type())?;
        value.encode(&mut self.pairs);
        Ok(())
    }

    /// Adds an array of `values`, each of the type `element`.
    pub fn array<'v>(
        &mut self,
        key: &str,
        element: ValueType,
        values: impl IntoIterator<Item = Value<'v>, IntoIter: ExactSizeIterator>,
    ) -> Result<(), WriteFault> {
        let refused = |problem| WriteFault::Value {
            key: key.to_owned(),
            problem,
        };
        if element == ValueType::Array {
            return Err(refused("an array of arrays"));
        }
        let mut encoded = Vec::new();
        let values = values.into_iter();
        let count = values.len() as u64;
        for value in values {
            if value.value_type() != element {
                return Err(refused("an array of mixed types"));
            }
            value.encode(&mut encoded);
        }
        self.start_pair(key, ValueType::Array)?;
        self.pairs.extend(element.id().to_le_bytes());
        self.pairs.extend(count.to_le_bytes());
        self.pairs.extend(encoded);
        Ok(())
    }

    /// Adds every pair of `gguf` as it is, its alignment included.
    pub fn pairs_of(&mut self, gguf: &Gguf) -> Result<(), WriteFault> {
        gguf.pairs()
            .try_for_each(|(key, value)| self.pair(key, value))
    }

    /// Adds a tensor. Its data is written in the order of these calls.
    pub fn tensor(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Result<(), WriteFault> {
        let size = || {
            let (columns, rows) = shape.split_last().filter(|_| shape.len() <= 4)?;
            let rows = rows.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim))?;
            let bytes = dtype
                .matrix_bytes(rows, *columns)
                .filter(|bytes| *bytes > 0)?;
            Some((bytes, dtype.ggml_id()?))
        };
        let (bytes, dtype_id) = size().ok_or_else(|| WriteFault::Tensor {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
        })?;
        claim(&mut self.names, name)?;
        self.tensors.push(Planned {
            name: name.to_owned(),
            dtype_id,
            dims: shape.iter().rev().copied().collect(),
            bytes,
        });
        Ok(())
    }

    /// Writes the header to `out`. The data follows through the writer.
    pub fn begin<W: Write>(self, mut out: W) -> Result<GgufWriter<W>, WriteFault> {
        let mut header = Vec::with_capacity(self.pairs.len() + 24);
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.keys.len() as u64).to_le_bytes());
        header.extend(self.pairs);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_name(&mut header, &tensor.name);
            let dims = tensor.dims.iter().flat_map(|dim| dim.to_le_bytes());
            // There are four at most.
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            header.extend(dims);
            header.extend(tensor.dtype_id.to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = offset
                .checked_add(tensor.bytes)
                .and_then(|end| end.checked_next_multiple_of(self.alignment))
                .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        }
        out.write_all(&header)?;
        let mut writer = GgufWriter {
            out,
            written: header.len() as u64,
            alignment: self.alignment,
            tensors: self.tensors,
            index: 0,
            left: 0,
        };
        writer.pad()?;
        writer.left = writer.tensors.first().map_or(0, |tensor| tensor.bytes);
        Ok(writer)
    }

    fn start_pair(&mut self, key: &str, value_type: ValueType) -> Result<(), WriteFault> {
        claim(&mut self.keys, key)?;
        put_name(&mut self.pairs, key);
        self.pairs.extend(value_type.id().to_le_bytes());
        Ok(())
    }
}

fn claim(taken: &mut BTreeSet<String>, name: &str) -> Result<(), WriteFault> {
    let fits = (1..=MAX_NAME_BYTES).contains(&(name.len() as u64));
    if !fits || !taken.insert(name.to_owned()) {
        return Err(WriteFault::Name(name.to_owned()));
    }
    Ok(())
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend((name.len() as u64).to_le_bytes());
    out.extend(name.as_bytes());
}

/// A file whose header is written and whose data is not, or not all.
#[derive(Debug)]
pub struct GgufWriter<W> {
    out: W,
    written: u64,
    alignment: u64,
    tensors: Vec<Planned>,
    /// The tensor whose data comes next.
    index: usize,
    /// Bytes it still takes.
    left: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the next bytes of the data, all of them of one tensor; a large one may
    /// come in pieces. Padding is added after a tensor's last byte.
    pub fn write_tensor_data(&mut self, bytes: &[u8]) -> Result<(), WriteFault> {
        let count = bytes.len() as u64;
        self.left = match self.left.checked_sub(count) {
            Some(left) => left,
            None => return Err(self.wrong_length(count)),
        };
        self.out.write_all(bytes)?;
        self.written += count;
        if self.left == 0 && self.index < self.tensors.len() {
            self.pad()?;
            self.index += 1;
            self.left = self
                .tensors
                .get(self.index)
                .map_or(0, |tensor| tensor.bytes);
        }
        Ok(())
    }

    /// Flushes and returns the output, once every tensor has its data.
    pub fn finish(mut self) -> Result<W, WriteFault> {
        if self.left > 0 {
            return Err(self.wrong_length(0));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn wrong_length(&self, got: u64) -> WriteFault {
        WriteFault::Data {
            tensor: self
                .tensors
                .get(self.index)
                .map(|tensor| tensor.name.clone())
                .unwrap_or_default(),
            expected: self.left,
            got,
        }
    }

    fn pad(&mut self) -> Result<(), WriteFault> {
        let mut padding = self.written.next_multiple_of(self.alignment) - self.written;
        self.written += padding;
        while padding > 0 {
            let zeros = [0; 64];
            let count = padding.min(zeros.len() as u64);
            self.out.write_all(&zeros[..count as usize])?;
            padding -= count;
        }
        Ok(())
    }
}
