//! Orders from routes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use estream_schemas::routes::{Recording, pair};

/// The expert at each position of a layer's storage order, by layer.
pub type Orders = BTreeMap<u64, Vec<u64>>;

/// How experts are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By their number, as a checkpoint has them.
    Id,
    /// Those that most prompts use first; of equal ones those with more tokens, then by number.
    Frequency,
    /// In groups of so many whose members are used together, greedily: a group begins with the first
    /// by frequency that is left, and takes the expert whose Jaccard indices with its members add up to most.
    Coactivation {
        /// Experts of a group; those that are read together.
        group: usize,
    },
}

/// The storage order of every layer of a recording.
pub fn orders(recording: &Recording, by: By) -> Orders {
    let layers = recording.layers.iter().enumerate();
    let of = |at: usize| {
        let use_of = Use::of(recording, at);
        match by {
            By::Id => (0..use_of.experts()).collect(),
            By::Frequency => use_of.by_frequency(),
            By::Coactivation { group } => use_of.by_coactivation(group),
        }
    };
    let numbers = |order: Vec<usize>| order.into_iter().map(|expert| expert as u64).collect();
    layers
        .map(|(at, layer)| (layer.layer, numbers(of(at))))
        .collect()
}

/// How the experts of a layer are used.
struct Use<'a> {
    /// Prompts that use each.
    prompts: Vec<u64>,
    /// Tokens that go to each.
    tokens: Vec<u64>,
    /// Tokens that go to two; none if that is not known.
    pairs: &'a [u32],
    /// Whether each prompt uses each expert, where pairs are not known.
    used: Vec<Vec<bool>>,
}

impl Use<'_> {
    fn of(recording: &Recording, at: usize) -> Use<'_> {
        let layer = &recording.layers[at];
        let experts = usize::try_from(layer.experts).unwrap_or(0);
        let (mut prompts, mut tokens) = (vec![0; experts], vec![0; experts]);
        let mut used = Vec::new();
        for prompt in &recording.prompts {
            let rows = &prompt.rows[at].0;
            for (expert, rows) in rows.iter().enumerate() {
                prompts[expert] += u64::from(*rows > 0);
                tokens[expert] += u64::from(*rows);
            }
            if layer.pairs.is_empty() {
                used.push(rows.iter().map(|rows| *rows > 0).collect());
            }
        }
        Use {
            prompts,
            tokens,
            pairs: &layer.pairs,
            used,
        }
    }

    fn experts(&self) -> usize {
        self.prompts.len()
    }

    fn by_frequency(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.experts()).collect();
        order.sort_by_key(|&expert| (Reverse((self.prompts[expert], self.tokens[expert])), expert));
        order
    }

    fn by_coactivation(&self, group: usize) -> Vec<usize> {
        let mut left = self.by_frequency();
        let mut order = Vec::with_capacity(left.len());
        // Of those that are left: how much they are used with the members of the group.
        let mut score: Vec<f64> = Vec::new();
        while !left.is_empty() {
            let at = match order.len().is_multiple_of(group.max(1)) {
                true => {
                    score = vec![0.0; left.len()];
                    0
                }
                // The first of equal ones, which is the most frequent.
                false => (1..left.len()).fold(0, |best, at| match score[at] > score[best] {
                    true => at,
                    false => best,
                }),
            };
            let member = left.remove(at);
            score.remove(at);
            order.push(member);
            for (score, expert) in score.iter_mut().zip(&left) {
                *score += self.jaccard(member, *expert);
            }
        }
        order
    }

    /// |A ∩ B| / |A ∪ B|, of the tokens that went to each of two experts, or of the prompts where
    /// that is not known; 0 if nothing did.
    fn jaccard(&self, a: usize, b: usize) -> f64 {
        let (both, each) = match self.pairs.is_empty() {
            false => {
                let both = pair(self.experts(), a, b).map_or(0, |pair| self.pairs[pair]);
                (u64::from(both), &self.tokens)
            }
            true => {
                let both = self.used.iter().filter(|used| used[a] && used[b]);
                (both.count() as u64, &self.prompts)
            }
        };
        // A file may say that more went to both than to either.
        match (each[a] + each[b]).saturating_sub(both) {
            0 => 0.0,
            either => both as f64 / either as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use estream_schemas::digest::Digest;
    use estream_schemas::routes::{RoutedLayer, RoutedPrompt, Rows};

    use super::*;

    fn recording(pairs: &[u32], prompts: &[&[u32]]) -> Recording {
        Recording {
            format: "estream-routes".to_owned(),
            version: 1,
            bundle: Digest([0; 32]),
            layers: vec![RoutedLayer {
                layer: 5,
                experts: prompts[0].len() as u64,
                top_k: 2,
                pairs: pairs.to_vec(),
            }],
            prompts: prompts
                .iter()
                .map(|rows| RoutedPrompt {
                    name: String::new(),
                    tokens: 100,
                    rows: vec![Rows(rows.to_vec())],
                })
                .collect(),
        }
    }

    fn order(recording: &Recording, by: By) -> Vec<u64> {
        orders(recording, by)[&5].clone()
    }

    #[test]
    fn prompts_count_before_tokens_and_numbers_decide_the_rest() {
        let recording = recording(&[], &[&[0, 1, 90, 1, 0], &[0, 1, 0, 1, 0]]);
        assert_eq!(order(&recording, By::Id), [0, 1, 2, 3, 4]);
        assert_eq!(order(&recording, By::Frequency), [1, 3, 2, 0, 4]);
    }

    /// Experts 0 and 3 are used together, and 1 and 2; 0 is the most frequent.
    #[test]
    fn experts_of_the_same_tokens_stand_together() {
        // Pairs 01, 02, 03, 12, 13, 23.
        let tokens = recording(&[1, 0, 8, 7, 0, 1], &[&[9, 8, 8, 8]]);
        assert_eq!(order(&tokens, By::Frequency), [0, 1, 2, 3]);
        let by = By::Coactivation { group: 2 };
        assert_eq!(order(&tokens, by), [0, 3, 1, 2]);
        let prompts = recording(&[], &[&[1, 0, 0, 1], &[1, 0, 0, 1], &[1, 1, 1, 0]]);
        assert_eq!(order(&prompts, by), [0, 3, 1, 2]);
    }

    #[test]
    fn every_order_is_a_permutation_and_groups_of_one_are_by_frequency() {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            u32::try_from((state >> 33) % 5).unwrap()
        };
        for experts in [1u64, 2, 5, 9] {
            let pairs: Vec<u32> = (0..experts * (experts - 1) / 2).map(|_| next()).collect();
            let rows: Vec<u32> = (0..experts).map(|_| next()).collect();
            let recording = recording(&pairs, &[&rows]);
            for group in [0, 1, 2, 8, 100] {
                let mut found = order(&recording, By::Coactivation { group });
                if group < 2 {
                    assert_eq!(found, order(&recording, By::Frequency));
                }
                found.sort_unstable();
                let all: Vec<u64> = (0..experts).collect();
                assert_eq!(found, all);
            }
        }
    }
}
