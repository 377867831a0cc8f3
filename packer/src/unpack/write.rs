//! Writing the data of the file: rows out of tiles, in the order that GGUF has them.

use std::fs::File;
use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::Path;

use estream_compiler::ingest::gguf::GgufWriter;
use estream_compiler::layout::untile_strip;
use estream_compiler::quant::decode;
use estream_runtime::reader::{BundleReader, Extent};
use estream_schemas::dtype::DType;
use estream_schemas::layout::{Layout, TILE};
use estream_schemas::manifest::Projection;

use super::UnpackError;
use super::plan::{Part, Piece, Tensor};

/// A file whose header is written.
pub(super) struct Job<'a> {
    pub(super) reader: &'a BundleReader,
    pub(super) out: &'a Path,
    pub(super) writer: GgufWriter<BufWriter<File>>,
    /// Bytes of the bundle that are written, and all there are.
    pub(super) done: u64,
    pub(super) total: u64,
    pub(super) progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

impl Job<'_> {
    pub(super) fn tensor(&mut self, tensor: &Tensor<'_>) -> Result<(), UnpackError> {
        let mut parts = tensor.parts.iter();
        parts.try_for_each(|part| self.part(part, tensor.dtype))
    }

    fn part(&mut self, part: &Part<'_>, dtype: DType) -> Result<(), UnpackError> {
        let layout = part.piece.layout();
        match &part.piece {
            Piece::Resident {
                index, rows, cols, ..
            } => {
                let extent = self.reader.resident(*index)?;
                let matrix = Matrix {
                    side_by_side: &[extent],
                    layout,
                    rows: *rows,
                    cols: *cols,
                };
                self.matrix(&matrix, part.rope_head_rows, dtype)
            }
            Piece::Expert {
                index,
                layer,
                position,
                projection,
            } => {
                let region = projection.region(layer);
                let shards = (0..layer.shards).map(|shard| {
                    let record = position * layer.shards + shard;
                    self.reader.region(*index, record, *projection)
                });
                let shards = shards.collect::<Result<Vec<_>, _>>()?;
                // Shards of gate and up are rows that follow one another; of down, columns.
                let at_once = match projection {
                    Projection::Gate | Projection::Up => 1,
                    Projection::Down => shards.len(),
                };
                shards.chunks(at_once.max(1)).try_for_each(|shards| {
                    let matrix = Matrix {
                        side_by_side: shards,
                        layout,
                        rows: region.rows,
                        cols: region.cols,
                    };
                    self.matrix(&matrix, None, dtype)
                })
            }
        }
    }

    /// Writes the rows of `matrix` as `dtype`: as they come, or a head at a time, its
    /// second half between its first.
    fn matrix(
        &mut self,
        matrix: &Matrix<'_>,
        rope_head_rows: Option<u64>,
        dtype: DType,
    ) -> Result<(), UnpackError> {
        let (mut rows, mut paired, mut wide) = (Vec::new(), Vec::new(), Vec::new());
        let step = rope_head_rows.unwrap_or(TILE).max(1);
        let mut first = 0;
        while first < matrix.rows {
            let count = step.min(matrix.rows - first);
            self.done += matrix.read(first, count, &mut rows)?;
            if rope_head_rows.is_some() {
                pair_rows(&rows, size(count), &mut paired);
                std::mem::swap(&mut rows, &mut paired);
            }
            if dtype == matrix.layout.dtype() {
                self.write(&rows)?;
            } else {
                widen(matrix.layout.dtype(), &rows, &mut wide)?;
                self.write(&wide)?;
            }
            if (self.progress)(self.done.min(self.total), self.total).is_break() {
                return Err(UnpackError::Cancelled);
            }
            first += count;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        let written = self.writer.write_tensor_data(bytes);
        written.map_err(|source| UnpackError::Write {
            path: self.out.to_owned(),
            source,
        })
    }
}

/// A matrix whose columns are those of one extent after the other, each of `rows` × `cols`.
struct Matrix<'a> {
    side_by_side: &'a [Extent<'a>],
    layout: Layout,
    rows: u64,
    cols: u64,
}

impl Matrix<'_> {
    /// Fills `out` with whole rows from `first` on, and returns how many bytes of the bundle they are.
    fn read(&self, first: u64, count: u64, out: &mut Vec<u8>) -> Result<u64, UnpackError> {
        let row_bytes = size(self.layout.dtype().row_bytes(self.cols).unwrap_or(0));
        let whole_bytes = row_bytes * self.side_by_side.len();
        out.clear();
        out.resize(whole_bytes * size(count), 0);
        let mut plain = vec![0; row_bytes * size(TILE)];
        let strips = first / TILE..(first + count).div_ceil(TILE);
        for (index, extent) in self.side_by_side.iter().enumerate() {
            for strip in strips.clone() {
                let start = strip * TILE;
                let strip_rows = (self.rows - start).min(TILE);
                self.strip(extent, strip, size(strip_rows), &mut plain)?;
                for row in start.max(first)..(start + strip_rows).min(first + count) {
                    let from = size(row - start) * row_bytes;
                    let to = size(row - first) * whole_bytes + index * row_bytes;
                    out[to..to + row_bytes].copy_from_slice(&plain[from..from + row_bytes]);
                }
            }
        }
        Ok(out.len() as u64)
    }

    /// Fills the start of `plain` with the rows of one strip.
    fn strip(
        &self,
        extent: &Extent<'_>,
        strip: u64,
        row_count: usize,
        plain: &mut [u8],
    ) -> Result<(), UnpackError> {
        let row_bytes = plain.len() / size(TILE);
        let out = &mut plain[..row_count * row_bytes];
        match self.layout.tile_bytes() {
            None => extent.read_at(strip * TILE * row_bytes as u64, out)?,
            Some(tile_bytes) => {
                let strip_bytes = tile_bytes * self.cols.div_ceil(TILE);
                let mut tiles = vec![0; size(strip_bytes)];
                extent.read_at(strip * strip_bytes, &mut tiles)?;
                untile_strip(self.layout, &tiles, row_count, size(self.cols), out)?;
            }
        }
        Ok(())
    }
}

/// The rows of one head as adjacent rope pairs: row 2i is i of `rows`, and 2i + 1 is i + d/2.
fn pair_rows(rows: &[u8], count: usize, out: &mut Vec<u8>) {
    out.clear();
    let (upper, lower) = rows.split_at(rows.len() / 2);
    let row_bytes = (rows.len() / count.max(1)).max(1);
    for (first, second) in upper.chunks(row_bytes).zip(lower.chunks(row_bytes)) {
        out.extend(first);
        out.extend(second);
    }
}

/// Half-precision numbers as f32, which has them all.
fn widen(dtype: DType, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), UnpackError> {
    let mut values = vec![0.0; bytes.len() / 2];
    decode(dtype, bytes, &mut values)?;
    out.clear();
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    Ok(())
}

/// A size that a checked manifest bounds.
fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::pair_rows;

    #[test]
    fn halves_of_a_head_become_pairs() {
        let mut out = Vec::new();
        pair_rows(&[0, 1, 10, 11, 20, 21, 30, 31], 4, &mut out);
        assert_eq!(out, [0, 1, 20, 21, 10, 11, 30, 31]);
    }
}
