//! Operators as a descriptor writes them, their weights named by role.

use estream_schemas::program::{NormWidth, RopePairing, ScoreWhen, Scoring};
use serde::Deserialize;

use super::Expr;

/// A real operand.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum RealForm {
    /// Itself.
    Number(f64),
    /// The value of a key.
    Key(String),
    /// A product.
    Product(Product),
}

/// `rsqrt ^ −½ · times / over · yarn_mscale`, each of them 1 if it is left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Product {
    /// An expression.
    #[serde(default)]
    pub rsqrt: Option<Expr>,
    /// A key.
    #[serde(default)]
    pub times: Option<String>,
    /// A key.
    #[serde(default)]
    pub over: Option<String>,
    /// What a stretched context multiplies scores by.
    #[serde(default)]
    pub yarn_mscale: Option<Mscale>,
}

/// m², where m is [`mscale`] of two keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mscale {
    /// A key: how much longer the context was made.
    pub factor: String,
    /// A key.
    pub mscale: String,
}

/// `0.1 · mscale · ln factor + 1`, and 1 for a factor up to 1: how YaRN, as DeepSeek-V2
/// has it, makes up for scores that spread over more positions.
pub fn mscale(factor: f64, mscale: f64) -> f64 {
    match factor > 1.0 {
        true => 0.1 * mscale * libm::log(factor) + 1.0,
        false => 1.0,
    }
}

/// The operand of a rope that YaRN stretches; its numbers are keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct YarnForm {
    /// How much longer the context was made; 1 leaves everything as it is.
    pub factor: String,
    /// Positions before that.
    pub original_context: Expr,
    /// Turns from which on a frequency stays.
    pub beta_fast: String,
    /// Turns up to which a frequency is divided.
    pub beta_slow: String,
    /// Cosines and sines are multiplied by [`mscale`] of this ...
    #[serde(default)]
    pub mscale: Option<String>,
    /// ... over that of this; 1 without both.
    #[serde(default)]
    pub mscale_all_dim: Option<String>,
}

impl YarnForm {
    /// The keys of its real numbers.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let keys = [&self.factor, &self.beta_fast, &self.beta_slow].into_iter();
        let keys = keys.chain(&self.mscale).chain(&self.mscale_all_dim);
        keys.map(String::as_str)
    }
}

impl RealForm {
    /// The keys it names.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let (key, product) = match self {
            RealForm::Number(_) => (None, None),
            RealForm::Key(key) => (Some(key), None),
            RealForm::Product(product) => (None, Some(product)),
        };
        let of_product = product.into_iter().flat_map(|product| {
            let sizes = product.rsqrt.iter().flat_map(Expr::keys);
            let mscale = product.yarn_mscale.iter();
            let mscale = mscale.flat_map(|form| [&form.factor, &form.mscale]);
            let factors = product.times.iter().chain(&product.over).chain(mscale);
            sizes.chain(factors.map(String::as_str))
        });
        key.map(String::as_str).into_iter().chain(of_product)
    }
}

/// The divisor of a router's weights.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum RenormaliseForm {
    /// `none` or `sum`.
    Fixed(FixedRenormalise),
    /// The sum plus a constant.
    SumPlus(SumPlus),
    /// As a key says.
    Chosen(ChosenRenormalise),
}

/// The sum plus a constant.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SumPlus {
    /// The constant.
    pub sum_plus: f64,
}

/// A divisor for each value of a key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChosenRenormalise {
    /// A key that is true or false.
    pub key: String,
    /// If it is true.
    pub yes: Box<RenormaliseForm>,
    /// If it is false.
    pub no: Box<RenormaliseForm>,
}

/// A divisor without a parameter.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixedRenormalise {
    /// Nothing.
    None,
    /// The sum.
    Sum,
}

/// An operator of [`estream_schemas::program`], its tensors named by role.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "the operands are those of estream_schemas::program::Op"
)]
pub enum OpForm {
    Embed {
        out: String,
        weight: String,
        scale: Option<RealForm>,
    },
    RmsNorm {
        input: String,
        out: String,
        weight: String,
        eps: RealForm,
    },
    Linear {
        input: String,
        out: String,
        weight: String,
        bias: Option<String>,
    },
    QkNorm {
        register: String,
        weight: String,
        eps: RealForm,
        heads: Expr,
        over: NormWidth,
    },
    Rope {
        register: String,
        heads: Expr,
        dims: Expr,
        theta: RealForm,
        pairing: RopePairing,
        yarn: Option<YarnForm>,
    },
    Attention {
        q: String,
        k: String,
        v: String,
        out: String,
        heads: Expr,
        kv_heads: Expr,
        scale: RealForm,
    },
    Mla {
        q: String,
        latent: String,
        k_pe: String,
        out: String,
        heads: Expr,
        kv_b: Option<String>,
        k_b: Option<String>,
        v_b: Option<String>,
        scale: RealForm,
    },
    ShortConv {
        input: String,
        out: String,
        weight: String,
    },
    Mlp {
        input: String,
        out: String,
        gate: String,
        up: String,
        down: String,
        token_gate: Option<String>,
    },
    Router {
        input: String,
        weight: String,
        selection_bias: Option<String>,
        scoring: Scoring,
        score: ScoreWhen,
        top_k: Expr,
        renormalise: RenormaliseForm,
        scale: Option<RealForm>,
    },
    Experts {
        input: String,
        out: String,
    },
    Add {
        input: String,
        out: String,
        scale: Option<RealForm>,
    },
    LmHead {
        input: String,
        weight: String,
        scale: Option<RealForm>,
    },
}

/// The roles of a layer's routed experts, which the operator `experts` names.
pub const EXPERT_ROLES: [&str; 3] = ["expert_gate", "expert_up", "expert_down"];

/// What an operator names.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A register.
    Register(&'a str),
    /// A role.
    Weight(&'a str),
    /// A size.
    Size(&'a Expr),
    /// A real number.
    Real(&'a RealForm),
    /// The divisor of a router's weights.
    Renormalise(&'a RenormaliseForm),
    /// A key.
    Key(&'a str),
}

impl OpForm {
    /// Everything the operator names.
    pub fn operands(&self) -> Vec<Operand<'_>> {
        use Operand::{Key, Real, Register, Renormalise, Size, Weight};
        let mut list = Vec::new();
        match self {
            OpForm::Embed { out, weight, scale } => {
                list.extend([Register(out), Weight(weight)]);
                list.extend(scale.as_ref().map(Real));
            }
            OpForm::RmsNorm {
                input,
                out,
                weight,
                eps,
            } => list.extend([Register(input), Register(out), Weight(weight), Real(eps)]),
            OpForm::Linear {
                input,
                out,
                weight,
                bias,
            } => {
                list.extend([Register(input), Register(out), Weight(weight)]);
                list.extend(bias.as_deref().map(Weight));
            }
            OpForm::QkNorm {
                register,
                weight,
                eps,
                heads,
                over: _,
            } => list.extend([Register(register), Weight(weight), Real(eps), Size(heads)]),
            OpForm::Rope {
                register,
                heads,
                dims,
                theta,
                pairing: _,
                yarn,
            } => {
                list.extend([Register(register), Size(heads), Size(dims), Real(theta)]);
                if let Some(yarn) = yarn {
                    list.push(Size(&yarn.original_context));
                    list.extend(yarn.keys().map(Key));
                }
            }
            OpForm::Attention {
                q,
                k,
                v,
                out,
                heads,
                kv_heads,
                scale,
            } => {
                list.extend([q, k, v, out].map(|register| Register(register)));
                list.extend([Size(heads), Size(kv_heads), Real(scale)]);
            }
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
            } => {
                list.extend([q, latent, k_pe, out].map(|register| Register(register)));
                list.extend([Size(heads), Real(scale)]);
                let weights = [kv_b, k_b, v_b].into_iter().flatten();
                list.extend(weights.map(|role| Weight(role)));
            }
            OpForm::ShortConv { input, out, weight } => {
                list.extend([Register(input), Register(out), Weight(weight)]);
            }
            OpForm::Mlp {
                input,
                out,
                gate,
                up,
                down,
                token_gate,
            } => {
                list.extend([Register(input), Register(out)]);
                list.extend([gate, up, down].map(|role| Weight(role)));
                list.extend(token_gate.as_deref().map(Weight));
            }
            OpForm::Router {
                input,
                weight,
                selection_bias,
                scoring: _,
                score: _,
                top_k,
                renormalise,
                scale,
            } => {
                list.extend([Register(input), Weight(weight), Size(top_k)]);
                list.push(Renormalise(renormalise));
                list.extend(selection_bias.as_deref().map(Weight));
                list.extend(scale.as_ref().map(Real));
            }
            OpForm::Experts { input, out } => {
                list.extend([Register(input), Register(out)]);
                list.extend(EXPERT_ROLES.map(Weight));
            }
            OpForm::Add { input, out, scale } => {
                list.extend([Register(input), Register(out)]);
                list.extend(scale.as_ref().map(Real));
            }
            OpForm::LmHead {
                input,
                weight,
                scale,
            } => {
                list.extend([Register(input), Weight(weight)]);
                list.extend(scale.as_ref().map(Real));
            }
        }
        list
    }

    /// The roles the operator names.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        let operands = self.operands().into_iter();
        operands.filter_map(|operand| match operand {
            Operand::Weight(role) => Some(role),
            _ => None,
        })
    }

    /// What the descriptor calls it.
    pub fn name(&self) -> &'static str {
        match self {
            OpForm::Embed { .. } => "embed",
            OpForm::RmsNorm { .. } => "rms_norm",
            OpForm::Linear { .. } => "linear",
            OpForm::QkNorm { .. } => "qk_norm",
            OpForm::Rope { .. } => "rope",
            OpForm::Attention { .. } => "attention",
            OpForm::Mla { .. } => "mla",
            OpForm::ShortConv { .. } => "short_conv",
            OpForm::Mlp { .. } => "mlp",
            OpForm::Router { .. } => "router",
            OpForm::Experts { .. } => "experts",
            OpForm::Add { .. } => "add",
            OpForm::LmHead { .. } => "lm_head",
        }
    }

    /// The registers whose content it uses, accumulators included.
    pub fn reads(&self) -> Vec<&str> {
        match self {
            OpForm::Embed { .. } => Vec::new(),
            OpForm::RmsNorm { input, .. }
            | OpForm::Linear { input, .. }
            | OpForm::ShortConv { input, .. }
            | OpForm::Router { input, .. }
            | OpForm::LmHead { input, .. } => vec![input],
            OpForm::QkNorm { register, .. } | OpForm::Rope { register, .. } => vec![register],
            OpForm::Attention { q, k, v, .. } => vec![q, k, v],
            OpForm::Mla {
                q, latent, k_pe, ..
            } => vec![q, latent, k_pe],
            OpForm::Mlp { input, out, .. }
            | OpForm::Experts { input, out }
            | OpForm::Add { input, out, .. } => vec![input, out],
        }
    }

    /// The register it writes, if it writes one.
    pub fn writes(&self) -> Option<&str> {
        match self {
            OpForm::Embed { out, .. }
            | OpForm::RmsNorm { out, .. }
            | OpForm::Linear { out, .. }
            | OpForm::Attention { out, .. }
            | OpForm::Mla { out, .. }
            | OpForm::ShortConv { out, .. }
            | OpForm::Mlp { out, .. }
            | OpForm::Experts { out, .. }
            | OpForm::Add { out, .. } => Some(out),
            OpForm::QkNorm { register, .. } | OpForm::Rope { register, .. } => Some(register),
            OpForm::Router { .. } | OpForm::LmHead { .. } => None,
        }
    }

    /// The operator without those of its operands that can be left out and whose role is `absent`.
    pub fn without(&self, absent: impl Fn(&str) -> bool) -> OpForm {
        let mut op = self.clone();
        if let OpForm::Linear { bias: operand, .. }
        | OpForm::Mlp {
            token_gate: operand,
            ..
        }
        | OpForm::Router {
            selection_bias: operand,
            ..
        } = &mut op
        {
            operand.take_if(|role| absent(role));
        }
        op
    }
}
