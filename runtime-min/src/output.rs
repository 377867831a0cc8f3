//! What people ask of a row of logits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::math::{exp64, ln64};

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

/// The `count` tokens of the largest logits, largest first, then the lower id.
///
/// ```
/// let best = estream_runtime::output::top(&[0.5, 2.0, 2.0, -1.0], 2);
/// assert_eq!(best.iter().map(|best| best.id).collect::<Vec<_>>(), [1, 2]);
/// ```
pub fn top(logits: &[f32], count: usize) -> Vec<Candidate> {
    // The best so far, the last of them on top.
    let mut best = BinaryHeap::new();
    for (id, logit) in (0..=u32::MAX).zip(logits) {
        let this = (Reverse(ascending(*logit)), id);
        if best.len() < count {
            best.push(this);
        } else if let Some(mut last) = best.peek_mut()
            && this < *last
        {
            *last = this;
        }
    }
    let candidate = |(_, id)| Candidate {
        id,
        logit: logits[id as usize],
    };
    best.into_sorted_vec().into_iter().map(candidate).collect()
}

/// An integer that is less exactly where the float is, as [`f32::total_cmp`] orders them.
fn ascending(x: f32) -> i32 {
    let bits = x.to_bits().cast_signed();
    if bits < 0 { bits ^ i32::MAX } else { bits }
}

/// The logarithm of the sum of the exponentials of a row: what its logits are
/// normalised by.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax {
    ln_sum: f64,
}

impl LogSoftmax {
    /// Of a row of finite logits; sums in f64.
    pub fn of(logits: &[f32]) -> LogSoftmax {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let max = f64::from(max);
        let sum: f64 = logits
            .iter()
            .map(|&logit| exp64(f64::from(logit) - max))
            .sum();
        LogSoftmax {
            ln_sum: max + ln64(sum),
        }
    }

    /// The natural logarithm of a token's probability, given its logit.
    pub fn log_prob(&self, logit: f32) -> f64 {
        f64::from(logit) - self.ln_sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_id_and_more_than_all_is_all() {
        let logits = [1.0, 3.0, -2.0, 3.0, 3.0, 0.0];
        let ids = |count| top(&logits, count).iter().map(|c| c.id).collect::<Vec<_>>();
        assert!(ids(0).is_empty());
        assert_eq!(ids(2), [1, 3]);
        assert_eq!(ids(4), [1, 3, 4, 0]);
        assert_eq!(ids(100), [1, 3, 4, 0, 5, 2]);
    }

    #[test]
    fn probabilities_sum_to_one_also_where_exponentials_overflow() {
        for shift in [0.0, 1e4, -1e4] {
            let logits = [0.25, -1.0, 3.5, 2.0].map(|x: f32| x + shift);
            let norm = LogSoftmax::of(&logits);
            let sum: f64 = logits.iter().map(|x| norm.log_prob(*x).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        }
    }
}
