//! What makes a program valid: every name leads somewhere, shapes agree, and nothing is read
//! before it is written.

use std::collections::{BTreeMap, BTreeSet};

use super::{InvalidManifest, dim, ensure, invalid, name};
use crate::limits::{
    MAX_CONV_TAPS, MAX_DIM, MAX_EXPERTS, MAX_LAYER_OPS, MAX_LAYERS, MAX_REGISTER_WIDTH,
    MAX_REGISTERS,
};
use crate::manifest::{ExpertLayer, Manifest};
use crate::program::{MlaWeights, NormWidth, Op, Yarn};
use crate::real::Real;

pub(super) fn check(manifest: &Manifest) -> Result<(), InvalidManifest> {
    let program = &manifest.program;
    dim("program", "vocab", program.vocab, MAX_DIM)?;
    dim("program", "context", program.context, u64::from(u32::MAX))?;
    ensure(program.registers.len() <= MAX_REGISTERS, "program", || {
        format!("more than {MAX_REGISTERS} registers")
    })?;
    ensure(program.layers.len() as u64 <= MAX_LAYERS, "program", || {
        format!("more than {MAX_LAYERS} layers")
    })?;
    let mut names = Names {
        vocab: program.vocab,
        registers: BTreeMap::new(),
        tensors: BTreeMap::new(),
        written: BTreeSet::new(),
    };
    for register in &program.registers {
        let at = "program's registers";
        name(at, &register.name)?;
        dim(at, "a width", register.width, MAX_REGISTER_WIDTH)?;
        let before = names.registers.insert(&register.name, register.width);
        ensure(before.is_none(), at, || {
            format!("{:?} is stated twice", register.name)
        })?;
    }
    for tensor in &manifest.resident.tensors {
        names.tensors.insert(&tensor.name, &tensor.shape);
    }
    names.ops("prologue", &program.prologue, Place::Prologue)?;
    let mut expert_layers = manifest.experts.layers.iter().peekable();
    for (index, ops) in program.layers.iter().enumerate() {
        let experts = expert_layers.next_if(|experts| experts.layer == index as u64);
        names.ops(&format!("layer {index}"), ops, Place::Layer(experts))?;
    }
    if let Some(experts) = expert_layers.next() {
        return Err(invalid(
            "experts",
            format!("the program has no layer {}", experts.layer),
        ));
    }
    names.ops("epilogue", &program.epilogue, Place::Epilogue)
}

/// Where a list of operators stands.
#[derive(Clone, Copy)]
enum Place<'a> {
    Prologue,
    Layer(Option<&'a ExpertLayer>),
    Epilogue,
}

struct Names<'a> {
    vocab: u64,
    registers: BTreeMap<&'a str, u64>,
    tensors: BTreeMap<&'a str, &'a [u64]>,
    /// Registers that an operator before this one has written.
    written: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn ops(&mut self, at: &str, ops: &'a [Op], place: Place) -> Result<(), InvalidManifest> {
        ensure(ops.len() <= MAX_LAYER_OPS, at, || {
            format!("more than {MAX_LAYER_OPS} operators")
        })?;
        let count = |kind: fn(&Op) -> bool| ops.iter().filter(|op| kind(op)).count();
        let embeds = count(|op| matches!(op, Op::Embed { .. }));
        let heads = count(|op| matches!(op, Op::LmHead { .. }));
        let routers = count(|op| matches!(op, Op::Router { .. }));
        let expert_ops = count(|op| matches!(op, Op::Experts { .. }));
        let router_at = ops.iter().position(|op| matches!(op, Op::Router { .. }));
        let experts_at = ops.iter().position(|op| matches!(op, Op::Experts { .. }));
        let (embeds_expected, heads_expected, experts_expected) = match place {
            Place::Prologue => (1, 0, 0),
            Place::Layer(experts) => (0, 0, usize::from(experts.is_some())),
            Place::Epilogue => (0, 1, 0),
        };
        let as_expected = embeds == embeds_expected
            && heads == heads_expected
            && routers == experts_expected
            && expert_ops == experts_expected
            && router_at <= experts_at;
        ensure(as_expected, at, || {
            "an embedding, head, router or experts operator is missing or out of place".into()
        })?;
        let first =
            matches!(place, Place::Prologue) && !matches!(ops.first(), Some(Op::Embed { .. }));
        let last =
            matches!(place, Place::Epilogue) && !matches!(ops.last(), Some(Op::LmHead { .. }));
        ensure(!first && !last, at, || {
            "the embedding is not first or the head not last".into()
        })?;
        let experts = match place {
            Place::Layer(experts) => experts,
            Place::Prologue | Place::Epilogue => None,
        };
        ops.iter().enumerate().try_for_each(|(index, op)| {
            let checked = self.op(op, experts).and_then(|()| self.flow(op));
            checked.map_err(|why| match why {
                InvalidManifest::Invalid { at: inner, why } => {
                    invalid(format!("{at}, operator {index}, {inner}"), why)
                }
                other => other,
            })
        })
    }

    /// That `op` reads nothing that nothing has written.
    fn flow(&mut self, op: &'a Op) -> Result<(), InvalidManifest> {
        for register in op.reads() {
            ensure(
                self.written.contains(register),
                format!("register {register:?}"),
                || "is read, and nothing has written it".into(),
            )?;
        }
        self.written.extend(op.writes());
        Ok(())
    }

    fn op(&self, op: &Op, experts: Option<&ExpertLayer>) -> Result<(), InvalidManifest> {
        match op {
            Op::Embed { out, weight, .. } => self.shape(weight, &[self.vocab, self.width(out)?]),
            Op::RmsNorm {
                input,
                out,
                weight,
                eps,
            } => {
                not_negative("rms_norm", *eps)?;
                let width = self.same_width(input, out)?;
                self.shape(weight, &[width])
            }
            Op::Linear {
                input,
                out,
                weight,
                bias,
            } => {
                ensure(input != out, "linear", || "in place".into())?;
                let out_width = self.width(out)?;
                self.shape(weight, &[out_width, self.width(input)?])?;
                self.optional_shape(bias, &[out_width])
            }
            Op::QkNorm {
                register,
                weight,
                eps,
                heads,
                over,
            } => {
                not_negative("qk_norm", *eps)?;
                let width = self.width(register)?;
                let head_dim = split(register, width, *heads)?;
                self.shape(
                    weight,
                    &[match over {
                        NormWidth::Full => width,
                        NormWidth::Head => head_dim,
                    }],
                )
            }
            Op::Rope {
                register,
                heads,
                dims,
                theta,
                pairing: _,
                yarn,
            } => {
                let head_dim = split(register, self.width(register)?, *heads)?;
                ensure(
                    (2..=head_dim).contains(dims) && dims.is_multiple_of(2),
                    "rope",
                    || format!("cannot rotate {dims} of {head_dim} dimensions"),
                )?;
                ensure(theta.get() > 0.0, "rope", || "theta is not above 0".into())?;
                yarn.as_ref().map_or(Ok(()), stretch)
            }
            Op::Attention {
                q,
                k,
                v,
                out,
                heads,
                kv_heads,
                ..
            } => {
                let head_dim = split(q, self.width(q)?, *heads)?;
                ensure(
                    *kv_heads > 0 && heads.is_multiple_of(*kv_heads),
                    "attention",
                    || format!("{heads} heads over {kv_heads} key heads"),
                )?;
                for register in [k, v] {
                    let width = self.width(register)?;
                    ensure(width == kv_heads * head_dim, register, || {
                        format!("has width {width}, not {kv_heads} × {head_dim}")
                    })?;
                }
                self.same_width(q, out).map(drop)
            }
            Op::Mla {
                q,
                latent,
                k_pe,
                out,
                heads,
                weights,
                scale: _,
            } => {
                let head_dim = split(q, self.width(q)?, *heads)?;
                let value = split(out, self.width(out)?, *heads)?;
                let (rank, rope) = (self.width(latent)?, self.width(k_pe)?);
                ensure(rope < head_dim, "mla", || {
                    format!("a head of {head_dim} has no room for {rope} that rotate")
                })?;
                let nope = head_dim - rope;
                match weights {
                    MlaWeights::Joined(kv) => self.shape(kv, &[heads * (nope + value), rank]),
                    MlaWeights::Split { k, v } => {
                        self.shape(k, &[heads * rank, nope])?;
                        self.shape(v, &[heads * value, rank])
                    }
                }
            }
            Op::ShortConv { input, out, weight } => {
                let (width, parts) = (self.width(out)?, self.width(input)?);
                ensure(parts == 3 * width, "short_conv", || {
                    format!("the input is {parts} wide, not 3 × {width}")
                })?;
                let taps = self.dims(weight)?.last().copied().unwrap_or(0);
                dim("short_conv", "taps", taps, MAX_CONV_TAPS)?;
                self.shape(weight, &[width, taps])
            }
            Op::Mlp {
                input,
                out,
                gate,
                up,
                down,
                token_gate,
            } => {
                ensure(input != out, "mlp", || "in place".into())?;
                let width = self.same_width(input, out)?;
                let ff = self.dims(gate)?.first().copied().unwrap_or(0);
                self.shape(gate, &[ff, width])?;
                self.shape(up, &[ff, width])?;
                self.shape(down, &[width, ff])?;
                self.optional_shape(token_gate, &[width])
            }
            Op::Router {
                input,
                weight,
                selection_bias,
                form,
            } => {
                let count = experts.map_or(MAX_EXPERTS, |experts| experts.experts);
                dim("router", "top_k", form.top_k, count)?;
                self.shape(weight, &[count, self.width(input)?])?;
                self.optional_shape(selection_bias, &[count])
            }
            Op::Experts { input, out } => {
                ensure(input != out, "experts", || "in place".into())?;
                let width = self.same_width(input, out)?;
                let hidden = experts.map_or(0, |experts| experts.gate.cols);
                ensure(width == hidden, "experts", || {
                    format!("registers are {width} wide, experts {hidden}")
                })
            }
            Op::Add { input, out, .. } => {
                ensure(input != out, "add", || "in place".into())?;
                self.same_width(input, out).map(drop)
            }
            Op::LmHead { input, weight, .. } => {
                self.shape(weight, &[self.vocab, self.width(input)?])
            }
        }
    }

    fn width(&self, register: &str) -> Result<u64, InvalidManifest> {
        self.registers
            .get(register)
            .copied()
            .ok_or_else(|| invalid(format!("register {register:?}"), "is not stated"))
    }

    fn same_width(&self, a: &str, b: &str) -> Result<u64, InvalidManifest> {
        let (width, other) = (self.width(a)?, self.width(b)?);
        ensure(width == other, a, || {
            format!("has width {width}, but {b:?} has {other}")
        })?;
        Ok(width)
    }

    fn dims(&self, tensor: &str) -> Result<&[u64], InvalidManifest> {
        self.tensors
            .get(tensor)
            .copied()
            .ok_or_else(|| invalid(format!("tensor {tensor:?}"), "is not stated"))
    }

    fn shape(&self, tensor: &str, expected: &[u64]) -> Result<(), InvalidManifest> {
        let shape = self.dims(tensor)?;
        ensure(shape == expected, format!("tensor {tensor:?}"), || {
            format!("has shape {shape:?}, not {expected:?}")
        })
    }

    fn optional_shape(
        &self,
        tensor: &Option<String>,
        expected: &[u64],
    ) -> Result<(), InvalidManifest> {
        tensor
            .as_deref()
            .map_or(Ok(()), |tensor| self.shape(tensor, expected))
    }
}

/// Refuses an epsilon under which the root of a small mean square would not be a number.
fn not_negative(at: &str, eps: Real) -> Result<(), InvalidManifest> {
    ensure(eps.get() >= 0.0, at, || "eps is below 0".into())
}

/// Refuses a YaRN whose frequencies would not be numbers.
fn stretch(yarn: &Yarn) -> Result<(), InvalidManifest> {
    let Yarn {
        factor,
        original_context,
        beta_fast,
        beta_slow,
        magnitude: _,
    } = yarn;
    dim(
        "yarn",
        "original_context",
        *original_context,
        u64::from(u32::MAX),
    )?;
    let above_zero = [factor, beta_fast, beta_slow].map(|real| real.get() > 0.0);
    ensure(above_zero == [true; 3], "yarn", || {
        "factor, beta_fast or beta_slow is not above 0".into()
    })
}

/// Width of one of `heads` heads.
fn split(register: &str, width: u64, heads: u64) -> Result<u64, InvalidManifest> {
    ensure(heads > 0 && width.is_multiple_of(heads), register, || {
        format!("a width of {width} is not {heads} heads")
    })?;
    Ok(width / heads)
}
