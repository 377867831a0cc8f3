//! Random weights whose every element depends on seed, tensor name and index alone.

use super::Dtype;
use super::shapes::Fill;

/// Standard deviation of the weights, as models are initialised.
const STD: f32 = 0.02;
/// Standard deviation of the sum of four random bytes: √(4 · (256² − 1) / 12).
const FOUR_BYTES_STD: f32 = 147.8;
/// Their mean.
const FOUR_BYTES_MEAN: f32 = 510.0;

/// Mixes every bit of `x` into every bit of the result (the finaliser of splitmix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Where the stream of one tensor starts.
pub(crate) fn key(seed: u64, name: &str) -> u64 {
    let start = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
    name.bytes()
        .fold(start, |key, byte| mix(key ^ u64::from(byte)))
}

/// Elements 2·`pair` and 2·`pair` + 1 of a stream: sums of four uniform bytes,
/// which is as close to normal as weights need.
fn pair(key: u64, pair: u64) -> [f32; 2] {
    let bits = mix(key.wrapping_add(pair.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    const BYTES: u64 = 0x00ff_00ff_00ff_00ff;
    let sums_of_two = (bits & BYTES) + ((bits >> 8) & BYTES);
    let sums_of_four = sums_of_two + (sums_of_two >> 16);
    [sums_of_four & 0xffff, (sums_of_four >> 32) & 0xffff]
        .map(|sum| (sum as f32 - FOUR_BYTES_MEAN) * (STD / FOUR_BYTES_STD))
}

/// The bits of the bfloat16 nearest to `x`, which is finite, ties to even. A call of `half`
/// for each element takes three times as long as everything else here.
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    (rounded >> 16) as u16
}

/// Standard deviation of embeddings: large beside what layers add, so that the routers of all
/// layers see the token and not the average of the prompt, which is the same for all.
const EMBEDDING_STD: f32 = 32.0;
/// How much more a typical token cares for the popularity of an expert than for its own taste.
const POPULARITY: f32 = 1.6;
/// By which share that varies from token to token.
const VARIETY: f32 = 0.7;

/// What a row of a tensor adds to each of its elements.
///
/// A router's logit of token t and expert e is then, up to a factor, c(t) · z(e) + n(t, e):
/// the expert's popularity z and n are normal, and c is uniform in POPULARITY · (1 ± VARIETY).
/// For 8 of 128 experts these two numbers make 16, 64, 512 and 4,096 tokens need 31, 51, 84 and
/// 98 % of a layer's experts, about as real models do. Both sides hide their factor in the mean
/// of a row: it is as large as the other part when added up over `width` elements, and small in each.
fn row_mean(key: u64, row: u64, fill: Fill) -> f32 {
    let quarter_root = |width: u64| (width as f32).sqrt().sqrt().recip();
    let key = mix(!key);
    match fill {
        Fill::Zero => 0.0,
        Fill::One => 1.0,
        Fill::Embedding { width } => {
            let uniform = mix(key ^ row) as f32 / u64::MAX as f32;
            let care = POPULARITY * (1.0 + VARIETY * (2.0 * uniform - 1.0));
            EMBEDDING_STD * care * quarter_root(width)
        }
        Fill::Router { width } => pair(key, row)[0] * quarter_root(width),
    }
}

/// Writes the elements of a stream from `first` on, which is even, over all of `out`.
pub(crate) fn fill(key: u64, first: u64, fill: Fill, dtype: Dtype, out: &mut [u8]) {
    debug_assert!(first.is_multiple_of(2));
    let (width, scale) = match fill {
        Fill::Zero | Fill::One => (u64::MAX, 1.0),
        Fill::Router { width } => (width, 1.0),
        Fill::Embedding { width } => (width, EMBEDDING_STD / STD),
    };
    let (mut row, mut mean) = (None, 0.0);
    let pairs = (first / 2..).map(|index| {
        // A row has an even number of elements, so that no pair is of two.
        let of = 2 * index / width;
        if row != Some(of) {
            (row, mean) = (Some(of), row_mean(key, of, fill));
        }
        pair(key, index).map(|x| mean + scale * x)
    });
    match dtype {
        Dtype::Bf16 => put(pairs, |x| bf16_bits(x).to_le_bytes(), out),
        Dtype::F32 => put(pairs, f32::to_le_bytes, out),
    }
}

/// Writes `pairs` as `bytes` has them; of the last pair only what `out` has room for.
fn put<const N: usize>(
    pairs: impl Iterator<Item = [f32; 2]>,
    bytes: impl Fn(f32) -> [u8; N],
    out: &mut [u8],
) {
    let (elements, _) = out.as_chunks_mut::<N>();
    for (two, pair) in elements.chunks_mut(2).zip(pairs) {
        for (element, x) in two.iter_mut().zip(pair) {
            *element = bytes(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_is_rounded_as_half_rounds_it() {
        for x in (0..10_000).flat_map(|i| pair(0, i)) {
            assert_eq!(bf16_bits(x), half::bf16::from_f32(x).to_bits(), "{x}");
        }
        // Exactly between two: the even one, below and above.
        for x in [0x3f80_8000, 0x3f81_8000].map(f32::from_bits) {
            assert_eq!(bf16_bits(x), half::bf16::from_f32(x).to_bits(), "{x}");
        }
    }

    #[test]
    fn weights_have_the_mean_and_deviation_of_an_initialised_model() {
        let key = key(1, "a");
        let values: Vec<f64> = (0..50_000)
            .flat_map(|i| pair(key, i))
            .map(f64::from)
            .collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 3e-4, "{mean}");
        assert!((variance.sqrt() - 0.02).abs() < 3e-4, "{}", variance.sqrt());
    }

    /// Experts of 128 that some of `tokens` tokens are routed to, 8 each: per cent, over layers.
    fn union(tokens: usize) -> usize {
        const WIDTH: usize = 256;
        const EXPERTS: usize = 128;
        const LAYERS: usize = 16;
        let width = WIDTH as u64;
        let rows = |name: &str, of, count: usize| {
            let mut bytes = vec![0; 4 * WIDTH * count];
            fill(key(0, name), 0, of, Dtype::F32, &mut bytes);
            let floats = bytes.as_chunks().0.iter().copied();
            floats.map(f32::from_le_bytes).collect::<Vec<f32>>()
        };
        let embeddings = rows("embed", Fill::Embedding { width }, tokens);
        let mut used = 0;
        for layer in 0..LAYERS {
            let router = rows(&format!("router {layer}"), Fill::Router { width }, EXPERTS);
            let mut needed = [false; EXPERTS];
            for token in embeddings.chunks(WIDTH) {
                let dot =
                    |expert: &[f32]| -> f32 { expert.iter().zip(token).map(|(a, b)| a * b).sum() };
                let mut logits: Vec<_> = router.chunks(WIDTH).map(dot).zip(0..).collect();
                logits.sort_by(|a, b| b.0.total_cmp(&a.0));
                for (_, expert) in &logits[..8] {
                    needed[*expert] = true;
                }
            }
            used += needed.iter().filter(|needed| **needed).count();
        }
        100 * used / (EXPERTS * LAYERS)
    }

    #[test]
    fn prompts_need_as_many_experts_as_those_of_real_models() {
        for (tokens, expected) in [(16, 31), (64, 51), (512, 84)] {
            let union = union(tokens);
            assert!(union.abs_diff(expected) <= 6, "{tokens}: {union}");
        }
    }

    #[test]
    fn a_tensor_written_in_pieces_is_the_tensor_written_at_once() {
        let key = key(3, "b");
        let fills = [
            Fill::One,
            Fill::Embedding { width: 6 },
            Fill::Router { width: 128 },
        ];
        for (dtype, of) in [Dtype::Bf16, Dtype::F32]
            .into_iter()
            .flat_map(|dtype| fills.map(|of| (dtype, of)))
        {
            let mut whole = vec![0; 101 * dtype.bytes()];
            let mut pieces = whole.clone();
            let (head, tail) = pieces.split_at_mut(64 * dtype.bytes());
            fill(key, 0, of, dtype, &mut whole);
            fill(key, 0, of, dtype, head);
            fill(key, 64, of, dtype, tail);
            assert_eq!(whole, pieces);
            // Every element was written: none is exactly zero.
            assert!(
                whole
                    .chunks(dtype.bytes())
                    .all(|x| x.iter().any(|b| *b != 0))
            );
        }
    }
}
