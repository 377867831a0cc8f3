//! The fused expert operator is the contract, bit for bit.

use estream_hexagon::toolchain::Machine;

use crate::parts::{Recipe, layout};
use crate::plan::{Cut, Shape, plan};
use crate::random::Random;
use crate::tools;

pub(crate) fn shape(hidden: u32, ff: u32, layouts: [&str; 3]) -> Shape {
    let [gate, up, down] = layouts.map(layout);
    Shape {
        hidden,
        ff,
        gate,
        up,
        down,
    }
}

pub(crate) fn small(tokens: u32, experts: u32) -> Recipe {
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
pub(crate) fn route(tokens: u32, experts: u32, k: u32, random: &mut Random) -> Vec<(u32, u32)> {
    let mut ids: Vec<u32> = (0..experts).collect();
    let choose = |token: u32| {
        random.shuffle(&mut ids);
        let chosen = &ids[..k as usize];
        chosen.iter().map(|id| (*id, token)).collect::<Vec<_>>()
    };
    (0..tokens).flat_map(choose).collect()
}

const NIBBLES: [&str; 4] = ["q4_0", "q4_1", "iq4_nl", "mxfp4"];

#[test]
fn random_routes_are_the_contract() {
    for machine in tools::machines("random routes") {
        let mut random = Random::new(1);
        for seed in 0..12 {
            let (tokens, experts) = (1 + random.below(40), 1 + random.below(8));
            let k = 1 + random.below(experts);
            let mut resident: Vec<u32> = (0..experts).collect();
            random.shuffle(&mut resident);
            // Some experts are not in memory: their routes are others' work.
            resident.truncate(1 + random.below(experts) as usize);
            let recipe = Recipe {
                shape: Shape {
                    hidden: 32 * (1 + random.below(4)),
                    ff: 32 * (1 + random.below(4)),
                    ..small(1, 1).shape
                },
                cut: Cut {
                    rows: 32 * (1 + random.below(2)),
                    gate_up_strips: 1 + random.below(3),
                    down_strips: 1 + random.below(5),
                },
                shards: 1 + random.below(2),
                bank_count: 1 + random.below(3),
                routes: route(tokens, experts, k, &mut random),
                resident,
                seed,
                ..small(tokens, experts)
            };
            recipe.check(machine);
        }
    }
}

#[test]
fn every_layout_is_the_contract_in_every_place() {
    for machine in tools::machines("layouts") {
        let orders = ["direct", "pair"];
        let nibbles = NIBBLES
            .iter()
            .flat_map(|name| orders.map(|order| format!("{name}.t32.{order}")));
        let tiles = ["q8_0", "f16", "bf16", "f32"].map(|name| format!("{name}.t32"));
        for name in nibbles.chain(tiles) {
            let recipe = Recipe {
                shape: shape(64, 64, [&name; 3]),
                routes: route(3, 2, 1, &mut Random::new(5)),
                ..small(3, 2)
            };
            recipe.check(machine);
        }
        // As importance matrices leave them: gate, up and down of different types.
        for layouts in [
            ["q4_0.t32.direct", "q4_0.t32.pair", "q4_1.t32.direct"],
            ["mxfp4.t32.pair", "q8_0.t32", "q4_0.t32.pair"],
        ] {
            let recipe = Recipe {
                shape: shape(96, 64, layouts),
                routes: route(5, 2, 2, &mut Random::new(6)),
                ..small(5, 2)
            };
            recipe.check(machine);
        }
    }
}

#[test]
fn an_expert_with_every_row_takes_as_many_chunks_as_it_needs() {
    for machine in tools::machines("chunks") {
        for tokens in [31, 32, 33, 64, 75] {
            let recipe = Recipe {
                routes: (0..tokens).map(|token| (2, token)).collect(),
                ..small(tokens, 4)
            };
            recipe.check(machine);
        }
    }
}

#[test]
fn a_token_that_comes_twice_is_added_to_in_the_order_of_its_routes() {
    for machine in tools::machines("repeated tokens") {
        let mut random = Random::new(8);
        let routes = (0..70).map(|_| (random.below(3), random.below(4)));
        let recipe = Recipe {
            routes: routes.collect(),
            ..small(4, 3)
        };
        recipe.check(machine);
    }
}

#[test]
fn from_one_to_eight_experts_a_token() {
    for machine in tools::machines("experts a token") {
        for k in 1..=8 {
            let recipe = Recipe {
                routes: route(4, 8, k, &mut Random::new(k.into())),
                ..small(4, 8)
            };
            recipe.check(machine);
        }
    }
}

#[test]
fn shapes_that_are_no_whole_number_of_tiles() {
    for machine in tools::machines("odd shapes") {
        let recipe = Recipe {
            shape: shape(80, 40, ["q4_0.t32.direct", "q4_0.t32.direct", "q8_0.t32"]),
            routes: route(5, 2, 1, &mut Random::new(9)),
            ..small(5, 2)
        };
        recipe.check(machine);
    }
}

#[test]
fn without_routes_nothing_changes() {
    for machine in tools::machines("no routes") {
        small(3, 4).check(machine);
        let elsewhere = Recipe {
            routes: vec![(3, 0), (3, 1)],
            resident: vec![0, 1, 2],
            ..small(3, 4)
        };
        let case = elsewhere.make();
        let y = case.run(machine, case.op.plan).unwrap();
        assert_eq!(y, case.expected());
    }
}

#[test]
fn a_result_does_not_depend_on_chunks_steps_or_slots() {
    let recipe = Recipe {
        shape: shape(96, 160, ["q4_0.t32.direct"; 3]),
        routes: route(70, 3, 2, &mut Random::new(10)),
        shards: 2,
        ..small(70, 3)
    };
    let case = recipe.make();
    let expected = case.expected();
    for machine in tools::machines("chunks, steps, slots") {
        for (seed, (rows, gate_up_strips, down_strips)) in
            [(32, 1, 1), (64, 2, 3), (96, 5, 1), (32, 9, 9)]
                .into_iter()
                .enumerate()
        {
            let cut = Cut {
                rows,
                gate_up_strips,
                down_strips,
            };
            let plan = plan(&recipe.shape, &cut, &mut Random::new(seed as u64));
            let y = case.run(machine, plan).unwrap();
            assert!(y == expected, "{machine:?} {cut:?}");
        }
    }
}

/// The five models of the paper: hidden, ff of a record, experts a token. Mixtral's records are cut
/// into shards, as they must be to fit.
#[test]
fn shapes_of_real_models() {
    for machine in tools::machines("shapes of real models") {
        let emulated = machine == Machine::Emulated;
        let models = [
            ("OLMoE", 2048, 1024),
            ("LFM2.5", 2048, 1792),
            ("DeepSeek-V2-Lite", 2048, 1408),
            ("Qwen3-30B-A3B", 2048, 768),
            // An emulator takes its time.
            ("Mixtral", 4096, 14336 / if emulated { 64 } else { 8 }),
        ];
        for (name, hidden, ff) in models {
            let recipe = Recipe {
                shape: shape(hidden, ff, ["q4_0.t32.direct"; 3]),
                routes: if emulated {
                    vec![(0, 1)]
                } else {
                    vec![(0, 1), (1, 0), (0, 0)]
                },
                resident: if emulated { vec![0] } else { vec![1, 0] },
                ..small(2, 2)
            };
            let began = std::time::Instant::now();
            recipe.check(machine);
            println!("{name} on {machine:?}: {:?}", began.elapsed());
        }
    }
}
