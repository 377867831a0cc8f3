//! Values of GGUF pairs, decoded when they are asked for.

/// The type of a pair's value, or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the format's own names")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// By id: the position in this list is the number in the file.
    const BY_ID: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this number in a file.
    pub fn from_id(id: u32) -> Option<ValueType> {
        Self::BY_ID.get(usize::try_from(id).ok()?).copied()
    }

    /// The number of this type in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes a value takes; `None` for strings and arrays, which say so themselves.
    pub fn fixed_bytes(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}

/// A value, borrowed from the header it is in.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the format's own names")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Meant to be UTF-8. Some vocabularies hold tokens that are not.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value as text, if it is a string of UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Value::String(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value of an integer of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The array, if the value is one.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match self {
            Value::Array(array) => Some(*array),
            _ => None,
        }
    }

    /// Splits a value of type `of` off the front of `bytes`. `None` if they are too
    /// few or hold no such value; never for bytes the header's walk has accepted.
    pub(super) fn decode(of: ValueType, bytes: &mut &'a [u8]) -> Option<Value<'a>> {
        Some(match of {
            ValueType::U8 => Value::U8(u8::from_le_bytes(array(bytes)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(array(bytes)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(array(bytes)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(array(bytes)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(array(bytes)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(array(bytes)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(array(bytes)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(array(bytes)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(array(bytes)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(array(bytes)?)),
            ValueType::Bool => match array(bytes)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                _ => return None,
            },
            ValueType::String => {
                let count = usize::try_from(u64::from_le_bytes(array(bytes)?)).ok()?;
                Value::String(bytes.split_off(..count)?)
            }
            ValueType::Array => Value::Array(Array {
                element: ValueType::from_id(u32::from_le_bytes(array(bytes)?))?,
                count: u64::from_le_bytes(array(bytes)?),
                bytes: std::mem::take(bytes),
            }),
        })
    }

    /// Appends the value as a file has it, without its type.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Value::U8(v) => out.push(v),
            Value::I8(v) => out.extend(v.to_le_bytes()),
            Value::U16(v) => out.extend(v.to_le_bytes()),
            Value::I16(v) => out.extend(v.to_le_bytes()),
            Value::U32(v) => out.extend(v.to_le_bytes()),
            Value::I32(v) => out.extend(v.to_le_bytes()),
            Value::F32(v) => out.extend(v.to_le_bytes()),
            Value::U64(v) => out.extend(v.to_le_bytes()),
            Value::I64(v) => out.extend(v.to_le_bytes()),
            Value::F64(v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(v.into()),
            Value::String(bytes) => {
                out.extend((bytes.len() as u64).to_le_bytes());
                out.extend(bytes);
            }
            Value::Array(array) => {
                out.extend(array.element.id().to_le_bytes());
                out.extend(array.count.to_le_bytes());
                out.extend(array.bytes);
            }
        }
    }
}

/// Splits `N` bytes off the front.
fn array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

/// An array, still as the file has it. Elements are never arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array<'a> {
    element: ValueType,
    count: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// What the elements are.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The elements in order, each decoded when it is reached.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter {
            element: self.element,
            left: self.count,
            bytes: self.bytes,
        }
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    element: ValueType,
    left: u64,
    bytes: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        Value::decode(self.element, &mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_back_to_the_type() {
        for id in 0..13 {
            assert_eq!(ValueType::from_id(id).map(ValueType::id), Some(id));
        }
        assert_eq!(ValueType::from_id(13), None);
        assert_eq!(ValueType::from_id(u32::MAX), None);
    }

    #[test]
    fn a_value_survives_encoding() {
        let values = [
            Value::U8(1),
            Value::I8(-1),
            Value::U16(2),
            Value::I16(-2),
            Value::U32(3),
            Value::I32(-3),
            Value::F32(0.5),
            Value::Bool(true),
            Value::String(b"text \xff"),
            Value::Array(Array {
                element: ValueType::String,
                count: 1,
                bytes: b"\x02\0\0\0\0\0\0\0ab",
            }),
            Value::U64(u64::MAX),
            Value::I64(i64::MIN),
            Value::F64(-0.25),
        ];
        for value in values {
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            let mut rest = bytes.as_slice();
            assert_eq!(Value::decode(value.value_type(), &mut rest), Some(value));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn only_integers_that_are_not_negative_are_counts() {
        assert_eq!(Value::U16(7).as_u64(), Some(7));
        assert_eq!(Value::I32(7).as_u64(), Some(7));
        assert_eq!(Value::I32(-7).as_u64(), None);
        assert_eq!(Value::F32(7.0).as_u64(), None);
    }
}
