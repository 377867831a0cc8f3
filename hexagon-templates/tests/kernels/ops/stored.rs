//! Matrices as bundles store them, and what their elements are worth.

use std::fmt;

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, element_index};
use half::f16;

use crate::contract;
use crate::parts;
use crate::random::Random;

/// Every layout the kernels know.
pub(crate) const LAYOUTS: [&str; 16] = [
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
    "f16.rows",
    "bf16.rows",
    "f32.rows",
    "q6_k.rows",
];

const IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// Twice the numbers of MXFP4; minus zero is zero.
const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A matrix and its bytes.
#[derive(Clone)]
pub(crate) struct Matrix {
    pub(crate) layout: Layout,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bytes: Vec<u8>,
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}×{}", self.layout, self.rows, self.cols)
    }
}

fn f16_at(bytes: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64()
}

fn bf16_at(bytes: &[u8], at: usize) -> f64 {
    f64::from(f32::from_le_bytes([0, 0, bytes[at], bytes[at + 1]]))
}

fn f32_at(bytes: &[u8], at: usize) -> f64 {
    f64::from(f32::from_le_bytes(*bytes[at..].first_chunk().unwrap()))
}

fn q6_k(block: &[u8], j: usize) -> f64 {
    let (half, r, i) = (j / 128, j % 128 / 32, j % 32);
    let low = block[half * 64 + r % 2 * 32 + i] >> (4 * (r / 2)) & 15;
    let high = block[128 + half * 32 + i] >> (2 * r) & 3;
    let scale = f16_at(block, 208) * f64::from(block[192 + j / 16].cast_signed());
    scale * (f64::from(low | high << 4) - 32.0)
}

impl Matrix {
    /// Any elements of the size that weights have.
    pub(crate) fn random(layout: &str, rows: usize, cols: usize, random: &mut Random) -> Matrix {
        let layout: Layout = layout.parse().expect("a layout");
        let small = |random: &mut Random| random.real() * 0.05;
        let bytes = match layout.dtype() {
            _ if layout.is_tiled() => parts::matrix(layout, rows as u32, cols as u32, random),
            DType::F16 => (0..rows * cols)
                .flat_map(|_| f16::from_f32(small(random)).to_le_bytes())
                .collect(),
            DType::BF16 => (0..rows * cols)
                .flat_map(|_| ((small(random).to_bits() >> 16) as u16).to_le_bytes())
                .collect(),
            DType::F32 => (0..rows * cols)
                .flat_map(|_| small(random).to_le_bytes())
                .collect(),
            _ => (0..rows * cols / 256)
                .flat_map(|_| {
                    let mut block = random.bytes(208);
                    block.extend(f16::from_f32(small(random) * 1e-3).to_le_bytes());
                    block
                })
                .collect(),
        };
        Matrix {
            layout,
            rows,
            cols,
            bytes,
        }
    }

    /// Numbers as they are.
    pub(crate) fn of_f32(rows: usize, values: &[f32]) -> Matrix {
        Matrix {
            layout: "f32.rows".parse().expect("a layout"),
            rows,
            cols: values.len() / rows,
            bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    fn tile(&self, n: usize, k: usize) -> &[u8] {
        let bytes = self.layout.tile_bytes().unwrap() as usize;
        let index = n / 32 * self.cols.div_ceil(32) + k / 32;
        &self.bytes[index * bytes..][..bytes]
    }

    /// What an element stands for, rounded to binary32.
    pub(crate) fn number(&self, n: usize, k: usize) -> f32 {
        let dtype = self.layout.dtype();
        let row_at = |bytes: usize| (n * self.cols + k) * bytes;
        let exact = match self.layout.form() {
            Form::Rows => match dtype {
                DType::F16 => f16_at(&self.bytes, row_at(2)),
                DType::BF16 => bf16_at(&self.bytes, row_at(2)),
                DType::F32 => f32_at(&self.bytes, row_at(4)),
                _ => q6_k(&self.bytes[row_at(1) / 256 * 210..], k % 256),
            },
            Form::Tiles => {
                let (tile, i) = (self.tile(n, k), element_index(n % 32, k % 32));
                match dtype {
                    DType::Q8_0 => {
                        f64::from(tile[i].cast_signed()) * f16_at(tile, 1024 + n % 32 * 2)
                    }
                    DType::F16 => f16_at(tile, 2 * i),
                    DType::BF16 => bf16_at(tile, 2 * i),
                    _ => f32_at(tile, 4 * i),
                }
            }
            Form::Nibbles(order) => {
                let (tile, n) = (self.tile(n, k), n % 32);
                let (byte, shift) = order.place(n, k % 32);
                let q = tile[byte] >> shift & 15;
                let behind = &tile[512..];
                match dtype {
                    DType::Q4_0 => (f64::from(q) - 8.0) * f16_at(behind, 2 * n),
                    DType::Q4_1 => f64::from(q) * f16_at(behind, 4 * n) + f16_at(behind, 4 * n + 2),
                    DType::IQ4_NL => f64::from(IQ4_NL[usize::from(q)]) * f16_at(behind, 2 * n),
                    _ => {
                        let half_scale = 2f64.powi(i32::from(behind[n]) - 128);
                        f64::from(MXFP4[usize::from(q)]) * half_scale
                    }
                }
            }
        };
        exact as f32
    }

    /// One row of such numbers.
    pub(crate) fn row(&self, n: usize) -> Vec<f32> {
        (0..self.cols).map(|k| self.number(n, k)).collect()
    }

    /// Operands of the matrix unit, `[cols][rows]`.
    pub(crate) fn operands(&self) -> Vec<Vec<f32>> {
        if self.layout.is_tiled() {
            return contract::operands(self.layout, &self.bytes, self.rows, self.cols);
        }
        let operand = |n: usize, k: usize| f16::from_f32(self.number(n, k)).to_f32();
        let column = |k: usize| (0..self.rows).map(|n| operand(n, k)).collect();
        (0..self.cols).map(column).collect()
    }

    /// For the runtime's kernels.
    pub(crate) fn matrix(&self) -> estream_runtime::backend::cpu::Matrix<'_> {
        estream_runtime::backend::cpu::Matrix::new(self.layout, self.rows, self.cols, &self.bytes)
            .expect("a layout it reads")
    }
}
