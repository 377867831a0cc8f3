//! Leaving out any wait of the operators is noticed.

use super::attention::attending;
use super::linear::Product;
use super::stored::Matrix;
use super::{Case, difference, late};
use crate::random::Random;

/// Waits of `c/waits.h`.
const WAITS: [(&str, u32); 4] = [
    ("product_dma", 5),
    ("product_matrix", 6),
    ("scores", 7),
    ("values", 8),
];

#[test]
fn every_wait_is_needed() {
    let product = Product {
        tokens: 40,
        weight: Matrix::random("q4_0.t32.direct", 160, 64, &mut Random::new(1)),
        scale: 1.0,
        bias: false,
        vtcm_bytes: 1 << 20,
    };
    let attending = attending(40, 0, (2, 1), (64, 64));
    for (name, wait) in WAITS {
        let Some(machine) = late(wait) else { return };
        let case: &dyn Case = if wait < 7 { &product } else { &attending };
        let wrong = difference(&case.run(machine), &case.contract());
        assert!(wrong.is_some(), "nobody misses the wait {name}");
    }
}
