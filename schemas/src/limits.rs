//! Bounds on what a file may ask for. Every size read from a file meets one of
//! these, and the bytes that remain, before anything is allocated.

/// Bytes of a manifest.
pub const MAX_MANIFEST_BYTES: u64 = 24 << 20;
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
