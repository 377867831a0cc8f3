//! The fused expert operator is the contract, bit for bit.

use crate::parts::{Recipe, layout};
use crate::plan::{Cut, Shape};
use crate::random::Random;
use crate::tools;

fn shape(hidden: u32, ff: u32, layouts: [&str; 3]) -> Shape {
    let [gate, up, down] = layouts.map(layout);
    Shape {
        hidden,
        ff,
        gate,
        up,
        down,
    }
}

fn small(tokens: u32, experts: u32) -> Recipe {
    Recipe {
        shape: shape(64, 96, ["q4_0.t32.direct"; 3]),
        cut: Cut {
            rows: 32,
            gate_up_strips: 1,
            down_strips: 1,
        },
        tokens,
        experts,
        shards: 1,
        bank_count: 1,
        routes: Vec::new(),
        resident: (0..experts).collect(),
        seed: u64::from(tokens),
    }
}

/// `k` different experts for every token.
fn route(tokens: u32, experts: u32, k: u32, random: &mut Random) -> Vec<(u32, u32)> {
    let mut ids: Vec<u32> = (0..experts).collect();
    let choose = |token: u32| {
        random.shuffle(&mut ids);
        let chosen = &ids[..k as usize];
        chosen.iter().map(|id| (*id, token)).collect::<Vec<_>>()
    };
    (0..tokens).flat_map(choose).collect()
}

#[test]
fn one_route_is_the_contract() {
    for machine in tools::machines("one route") {
        let recipe = Recipe {
            routes: vec![(0, 0)],
            ..small(1, 1)
        };
        recipe.check(machine);
    }
}
