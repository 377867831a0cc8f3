//! Rectangles of a matrix that several threads write at once.

use std::marker::PhantomData;

/// A rectangle of a row-major f32 matrix. Holding one is the exclusive right to
/// its elements, and says nothing about the rest of the rows it lies in.
#[derive(Debug)]
pub struct Block<'a> {
    start: *mut f32,
    stride: usize,
    first_row: usize,
    first_col: usize,
    rows: usize,
    cols: usize,
    data: PhantomData<&'a mut [f32]>,
}

// SAFETY: a block is an exclusive borrow of f32s, which may move to another thread.
unsafe impl Send for Block<'_> {}

impl<'a> Block<'a> {
    /// The whole of `data`, rows of `width` elements.
    ///
    /// # Panics
    /// If `data` is not whole rows.
    pub fn of(data: &'a mut [f32], width: usize) -> Block<'a> {
        let grid = Grid::new(data, width, usize::MAX, usize::MAX);
        Block {
            start: grid.start,
            stride: width,
            first_row: 0,
            first_col: 0,
            rows: grid.rows,
            cols: width,
            data: PhantomData,
        }
    }

    /// The same rectangle, for as long as this one is not used.
    pub fn reborrow(&mut self) -> Block<'_> {
        Block { ..*self }
    }

    /// Rows of the rectangle.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the rectangle.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Where in the matrix its first row is.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// Where in the matrix its first column is.
    pub fn first_col(&self) -> usize {
        self.first_col
    }

    /// Row `i` of the rectangle, counted from its own first one.
    ///
    /// # Panics
    /// If the rectangle has no such row.
    #[inline(always)]
    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows, "a block has no rows but its own");
        // SAFETY: the row lies in the allocation the grid was made from, whose size in
        // bytes, and so this offset, fits an isize.
        let start = unsafe { self.start.add(i * self.stride) };
        // SAFETY: these elements belong to this block alone (`Grid::block`), for 'a,
        // and the result borrows the block.
        unsafe { std::slice::from_raw_parts_mut(start, self.cols) }
    }
}

/// A matrix about to be cut into blocks.
#[derive(Debug)]
pub(super) struct Grid<'a> {
    start: *mut f32,
    width: usize,
    rows: usize,
    block_rows: usize,
    block_cols: usize,
    data: PhantomData<&'a mut [f32]>,
}

// SAFETY: sharing a grid shares only its numbers; its elements are reached through
// `block`, whose callers promise to take each block once.
unsafe impl Sync for Grid<'_> {}

impl<'a> Grid<'a> {
    pub(super) fn new(
        data: &'a mut [f32],
        width: usize,
        block_rows: usize,
        block_cols: usize,
    ) -> Grid<'a> {
        assert!(block_rows > 0 && block_cols > 0, "a block is not empty");
        let rows = data.len().checked_div(width).unwrap_or(0);
        assert_eq!(data.len(), rows * width, "a matrix is whole rows");
        Grid {
            start: data.as_mut_ptr(),
            width,
            rows,
            block_rows,
            block_cols,
            data: PhantomData,
        }
    }

    fn across(&self) -> usize {
        self.width.div_ceil(self.block_cols)
    }

    pub(super) fn count(&self) -> usize {
        self.rows.div_ceil(self.block_rows) * self.across()
    }

    /// Block `index`: neighbours in a row of blocks are neighbours in index.
    ///
    /// # Safety
    /// No block of this index may be alive, or be made again while this one is.
    pub(super) unsafe fn block(&self, index: usize) -> Block<'_> {
        assert!(index < self.count(), "a grid has no blocks but its own");
        let first_row = index / self.across() * self.block_rows;
        let first_col = index % self.across() * self.block_cols;
        Block {
            // SAFETY: the first element of the block lies in `data`.
            start: unsafe { self.start.add(first_row * self.width + first_col) },
            stride: self.width,
            first_row,
            first_col,
            rows: self.block_rows.min(self.rows - first_row),
            cols: self.block_cols.min(self.width - first_col),
            data: PhantomData,
        }
    }
}
