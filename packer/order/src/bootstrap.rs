//! How sure a mean over prompts is.

/// Resamples of an interval.
const RESAMPLES: usize = 2000;

/// An estimate and where 95 % of its resamples are.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    /// Of the prompts as they are.
    pub mean: f64,
    /// The 2.5th percentile of the resamples.
    pub low: f64,
    /// The 97.5th.
    pub high: f64,
}

impl Interval {
    /// Σ of the first over Σ of the second of each pair, minus 1, with a percentile bootstrap: pairs, which are
    /// prompts, are drawn with replacement. A fixed start of the dice makes it the same in every run. `None` of no
    /// pairs, or where the second are 0.
    pub fn of_change(pairs: &[(u64, u64)]) -> Option<Interval> {
        let change = |sums: (u128, u128)| sums.0 as f64 / sums.1 as f64 - 1.0;
        let add = |sums: (u128, u128), pair: &(u64, u64)| {
            (sums.0 + u128::from(pair.0), sums.1 + u128::from(pair.1))
        };
        if pairs.iter().all(|pair| pair.1 == 0) {
            return None;
        }
        let mean = change(pairs.iter().fold((0, 0), add));
        let mut state = 0u64;
        let mut draw = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let place = (z ^ (z >> 31)) % pairs.len() as u64;
            pairs[usize::try_from(place).unwrap_or(0)]
        };
        let resample = |_| {
            let drawn = (0..pairs.len()).fold((0, 0), |sums, _| add(sums, &draw()));
            if drawn.1 == 0 { 0.0 } else { change(drawn) }
        };
        let mut changes: Vec<f64> = (0..RESAMPLES).map(resample).collect();
        changes.sort_unstable_by(f64::total_cmp);
        Some(Interval {
            mean,
            low: changes[RESAMPLES / 40],
            high: changes[RESAMPLES - 1 - RESAMPLES / 40],
        })
    }

    /// Whether all of it is on one side of no change.
    pub fn is_clear(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_equal_of_every_prompt_has_an_interval_of_nothing() {
        let interval = Interval::of_change(&[(90, 100), (9, 10), (45, 50)]).unwrap();
        for value in [interval.mean, interval.low, interval.high] {
            assert!((value + 0.1).abs() < 1e-12);
        }
        assert!(interval.is_clear());
        assert_eq!(Interval::of_change(&[]), None);
        assert_eq!(Interval::of_change(&[(1, 0)]), None);
    }

    /// Of n changes with the standard deviation s, the mean is within ±1.96 s/√n.
    #[test]
    fn an_interval_is_as_wide_as_theory_has_it() {
        let pairs: Vec<(u64, u64)> = (0..400)
            .map(|at| (if at % 2 == 0 { 900 } else { 1100 }, 1000))
            .collect();
        let interval = Interval::of_change(&pairs).unwrap();
        let expected = 1.96 * 0.1 / 20.0;
        assert!(interval.mean.abs() < 1e-12);
        assert!(
            (interval.high - expected).abs() < 0.15 * expected,
            "{interval:?}"
        );
        assert!(
            (interval.low + expected).abs() < 0.15 * expected,
            "{interval:?}"
        );
        assert!(!interval.is_clear());
        assert_eq!(Interval::of_change(&pairs), Some(interval));
    }
}
