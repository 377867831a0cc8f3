//! What makes a program valid: every name leads somewhere, and shapes agree.

use std::collections::BTreeMap;

use super::{InvalidManifest, dim, ensure, invalid, name};
use crate::limits::{
    MAX_DIM, MAX_EXPERTS, MAX_LAYER_OPS, MAX_LAYERS, MAX_REGISTER_WIDTH, MAX_REGISTERS,
};
use crate::manifest::{ExpertLayer, Manifest};
use crate::program::{NormWidth, Op};
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
}

impl Names<'_> {
    fn ops(&self, at: &str, ops: &[Op], place: Place) -> Result<(), InvalidManifest> {
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
            self.op(op, experts).map_err(|why| match why {
                InvalidManifest::Invalid { at: inner, why } => {
                    invalid(format!("{at}, operator {index}, {inner}"), why)
                }
                other => other,
            })
        })
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
                ..
            } => {
                let head_dim = split(register, self.width(register)?, *heads)?;
                ensure(
                    (2..=head_dim).contains(dims) && dims.is_multiple_of(2),
                    "rope",
                    || format!("cannot rotate {dims} of {head_dim} dimensions"),
                )?;
                ensure(theta.get() > 0.0, "rope", || "theta is not above 0".into())
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

    fn shape(&self, tensor: &str, expected: &[u64]) -> Result<(), InvalidManifest> {
        let at = format!("tensor {tensor:?}");
        let shape = self
            .tensors
            .get(tensor)
            .ok_or_else(|| invalid(&at, "is not stated"))?;
        ensure(*shape == expected, &at, || {
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

/// Width of one of `heads` heads.
fn split(register: &str, width: u64, heads: u64) -> Result<u64, InvalidManifest> {
    ensure(heads > 0 && width.is_multiple_of(heads), register, || {
        format!("a width of {width} is not {heads} heads")
    })?;
    Ok(width / heads)
}
