//! Routes to plan with where nobody has recorded any.
//!
//! The model has two numbers. Experts of a layer have ranks i = 0, 1, …, and the popularity of rank i
//! is p_i = (i + 1)^−s: s = 0 says that all are alike. A token goes to an expert with the probability
//!
//! ```text
//! q_i = min(1, c · p_i),    c such that Σ_i q_i = k
//! ```
//!
//! whatever the other tokens do, so that of t tokens some go to it with the probability 1 − (1 − q_i)^t, and the
//! number of experts with routes is expected to be
//!
//! ```text
//! U(t) = Σ_i (1 − (1 − q_i)^t)
//! ```
//!
//! Only sums, products and quotients are used, so that every machine computes the same.

/// Ranks' q_i, descending.
fn probabilities(experts: usize, top_k: usize, skew: u32) -> Vec<f64> {
    let power = |rank: usize| {
        let base = (rank + 1) as f64;
        (0..skew).fold(1.0, |product, _| product / base)
    };
    let popularity: Vec<f64> = (0..experts).map(power).collect();
    // Experts that every token goes to: as many as have c · p > 1.
    let mut certain = 0;
    let c = loop {
        let rest: f64 = popularity[certain..].iter().sum();
        let c = top_k.saturating_sub(certain) as f64 / rest;
        match popularity.get(certain) {
            Some(most) if c * most > 1.0 && certain < top_k => certain += 1,
            _ => break c,
        }
    };
    let probability = |(rank, p): (usize, &f64)| if rank < certain { 1.0 } else { c * p };
    popularity.iter().enumerate().map(probability).collect()
}

/// 1 − (1 − q)^t.
fn some(q: f64, tokens: u64) -> f64 {
    let (mut power, mut base, mut left) = (1.0, 1.0 - q, tokens);
    while left > 0 {
        if left % 2 == 1 {
            power *= base;
        }
        base *= base;
        left /= 2;
    }
    1.0 - power
}

/// U(t): the experts of a layer that are expected to have routes. `skew` is s.
pub fn expected_union(experts: usize, top_k: usize, tokens: u64, skew: u32) -> f64 {
    let top_k = top_k.min(experts);
    let each = probabilities(experts, top_k, skew);
    each.into_iter().map(|q| some(q, tokens)).sum()
}

/// Routed rows of each expert of a layer, in storage order.
///
/// As many experts as U(t), rounded, have routes: the most popular ones. Each has one row, and the
/// other t · k rows are theirs in proportion to q, at most t each; what rounding leaves goes to the most
/// popular. Which place a rank has follows from `layer` alone, and differs from layer to layer.
pub fn expected_routes(
    (experts, top_k): (usize, usize),
    tokens: u64,
    skew: u32,
    layer: usize,
) -> Vec<u64> {
    let top_k = top_k.min(experts);
    if top_k == 0 || tokens == 0 {
        return vec![0; experts];
    }
    let each = probabilities(experts, top_k, skew);
    let union: f64 = each.iter().map(|q| some(*q, tokens)).sum();
    let rows = tokens.saturating_mul(top_k as u64);
    let most = usize::try_from(rows).unwrap_or(usize::MAX).min(experts);
    let active = (top_k..=most)
        .find(|count| *count as f64 + 0.5 > union)
        .unwrap_or(most);
    let sum: f64 = each[..active].iter().sum();
    let mut ranks = vec![1u64; active];
    let mut left = rows - active as u64;
    let spread = left as f64;
    for (rank, share) in ranks.iter_mut().zip(&each) {
        let wanted = spread * share / sum;
        #[expect(clippy::cast_possible_truncation, reason = "below the rows there are")]
        #[expect(clippy::cast_sign_loss, reason = "a share is positive")]
        let wanted = wanted as u64;
        let more = wanted.min(left).min(tokens - 1);
        *rank += more;
        left -= more;
    }
    // There is room for all: k · t rows, at most t each, and at least k experts.
    for rank in &mut ranks {
        let more = left.min(tokens - *rank);
        *rank += more;
        left -= more;
    }
    let mut routes = vec![0; experts];
    for (place, rows) in places(experts, layer).into_iter().zip(ranks) {
        routes[place] = rows;
    }
    routes
}

/// A permutation of 0 to `experts` − 1 (Fisher–Yates, with the numbers of splitmix64).
fn places(experts: usize, layer: usize) -> Vec<usize> {
    let mut state = layer as u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut places: Vec<usize> = (0..experts).collect();
    for last in (1..experts).rev() {
        let other = usize::try_from(next() % (last as u64 + 1)).unwrap_or(0);
        places.swap(last, other);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_k_and_none_is_above_one() {
        for (experts, top_k) in [(64, 8), (128, 8), (8, 2), (4, 4), (1, 1)] {
            for skew in 0..4 {
                let each = probabilities(experts, top_k, skew);
                let sum: f64 = each.iter().sum();
                assert!(
                    (sum - top_k as f64).abs() < 1e-9,
                    "{experts} {top_k} {skew}: {sum}"
                );
                assert!(each.iter().all(|q| (0.0..=1.0).contains(q)));
                assert!(each.is_sorted_by(|a, b| a >= b));
            }
        }
    }

    #[test]
    fn all_alike_is_the_textbook_s_formula() {
        let union = expected_union(64, 8, 10, 0);
        assert!((union - 64.0 * (1.0 - 0.875f64.powi(10))).abs() < 1e-9);
        assert!((expected_union(64, 8, 1, 2) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn rows_are_what_the_tokens_have_and_experts_what_is_expected() {
        for (experts, top_k) in [(64, 8), (128, 8), (32, 4), (8, 2), (5, 5)] {
            for tokens in [1, 2, 16, 333, 4096] {
                for skew in [0, 1, 2, 3] {
                    let routes = expected_routes((experts, top_k), tokens, skew, 3);
                    assert_eq!(routes.iter().sum::<u64>(), tokens * top_k as u64);
                    assert!(routes.iter().all(|rows| *rows <= tokens));
                    let active = routes.iter().filter(|rows| **rows > 0).count();
                    let union = expected_union(experts, top_k, tokens, skew);
                    assert!(
                        (active as f64 - union).abs() <= 0.5 + 1e-9,
                        "{active}, {union}"
                    );
                }
            }
        }
    }

    #[test]
    fn layers_have_other_popular_experts() {
        let of = |layer| expected_routes((64, 8), 16, 2, layer);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
