//! All orders of few things: how far a heuristic is from the best.

/// The most things whose orders are all tried: 8! is 40,320.
pub const MAX_UNITS: usize = 8;

/// The order of `units` (experts, or groups of them) that costs least, and what it costs; of equal
/// ones the first by place. `None` if there are more than [`MAX_UNITS`].
pub fn best<U: Clone>(units: &[U], mut cost: impl FnMut(&[U]) -> u64) -> Option<(Vec<U>, u64)> {
    if units.len() > MAX_UNITS {
        return None;
    }
    let mut places: Vec<usize> = (0..units.len()).collect();
    let mut best: Option<(Vec<U>, u64)> = None;
    loop {
        let order: Vec<U> = places.iter().map(|place| units[*place].clone()).collect();
        let this = cost(&order);
        if best.as_ref().is_none_or(|(_, least)| this < *least) {
            best = Some((order, this));
        }
        if !next(&mut places) {
            return best;
        }
    }
}

/// The permutation that follows by place; false after the last one.
fn next(places: &mut [usize]) -> bool {
    let Some(pivot) = places.windows(2).rposition(|pair| pair[0] < pair[1]) else {
        return false;
    };
    let larger = places.iter().rposition(|place| *place > places[pivot]);
    places.swap(pivot, larger.unwrap_or(pivot));
    places[pivot + 1..].reverse();
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_order_is_tried_once() {
        for (count, orders) in [(0, 1), (1, 1), (3, 6), (6, 720), (8, 40_320)] {
            let units: Vec<usize> = (0..count).collect();
            let mut tried = BTreeSet::new();
            let found = best(&units, |order| {
                assert!(tried.insert(order.to_vec()));
                0
            });
            assert_eq!(tried.len(), orders);
            assert_eq!(found, Some((units, 0)));
        }
        assert_eq!(best(&[(); 9], |_| 0), None);
    }

    #[test]
    fn the_cheapest_is_found_wherever_it_is() {
        let wanted = [3, 0, 4, 1, 2];
        let differences = |order: &[i32]| {
            let pairs = order.iter().zip(wanted);
            pairs.filter(|(a, b)| **a != *b).count() as u64
        };
        let found = best(&[0, 1, 2, 3, 4], differences);
        assert_eq!(found, Some((wanted.to_vec(), 0)));
    }
}
