//! The pipelines wait for what they must, and for each of it: on a machine whose DMA engine and matrix
//! unit do nothing before somebody waits, and whose memory is spoilt when its lifetime ends.

use estream_hexagon::toolchain::Machine;

use crate::expert::{route, shape, small};
use crate::parts::Recipe;
use crate::plan::Cut;
use crate::random::Random;

/// Waits of `c/expert.c`.
const WAITS: u32 = 4;

/// Pipelines of one step and of many, with rests, shards and chunks.
fn recipes() -> Vec<Recipe> {
    let mut random = Random::new(40);
    let cuts = [(32, 1, 1), (32, 2, 3), (64, 3, 2), (32, 8, 8)];
    let recipe = |(rows, gate_up_strips, down_strips)| Recipe {
        shape: shape(
            128,
            160,
            ["q4_0.t32.direct", "q4_0.t32.pair", "q4_1.t32.direct"],
        ),
        cut: Cut {
            rows,
            gate_up_strips,
            down_strips,
        },
        shards: 2,
        routes: route(45, 4, 3, &mut random),
        ..small(45, 4)
    };
    cuts.map(recipe).into()
}

#[test]
fn late_engines_and_short_lifetimes_change_nothing() {
    for recipe in recipes() {
        recipe.check(Machine::Late { skip_wait: 0 });
    }
}

#[test]
fn without_any_one_wait_results_are_wrong() {
    for skip_wait in 1..=WAITS {
        for recipe in recipes() {
            let case = recipe.make();
            let y = case.run(Machine::Late { skip_wait }, case.op.plan).unwrap();
            let expected = case.expected();
            let same = y
                .iter()
                .zip(&expected)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(!same, "wait {skip_wait} is not needed for {:?}", recipe.cut);
        }
    }
}

/// There is no wait that the test above does not know of.
#[test]
fn every_wait_has_a_number() {
    let text = std::fs::read_to_string(crate::tools::sources().join("expert.c")).unwrap();
    let calls = text.matches("dma_wait(").count() + text.matches("sync_finish(").count();
    assert_eq!(calls, 2, "one of each, used by two pipelines");
    assert_eq!(WAITS, 4);
    assert!(text.contains("WAIT_DOWN_MATRIX = 4 }"));
}
