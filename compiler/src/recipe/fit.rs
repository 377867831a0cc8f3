//! Which types a weight can be stored in, and where.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Layout, NibbleOrder, TILE};

use crate::quant::can_decode;

/// What a weight is to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A routed expert's matrix: tiles, because that is what is streamed.
    Expert,
    /// A matrix that is always in memory: tiles where its type has them.
    Matrix,
    /// A vector: plain numbers.
    Vector,
}

/// How matrices may be arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Order of nibbles in a tile.
    pub order: NibbleOrder,
    /// Whether rows may be padded with zeros to a multiple of 32 elements.
    pub pad_k: bool,
}

impl Fit {
    /// The layout of a weight of `dtype` with rows of `cols` elements; else why there is none.
    pub fn layout(self, place: Place, dtype: DType, cols: u64) -> Result<Layout, String> {
        let tiled = Layout::tiled(dtype, self.order);
        let plain = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        match (place, tiled) {
            (Place::Vector, _) if plain => Ok(Layout::rows(dtype)),
            (Place::Vector, _) => Err(format!("a vector cannot be {dtype}, only f32, f16 or bf16")),
            (_, Some(layout)) if cols.is_multiple_of(TILE) => Ok(layout),
            // A plain row needs no whole tiles, and a kernel can read it as it is.
            (Place::Matrix, Some(_)) if plain => Ok(Layout::rows(dtype)),
            (_, Some(_)) if self.pad_k && !encodes_zero(dtype) => Err(format!(
                "row length (K) = {cols}, {cols} mod {TILE} = {}, and {dtype} rows cannot be padded, because \
                 {dtype} blocks of added zeros would not be exactly 0; choose q4_0, q8_0 or f16 in a recipe",
                cols % TILE
            )),
            (_, Some(layout)) if self.pad_k => Ok(layout),
            (_, Some(_)) => Err(format!(
                "{dtype} tiles need rows of whole tiles: row length (K) = {cols}, {cols} mod {TILE} = {}; \
                 pad rows with zeros (--pad-k), or choose a type that fits in a recipe",
                cols % TILE
            )),
            (Place::Expert, None) => Err(format!(
                "experts cannot be {dtype}, which has no 32 × 32 tile; {}",
                instead(dtype)
            )),
            // Whole rows of blocks, decoded as they are multiplied.
            (Place::Matrix, None) if can_decode(dtype) => match cols % dtype.block_len() {
                0 => Ok(Layout::rows(dtype)),
                rest => Err(format!(
                    "{dtype} has blocks of {0}: row length (K) = {cols}, {cols} mod {0} = {rest}",
                    dtype.block_len()
                )),
            },
            (Place::Matrix, None) => Err(format!(
                "no kernel reads {dtype}; choose another type in a recipe, with --requantize"
            )),
        }
    }
}

/// What experts of a type without tiles can become, and what that costs.
fn instead(dtype: DType) -> String {
    let bits = |dtype: DType| 8.0 * dtype.block_bytes() as f64 / dtype.block_len() as f64;
    match can_decode(dtype) {
        false => "compile a checkpoint in another type".to_owned(),
        true => format!(
            "--requantize makes them q4_0 from {:.2} to {:.2} bits a weight, a second loss: the RMS error of normally \
             distributed weights is {:.1} % of their RMS; a checkpoint in a float type loses once",
            bits(dtype),
            bits(DType::Q4_0),
            100.0 * Q4_0_RMS_ERROR
        ),
    }
}

/// RMS of what Q4_0 changes in normally distributed weights, by the RMS of the weights.
const Q4_0_RMS_ERROR: f64 = 0.086;

/// Whether zeros that share a block with any other values stay exactly zero.
fn encodes_zero(dtype: DType) -> bool {
    // Q4_1 counts from a minimum that need not be a whole number of steps below 0, IQ4_NL has no level 0.
    !matches!(dtype, DType::Q4_1 | DType::IQ4_NL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{OnOverflow, decode, encode};

    const FIT: Fit = Fit {
        order: NibbleOrder::Direct,
        pad_k: false,
    };

    #[test]
    fn weights_get_tiles_where_there_are_tiles() {
        let name = |place, dtype, cols| FIT.layout(place, dtype, cols).unwrap().to_string();
        assert_eq!(name(Place::Expert, DType::Q4_0, 64), "q4_0.t32.direct");
        assert_eq!(name(Place::Matrix, DType::Q6_K, 256), "q6_k.rows");
        assert_eq!(name(Place::Matrix, DType::Q5_1, 96), "q5_1.rows");
        assert_eq!(name(Place::Matrix, DType::Q2_K, 512), "q2_k.rows");
        assert_eq!(name(Place::Matrix, DType::F32, 40), "f32.rows");
        assert_eq!(name(Place::Vector, DType::BF16, 40), "bf16.rows");
    }

    #[test]
    fn c31_c32_a_row_that_does_not_fit_is_refused_with_the_arithmetic() {
        let why = FIT.layout(Place::Expert, DType::Q4_0, 48).unwrap_err();
        assert!(why.contains("row length (K) = 48, 48 mod 32 = 16"), "{why}");
        assert!(why.contains("--pad-k"), "{why}");
        let padding = Fit { pad_k: true, ..FIT };
        assert!(padding.layout(Place::Expert, DType::Q4_0, 48).is_ok());
        let why = padding.layout(Place::Expert, DType::Q4_1, 48).unwrap_err();
        assert!(why.contains("would not be exactly 0"), "{why}");
        assert!(padding.layout(Place::Expert, DType::Q4_1, 64).is_ok());
        let why = FIT.layout(Place::Matrix, DType::Q6_K, 128).unwrap_err();
        assert!(why.contains("128 mod 256 = 128"), "{why}");
    }

    #[test]
    fn a_type_without_tiles_cannot_be_streamed() {
        let why = FIT.layout(Place::Expert, DType::Q6_K, 256).unwrap_err();
        assert!(why.contains("--requantize"), "{why}");
        assert!(why.contains("from 6.56 to 4.50 bits a weight"), "{why}");
        assert!(why.contains("8.6 %"), "{why}");
        let why = FIT.layout(Place::Expert, DType::IQ2_XS, 256).unwrap_err();
        assert!(why.contains("in another type"), "{why}");
        assert!(FIT.layout(Place::Vector, DType::Q8_0, 32).is_err());
    }

    #[test]
    fn the_stated_error_of_q4_0_is_that_of_a_normal_distribution() {
        // A sum of 48 uniform numbers is close to normal; a generator of our own repeats.
        let mut state = 1_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / 16_777_216.0 - 0.5
        };
        let values: Vec<f32> = (0..32 * 4096)
            .map(|_| (0..48).map(|_| uniform()).sum())
            .collect();
        let mut blocks = vec![0; 18 * 4096];
        encode(DType::Q4_0, &values, &mut blocks, OnOverflow::Error).unwrap();
        let mut back = vec![0.0; values.len()];
        decode(DType::Q4_0, &blocks, &mut back).unwrap();
        let squares = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|x| f64::from(x).powi(2)).sum::<f64>()
        };
        let changed = squares(&mut values.iter().zip(&back).map(|(a, b)| a - b));
        let error = (changed / squares(&mut values.iter().copied())).sqrt();
        assert!((error - Q4_0_RMS_ERROR).abs() < 0.001, "{error}");
    }
}
