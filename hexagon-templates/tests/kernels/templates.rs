//! What the VTCM planner lays out, run.

use estream_hexagon::{ExpertShape, Template};

use crate::parts::{Recipe, layout};
use crate::plan::{Cut, Shape};
use crate::tools;

/// Of an expert to which all tokens go: the rows of an invocation must be those of the template.
fn check(template: &Template, tokens: u32, what: &str) {
    let of = template.shape();
    let [gate, up, down] = of.stored().map(|stored| stored.layout());
    let plan = template.plan();
    let recipe = Recipe {
        shape: Shape {
            hidden: u32::try_from(of.hidden()).unwrap(),
            ff: u32::try_from(of.ff()).unwrap(),
            gate,
            up,
            down,
        },
        cut: Cut {
            rows: plan.rows,
            gate_up_strips: plan.gate_up_strips,
            down_strips: plan.down_strips,
        },
        tokens,
        experts: 2,
        shards: u32::try_from(of.shards()).unwrap(),
        bank_count: 1,
        routes: (0..tokens).map(|token| (1, token)).collect(),
        resident: vec![0, 1],
        seed: 3,
    };
    let case = recipe.make();
    for machine in tools::machines(what) {
        let got = case.run(machine, plan).expect("the operator runs");
        case.compare(&got, &format!("{machine:?} {template:?}"));
    }
}

fn template(hidden: u64, ff: u64, shards: u64, layouts: [&str; 3], vtcm_bytes: u64) -> Template {
    let shape = ExpertShape::new(hidden, ff, shards, layouts.map(layout)).unwrap();
    Template::new(&shape, vtcm_bytes).unwrap()
}

#[test]
fn kernels_take_the_plans_of_templates_and_compute_the_contract() {
    let mixed = ["q4_0.t32.pair", "q8_0.t32", "bf16.t32"];
    for (hidden, ff, shards, layouts, vtcm_bytes, capacity) in [
        (64, 96, 2, ["q4_0.t32.direct"; 3], 1 << 16, 64),
        (96, 64, 1, mixed, 1 << 16, 64),
        (40, 200, 1, ["q8_0.t32"; 3], 1 << 17, 96),
    ] {
        let template = template(hidden, ff, shards, layouts, vtcm_bytes);
        assert_eq!(template.capacity(), capacity);
        // More rows than an invocation takes.
        let tokens = u32::try_from(capacity).unwrap() + 5;
        check(&template, tokens, "plans of templates");
    }
}

#[test]
fn the_template_of_a_real_model_fits_its_vtcm() {
    let template = template(2048, 768, 1, ["q4_0.t32.direct"; 3], 8 << 20);
    check(&template, 2, "plans of templates of real models");
}
