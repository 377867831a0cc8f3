//! Matrices of random numbers whose values are known without the decoder, and
//! every way of running a kernel that must not change its result.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, element_index};

use super::matrix::{Matrix, TILE};
use super::{Cpu, Simd, SimdPath};
use crate::math::f16_to_f32;

/// Every layout the backend reads.
pub(super) const LAYOUTS: [&str; 27] = [
    "q4_0.t32.direct",
    "q4_0.t32.pair",
    "q4_1.t32.direct",
    "q4_1.t32.pair",
    "iq4_nl.t32.direct",
    "iq4_nl.t32.pair",
    "mxfp4.t32.direct",
    "mxfp4.t32.pair",
    "q8_0.t32",
    "f16.t32",
    "bf16.t32",
    "f32.t32",
    "f32.rows",
    "f16.rows",
    "bf16.rows",
    "q4_0.rows",
    "q4_1.rows",
    "q5_0.rows",
    "q5_1.rows",
    "q8_0.rows",
    "iq4_nl.rows",
    "mxfp4.rows",
    "q2_k.rows",
    "q3_k.rows",
    "q4_k.rows",
    "q5_k.rows",
    "q6_k.rows",
];

/// A small generator: equal seeds, equal numbers.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    fn byte(&mut self) -> u8 {
        self.bits().to_le_bytes()[3]
    }

    /// Between −1 and 1.
    pub(super) fn real(&mut self) -> f32 {
        self.bits().cast_signed() as f32 / 2f32.powi(31)
    }

    pub(super) fn reals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.real()).collect()
    }

    /// A binary16 of either sign between 2⁻⁸ and 1, and its value.
    fn f16(&mut self) -> ([u8; 2], f64) {
        let [low, high, sign, exponent] = self.bits().to_le_bytes();
        let mantissa = u16::from_le_bytes([low, high & 3]);
        let bits = u16::from(sign & 0x80) << 8 | u16::from(7 + exponent % 8) << 10 | mantissa;
        (bits.to_le_bytes(), f64::from(f16_to_f32(bits)))
    }
}

/// A matrix, and what every element of it is worth.
pub(super) struct Known {
    pub(super) layout: Layout,
    pub(super) rows: usize,
    pub(super) cols: usize,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

/// 32 elements of one row: their common bytes, a code each, and their values.
struct Block {
    scale: Vec<u8>,
    codes: [[u8; 4]; TILE],
    values: [f64; TILE],
}

fn block(dtype: DType, random: &mut Random) -> Block {
    const NL: [i8; 16] = [
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
    ];
    const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let (mut scale, d) = match dtype {
        DType::MXFP4 => {
            let e = 120 + random.byte() % 8;
            (vec![e], 2f64.powi(i32::from(e) - 127))
        }
        DType::F16 | DType::BF16 | DType::F32 => (Vec::new(), 1.0),
        _ => {
            let (bytes, d) = random.f16();
            (bytes.to_vec(), d)
        }
    };
    let mut m = 0.0;
    if dtype == DType::Q4_1 {
        let (bytes, value) = random.f16();
        scale.extend(bytes);
        m = value;
    }
    let mut codes = [[0; 4]; TILE];
    let values = std::array::from_fn(|i| {
        let code = random.byte();
        let nibble = code & 15;
        let plain = f64::from(nibble);
        codes[i][0] = nibble;
        match dtype {
            DType::Q4_0 => d * (plain - 8.0),
            DType::Q4_1 => d * plain + m,
            DType::IQ4_NL => d * f64::from(NL[usize::from(nibble)]),
            DType::MXFP4 => {
                let magnitude = d * E2M1[usize::from(nibble & 7)];
                if nibble < 8 { magnitude } else { -magnitude }
            }
            DType::Q8_0 => {
                codes[i][0] = code;
                d * f64::from(code.cast_signed())
            }
            DType::F16 => {
                let (bytes, value) = random.f16();
                codes[i][..2].copy_from_slice(&bytes);
                value
            }
            DType::BF16 => {
                let bits = random.real().to_bits() & 0xffff_0000;
                codes[i][..2].copy_from_slice(&bits.to_le_bytes()[2..]);
                f64::from(f32::from_bits(bits))
            }
            _ => {
                let value = random.real();
                codes[i] = value.to_le_bytes();
                f64::from(value)
            }
        }
    });
    Block {
        scale,
        codes,
        values,
    }
}

impl Known {
    /// A matrix of random elements. The padding of its tiles is random too: no
    /// kernel may look at it.
    pub(super) fn random(layout: &str, rows: usize, cols: usize, seed: u64) -> Known {
        let layout: Layout = layout.parse().unwrap();
        let bytes = layout.bytes(rows as u64, cols as u64).unwrap();
        let mut known = Known {
            layout,
            rows,
            cols,
            bytes: vec![0; usize::try_from(bytes).unwrap()],
            values: vec![0.0; rows * cols],
        };
        let mut random = Random::new(seed);
        if !layout.is_tiled() && layout.dtype().is_quantised() {
            known.fill_with_vectors(&mut random);
            return known;
        }
        let padded = if layout.is_tiled() {
            rows.next_multiple_of(TILE)
        } else {
            rows
        };
        for n in 0..padded {
            for k in (0..cols).step_by(TILE) {
                let block = block(layout.dtype(), &mut random);
                known.place(n, k, &block);
                for (i, value) in block.values.iter().enumerate() {
                    if n < rows && k + i < cols {
                        known.values[n * cols + k + i] = *value as f32;
                    }
                }
            }
        }
        known
    }

    /// Stores elements k..k + 32 of row n.
    fn place(&mut self, n: usize, k: usize, block: &Block) {
        let width = match self.layout.dtype() {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            _ => 1,
        };
        if let Some(tile_bytes) = self.layout.tile_bytes() {
            let tile = n / TILE * self.cols.div_ceil(TILE) + k / TILE;
            let tile = &mut self.bytes[tile * tile_bytes as usize..][..tile_bytes as usize];
            let n = n % TILE;
            for (i, code) in block.codes.iter().enumerate() {
                if let Form::Nibbles(order) = self.layout.form() {
                    let (byte, shift) = order.place(n, i);
                    tile[byte] |= code[0] << shift;
                } else {
                    let at = width * element_index(n, i);
                    tile[at..at + width].copy_from_slice(&code[..width]);
                }
            }
            let scales = tile.len() - TILE * block.scale.len() + n * block.scale.len();
            tile[scales..scales + block.scale.len()].copy_from_slice(&block.scale);
            return;
        }
        let start = (n * self.cols + k) * width;
        let count = width * TILE.min(self.cols - k);
        let codes = block.codes.iter().flat_map(|code| &code[..width]);
        for (byte, code) in self.bytes[start..start + count].iter_mut().zip(codes) {
            *byte = *code;
        }
    }

    /// Blocks of which ggml's own decoder says what they are worth, but none whose sums
    /// could leave f32.
    fn fill_with_vectors(&mut self, random: &mut Random) {
        let dtype = self.layout.dtype();
        let vectors = Vectors::of(dtype);
        let (len, size) = (dtype.block_len() as usize, dtype.block_bytes() as usize);
        let known = vectors.blocks.chunks_exact(size);
        let known = known.zip(vectors.values.chunks_exact(len));
        let known: Vec<_> = known
            .filter(|(_, values)| values.iter().all(|x| x.abs() < 1e9))
            .collect();
        let blocks = self.bytes.chunks_exact_mut(size);
        for (block, values) in blocks.zip(self.values.chunks_exact_mut(len)) {
            let (bytes, worth) = known[random.bits() as usize % known.len()];
            block.copy_from_slice(bytes);
            values.copy_from_slice(worth);
        }
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.layout, self.rows, self.cols, &self.bytes).unwrap()
    }

    pub(super) fn row(&self, n: usize) -> &[f32] {
        &self.values[n * self.cols..][..self.cols]
    }

    /// x · matrixᵀ in f64, and the sum of the magnitudes that went into each element.
    pub(super) fn exact_products(&self, x: &[f32]) -> Vec<(f64, f64)> {
        let mut out = Vec::new();
        for x in x.chunks_exact(self.cols) {
            for n in 0..self.rows {
                let terms = x.iter().zip(self.row(n));
                let terms = terms.map(|(x, w)| f64::from(*x) * f64::from(*w));
                out.push((terms.clone().sum(), terms.map(f64::abs).sum()));
            }
        }
        out
    }
}

/// Blocks of random bytes, and what they are worth.
pub(super) struct Vectors {
    pub(super) blocks: Vec<u8>,
    pub(super) values: Vec<f32>,
}

impl Vectors {
    pub(super) fn of(dtype: DType) -> Vectors {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../fixtures/blocks/blocks.safetensors"
        );
        let file = std::fs::read(path).unwrap();
        let (head, rest) = file.split_at(8);
        let head_len = u64::from_le_bytes(head.try_into().unwrap()) as usize;
        let (head, data) = rest.split_at(head_len);
        let head: serde_json::Value = serde_json::from_slice(head).unwrap();
        let bytes = |name: String| {
            let end = |i: usize| head[&name]["data_offsets"][i].as_u64().unwrap() as usize;
            &data[end(0)..end(1)]
        };
        let values = bytes(format!("{dtype}.decoded"));
        let values = values.as_chunks().0.iter().copied().map(f32::from_le_bytes);
        Vectors {
            blocks: bytes(format!("{dtype}.blocks")).to_vec(),
            values: values.collect(),
        }
    }
}

/// Every SIMD path of this machine with one, two and three threads.
pub(super) fn every_way() -> Vec<Cpu> {
    let paths = SimdPath::ALL.into_iter().filter_map(Simd::new);
    paths
        .flat_map(|simd| [1, 2, 3].map(|threads| Cpu::new(threads, simd).unwrap()))
        .collect()
}

pub(super) fn one_way() -> Cpu {
    Cpu::new(1, Simd::detect()).unwrap()
}

/// Bits, because 0.0 == -0.0.
pub(super) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
