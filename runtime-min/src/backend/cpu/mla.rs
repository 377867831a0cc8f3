//! Multi-head latent attention, expanded: keys and values of all heads are computed
//! from the latent rows, and then it is attention.

use super::attention::AttentionForm;
use super::matrix::Matrix;
use super::multiply::at_least;
use super::{Cpu, row_count};

/// Latent rows expanded together.
const ROWS: usize = 256;

/// Keys and values of all heads of a layer, and products on the way to them.
#[derive(Debug, Default)]
pub(super) struct Expanded {
    keys: Vec<f32>,
    values: Vec<f32>,
    products: Vec<f32>,
}

impl Cpu {
    /// Attention whose keys are `kv_b`'s part of the latent row, then `k_pe`, for each
    /// head, and whose values are the rest of `kv_b`'s product. With T queries and R rotating
    /// elements, q is `[T, heads · key_dim]`, latent `[position + T, rank]`, k_pe
    /// `[position + T, R]`, kv_b `[heads · (key_dim − R + value_dim), rank]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn mla(
        &mut self,
        form: &AttentionForm,
        q: &[f32],
        latent: &[f32],
        k_pe: &[f32],
        kv_b: &Matrix<'_>,
        out: &mut [f32],
    ) {
        let (rank, products_width) = (kv_b.cols(), kv_b.rows());
        let positions = row_count(latent, rank);
        let rope = k_pe.len().checked_div(positions).unwrap_or(0);
        let AttentionForm {
            heads,
            key_dim,
            value_dim,
            ..
        } = *form;
        let nope = key_dim - rope;
        assert_eq!(
            k_pe.len(),
            positions * rope,
            "a rotated part for every latent row"
        );
        assert_eq!(
            products_width,
            heads * (nope + value_dim),
            "rows of every head"
        );
        let mut expanded = std::mem::take(&mut self.expanded);
        let Expanded {
            keys,
            values,
            products,
        } = &mut expanded;
        let keys = at_least(keys, positions * heads * key_dim, 0.0);
        let values = at_least(values, positions * heads * value_dim, 0.0);
        let blocks = latent
            .chunks(ROWS * rank)
            .zip(k_pe.chunks(ROWS * rope))
            .zip(keys.chunks_mut(ROWS * heads * key_dim))
            .zip(values.chunks_mut(ROWS * heads * value_dim));
        for (((latent, k_pe), keys), values) in blocks {
            let products = at_least(products, latent.len() / rank * products_width, 0.0);
            self.linear(latent, kv_b, products);
            let rows = products.chunks_exact(nope + value_dim);
            let places = keys
                .chunks_exact_mut(key_dim)
                .zip(values.chunks_exact_mut(value_dim));
            for (i, (product, (key, value))) in rows.zip(places).enumerate() {
                let row = i / heads;
                key[..nope].copy_from_slice(&product[..nope]);
                key[nope..].copy_from_slice(&k_pe[row * rope..][..rope]);
                value.copy_from_slice(&product[nope..]);
            }
        }
        self.attention(form, q, keys, values, out);
        self.expanded = expanded;
    }

    /// Bytes that [`Cpu::mla`] keeps for so many positions.
    pub fn mla_bytes(form: &AttentionForm, positions: usize) -> u64 {
        let width = (form.heads * (form.key_dim + form.value_dim)) as u64;
        let rows = (positions + ROWS.min(positions)) as u64;
        size_of::<f32>() as u64 * width.saturating_mul(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Known, Random, bits, every_way};
    use super::*;

    #[test]
    fn it_is_attention_over_keys_and_values_made_by_hand() {
        let (heads, nope, rope, value_dim, rank) = (3, 20, 8, 16, 32);
        let (positions, position) = (300, 290);
        let key_dim = nope + rope;
        let form = AttentionForm {
            heads,
            kv_heads: heads,
            key_dim,
            value_dim,
            scale: 0.2,
            position,
        };
        let q = Random::new(1).reals((positions - position) * heads * key_dim);
        let latent = Random::new(2).reals(positions * rank);
        let k_pe = Random::new(3).reals(positions * rope);
        let kv_b = Known::random("f16.t32", heads * (nope + value_dim), rank, 4);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (latent, k_pe) in latent.chunks_exact(rank).zip(k_pe.chunks_exact(rope)) {
            let product = |row: usize| {
                let terms = kv_b.row(row).iter().zip(latent);
                terms.fold(0.0f32, |sum, (w, x)| x.mul_add(*w, sum))
            };
            for head in 0..heads {
                let first = head * (nope + value_dim);
                keys.extend((first..first + nope).map(product));
                keys.extend(k_pe);
                values.extend((first + nope..first + nope + value_dim).map(product));
            }
        }
        for mut cpu in every_way() {
            let mut expected = vec![0.0; (positions - position) * heads * value_dim];
            cpu.attention(&form, &q, &keys, &values, &mut expected);
            let mut out = vec![f32::NAN; expected.len()];
            cpu.mla(&form, &q, &latent, &k_pe, &kv_b.matrix(), &mut out);
            assert_eq!(bits(&out), bits(&expected));
        }
    }
}
