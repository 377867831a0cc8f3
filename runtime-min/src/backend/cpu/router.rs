//! Which experts serve a token, and with what weights.

use estream_schemas::program::{Renormalise, RouterForm, ScoreWhen, Scoring};

use super::matrix::Matrix;
use super::simd::{Kernel, Simd, SimdPath};
use super::{Cpu, Route, row_count};
use crate::math::{exp, sigmoid};

/// The choice for every token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// Experts a token.
    pub top_k: usize,
    /// `[tokens, top_k]`: chosen experts of a token, the best first.
    pub experts: Vec<u32>,
    /// `[tokens, top_k]`: their weights.
    pub weights: Vec<f32>,
    /// `[tokens, experts]`: what was chosen from.
    pub logits: Vec<f32>,
}

/// Routes sorted by expert.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertRoutes {
    /// Where each expert's routes start, and where the last one's end.
    starts: Vec<usize>,
    routes: Vec<Route>,
}

/// Why a router chose nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// A score is an infinity or not a number.
    #[error(
        "the router's score for expert {expert} at token {token} is not finite: check the bundle's weights with a known prompt"
    )]
    NonFinite {
        /// Row of the token.
        token: usize,
        /// The expert.
        expert: usize,
    },
    /// The form asks for no expert, or for more than there are.
    #[error("the router chooses {top_k} of {experts} experts: rebuild the bundle")]
    TopK {
        /// Experts a token.
        top_k: u64,
        /// Experts of the layer.
        experts: usize,
    },
}

impl Routes {
    /// The same routes by expert, each expert's ascending by token.
    ///
    /// # Panics
    /// If a route names an expert that is not below `experts`.
    pub fn by_expert(&self, experts: usize) -> ExpertRoutes {
        let mut starts = vec![0; experts + 1];
        for expert in &self.experts {
            starts[*expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            starts[expert + 1] += starts[expert];
        }
        let mut next = starts.clone();
        let none = Route {
            token: 0,
            weight: 0.0,
        };
        let mut routes = vec![none; self.experts.len()];
        for (i, (expert, weight)) in self.experts.iter().zip(&self.weights).enumerate() {
            let place = &mut next[*expert as usize];
            routes[*place] = Route {
                token: u32::try_from(i / self.top_k).expect("tokens are counted in 32 bits"),
                weight: *weight,
            };
            *place += 1;
        }
        ExpertRoutes { starts, routes }
    }
}

impl ExpertRoutes {
    /// The routes of one expert, ascending by token.
    ///
    /// # Panics
    /// If there is no such expert.
    pub fn of(&self, expert: usize) -> &[Route] {
        &self.routes[self.starts[expert]..self.starts[expert + 1]]
    }
}

/// Fills in experts and weights from the logits of `expert_count` experts.
fn choose_all(
    simd: Simd,
    form: &RouterForm,
    bias: Option<&[f32]>,
    expert_count: usize,
    routes: &mut Routes,
) -> Result<(), RouterError> {
    let mut scores = vec![0.0; expert_count];
    let mut choice = vec![0.0; expert_count];
    let tokens = routes.logits.chunks_exact(expert_count).enumerate();
    let chosen = routes.experts.chunks_exact_mut(routes.top_k);
    let weights = routes.weights.chunks_exact_mut(routes.top_k);
    for (((token, logits), chosen), weights) in tokens.zip(chosen).zip(weights) {
        scores.copy_from_slice(logits);
        // A softmax turns one infinity into NaN everywhere: name the culprit first.
        check(token, logits)?;
        if form.score == ScoreWhen::BeforeTopK {
            simd.run(Score(form.scoring, &mut scores));
        }
        choice.copy_from_slice(&scores);
        for (x, b) in choice.iter_mut().zip(bias.unwrap_or(&[])) {
            *x += b;
        }
        check(token, &choice)?;
        best(&mut choice, chosen);
        for (w, expert) in weights.iter_mut().zip(&*chosen) {
            *w = scores[*expert as usize];
        }
        if form.score == ScoreWhen::AfterTopK {
            simd.run(Score(form.scoring, weights));
        }
        weigh(form, weights);
        if let Some(i) = weights.iter().position(|w| !w.is_finite()) {
            let expert = chosen[i] as usize;
            return Err(RouterError::NonFinite { token, expert });
        }
    }
    Ok(())
}

fn check(token: usize, scores: &[f32]) -> Result<(), RouterError> {
    match scores.iter().position(|score| !score.is_finite()) {
        Some(expert) => Err(RouterError::NonFinite { token, expert }),
        None => Ok(()),
    }
}

/// Logits to scores, in place; sums in order.
struct Score<'a>(Scoring, &'a mut [f32]);

impl Kernel for Score<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: SimdPath) {
        let Score(scoring, x) = self;
        match scoring {
            Scoring::Softmax => {
                let max = x
                    .iter()
                    .fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
                for x in &mut *x {
                    *x = exp(*x - max);
                }
                let sum: f32 = x.iter().sum();
                for x in x {
                    *x /= sum;
                }
            }
            Scoring::Sigmoid => {
                for x in x {
                    *x = sigmoid(*x);
                }
            }
        }
    }
}

/// The experts of the largest scores, the best first and of equals the lowest;
/// the scores taken are spoilt.
fn best(scores: &mut [f32], chosen: &mut [u32]) {
    for chosen in chosen {
        let mut top = 0;
        for (expert, score) in scores.iter().enumerate() {
            if *score > scores[top] {
                top = expert;
            }
        }
        scores[top] = f32::NEG_INFINITY;
        *chosen = top as u32;
    }
}

/// Scores of the chosen experts to weights.
fn weigh(form: &RouterForm, weights: &mut [f32]) {
    let sum: f32 = weights.iter().sum();
    let divisor = match form.renormalise {
        Renormalise::None => 1.0,
        Renormalise::Sum => sum,
        Renormalise::SumPlus(more) => sum + more.get(),
    };
    for w in weights {
        *w = *w / divisor * form.scale.get();
    }
}

impl Cpu {
    /// Chooses `form.top_k` experts for every token: logits `x · wᵀ`, w `[experts, width]`;
    /// `bias`, one an expert, counts for the choice only.
    ///
    /// Of equal scores the lower expert wins. After-top-k scores see the chosen
    /// logits in the order of the choice, and so do sums of weights.
    ///
    /// # Errors
    /// If a score or weight is not finite, or `top_k` is not from 1 to the number of experts.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn router(
        &mut self,
        x: &[f32],
        w: &Matrix<'_>,
        bias: Option<&[f32]>,
        form: &RouterForm,
    ) -> Result<Routes, RouterError> {
        let experts = w.rows();
        let tokens = row_count(x, w.cols());
        assert!(
            bias.is_none_or(|bias| bias.len() == experts),
            "a bias for every expert"
        );
        let top_k = usize::try_from(form.top_k)
            .ok()
            .filter(|k| (1..=experts).contains(k))
            .ok_or(RouterError::TopK {
                top_k: form.top_k,
                experts,
            })?;
        let mut routes = Routes {
            top_k,
            experts: vec![0; tokens * top_k],
            weights: vec![0.0; tokens * top_k],
            logits: vec![0.0; tokens * experts],
        };
        self.linear(x, w, &mut routes.logits);
        choose_all(self.simd, form, bias, experts, &mut routes)?;
        Ok(routes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Known, Random, bits, every_way, one_way};
    use super::*;
    use estream_schemas::real::Real;
    use std::f32::consts::LN_2;

    /// Scores, choice and weights for logits that are given.
    fn choose(
        logits: &[f32],
        bias: Option<&[f32]>,
        form: &RouterForm,
    ) -> Result<Routes, RouterError> {
        let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        let w = Matrix::new("f32.rows".parse().unwrap(), logits.len(), 1, &bytes).unwrap();
        let mut results = every_way()
            .into_iter()
            .map(|mut cpu| cpu.router(&[1.0], &w, bias, form));
        let first = results.next().unwrap();
        assert!(results.all(|result| result == first));
        first
    }

    fn form(
        scoring: Scoring,
        score: ScoreWhen,
        top_k: u64,
        renormalise: Renormalise,
        scale: f32,
    ) -> RouterForm {
        RouterForm {
            scoring,
            score,
            top_k,
            renormalise,
            scale: Real::new(scale).unwrap(),
        }
    }

    /// Logits whose exponentials are 1, 4, 2, 4, 0.5 over their sum 11.5.
    const POWERS: [f32; 5] = [0.0, 2.0 * LN_2, LN_2, 2.0 * LN_2, -LN_2];

    #[test]
    fn every_form_weighs_as_its_family_does() {
        use Renormalise::{None as Never, Sum, SumPlus};
        use ScoreWhen::{AfterTopK, BeforeTopK};
        use Scoring::{Sigmoid, Softmax};
        // Sigmoids of the same logits: 1/2, 4/5, 2/3, 4/5, 1/3.
        let bias = [10.0, 0.0, 0.0, 0.0, 5.0];
        let one = Real::ONE;
        for (form, bias, chosen, weights) in [
            (
                form(Softmax, BeforeTopK, 3, Never, 1.0),
                None,
                [1, 3, 2],
                [4.0 / 11.5, 4.0 / 11.5, 2.0 / 11.5],
            ),
            (
                form(Softmax, BeforeTopK, 3, Sum, 1.0),
                None,
                [1, 3, 2],
                [0.4, 0.4, 0.2],
            ),
            (
                form(Softmax, AfterTopK, 3, Never, 2.0),
                None,
                [1, 3, 2],
                [0.8, 0.8, 0.4],
            ),
            (
                form(Softmax, BeforeTopK, 3, SumPlus(one), 1.0),
                None,
                [1, 3, 2],
                [4.0 / 21.5, 4.0 / 21.5, 2.0 / 21.5],
            ),
            (
                form(Sigmoid, BeforeTopK, 3, Never, 1.0),
                None,
                [1, 3, 2],
                [0.8, 0.8, 2.0 / 3.0],
            ),
            (
                form(Sigmoid, AfterTopK, 3, Never, 0.5),
                None,
                [1, 3, 2],
                [0.4, 0.4, 1.0 / 3.0],
            ),
            (
                form(Sigmoid, BeforeTopK, 3, Sum, 1.0),
                Some(&bias[..]),
                [0, 4, 1],
                [15.0 / 49.0, 10.0 / 49.0, 24.0 / 49.0],
            ),
            (
                form(Softmax, AfterTopK, 3, Never, 1.0),
                Some(&bias[..]),
                [0, 4, 1],
                [1.0 / 5.5, 0.5 / 5.5, 4.0 / 5.5],
            ),
        ] {
            let routes = choose(&POWERS, bias, &form).unwrap();
            assert_eq!(routes.experts, chosen, "{form:?}");
            for (got, exact) in routes.weights.iter().zip(weights) {
                assert!(
                    (f64::from(*got) - exact).abs() < 3e-7,
                    "{form:?}: {got} is not {exact}"
                );
            }
            assert_eq!(routes.logits, POWERS);
        }
    }

    #[test]
    fn of_equal_scores_the_lower_expert_wins() {
        let form = form(
            Scoring::Softmax,
            ScoreWhen::BeforeTopK,
            4,
            Renormalise::Sum,
            1.0,
        );
        let routes = choose(&[0.0, 1.0, -0.0, 1.0, 0.0, 1.0], None, &form).unwrap();
        assert_eq!(routes.experts, [1, 3, 5, 0]);
        let routes = choose(&[2.0; 6], None, &form).unwrap();
        assert_eq!(routes.experts, [0, 1, 2, 3]);
    }

    #[test]
    fn scores_that_are_not_finite_are_named() {
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            for score in [ScoreWhen::BeforeTopK, ScoreWhen::AfterTopK] {
                let form = form(scoring, score, 1, Renormalise::None, 1.0);
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let named = RouterError::NonFinite {
                        token: 0,
                        expert: 2,
                    };
                    assert_eq!(choose(&[0.0, 1.0, bad], None, &form), Err(named));
                    assert_eq!(choose(&[0.0; 3], Some(&[0.0, 0.0, bad]), &form), Err(named));
                }
            }
        }
        // Scores that vanish leave nothing to divide by.
        let form = form(
            Scoring::Sigmoid,
            ScoreWhen::BeforeTopK,
            2,
            Renormalise::Sum,
            1.0,
        );
        let named = RouterError::NonFinite {
            token: 0,
            expert: 0,
        };
        assert_eq!(choose(&[-200.0, -200.0], None, &form), Err(named));
    }

    #[test]
    fn a_choice_of_none_or_of_more_than_there_are_is_refused() {
        for top_k in [0, 4, u64::MAX] {
            let form = form(
                Scoring::Softmax,
                ScoreWhen::BeforeTopK,
                top_k,
                Renormalise::None,
                1.0,
            );
            let refused = RouterError::TopK { top_k, experts: 3 };
            assert_eq!(choose(&[0.0; 3], None, &form), Err(refused));
        }
    }

    #[test]
    fn tokens_are_routed_alike_together_and_alone_and_sorted_by_expert() {
        let w = Known::random("f32.t32", 40, 96, 8);
        let x = Random::new(9).reals(31 * 96);
        let form = form(
            Scoring::Softmax,
            ScoreWhen::BeforeTopK,
            6,
            Renormalise::Sum,
            1.0,
        );
        let all = one_way().router(&x, &w.matrix(), None, &form).unwrap();
        for mut cpu in every_way() {
            for (t, x) in x.chunks_exact(96).enumerate() {
                let alone = cpu.router(x, &w.matrix(), None, &form).unwrap();
                assert_eq!(alone.experts, all.experts[t * 6..][..6]);
                assert_eq!(bits(&alone.weights), bits(&all.weights[t * 6..][..6]));
            }
        }
        let sorted = all.by_expert(40);
        let mut seen = 0;
        for expert in 0..40 {
            let routes = sorted.of(expert);
            assert!(routes.is_sorted_by(|a, b| a.token < b.token));
            for route in routes {
                let token = route.token as usize * 6;
                let i = all.experts[token..token + 6]
                    .iter()
                    .position(|e| *e as usize == expert);
                assert_eq!(all.weights[token + i.unwrap()], route.weight);
            }
            seen += routes.len();
        }
        assert_eq!(seen, 31 * 6);
    }
}
