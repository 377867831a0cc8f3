//! From a family's program form to the program of one checkpoint.

use std::collections::BTreeMap;

use estream_schemas::program::{Op, Program, RegisterSpec, Renormalise, RouterForm};
use estream_schemas::real::Real;

use crate::arch::{
    Block, Descriptor, Expr, FixedRenormalise, Keys, OpForm, RealForm, RenormaliseForm,
};

/// Spells out `descriptor`'s program for these keys. `tensor` names the resident
/// tensor of a role, for a layer or for the model. Problems go to `problems`.
pub(super) fn program(
    descriptor: &Descriptor,
    keys: &Keys,
    tensor: &dyn Fn(&str, Option<u64>) -> String,
    problems: &mut Vec<String>,
) -> Program {
    let form = &descriptor.program;
    let mut lowering = Lowering {
        keys,
        tensor,
        layer: None,
        problems,
    };
    let registers = form.registers.iter().map(|(name, width)| RegisterSpec {
        name: name.clone(),
        width: lowering.size(width),
    });
    let registers = registers.collect();
    let vocab = lowering.size(&form.vocab);
    let context = lowering.size(&form.context);
    let layer_count = lowering.size(&form.layers);
    let prologue = lowering.ops(&form.prologue);
    let layers = (0..layer_count)
        .map(|layer| {
            lowering.layer = Some(layer);
            let blocks = lowering.blocks(&form.block, layer);
            blocks
                .iter()
                .flat_map(|block| lowering.ops(&block.ops))
                .collect()
        })
        .collect();
    lowering.layer = None;
    let epilogue = lowering.ops(&form.epilogue);
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
    tensor: &'a dyn Fn(&str, Option<u64>) -> String,
    layer: Option<u64>,
    problems: &'a mut Vec<String>,
}

impl Lowering<'_> {
    /// The blocks of `layer`: of each name, the first whose predicate holds.
    fn blocks<'b>(&mut self, blocks: &'b [Block], layer: u64) -> Vec<&'b Block> {
        let mut names: Vec<&str> = Vec::new();
        let mut chosen: BTreeMap<&str, &Block> = BTreeMap::new();
        for block in blocks {
            if !names.contains(&block.name.as_str()) {
                names.push(&block.name);
            }
            match block.when.holds(self.keys, layer) {
                Ok(true) => {
                    chosen.entry(&block.name).or_insert(block);
                }
                Ok(false) => {}
                Err(problem) => self.problems.push(problem),
            }
        }
        names
            .iter()
            .filter_map(|name| chosen.get(name).copied())
            .collect()
    }

    fn or_problem<T, E: ToString>(&mut self, value: Result<T, E>, otherwise: T) -> T {
        value.unwrap_or_else(|problem| {
            self.problems.push(problem.to_string());
            otherwise
        })
    }

    fn size(&mut self, expr: &Expr) -> u64 {
        let value = expr.value(self.keys);
        self.or_problem(value, 0)
    }

    fn real(&mut self, form: &RealForm) -> Real {
        let value = match form {
            RealForm::Number(value) => Ok(*value),
            RealForm::Key(key) => self.keys.real(key),
            RealForm::Rsqrt { rsqrt } => Ok(1.0 / (self.size(rsqrt) as f64).sqrt()),
        };
        let value = self.or_problem(value, 0.0);
        #[expect(clippy::cast_possible_truncation, reason = "programs compute in f32")]
        let real = Real::new(value as f32);
        self.or_problem(real, Real::ZERO)
    }

    fn scale(&mut self, form: &Option<RealForm>) -> Real {
        form.as_ref().map_or(Real::ONE, |form| self.real(form))
    }

    fn renormalise(&mut self, form: &RenormaliseForm) -> Renormalise {
        match form {
            RenormaliseForm::Fixed(FixedRenormalise::None) => Renormalise::None,
            RenormaliseForm::Fixed(FixedRenormalise::Sum) => Renormalise::Sum,
            RenormaliseForm::SumPlus { sum_plus } => {
                Renormalise::SumPlus(self.real(&RealForm::Number(*sum_plus)))
            }
            RenormaliseForm::Chosen { key, yes, no } => {
                let chosen = self.keys.boolean(key);
                match self.or_problem(chosen, false) {
                    true => self.renormalise(yes),
                    false => self.renormalise(no),
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
                eps: self.real(eps),
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
                eps: self.real(eps),
                heads: self.size(heads),
                over: *over,
            },
            OpForm::Rope {
                register,
                heads,
                dims,
                theta,
                pairing,
            } => Op::Rope {
                register: register.clone(),
                heads: self.size(heads),
                dims: self.size(dims),
                theta: self.real(theta),
                pairing: *pairing,
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
                    top_k: self.size(top_k),
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
