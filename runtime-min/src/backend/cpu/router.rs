//! Which experts serve a token, and with what weights.

use estream_schemas::program::{Renormalise, RouterForm, ScoreWhen, Scoring};

use super::matrix::Matrix;
use super::simd::{Kernel, SimdPath};
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

struct RouterKernel<'a> {
    form: &'a RouterForm,
    bias: Option<&'a [f32]>,
    experts: usize,
    routes: &'a mut Routes,
    result: &'a mut Result<(), RouterError>,
}

impl Kernel for RouterKernel<'_> {
    #[inline(always)]
    fn run(self, _: SimdPath) {
        let Routes {
            top_k,
            experts,
            weights,
            logits,
        } = self.routes;
        let mut scores = vec![0.0; self.experts];
        let mut choice = vec![0.0; self.experts];
        let tokens = logits.chunks_exact(self.experts).enumerate();
        let chosen = experts.chunks_exact_mut(*top_k);
        let weights = weights.chunks_exact_mut(*top_k);
        for (((token, logits), chosen), weights) in tokens.zip(chosen).zip(weights) {
            scores.copy_from_slice(logits);
            // A softmax turns one infinity into NaN everywhere: name the culprit first.
            let mut finite = check(token, logits);
            if self.form.score == ScoreWhen::BeforeTopK {
                score(self.form.scoring, &mut scores);
            }
            choice.copy_from_slice(&scores);
            for (x, b) in choice.iter_mut().zip(self.bias.unwrap_or(&[])) {
                *x += b;
            }
            finite = finite.and_then(|()| check(token, &choice));
            if finite.is_err() {
                *self.result = finite;
                return;
            }
            best(&mut choice, chosen);
            for (w, expert) in weights.iter_mut().zip(&*chosen) {
                *w = scores[*expert as usize];
            }
            if self.form.score == ScoreWhen::AfterTopK {
                score(self.form.scoring, weights);
            }
            weigh(self.form, weights);
            if let Some(i) = weights.iter().position(|w| !w.is_finite()) {
                let expert = chosen[i] as usize;
                *self.result = Err(RouterError::NonFinite { token, expert });
                return;
            }
        }
    }
}

#[inline(always)]
fn check(token: usize, scores: &[f32]) -> Result<(), RouterError> {
    match scores.iter().position(|score| !score.is_finite()) {
        Some(expert) => Err(RouterError::NonFinite { token, expert }),
        None => Ok(()),
    }
}

/// Logits to scores, in place; sums in order.
#[inline(always)]
fn score(scoring: Scoring, x: &mut [f32]) {
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

/// The experts of the largest scores, the best first and of equals the lowest;
/// the scores taken are spoilt.
#[inline(always)]
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
#[inline(always)]
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
        let mut result = Ok(());
        self.simd.run(RouterKernel {
            form,
            bias,
            experts,
            routes: &mut routes,
            result: &mut result,
        });
        result.map(|()| routes)
    }
}
