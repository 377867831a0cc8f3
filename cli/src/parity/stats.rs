//! The statistics of a comparison, each a function of numbers. `docs/parity.md` has the formulas.

use estream_runtime::math::{exp64, ln64};
use estream_schemas::program::{RouterForm, ScoreWhen, Scoring};

/// eˣ; below f64's normal numbers 0, above them infinite.
pub(crate) fn exp(x: f64) -> f64 {
    const RANGE: f64 = 700.0;
    match x {
        x if x < -RANGE => 0.0,
        x if x > RANGE => f64::INFINITY,
        x => exp64(x),
    }
}

/// ln Σ eˣ over finite `xs`; −∞ if there are none.
pub(crate) fn log_sum_exp(xs: impl Iterator<Item = f32> + Clone) -> f64 {
    let max = f64::from(xs.clone().fold(f32::NEG_INFINITY, f32::max));
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + ln64(xs.map(|x| exp(f64::from(x) - max)).sum())
}

/// [`log_sum_exp`] of a row of logits.
pub(crate) fn log_norm(row: &[f32]) -> f64 {
    log_sum_exp(row.iter().copied())
}

/// ln of the probability that a row leaves for all but the tokens `ids`.
pub(crate) fn log_tail(row: &[f32], log_norm: f64, ids: &[u32]) -> f64 {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    let rest = (0..=u32::MAX).zip(row);
    let rest = rest.filter(|(id, _)| ids.binary_search(id).is_err());
    (log_sum_exp(rest.map(|(_, logit)| *logit)) - log_norm).min(0.0)
}

/// KL(p ‖ q) in nats of distributions given as pairs ln p, ln q. Rounding can make the
/// sum of equal distributions' terms negative, which no divergence is.
pub(crate) fn kl(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let terms = pairs.map(|(p, q)| match exp(p) {
        0.0 => 0.0,
        mass => mass * (p - q),
    });
    terms.sum::<f64>().max(0.0)
}

/// How a set of numbers is spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) median: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    /// The first index of the largest.
    pub(crate) max_at: usize,
}

impl Spread {
    /// Of `values`, none of which is NaN; `None` if there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let max = *sorted.last()?;
        // The least value that so many per cent do not exceed.
        let percentile = |p: usize| sorted[(sorted.len() * p).div_ceil(100).max(1) - 1];
        Some(Spread {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            median: percentile(50),
            p90: percentile(90),
            p99: percentile(99),
            max,
            max_at: values.iter().position(|value| *value == max)?,
        })
    }
}

/// Elements of `a` that are in `b` too; neither has one twice.
pub(crate) fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().filter(|x| b.contains(x)).count()
}

/// How far the score of the last chosen expert is above that of the best one not chosen.
/// A token with little of it may be routed otherwise by a rounding.
pub(crate) fn margin(logits: &[f32], chosen: &[u32], form: &RouterForm) -> f32 {
    let logits = || (0..=u32::MAX).zip(logits.iter().copied());
    let is_chosen = |id: &u32| chosen.contains(id);
    let (last, next) = logits().fold(
        (f32::INFINITY, f32::NEG_INFINITY),
        |(last, next), (id, logit)| match is_chosen(&id) {
            true => (last.min(logit), next),
            false => (last, next.max(logit)),
        },
    );
    let [last, next] = [last, next].map(f64::from);
    let gap = match (form.score, form.scoring) {
        (ScoreWhen::AfterTopK, _) => last - next,
        (_, Scoring::Sigmoid) => sigmoid(last) - sigmoid(next),
        (_, Scoring::Softmax) => {
            let norm = log_sum_exp(logits().map(|(_, logit)| logit));
            exp(last - norm) - exp(next - norm)
        }
    };
    gap.max(0.0) as f32
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use estream_schemas::program::Renormalise;
    use estream_schemas::real::Real;
    use std::f64::consts::LN_2;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-7, "{a} is not {b}");
    }

    /// ln of halves, quarters and eighths as logits that sum to 1 in probability.
    const ROW: [f32; 4] = {
        let ln_2 = std::f32::consts::LN_2;
        [-ln_2, -2.0 * ln_2, -3.0 * ln_2, -3.0 * ln_2]
    };

    #[test]
    fn the_norm_does_not_overflow_and_nothing_has_none() {
        for shift in [0.0, 5000.0, -5000.0] {
            let row = ROW.map(|x| x + shift);
            assert!((log_norm(&row) - f64::from(shift)).abs() < 1e-3, "{shift}");
        }
        close(log_norm(&ROW), 0.0);
        assert_eq!(log_norm(&[]), f64::NEG_INFINITY);
        // A difference whose exponential is no number of f64.
        assert_eq!(log_norm(&[0.0, -3e38]), 0.0);
    }

    #[test]
    fn the_tail_is_what_the_named_tokens_leave() {
        let norm = log_norm(&ROW);
        close(log_tail(&ROW, norm, &[1, 0]), -2.0 * LN_2);
        close(log_tail(&ROW, norm, &[3]), (7.0f64 / 8.0).ln());
        close(log_tail(&ROW, norm, &[]), 0.0);
        assert_eq!(log_tail(&ROW, norm, &[0, 1, 2, 3]), f64::NEG_INFINITY);
        // Far below what a difference from 1 could tell.
        close(log_tail(&[0.0, -1000.0], 0.0, &[0]), -1000.0);
    }

    #[test]
    fn a_divergence_is_that_of_pencil_and_paper() {
        let ln = |p: [f64; 3]| p.map(f64::ln);
        let (p, q) = (ln([0.5, 0.25, 0.25]), ln([0.25, 0.25, 0.5]));
        let of = |p: [f64; 3], q: [f64; 3]| kl(p.into_iter().zip(q));
        // 0.5 · ln 2 + 0 − 0.25 · ln 2
        close(of(p, q), 0.25 * LN_2);
        assert_eq!(of(p, p), 0.0);
        // What the reference rules out costs nothing, and what it does not costs all.
        close(of(ln([0.5, 0.5, 0.0]), ln([0.5, 0.25, 0.25])), 0.5 * LN_2);
        assert_eq!(of(p, ln([0.5, 0.5, 0.0])), f64::INFINITY);
        // The direction counts.
        let r = ln([0.8, 0.1, 0.1]);
        assert!((of(p, r) - of(r, p)).abs() > 0.01);
    }

    #[test]
    fn percentiles_are_values_that_occur() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let spread = Spread::of(&values).unwrap();
        assert_eq!(
            spread,
            Spread {
                mean: 100.5,
                median: 100.0,
                p90: 180.0,
                p99: 198.0,
                max: 200.0,
                max_at: 0
            }
        );
        let one = Spread::of(&[0.25]).unwrap();
        assert_eq!([one.median, one.p90, one.p99, one.max, one.mean], [0.25; 5]);
        assert_eq!(Spread::of(&[1.0, 3.0, 3.0]).unwrap().max_at, 1);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_margin_is_measured_where_the_choice_is_made() {
        let form = |scoring, score| RouterForm {
            scoring,
            score,
            top_k: 2,
            renormalise: Renormalise::None,
            scale: Real::ONE,
        };
        let chosen = [0, 1];
        let of = |scoring, score| f64::from(margin(&ROW, &chosen, &form(scoring, score)));
        close(of(Scoring::Softmax, ScoreWhen::BeforeTopK), 0.125);
        close(of(Scoring::Softmax, ScoreWhen::AfterTopK), LN_2);
        // 1/(1+4) − 1/(1+8)
        close(of(Scoring::Sigmoid, ScoreWhen::BeforeTopK), 0.2 - 1.0 / 9.0);
        let tie = form(Scoring::Softmax, ScoreWhen::BeforeTopK);
        assert_eq!(margin(&ROW, &[0, 1, 2], &tie), 0.0);
    }

    #[test]
    fn what_two_choices_share_has_no_order() {
        assert_eq!(common(&[1, 2, 3, 4], &[4, 9, 2, 8]), 2);
        assert_eq!(common::<u32>(&[], &[1]), 0);
    }
}
