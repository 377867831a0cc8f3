//! Making the bytes of a weight: read a strip, convert it, arrange it.

use std::io;
use std::ops::Range;

use estream_schemas::layout::{Layout, TILE};
use estream_schemas::manifest::Projection;
use rayon::prelude::*;

use super::{CompileError, Compiled};
use crate::layout::tile_strip;
use crate::lower::View;
use crate::quant::{OnOverflow, QuantError, check_scales, decode, encode};

/// Source bytes in memory at a time, over all threads.
const BATCH_BYTES: u64 = 16 << 20;

/// Takes the bytes of a weight in order.
pub type Sink<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

impl Compiled<'_> {
    /// Pushes the bytes of resident weight `index` into `sink`.
    pub fn write_resident(&self, index: usize, sink: &mut Sink<'_>) -> Result<(), CompileError> {
        let weight = &self.resident[index];
        let whole = 0..weight.view.cols;
        self.matrix(
            &weight.view,
            0..weight.view.rows,
            whole,
            weight.layout,
            sink,
        )
    }

    /// Pushes the bytes of one projection of shard `shard` of expert `expert` of the
    /// `layer`-th layer that has experts.
    pub fn write_region(
        &self,
        layer: usize,
        expert: u64,
        shard: u64,
        projection: Projection,
        sink: &mut Sink<'_>,
    ) -> Result<(), CompileError> {
        let experts = &self.experts[layer];
        let (layout, rows, cols) = experts.region(projection);
        let slice = shard * experts.ff..(shard + 1) * experts.ff;
        let (rows, cols) = match projection {
            Projection::Gate | Projection::Up => (slice, 0..cols),
            Projection::Down => (0..rows, slice),
        };
        let view = &experts.views[projection as usize][size(expert)];
        self.matrix(view, rows, cols, layout, sink)
    }

    /// Rows `rows`, columns `cols` of `view` in `layout`, a batch of strips at a time.
    fn matrix(
        &self,
        view: &View,
        rows: Range<u64>,
        cols: Range<u64>,
        layout: Layout,
        sink: &mut Sink<'_>,
    ) -> Result<(), CompileError> {
        let strip_bytes = view.row_bytes() as u64 * TILE;
        let strips = (BATCH_BYTES / strip_bytes.max(1)).max(1);
        let mut first = rows.start;
        let mut source = Vec::new();
        while first < rows.end {
            let count = (rows.end - first).min(strips * TILE);
            view.read_rows(self.checkpoint, first, count, &mut source)?;
            let strips: Vec<Vec<u8>> = source
                .par_chunks(usize::try_from(strip_bytes).unwrap_or(usize::MAX))
                .enumerate()
                .map(|(index, strip)| {
                    let row = first + index as u64 * TILE;
                    self.strip(view, row, strip, cols.clone(), layout)
                })
                .collect::<Result<_, _>>()?;
            for strip in &strips {
                sink(strip)?;
            }
            first += count;
        }
        Ok(())
    }

    /// Up to 32 rows as the source has them → columns `cols` of them in `layout`.
    fn strip(
        &self,
        view: &View,
        row: u64,
        source: &[u8],
        cols: Range<u64>,
        layout: Layout,
    ) -> Result<Vec<u8>, CompileError> {
        let tensor = &self.checkpoint.tensors[view.tensor];
        // What is wrong in a slice of row `index` of these that begins at column `col`.
        let wrong = |index: usize, col: u64, source: QuantError| {
            let col = col + source.element().unwrap_or(0);
            CompileError::Value {
                path: self.checkpoint.path.clone(),
                tensor: tensor.name.clone(),
                position: view.position(&tensor.shape, row + index as u64, col),
                source,
            }
        };
        let dtype = layout.dtype();
        let row_bytes = view.row_bytes();
        let row_count = source.len() / row_bytes.max(1);
        let stored_cols = size(view.cols);
        let logical_cols = size(cols.end - cols.start);
        let padded_cols = match layout.is_tiled() {
            true => logical_cols.next_multiple_of(size(TILE)),
            false => logical_cols,
        };
        let out_row_bytes = size(dtype.row_bytes(padded_cols as u64).unwrap_or(0));
        let mut rows = vec![0; out_row_bytes * row_count];
        if view.read_dtype() == dtype && padded_cols == logical_cols {
            let from = size(dtype.row_bytes(cols.start).unwrap_or(0));
            for (index, (out, row)) in rows
                .chunks_exact_mut(out_row_bytes)
                .zip(source.chunks_exact(row_bytes))
                .enumerate()
            {
                out.copy_from_slice(&row[from..from + out_row_bytes]);
                check_scales(dtype, out).map_err(|source| wrong(index, cols.start, source))?;
            }
        } else {
            let mut stored = vec![0.0; stored_cols];
            let mut wanted = vec![0.0; padded_cols];
            let start = size(cols.start);
            for (index, (out, row)) in rows
                .chunks_exact_mut(out_row_bytes)
                .zip(source.chunks_exact(row_bytes))
                .enumerate()
            {
                decode(view.read_dtype(), row, &mut stored)
                    .map_err(|source| wrong(index, 0, source))?;
                wanted[..logical_cols].copy_from_slice(&stored[start..start + logical_cols]);
                // Plain types carry infinities and NaN over: what is written is looked at
                // whatever made it.
                encode(dtype, &wanted, out, OnOverflow::Error)
                    .and_then(|_| check_scales(dtype, out))
                    .map_err(|source| wrong(index, cols.start, source))?;
            }
        }
        let Some(tile_bytes) = layout.tile_bytes() else {
            return Ok(rows);
        };
        let mut tiles = vec![0; padded_cols / size(TILE) * size(tile_bytes)];
        tile_strip(layout, &rows, row_count, padded_cols, &mut tiles)?;
        Ok(tiles)
    }
}

/// A dimension or size that a shape check has bounded.
fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
