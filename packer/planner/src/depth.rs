//! How many reads at a time (paper equation 7).

use crate::problem::Problem;

/// A depth is enough from this part of the best bandwidth on.
const ENOUGH_PERCENT: u128 = 95;

impl Problem {
    /// Q₀ of paper equation 7, the smallest depth that is enough for every G:
    ///
    /// ```text
    /// Q₀ = min { q : min_g BW(g, q) / max_q' BW(g, q') ≥ 0.95 }
    /// BW(g, q) = q · g · W_e / read_ns(g · W_e, q)
    /// ```
    ///
    /// W_e is the largest record. Where no depth is enough for all, the one that falls short least,
    /// and of equal ones the smallest.
    pub fn depth(&self) -> usize {
        let mut depths = self.question().depths.clone();
        depths.sort_unstable();
        let mut worst = vec![u128::MAX; depths.len()];
        for size in &self.question().groups {
            let rates = depths
                .iter()
                .map(|depth| self.bandwidth(size.group, *depth));
            let rates: Vec<u128> = rates.collect();
            let best = rates.iter().max().copied().unwrap_or(1).max(1);
            for (worst, rate) in worst.iter_mut().zip(rates) {
                // Millionths, so that what is compared is comparable over G.
                *worst = (*worst).min(rate * 1_000_000 / best);
            }
        }
        let enough = worst
            .iter()
            .position(|ratio| *ratio >= ENOUGH_PERCENT * 10_000);
        let least_short = || {
            let most = worst.iter().max();
            worst.iter().position(|ratio| Some(ratio) == most)
        };
        enough.or_else(least_short).map_or(1, |at| depths[at])
    }

    /// Bytes a second, in millionths of a byte so that none is 0 for a slow device.
    fn bandwidth(&self, group: usize, depth: usize) -> u128 {
        let question = self.question();
        let bytes = question.service.record_bytes.saturating_mul(group as u64);
        let read_ns = question.storage.read_ns(bytes, depth as u64).max(1);
        let all = u128::from(bytes) * depth as u128;
        all.saturating_mul(1_000_000) / u128::from(read_ns)
    }
}
