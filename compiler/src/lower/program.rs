//! From a family's program form to the program of one checkpoint.

use std::fmt::Display;
use std::ops::RangeInclusive;

use estream_schemas::limits::MAX_DIM;
use estream_schemas::program::{
    MlaWeights, Op, Program, RegisterSpec, Renormalise, RouterForm, Yarn,
};
use estream_schemas::real::Real;

use super::choose::Chosen;
use crate::arch::{
    Descriptor, Expr, FixedRenormalise, Keys, OpForm, Product, RealForm, RenormaliseForm, YarnForm,
    mscale,
};
use crate::problem::Problems;

/// Spells out the `chosen` operators for these keys. `tensor` names the resident
/// tensor of a role, for a layer or for the model. Problems go to `problems`.
pub(super) fn program(
    descriptor: &Descriptor,
    keys: &Keys,
    chosen: &Chosen,
    tensor: &dyn Fn(&str, Option<u64>) -> String,
    problems: &mut Problems,
) -> Program {
    let form = &descriptor.program;
    let mut lowering = Lowering {
        keys,
        experts: &form.experts,
        tensor,
        layer: None,
        problems,
    };
    // What no operator names may be of a size that this checkpoint does not have.
    let named = chosen.registers();
    let registers = form.registers.iter();
    let registers = registers.filter(|(name, _)| named.contains(name.as_str()));
    let registers = registers.map(|(name, width)| RegisterSpec {
        name: name.clone(),
        width: lowering.size(width),
    });
    let registers = registers.collect();
    let vocab = lowering.size_in("vocab", &form.vocab, 1..=MAX_DIM);
    let context = lowering.size_in("context", &form.context, 1..=u64::from(u32::MAX));
    let prologue = lowering.ops(&chosen.prologue);
    let layers = (0..).zip(&chosen.layers).map(|(layer, ops)| {
        lowering.layer = Some(layer);
        lowering.ops(ops)
    });
    let layers = layers.collect();
    lowering.layer = None;
    let epilogue = lowering.ops(&chosen.epilogue);
    Program {
        vocab,
        context,
        registers,
        prologue,
        layers,
        epilogue,
    }
}

struct Lowering<'a> {
    keys: &'a Keys,
    experts: &'a Expr,
    tensor: &'a dyn Fn(&str, Option<u64>) -> String,
    layer: Option<u64>,
    problems: &'a mut Problems,
}

impl Lowering<'_> {
    fn size(&mut self, expr: &Expr) -> u64 {
        self.problems.or(expr.value(self.keys, self.layer), 0)
    }

    /// A size that a reader takes only within `bounds`.
    fn size_in(&mut self, what: &str, expr: &Expr, bounds: RangeInclusive<u64>) -> u64 {
        let value = expr.value(self.keys, self.layer).map_err(|e| e.to_string());
        let value = value.and_then(|value| {
            let (low, high) = (bounds.start(), bounds.end());
            let range = format!("outside {low} to {high}");
            match bounds.contains(&value) {
                true => Ok(value),
                false => Err(self.refusal(what, expr.keys(), value, &range)),
            }
        });
        self.problems.or(value, 0)
    }

    /// A router's choices: at least one, and no more than there are experts.
    fn top_k(&mut self, expr: &Expr) -> u64 {
        // A number of experts that has no value is a problem already.
        let experts = self.experts.value(self.keys, self.layer);
        self.size_in("top_k", expr, 1..=experts.unwrap_or(u64::MAX))
    }

    fn real(&mut self, form: &RealForm) -> Real {
        let value = self.value(form);
        self.problems.or(value, Real::ZERO)
    }

    /// A number that a reader takes only if it `holds`; `range` says which it does not take.
    fn real_that(
        &mut self,
        what: &str,
        form: &RealForm,
        holds: impl Fn(f32) -> bool,
        range: &str,
    ) -> Real {
        let value = self.value(form).and_then(|real| match holds(real.get()) {
            true => Ok(real),
            false => Err(self.refusal(what, form.keys(), real, range)),
        });
        self.problems.or(value, Real::ZERO)
    }

    fn eps(&mut self, form: &RealForm) -> Real {
        self.real_that("eps", form, |eps| eps >= 0.0, "below 0")
    }

    fn theta(&mut self, form: &RealForm) -> Real {
        self.real_that("theta", form, |theta| theta > 0.0, "not above 0")
    }

    fn value(&self, form: &RealForm) -> Result<Real, String> {
        let value = match form {
            RealForm::Number(value) => *value,
            RealForm::Key(key) => self.keys.real(key)?,
            RealForm::Product(product) => self.product(product)?,
        };
        self.rounded(value, form.keys())
    }

    /// `value`, which is made of `keys`, as programs compute with it.
    fn rounded<'k>(&self, value: f64, keys: impl Iterator<Item = &'k str>) -> Result<Real, String> {
        #[expect(clippy::cast_possible_truncation, reason = "programs compute in f32")]
        let real = Real::new(value as f32);
        real.map_err(|_| self.refusal("a number", keys, value, "beyond f32"))
    }

    fn product(&self, product: &Product) -> Result<f64, String> {
        let of = |key: &Option<String>| key.as_ref().map_or(Ok(1.0), |key| self.keys.real(key));
        let ratio = of(&product.times)? / of(&product.over)?;
        let root = match &product.rsqrt {
            None => 1,
            Some(expr) => {
                let root = expr.value(self.keys, self.layer);
                root.map_err(|e| e.to_string())?
            }
        };
        let m = match &product.yarn_mscale {
            None => 1.0,
            Some(form) => mscale(self.keys.real(&form.factor)?, self.keys.real(&form.mscale)?),
        };
        Ok(ratio / (root as f64).sqrt() * (m * m))
    }

    /// What YaRN makes of a rope's frequencies: nothing, for a factor of 1.
    fn yarn(&mut self, form: &YarnForm) -> Option<Yarn> {
        let factor = self.keys.real(&form.factor);
        let factor = self.problems.or(factor, 1.0);
        if factor == 1.0 {
            return None;
        }
        let above_zero = |lowering: &mut Self, what: &str, key: &str| {
            let form = RealForm::Key(key.to_owned());
            lowering.real_that(what, &form, |real| real > 0.0, "not above 0")
        };
        let bounds = 1..=u64::from(u32::MAX);
        let stretch = RealForm::Key(form.factor.clone());
        let beta_slow = above_zero(self, "beta_slow", &form.beta_slow);
        let slow = format!("below beta_slow, which is {beta_slow}");
        let beta_fast = above_zero(self, "beta_fast", &form.beta_fast);
        if beta_fast.get() > 0.0 && beta_fast.get() < beta_slow.get() {
            let keys = [form.beta_fast.as_str(), form.beta_slow.as_str()].into_iter();
            let why = self.refusal("beta_fast", keys, beta_fast, &slow);
            self.problems.push(why);
        }
        for key in form.mscale.iter().chain(&form.mscale_all_dim) {
            let form = RealForm::Key(key.clone());
            self.real_that(key, &form, |real| real >= 0.0, "below 0");
        }
        Some(Yarn {
            factor: self.real_that("factor", &stretch, |real| real >= 1.0, "below 1"),
            original_context: self.size_in("original_context", &form.original_context, bounds),
            beta_fast,
            beta_slow,
            magnitude: {
                let magnitude = self.magnitude(form, factor);
                self.problems.or(magnitude, Real::ONE)
            },
        })
    }

    fn magnitude(&self, form: &YarnForm, factor: f64) -> Result<Real, String> {
        let of = |key: &Option<String>| -> Result<f64, String> {
            let mscale_of = |key: &String| Ok(mscale(factor, self.keys.real(key)?));
            key.as_ref().map_or(Ok(1.0), mscale_of)
        };
        let magnitude = of(&form.mscale)? / of(&form.mscale_all_dim)?;
        self.rounded(magnitude, form.keys())
    }

    /// Why `what`, which is made of `keys`, cannot be `value`.
    fn refusal<'k>(
        &self,
        what: &str,
        keys: impl Iterator<Item = &'k str>,
        value: impl Display,
        range: &str,
    ) -> String {
        let names: Vec<String> = keys.map(|key| self.keys.name(key)).collect();
        match names.is_empty() {
            true => format!("{what} is {value}, {range}"),
            false => format!("{what} (from {}) is {value}, {range}", names.join(" and ")),
        }
    }

    fn scale(&mut self, form: &Option<RealForm>) -> Real {
        form.as_ref().map_or(Real::ONE, |form| self.real(form))
    }

    fn renormalise(&mut self, form: &RenormaliseForm) -> Renormalise {
        match form {
            RenormaliseForm::Fixed(FixedRenormalise::None) => Renormalise::None,
            RenormaliseForm::Fixed(FixedRenormalise::Sum) => Renormalise::Sum,
            RenormaliseForm::SumPlus(plus) => {
                Renormalise::SumPlus(self.real(&RealForm::Number(plus.sum_plus)))
            }
            RenormaliseForm::Chosen(chosen) => {
                let yes = self.keys.boolean(&chosen.key);
                match self.problems.or(yes, false) {
                    true => self.renormalise(&chosen.yes),
                    false => self.renormalise(&chosen.no),
                }
            }
        }
    }

    fn tensor(&self, role: &str) -> String {
        (self.tensor)(role, self.layer)
    }

    fn ops(&mut self, forms: &[OpForm]) -> Vec<Op> {
        forms.iter().map(|form| self.op(form)).collect()
    }

    fn op(&mut self, form: &OpForm) -> Op {
        match form {
            OpForm::Embed { out, weight, scale } => Op::Embed {
                out: out.clone(),
                weight: self.tensor(weight),
                scale: self.scale(scale),
            },
            OpForm::RmsNorm {
                input,
                out,
                weight,
                eps,
            } => Op::RmsNorm {
                input: input.clone(),
                out: out.clone(),
                weight: self.tensor(weight),
                eps: self.eps(eps),
            },
            OpForm::Linear {
                input,
                out,
                weight,
                bias,
            } => Op::Linear {
                input: input.clone(),
                out: out.clone(),
                weight: self.tensor(weight),
                bias: bias.as_deref().map(|bias| self.tensor(bias)),
            },
            OpForm::QkNorm {
                register,
                weight,
                eps,
                heads,
                over,
            } => Op::QkNorm {
                register: register.clone(),
                weight: self.tensor(weight),
                eps: self.eps(eps),
                heads: self.size(heads),
                over: *over,
            },
            OpForm::Rope {
                register,
                heads,
                dims,
                theta,
                pairing,
                yarn,
            } => Op::Rope {
                register: register.clone(),
                heads: self.size(heads),
                dims: self.size(dims),
                theta: self.theta(theta),
                pairing: *pairing,
                yarn: yarn.as_ref().and_then(|form| self.yarn(form)),
            },
            OpForm::Attention {
                q,
                k,
                v,
                out,
                heads,
                kv_heads,
                scale,
            } => Op::Attention {
                q: q.clone(),
                k: k.clone(),
                v: v.clone(),
                out: out.clone(),
                heads: self.size(heads),
                kv_heads: self.size(kv_heads),
                scale: self.real(scale),
            },
            OpForm::Mla {
                q,
                latent,
                k_pe,
                out,
                heads,
                kv_b,
                k_b,
                v_b,
                scale,
            } => Op::Mla {
                q: q.clone(),
                latent: latent.clone(),
                k_pe: k_pe.clone(),
                out: out.clone(),
                heads: self.size(heads),
                // A checked descriptor has kv_b, or both of the others.
                weights: match (kv_b, k_b, v_b) {
                    (None, Some(k), Some(v)) => MlaWeights::Split {
                        k: self.tensor(k),
                        v: self.tensor(v),
                    },
                    (kv_b, ..) => {
                        MlaWeights::Joined(self.tensor(kv_b.as_deref().unwrap_or_default()))
                    }
                },
                scale: self.real(scale),
            },
            OpForm::ShortConv { input, out, weight } => Op::ShortConv {
                input: input.clone(),
                out: out.clone(),
                weight: self.tensor(weight),
            },
            OpForm::Mlp {
                input,
                out,
                gate,
                up,
                down,
                token_gate,
            } => Op::Mlp {
                input: input.clone(),
                out: out.clone(),
                gate: self.tensor(gate),
                up: self.tensor(up),
                down: self.tensor(down),
                token_gate: token_gate.as_deref().map(|gate| self.tensor(gate)),
            },
            OpForm::Router {
                input,
                weight,
                selection_bias,
                scoring,
                score,
                top_k,
                renormalise,
                scale,
            } => Op::Router {
                input: input.clone(),
                weight: self.tensor(weight),
                selection_bias: selection_bias.as_deref().map(|bias| self.tensor(bias)),
                form: RouterForm {
                    scoring: *scoring,
                    score: *score,
                    top_k: self.top_k(top_k),
                    renormalise: self.renormalise(renormalise),
                    scale: self.scale(scale),
                },
            },
            OpForm::Experts { input, out } => Op::Experts {
                input: input.clone(),
                out: out.clone(),
            },
            OpForm::Add { input, out, scale } => Op::Add {
                input: input.clone(),
                out: out.clone(),
                scale: self.scale(scale),
            },
            OpForm::LmHead {
                input,
                weight,
                scale,
            } => Op::LmHead {
                input: input.clone(),
                weight: self.tensor(weight),
                scale: self.scale(scale),
            },
        }
    }
}
