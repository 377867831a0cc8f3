//! Every register of a pass, its routes and its results are what the operators say.

use estream_runtime::backend::Routes;
use estream_runtime::{Observer, Place, Positions, Request};

use crate::reference::{self, Reference};
use crate::rows::{Rows, load};
use crate::toy::{EXPERTS, LAYERS, Packing, TOP_K, Toy};

const IDS: [u32; 9] = [3, 17, 0, 39, 3, 3, 21, 8, 30];

#[derive(Default)]
struct Seen {
    trace: Vec<(Option<usize>, usize, String, Vec<f32>)>,
    routes: Vec<(usize, Routes)>,
}

impl Observer for Seen {
    fn after_op(&mut self, place: Place, op: usize, register: &str, rows: &[f32]) {
        let layer = match place {
            Place::Layer(layer) => Some(layer),
            Place::Prologue => None,
            other => panic!("told of {other}"),
        };
        self.trace
            .push((layer, op, register.to_owned(), rows.to_vec()));
    }

    fn routes(&mut self, layer: usize, routes: &Routes) {
        self.routes.push((layer, routes.clone()));
    }
}

fn assert_near(what: &str, found: &[f32], expected: &[Vec<f64>]) {
    let expected: Vec<f64> = expected.iter().flatten().copied().collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().map(|x| x.abs()).fold(1e-3, f64::max);
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let error = (f64::from(*found) - expected).abs() / scale;
        assert!(error < 2e-5, "{what}, {at}: {found}, not {expected}");
    }
}

fn assert_matches(seen: &Seen, rows: &Rows, expected: &Reference) {
    assert_eq!(seen.trace.len(), expected.trace.len());
    for (found, expected) in seen.trace.iter().zip(&expected.trace) {
        let what = format!("{:?}, operator {}, {}", expected.0, expected.1, expected.2);
        let same = (found.0, found.1, &found.2) == (expected.0, expected.1, &expected.2);
        assert!(same, "{what}: the observer heard {:?}", (found.0, found.1));
        assert_near(&what, &found.3, &expected.3);
    }
    assert_eq!(seen.routes.len(), LAYERS);
    for ((layer, routes), tokens) in seen.routes.iter().zip(&expected.routes) {
        let ids: Vec<usize> = tokens.iter().flatten().map(|route| route.0).collect();
        let found: Vec<usize> = routes.experts.iter().map(|id| *id as usize).collect();
        assert_eq!(found, ids, "layer {layer}");
        let weights: Vec<Vec<f64>> = vec![tokens.iter().flatten().map(|route| route.1).collect()];
        assert_near(&format!("weights of {layer}"), &routes.weights, &weights);
    }
    assert_near("hidden", &rows.hidden, &expected.hidden);
    assert_near("logits", &rows.logits, &expected.logits);
}

#[test]
fn every_register_of_every_layer_is_what_its_operator_says() {
    let toy = Toy::new();
    let expected = reference::run(&toy, &IDS);
    for packing in [
        Packing::default(),
        Packing {
            tiles: false,
            ..Packing::default()
        },
        Packing {
            shards: 2,
            order: vec![2, 0, 3, 1],
            tiles: true,
        },
    ] {
        let dir = toy.bundle(&packing);
        let mut model = load(dir.path(), 1);
        let mut rows = Rows::default();
        let mut seen = Seen::default();
        let request = Request {
            positions: Positions::All,
            hidden: true,
            ..Request::default()
        };
        let outcome = model.prefill_observed(&IDS, &request, &mut rows, &mut seen);
        assert_eq!(rows.positions, (0..IDS.len()).collect::<Vec<_>>());
        assert_matches(&seen, &rows, &expected);
        let outcome = outcome.unwrap();
        let records = (LAYERS * EXPERTS * packing.shards) as u64;
        assert_eq!(outcome.records_run + outcome.records_skipped, records);
    }
}

#[test]
fn one_token_runs_its_own_experts_and_skips_the_others() {
    let toy = Toy::new();
    let dir = toy.bundle(&Packing::default());
    let mut model = load(dir.path(), 1);
    let mut rows = Rows::default();
    let outcome = model
        .prefill(&[11], &Request::default(), &mut rows)
        .unwrap();
    let run = (LAYERS * TOP_K) as u64;
    let all = (LAYERS * EXPERTS) as u64;
    assert_eq!(
        (outcome.records_run, outcome.records_skipped),
        (run, all - run)
    );
    assert_near("logits", &rows.logits, &reference::run(&toy, &[11]).logits);
}
