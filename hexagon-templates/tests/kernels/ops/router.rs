use estream_hexagon::abi::{Kind, Op, Ref, Route, Router, Status};
use estream_hexagon::room::Needs;
use estream_hexagon::toolchain::Machine;
use estream_hexagon::wire::Wire;
use estream_schemas::program::{Renormalise, RouterForm, ScoreWhen, Scoring};
use estream_schemas::real::Real;

use super::desk::Desk;
use super::reference::sum_in_32;
use super::stored::Matrix;
use super::{Case, Results, cpu, hold};
use crate::contract::exp;
use crate::process::SCRATCH_BYTES;
use crate::random::Random;
use crate::tools;

#[derive(Clone, Debug)]
struct Routing {
    tokens: u32,
    weight: Matrix,
    top_k: u32,
    sigmoid: bool,
    after_top_k: bool,
    renormalise: Option<f32>,
    scale: f32,
    bias: Option<Vec<f32>>,
    x: Vec<f32>,
}

impl Routing {
    fn lay(&self) -> (Desk, Router) {
        let mut desk = Desk::default();
        let routes = self.tokens * self.top_k;
        let op = Router {
            op: Op::of::<Router>(Kind::Router),
            tokens: self.tokens,
            top_k: self.top_k,
            sigmoid: u32::from(self.sigmoid),
            after_top_k: u32::from(self.after_top_k),
            renormalise: u32::from(self.renormalise.is_some()),
            epsilon: self.renormalise.unwrap_or(0.0).to_bits(),
            scale: self.scale.to_bits(),
            zero: 0,
            x: desk.rows(&self.x, self.weight.cols),
            weight: desk.weight(&self.weight),
            selection_bias: match &self.bias {
                Some(bias) => desk.list(bias),
                None => Ref::ABSENT,
            },
            routes: desk.result_bytes(routes as usize * Route::BYTES),
            logits: desk.results(self.tokens, self.weight.rows),
        };
        (desk, op)
    }

    fn scores(&self, x: &[f32]) -> Vec<f32> {
        if self.sigmoid {
            return x.iter().map(|x| 1.0 / (1.0 + exp(-x))).collect();
        }
        let greatest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = x.iter().map(|x| exp(x - greatest)).collect();
        let sum = powers.iter().fold(0.0f32, |sum, x| sum + x);
        powers.iter().map(|x| x / sum).collect()
    }

    fn form(&self) -> RouterForm {
        let real = |x| Real::new(x).expect("finite");
        RouterForm {
            scoring: match self.sigmoid {
                true => Scoring::Sigmoid,
                false => Scoring::Softmax,
            },
            score: match self.after_top_k {
                true => ScoreWhen::AfterTopK,
                false => ScoreWhen::BeforeTopK,
            },
            top_k: self.top_k.into(),
            renormalise: match self.renormalise {
                None => Renormalise::None,
                Some(0.0) => Renormalise::Sum,
                Some(more) => Renormalise::SumPlus(real(more)),
            },
            scale: real(self.scale),
        }
    }
}

impl Case for Routing {
    fn run(&self, machine: Machine) -> Results {
        let (desk, op) = self.lay();
        let done = desk.run(machine, 65_536, &op).expect("it runs");
        let count = (self.tokens * self.top_k) as usize;
        let mut bytes = done.bytes(op.routes, count * Route::BYTES);
        let routes: Vec<_> = (0..count)
            .map(|_| Route::take(&mut bytes).unwrap())
            .collect();
        let mut numbers = done.rows(&op.logits, self.tokens);
        numbers.extend(routes.iter().map(|route| f32::from_bits(route.weight)));
        let ids = routes.iter().flat_map(|route| [route.token, route.expert]);
        Results {
            numbers,
            ids: ids.collect(),
        }
    }

    fn contract(&self) -> Results {
        let (experts, top_k) = (self.weight.rows, self.top_k as usize);
        let rows: Vec<_> = (0..experts).map(|n| self.weight.row(n)).collect();
        let mut all_logits = Vec::new();
        let mut all_weights = Vec::new();
        let mut ids = Vec::new();
        for (token, x) in self.x.chunks_exact(self.weight.cols).enumerate() {
            let logit = |row: &Vec<f32>| sum_in_32(x.iter().zip(row).map(|(x, w)| x * w));
            let logits: Vec<f32> = rows.iter().map(logit).collect();
            let scores = match self.after_top_k {
                true => logits.clone(),
                false => self.scores(&logits),
            };
            let mut choice = scores.clone();
            for (score, bias) in choice.iter_mut().zip(self.bias.iter().flatten()) {
                *score += bias;
            }
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|a, b| choice[*b].partial_cmp(&choice[*a]).unwrap());
            let chosen = &order[..top_k];
            let mut weights: Vec<f32> = chosen.iter().map(|e| scores[*e]).collect();
            if self.after_top_k {
                weights = self.scores(&weights);
            }
            let sum = weights.iter().fold(0.0f32, |sum, w| sum + w);
            let divisor = self.renormalise.map_or(1.0, |epsilon| sum + epsilon);
            all_weights.extend(weights.iter().map(|w| w / divisor * self.scale));
            ids.extend(chosen.iter().flat_map(|e| [token as u32, *e as u32]));
            all_logits.extend(logits);
        }
        all_logits.extend(all_weights);
        Results {
            numbers: all_logits,
            ids,
        }
    }

    fn cpu(&self) -> Results {
        let bias = self.bias.as_deref();
        let weight = self.weight.matrix();
        let routes = cpu().router(&self.x, &weight, bias, &self.form()).unwrap();
        let places = routes.experts.iter().enumerate();
        let ids = places.flat_map(|(i, expert)| [i as u32 / self.top_k, *expert]);
        Results {
            ids: ids.collect(),
            numbers: [routes.logits, routes.weights].concat(),
        }
    }
}

fn routing(tokens: u32, experts: usize, top_k: u32, random: &mut Random) -> Routing {
    let cols = 64;
    Routing {
        tokens,
        weight: Matrix::random("f32.t32", experts, cols, random),
        top_k,
        sigmoid: false,
        after_top_k: false,
        renormalise: None,
        scale: 1.0,
        bias: None,
        x: random
            .reals(tokens as usize * cols)
            .iter()
            .map(|x| 9.0 * x)
            .collect(),
    }
}

#[test]
fn routes_of_every_form_are_the_contract() {
    let mut random = Random::new(4);
    let mut cases = Vec::new();
    for sigmoid in [false, true] {
        for after_top_k in [false, true] {
            for renormalise in [None, Some(0.0), Some(1e-3)] {
                let experts = 1 + random.below(40);
                let top_k = 1 + random.below(experts.min(8));
                let bias = random.reals(experts as usize);
                let tokens = 1 + random.below(6);
                cases.push(Routing {
                    sigmoid,
                    after_top_k,
                    renormalise,
                    scale: [1.0, 2.5][random.below(2) as usize],
                    bias: (random.below(2) == 1).then_some(bias),
                    ..routing(tokens, experts as usize, top_k, &mut random)
                });
            }
        }
    }
    // All of them; one alone; other layouts, and rows that are no whole tiles.
    cases.push(routing(3, 16, 16, &mut random));
    cases.push(routing(2, 1, 1, &mut random));
    for layout in ["bf16.t32", "f16.rows", "q8_0.t32"] {
        let weight = Matrix::random(layout, 9, 64, &mut random);
        let routing = routing(4, 9, 2, &mut random);
        cases.push(Routing { weight, ..routing });
    }
    let mut odd = routing(3, 5, 2, &mut random);
    odd.weight = Matrix::random("f32.rows", 5, 37, &mut random);
    odd.x.truncate(3 * 37);
    cases.push(odd);
    let cases: Vec<_> = cases.iter().map(|case| case as &dyn Case).collect();
    hold("router", &cases, 1e-6);
}

/// x is 1 alone, so that a weight is a logit.
fn given(logits: &[f32], top_k: u32) -> Routing {
    Routing {
        weight: Matrix::of_f32(logits.len(), logits),
        x: vec![1.0],
        after_top_k: true,
        ..routing(1, 1, top_k, &mut Random::new(1))
    }
}

#[test]
fn of_equal_scores_the_lower_id_wins_and_zeros_are_equal() {
    for machine in tools::machines("ties") {
        for (logits, chosen) in [
            (&[0.5, 2.0, 2.0, 1.0, 2.0][..], [1, 2, 4]),
            (&[-0.0, 0.0, -0.0, -1.0], [0, 1, 2]),
            (&[0.0, -0.0, 1e-40, -0.0], [2, 0, 1]),
            (&[-3.0, -2.0, -4.0, -2.0], [1, 3, 0]),
        ] {
            let ids = given(logits, 3).run(machine).ids;
            let experts: Vec<u32> = ids.chunks_exact(2).map(|id| id[1]).collect();
            assert_eq!(experts, chosen, "{logits:?} {machine:?}");
        }
    }
}

/// A router of so many columns takes the private memory that processes of tests have.
#[test]
fn private_memory_of_the_least_size_is_enough_and_less_is_refused() {
    let mut random = Random::new(8);
    let cols = ((SCRATCH_BYTES - 4 * 2048) / 4) as usize;
    for (cols, enough) in [(cols, true), (cols + 1, false)] {
        let routing = Routing {
            weight: Matrix::random("f16.rows", 2, cols, &mut random),
            x: random.reals(cols),
            ..routing(1, 2, 1, &mut random)
        };
        let (desk, op) = routing.lay();
        let fits = op.room().private_bytes <= u64::from(SCRATCH_BYTES);
        assert_eq!(fits, enough);
        let result = desk.run(Machine::Host, 65_536, &op);
        let refused = result.map_err(|reply| reply.status).err();
        let expected = (!enough).then_some(Status::NoMemory.code());
        assert_eq!(refused, expected);
    }
}

#[test]
fn a_score_that_is_not_finite_is_an_error_that_names_the_token() {
    for machine in tools::machines("scores that are not finite") {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut routing = routing(4, 6, 2, &mut Random::new(2));
            routing.x[2 * 64 + 7] = bad;
            let (desk, op) = routing.lay();
            let refused = desk.run(machine, 65_536, &op).unwrap_err();
            let expected = (Status::NotFinite.code(), 2);
            assert_eq!((refused.status, refused.detail), expected, "{bad}");
        }
        // Finite logits, but a choice that is not, and weights that are not.
        let mut biased = given(&[1.0, 2.0], 1);
        biased.bias = Some(vec![0.0, f32::INFINITY]);
        let mut scaled = given(&[1.0, 2.0], 1);
        scaled.scale = f32::INFINITY;
        for routing in [biased, scaled] {
            let (desk, op) = routing.lay();
            let refused = desk.run(machine, 65_536, &op).unwrap_err();
            assert_eq!(refused.status, Status::NotFinite.code(), "{routing:?}");
        }
    }
}
