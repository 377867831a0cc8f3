//! The VTCM planner: how many rows an invocation takes, and where everything lies (paper §3.2).

use std::fmt;

use estream_schemas::limits::MAX_SHARDS;

use crate::pack::{Block, RANGE_BYTES, Room, TILE_BYTES, Walk, in_order, tightest};
use crate::shape::WEIGHT_ALIGN;
use crate::{ExpertShape, Refused, Stored, abi};

/// VTCM of the devices that are known: what a template is made for where nothing else is said.
pub const VTCM_BYTES: u64 = 8 << 20;
/// VTCM that templates are made for at most.
pub const MAX_VTCM_BYTES: u64 = 64 << 20;
/// Bytes of a bank of VTCM.
pub(crate) const BANK_BYTES: u64 = 4 << 20;
/// Rows of a tile.
const TILE_ROWS: u64 = abi::TILE as u64;
/// Row tiles that an invocation can have: no message has more tokens.
const MAX_ROW_TILES: u64 = (abi::MAX_TOKENS / abi::TILE) as u64;
/// Bytes of the block of column scales and biases, which begins at a multiple of as many.
const SCALES_BYTES: u64 = abi::SCALES_BYTES as u64;
/// Tiles of a strip that a step should have at least, if that takes no rows away: one range.
const STEP_TILES: u64 = RANGE_BYTES / TILE_BYTES;

// Every place can be said in a message.
const _: () = assert!(MAX_VTCM_BYTES <= u32::MAX as u64);

/// A buffer in VTCM. Letters are those of the paper's Algorithm 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// Gathered activations: C rows × hidden in tiles of FP16, those of 32 rows together.
    Z,
    /// What SwiGLU makes of gate and up: C rows × ff, likewise.
    H,
    /// Strips as they are stored; two take turns.
    C(usize),
    /// Strips as the matrix unit reads them; two take turns.
    D(usize),
    /// Products. A pair of gate and up is made while SwiGLU works on the pair before; down has the first two.
    O(usize),
    /// Column scales and biases, which the matrix unit wants with every product.
    Scales,
}

impl fmt::Display for Buffer {
    /// As `abi.h` calls it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Z => f.write_str("z"),
            Buffer::H => f.write_str("h"),
            Buffer::C(index) => write!(f, "c[{index}]"),
            Buffer::D(index) => write!(f, "d[{index}]"),
            Buffer::O(index) => write!(f, "o[{index}]"),
            Buffer::Scales => f.write_str("scales"),
        }
    }
}

/// A buffer with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Which.
    pub buffer: Buffer,
    /// Where it begins, from the start of VTCM, where a bank begins.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
}

/// The expert kernel for one shape class on one size of VTCM.
///
/// Holding one proves that regions lie apart and within VTCM, that operands and products begin at multiples of
/// 2,048 bytes, weights at 128 and scales at 256, that no range of tiles that the matrix unit walks at once lies
/// on two banks, and that no arrangement of these regions has room for 32 rows more, unless a message has no more either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    shape: ExpertShape,
    vtcm_bytes: u64,
    size: Size,
    regions: Vec<Region>,
}

/// What decides how large regions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// C / 32.
    row_tiles: u64,
    gate_up_strips: u64,
    down_strips: u64,
}

impl Template {
    /// The template that takes the most rows: a record's weights are fetched and decoded once for each C rows that
    /// are routed to it. What is left of VTCM makes steps wider, where strips are shorter than one range of the
    /// matrix unit.
    ///
    /// # Errors
    /// If not even 32 rows fit, with what would do.
    pub fn new(shape: &ExpertShape, vtcm_bytes: u64) -> Result<Template, Refused> {
        if vtcm_bytes > MAX_VTCM_BYTES {
            return Err(Refused::Budget { vtcm_bytes });
        }
        let room = Room {
            bytes: vtcm_bytes,
            bank_bytes: BANK_BYTES,
        };
        let found = best(shape, room).and_then(|size| Some((size, places(shape, size, room)?)));
        let (size, places) = found.ok_or_else(|| refused(shape, vtcm_bytes))?;
        let regions = needs(shape, size).into_iter().zip(places);
        let region = |((buffer, block), offset): ((Buffer, Block), u64)| Region {
            buffer,
            offset,
            bytes: block.bytes,
        };
        Ok(Template {
            shape: *shape,
            vtcm_bytes,
            size,
            regions: regions.map(region).collect(),
        })
    }

    /// What it is for.
    pub fn shape(&self) -> &ExpertShape {
        &self.shape
    }

    /// The VTCM it is for.
    pub fn vtcm_bytes(&self) -> u64 {
        self.vtcm_bytes
    }

    /// C: rows of an invocation at most.
    pub fn capacity(&self) -> u64 {
        self.size.row_tiles * TILE_ROWS
    }

    /// Strips of 32 columns that a step of gate, or of up, takes.
    pub fn gate_up_strips(&self) -> u64 {
        self.size.gate_up_strips
    }

    /// Strips of 32 columns that a step of down takes.
    pub fn down_strips(&self) -> u64 {
        self.size.down_strips
    }

    /// Every buffer with its place.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Where a buffer begins.
    pub fn offset(&self, buffer: Buffer) -> u64 {
        let mut regions = self.regions.iter();
        let region = regions.find(|region| region.buffer == buffer);
        region.map_or(0, |region| region.offset)
    }

    /// The template as a message to the kernels has it.
    pub fn plan(&self) -> abi::Plan {
        // Nothing is above MAX_VTCM_BYTES, and every row and strip takes bytes.
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let at = |buffer| number(self.offset(buffer));
        abi::Plan {
            rows: number(self.capacity()),
            gate_up_strips: number(self.gate_up_strips()),
            down_strips: number(self.down_strips()),
            vtcm_bytes: number(self.vtcm_bytes),
            z: at(Buffer::Z),
            h: at(Buffer::H),
            c: [0, 1].map(|index| at(Buffer::C(index))),
            d: [0, 1].map(|index| at(Buffer::D(index))),
            o: [0, 1, 2, 3].map(|index| at(Buffer::O(index))),
            scales: at(Buffer::Scales),
            zero: 0,
        }
    }

    /// The end of the last region.
    pub fn used_bytes(&self) -> u64 {
        let regions = self.regions.iter();
        let ends = regions.map(|region| region.offset + region.bytes);
        ends.max().unwrap_or(0)
    }
}

/// Steps of one strip.
fn narrow(row_tiles: u64) -> Size {
    Size {
        row_tiles,
        gate_up_strips: 1,
        down_strips: 1,
    }
}

/// The size of the best template; none if 32 rows do not fit.
fn best(shape: &ExpertShape, room: Room) -> Option<Size> {
    let fits = |size: &Size| places(shape, *size, room).is_some();
    // Where some rows fit, fewer do: theirs are the first of each region.
    let (mut low, mut high) = (0, (room.bytes / TILE_BYTES).min(MAX_ROW_TILES));
    while low < high {
        let middle = high - (high - low) / 2;
        match fits(&narrow(middle)) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    let size = Some(narrow(low)).filter(|size| size.row_tiles > 0)?;
    // Strips that make a range, of which no step needs more than there are.
    let wanted = |strip_tiles: u64, strips: u64| STEP_TILES.div_ceil(strip_tiles).min(strips);
    let (hidden, ff) = (shape.hidden_tiles(), shape.ff_tiles());
    let of_gate_up = |gate_up_strips| Size {
        gate_up_strips,
        ..size
    };
    let mut sizes = (1..=wanted(hidden, ff)).rev().map(of_gate_up);
    let size = sizes.find(fits)?;
    let of_down = |down_strips| Size {
        down_strips,
        ..size
    };
    let mut sizes = (1..=wanted(ff, hidden)).rev().map(of_down);
    sizes.find(fits)
}

/// Why not even 32 rows fit.
fn refused(shape: &ExpertShape, vtcm_bytes: u64) -> Refused {
    let room = Room {
        bytes: MAX_VTCM_BYTES,
        bank_bytes: BANK_BYTES,
    };
    let least = |shape: &ExpertShape| {
        let blocks: Vec<Block> = blocks(shape, narrow(1));
        let places = tightest(&blocks, room)?.into_iter();
        places
            .zip(&blocks)
            .map(|(at, block)| at + block.bytes)
            .max()
    };
    let cuts = shape.shards() + 1..=MAX_SHARDS;
    let mut fitting = cuts.filter_map(|shards| {
        let bytes = least(&shape.cut(shards)?)?;
        (bytes <= vtcm_bytes).then_some((shards, bytes))
    });
    Refused::Vtcm {
        hidden: shape.hidden(),
        ff: shape.ff(),
        vtcm_bytes,
        needed_bytes: least(shape),
        shards: fitting.next(),
    }
}

/// Places for everything, if there are: one after another where that suffices.
fn places(shape: &ExpertShape, size: Size, room: Room) -> Option<Vec<u64>> {
    let blocks = blocks(shape, size);
    in_order(&blocks, room).or_else(|| tightest(&blocks, room))
}

fn blocks(shape: &ExpertShape, size: Size) -> Vec<Block> {
    let needs = needs(shape, size).into_iter();
    needs.map(|(_, block)| block).collect()
}

/// What every buffer needs.
fn needs(shape: &ExpertShape, size: Size) -> Vec<(Buffer, Block)> {
    let (hidden, ff) = (shape.hidden_tiles(), shape.ff_tiles());
    let [gate, up, down] = shape.stored().map(Stored::vtcm_tile_bytes);
    let Size {
        row_tiles,
        gate_up_strips,
        down_strips,
    } = size;
    let block = |bytes, align| Block {
        bytes,
        align,
        walks: Vec::new(),
    };
    let operand = |walks: &[(u64, u64)]| {
        let tiles = walks.iter().map(|(row_tiles, rows)| row_tiles * rows).max();
        let walk = |&(row_tiles, rows): &(u64, u64)| Walk { row_tiles, rows };
        Block {
            walks: walks.iter().map(walk).collect(),
            ..block(tiles.unwrap_or(0) * TILE_BYTES, TILE_BYTES)
        }
    };
    let decoded = operand(&[(hidden, gate_up_strips), (ff, down_strips)]);
    let stored_bytes = (gate_up_strips * hidden * gate.max(up)).max(down_strips * ff * down);
    let stored = block(stored_bytes, WEIGHT_ALIGN);
    let products = |strips: u64| block(row_tiles * strips * TILE_BYTES, TILE_BYTES);
    let shared = products(gate_up_strips.max(down_strips));
    // The largest alignment first, so that in this order no gap is left but for banks.
    vec![
        (Buffer::Z, operand(&[(hidden, row_tiles)])),
        (Buffer::H, operand(&[(ff, row_tiles)])),
        (Buffer::D(0), decoded.clone()),
        (Buffer::D(1), decoded),
        (Buffer::O(0), shared.clone()),
        (Buffer::O(1), shared),
        (Buffer::O(2), products(gate_up_strips)),
        (Buffer::O(3), products(gate_up_strips)),
        (Buffer::Scales, block(SCALES_BYTES, SCALES_BYTES)),
        (Buffer::C(0), stored.clone()),
        (Buffer::C(1), stored),
    ]
}
