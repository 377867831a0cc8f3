//! Arranging rows into 32 × 32 tiles and back.
//!
//! The unit of work is a *strip*: up to 32 rows of a matrix, all columns, because rows
//! arrive one after another and a strip's tiles lie together. A matrix is its strips in
//! order, so a caller of any size holds one strip at a time.
//!
//! Nothing here computes with a weight: levels move, scales are copied bit for bit, and
//! [`untile_strip`] restores the very blocks [`tile_strip`] was given.
//!
//! ```
//! use estream_compiler::layout::{tile_strip, untile_strip};
//! use estream_schemas::layout::Layout;
//!
//! let layout: Layout = "q4_0.t32.direct".parse().unwrap();
//! let rows: Vec<u8> = (0..5 * 36).map(|byte| byte as u8).collect(); // 5 rows of 64
//! let mut tiles = vec![0; 2 * 576];
//! tile_strip(layout, &rows, 5, 64, &mut tiles)?;
//! let mut back = vec![0; rows.len()];
//! untile_strip(layout, &tiles, 5, 64, &mut back)?;
//! assert_eq!(back, rows);
//! # Ok::<(), estream_compiler::layout::LayoutError>(())
//! ```

mod nibbles;
mod strip;
mod transpose;

pub use strip::{LayoutError, relayout_strip, tile_strip, untile_strip};
