//! Bounds on what a file may ask for. Every size read from a file meets one of
//! these, and the bytes that remain, before anything is allocated.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Bytes of a manifest. The ledger is most of it, some 250 bytes a tensor of the source.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Values in a manifest, counted by the commas and opening brackets around them; nine a
/// tensor of the source.
pub const MAX_MANIFEST_VALUES: u64 = 1 << 19;
/// Bytes of any string in a manifest.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// Layers of a model.
pub const MAX_LAYERS: u64 = 1 << 10;
/// Experts of a layer.
pub const MAX_EXPERTS: u64 = 1 << 12;
/// Shards of an expert.
pub const MAX_SHARDS: u64 = 1 << 8;
/// Any dimension of a matrix.
pub const MAX_DIM: u64 = 1 << 24;
/// Elements of a register, over all tokens of a pass.
pub const MAX_REGISTER_WIDTH: u64 = 1 << 20;
/// Taps of a short convolution.
pub const MAX_CONV_TAPS: u64 = 1 << 8;
/// Registers of a program.
pub const MAX_REGISTERS: usize = 64;
/// Operators of a layer.
pub const MAX_LAYER_OPS: usize = 128;
/// Resident tensors of a bundle.
pub const MAX_RESIDENT: usize = 1 << 16;
/// Parts the experts are split into.
pub const MAX_PARTS: usize = 1 << 12;
/// Files carried beside the weights.
pub const MAX_CARRIED_FILES: usize = 64;
/// Bytes of any name in a bundle.
pub const MAX_NAME_BYTES: usize = 256;
/// Dimensions of a tensor of a GGUF source.
pub const MAX_GGUF_DIMS: usize = 4;
/// Dimensions of a tensor of any other source.
pub const MAX_SOURCE_DIMS: usize = 8;

/// Reads a list of at most [`MAX_LAYERS`] elements and stops at the first one beyond:
/// one whose elements are lists takes far more memory than text.
pub(crate) fn one_a_layer<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    at_most(deserializer, MAX_LAYERS as usize)
}

/// Reads a list of at most `max` elements and stops at the first one beyond.
pub(crate) fn at_most<'de, D, T>(deserializer: D, max: usize) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T>(usize, PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {} elements", self.0)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = list.next_element()? {
                elements.push(element);
                if elements.len() > self.0 {
                    return Err(A::Error::invalid_length(elements.len(), &self));
                }
            }
            Ok(elements)
        }
    }

    deserializer.deserialize_seq(List(max, PhantomData))
}
