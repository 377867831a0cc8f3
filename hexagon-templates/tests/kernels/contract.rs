//! docs/hexagon-numerics.md in Rust, from the page and not from the C.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, element_index};
use half::f16;

pub(crate) const TILE: usize = 32;

const IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn half(x: impl Into<f32>) -> f16 {
    f16::from_f32(x.into())
}

/// The product of two FP16 numbers, exact in binary32, rounded once.
fn times(a: f16, b: f16) -> f16 {
    half(a.to_f32() * b.to_f32())
}

/// Operand (n, k) of a stored tile.
pub(crate) fn operand(layout: Layout, tile: &[u8], n: usize, k: usize) -> f16 {
    if let Form::Nibbles(order) = layout.form() {
        let (byte, shift) = order.place(n, k);
        let q = tile[byte] >> shift & 15;
        let behind = &tile[512..];
        return match layout.dtype() {
            DType::Q4_0 => times(half(f32::from(q) - 8.0), half_at(behind, 2 * n)),
            DType::IQ4_NL => times(half(IQ4_NL[usize::from(q)]), half_at(behind, 2 * n)),
            DType::Q4_1 => {
                let product = times(half(q), half_at(behind, 4 * n));
                half(product.to_f32() + half_at(behind, 4 * n + 2).to_f32())
            }
            _ => {
                let e = i32::from(behind[n].min(138)) - 123;
                half((f64::from(MXFP4[usize::from(q)]) / 32.0 * 2f64.powi(e)) as f32)
            }
        };
    }
    let i = element_index(n, k);
    match layout.dtype() {
        DType::Q8_0 => times(half(tile[i].cast_signed()), half_at(tile, 1024 + 2 * n)),
        DType::F16 => half_at(tile, 2 * i),
        DType::BF16 => {
            let bits = u16::from_le_bytes([tile[2 * i], tile[2 * i + 1]]);
            half(f32::from_bits(u32::from(bits) << 16))
        }
        _ => {
            let bytes = tile[4 * i..].first_chunk().unwrap();
            half(f32::from_le_bytes(*bytes))
        }
    }
}

/// Operands of a matrix, `[cols][rows]`, widened, which changes nothing.
pub(crate) fn operands(layout: Layout, bytes: &[u8], rows: usize, cols: usize) -> Vec<Vec<f32>> {
    let tile_bytes = layout.tile_bytes().unwrap() as usize;
    let tile = |n: usize, k: usize| {
        let index = n / TILE * cols.div_ceil(TILE) + k / TILE;
        &bytes[index * tile_bytes..][..tile_bytes]
    };
    let column = |k: usize| {
        let element = |n: usize| operand(layout, tile(n, k), n % TILE, k % TILE).to_f32();
        (0..rows).map(element).collect()
    };
    (0..cols).map(column).collect()
}

/// Products of one row with every row of a matrix: sums in ascending k, rounded to FP16.
pub(crate) fn products(x: &[f16], weights: &[Vec<f32>]) -> Vec<f16> {
    let mut sums = vec![0.0f32; weights[0].len()];
    for (x, column) in x.iter().zip(weights) {
        let x = x.to_f32();
        for (sum, w) in sums.iter_mut().zip(column) {
            *sum += x * w;
        }
    }
    sums.into_iter().map(half).collect()
}

pub(crate) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 87.0);
    let shifted = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = x - n * 0.693_145_75;
    let r = r - n * 1.428_606_8e-6;
    let mut p = f32::from_bits(0x3c08_3128);
    for c in [0x3d2b_9532, 0x3e2a_abd8, 0x3eff_fefe] {
        p = p * r + f32::from_bits(c);
    }
    p = p * r + 1.0;
    p = p * r + 1.0;
    p * f32::from_bits(((n as i32 + 127) << 23).cast_unsigned())
}

pub(crate) fn reciprocal(x: f32) -> f32 {
    let mut r = f32::from_bits(0x7ef3_11c7 - x.to_bits());
    for _ in 0..3 {
        r *= 2.0 - x * r;
    }
    r
}

pub(crate) fn silu(g: f32) -> f32 {
    g * reciprocal(1.0 + exp(-g))
}

/// The three matrices of a record, as operands.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) gate: Vec<Vec<f32>>,
    pub(crate) up: Vec<Vec<f32>>,
    pub(crate) down: Vec<Vec<f32>>,
}

impl Record {
    /// Adds `weight` times the record's result for `x` to `y`.
    pub(crate) fn add(&self, x: &[f32], weight: f32, y: &mut [f32]) {
        let x: Vec<f16> = x.iter().map(|x| half(*x)).collect();
        let gate = products(&x, &self.gate);
        let up = products(&x, &self.up);
        let pairs = gate.iter().zip(&up);
        let h: Vec<f16> = pairs
            .map(|(g, u)| half(silu(g.to_f32()) * u.to_f32()))
            .collect();
        for (y, o) in y.iter_mut().zip(products(&h, &self.down)) {
            *y += weight * o.to_f32();
        }
    }
}
