//! Scales: the fp16 numbers the elements of a block share.

use half::f16;

use super::Encoded;

/// What to do with a finite number that exceeds what the type can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOverflow {
    /// Refuse it.
    Error,
    /// Hold it at the largest finite number of its sign, and count it.
    Clamp,
}

/// Counts the finite numbers held at their type's largest.
#[derive(Debug, Default)]
pub(super) struct Clamps {
    pub(super) count: u64,
}

impl From<Clamps> for Encoded {
    fn from(clamps: Clamps) -> Encoded {
        Encoded {
            clamped_count: clamps.count,
        }
    }
}

impl Clamps {
    /// The fp16 to store for a finite `value`, and the f32 it stands for: `value`
    /// itself, unrounded, unless it had to be clamped.
    pub(super) fn stored(&mut self, value: f32) -> ([u8; 2], f32) {
        let stored = f16::from_f32(value);
        if stored.is_finite() {
            return (stored.to_le_bytes(), value);
        }
        self.count += 1;
        let clamped = if value < 0.0 { f16::MIN } else { f16::MAX };
        (clamped.to_le_bytes(), clamped.to_f32())
    }
}

/// What turns values into levels of a scale `d`: `1/d` in f32, or 0 for `d` = 0.
///
/// `None` if `d` is so small (below 2⁻¹²⁸) that its reciprocal is infinite. Levels
/// are then undefined in ggml's C; its x86 builds store zero bits, and so do we. Such
/// a `d` is stored as 0, hence the block decodes to zeros in any case.
pub(super) fn reciprocal(d: f32) -> Option<f32> {
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    inverse.is_finite().then_some(inverse)
}

/// Two bytes of a block as the fp16 they are.
pub(super) fn fp16(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// Whether an infinity or a NaN is among the values, without a branch per value.
pub(super) fn any_not_finite(values: &[f32]) -> bool {
    // One more in the exponent carries into the sign bit just when it is all ones.
    let carried = |x: &f32| (x.to_bits() & 0x7fff_ffff).wrapping_add(0x0080_0000);
    values.iter().fold(0, |acc, x| acc | carried(x)) >> 31 == 1
}

/// The largest magnitude among the values, which are finite.
pub(super) fn max_abs<const LEN: usize>(values: &[f32; LEN]) -> f32 {
    reduce(&values.map(f32::abs), |a, b| if b > a { b } else { a })
}

/// Folds values in eight lanes, for operations whose result does not depend on order.
pub(super) fn reduce<const LEN: usize>(values: &[f32; LEN], pick: impl Fn(f32, f32) -> f32) -> f32 {
    let (lanes, _) = values.as_chunks::<8>();
    let mut best = lanes[0];
    for lane in lanes {
        for (best, x) in best.iter_mut().zip(lane) {
            *best = pick(*best, *x);
        }
    }
    best.into_iter().reduce(pick).unwrap_or(0.0)
}
