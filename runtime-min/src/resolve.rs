//! From the names of a checked program to indices.

use std::collections::BTreeMap;
use std::path::PathBuf;

use estream_schemas::manifest::ResidentTensor;
use estream_schemas::program::{MlaWeights, Op as NamedOp, Program, Yarn as NamedYarn};
use estream_schemas::valid::Bundle;

use crate::backend::{RopeForm, Yarn};
use crate::error::{RunError, index};
use crate::ops::{
    Embed, ExpertLayerId, Graph, Head, HistoryForm, HistoryId, MatrixId, Op, Place, RegisterForm,
    RegisterId, RopeId, VectorId,
};
use crate::reader::BundleReader;

/// A graph, and the tensors it uses: indices into the manifest's resident tensors.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) graph: Graph,
    /// What each [`MatrixId`] is.
    pub(crate) matrices: Vec<MatrixSource>,
    /// What each [`VectorId`] is.
    pub(crate) vectors: Vec<usize>,
}

/// Where a matrix comes from: indices into the manifest's resident tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixSource {
    /// It is stored.
    Stored(usize),
    /// It is put together from what [`MlaWeights::Split`] stores.
    Joined { k: usize, v: usize, heads: usize },
}

/// Resolves the names of a bundle's program.
///
/// Errors where the program, though valid, has an operator this version does not run.
pub(crate) fn resolve(reader: &BundleReader) -> Result<Resolved, RunError> {
    let bundle = reader.bundle();
    let program = &bundle.manifest().program;
    let mut names = Names::new(bundle, reader.path().to_owned())?;
    let (prologue, embed) = names.prologue(program)?;
    let layers = program.layers.iter().enumerate();
    let layers = layers
        .map(|(layer, ops)| names.ops(Place::Layer(layer), 0, ops))
        .collect::<Result<_, _>>()?;
    let (epilogue, head) = names.epilogue(program)?;
    Ok(Resolved {
        graph: Graph {
            vocab: index("the vocabulary", program.vocab)?,
            context: program.context,
            registers: names.registers,
            ropes: names.ropes,
            histories: names.histories,
            embed,
            prologue,
            layers,
            epilogue,
            head,
        },
        matrices: names.matrices.order,
        vectors: names.vectors.order,
    })
}

/// What was named, numbered as it was first named.
struct Used<T> {
    ids: BTreeMap<usize, usize>,
    order: Vec<T>,
}

impl<T> Used<T> {
    fn new() -> Used<T> {
        Used {
            ids: BTreeMap::new(),
            order: Vec::new(),
        }
    }

    /// The number of `tensor`, which is `used` if it has none yet.
    fn id(&mut self, tensor: usize, used: T) -> usize {
        *self.ids.entry(tensor).or_insert_with(|| {
            self.order.push(used);
            self.order.len() - 1
        })
    }
}

struct Names<'a> {
    path: PathBuf,
    registers: Vec<RegisterForm>,
    register_ids: BTreeMap<&'a str, RegisterId>,
    tensors: &'a [ResidentTensor],
    tensor_ids: BTreeMap<&'a str, usize>,
    expert_layers: BTreeMap<u64, ExpertLayerId>,
    matrices: Used<MatrixSource>,
    vectors: Used<usize>,
    ropes: Vec<RopeForm>,
    histories: Vec<HistoryForm>,
}

impl<'a> Names<'a> {
    fn new(bundle: &'a Bundle, path: PathBuf) -> Result<Names<'a>, RunError> {
        let manifest = bundle.manifest();
        let stated = &manifest.program.registers;
        let registers = stated.iter().map(|register| {
            Ok(RegisterForm {
                name: register.name.clone(),
                width: index("a register", register.width)?,
            })
        });
        let register_names = stated.iter().map(|register| register.name.as_str());
        let tensor_names = manifest.resident.tensors.iter();
        let expert_layers = manifest.experts.layers.iter().enumerate();
        // Extended, not collected: to collect would sort first, and a sort is 5 KB of code.
        let mut register_ids = BTreeMap::new();
        register_ids.extend(register_names.zip((0..).map(RegisterId)));
        let mut tensor_ids = BTreeMap::new();
        tensor_ids.extend(tensor_names.map(|t| t.name.as_str()).zip(0..));
        let mut layer_ids = BTreeMap::new();
        layer_ids.extend(expert_layers.map(|(id, experts)| (experts.layer, ExpertLayerId(id))));
        Ok(Names {
            path,
            registers: registers.collect::<Result<_, RunError>>()?,
            register_ids,
            tensors: &manifest.resident.tensors,
            tensor_ids,
            expert_layers: layer_ids,
            matrices: Used::new(),
            vectors: Used::new(),
            ropes: Vec::new(),
            histories: Vec::new(),
        })
    }

    // A checked bundle states every name its program uses.
    fn register(&self, name: &str) -> RegisterId {
        self.register_ids[name]
    }

    fn matrix(&mut self, name: &str) -> MatrixId {
        let tensor = self.tensor_ids[name];
        MatrixId(self.matrices.id(tensor, MatrixSource::Stored(tensor)))
    }

    fn vector(&mut self, name: &str) -> VectorId {
        let tensor = self.tensor_ids[name];
        VectorId(self.vectors.id(tensor, tensor))
    }

    fn optional(&mut self, name: Option<&String>) -> Option<VectorId> {
        name.map(|name| self.vector(name))
    }

    fn kv_b(&mut self, weights: &MlaWeights, heads: usize) -> MatrixId {
        match weights {
            MlaWeights::Joined(name) => self.matrix(name),
            MlaWeights::Split { k, v } => {
                let [k, v] = [k, v].map(|name| self.tensor_ids[name.as_str()]);
                self.matrices
                    .order
                    .push(MatrixSource::Joined { k, v, heads });
                MatrixId(self.matrices.order.len() - 1)
            }
        }
    }

    fn rope(&mut self, form: RopeForm) -> RopeId {
        let known = |known: &RopeForm| *known == form;
        RopeId(self.ropes.iter().position(known).unwrap_or_else(|| {
            self.ropes.push(form);
            self.ropes.len() - 1
        }))
    }

    fn history(&mut self, form: HistoryForm) -> HistoryId {
        self.histories.push(form);
        HistoryId(self.histories.len() - 1)
    }

    fn width(&self, id: RegisterId) -> usize {
        self.registers[id.0].width
    }

    fn refuse(&self, place: Place, op: usize, why: &'static str) -> RunError {
        RunError::Operator {
            path: self.path.clone(),
            place,
            op,
            why,
        }
    }

    fn prologue(&mut self, program: &Program) -> Result<(Vec<Op>, Embed), RunError> {
        let Some((NamedOp::Embed { out, weight, scale }, rest)) = program.prologue.split_first()
        else {
            return Err(self.refuse(Place::Prologue, 0, "it is not an embedding"));
        };
        let embed = Embed {
            out: self.register(out),
            weight: self.matrix(weight),
            scale: scale.get(),
        };
        // The embedding is operator 0.
        Ok((self.ops(Place::Prologue, 1, rest)?, embed))
    }

    fn epilogue(&mut self, program: &Program) -> Result<(Vec<Op>, Head), RunError> {
        let count = program.epilogue.len();
        let Some((
            NamedOp::LmHead {
                input,
                weight,
                scale,
            },
            rest,
        )) = program.epilogue.split_last()
        else {
            return Err(self.refuse(Place::Epilogue, count, "it is not a head"));
        };
        let ops = self.ops(Place::Epilogue, 0, rest)?;
        let needs_all = |op: &Op| {
            matches!(
                op,
                Op::Rope { .. } | Op::Attention { .. } | Op::Mla { .. } | Op::ShortConv { .. }
            )
        };
        if let Some(op) = ops.iter().position(needs_all) {
            let why = "it needs all positions, and the epilogue has chosen ones only";
            return Err(self.refuse(Place::Epilogue, op, why));
        }
        let head = Head {
            input: self.register(input),
            weight: self.matrix(weight),
            scale: scale.get(),
        };
        Ok((ops, head))
    }

    fn ops(&mut self, place: Place, first: usize, ops: &[NamedOp]) -> Result<Vec<Op>, RunError> {
        let ops = (first..).zip(ops);
        ops.map(|(at, op)| self.op(place, at, op)).collect()
    }

    fn op(&mut self, place: Place, at: usize, op: &NamedOp) -> Result<Op, RunError> {
        Ok(match op {
            NamedOp::RmsNorm {
                input,
                out,
                weight,
                eps,
            } => {
                let (input, out) = (self.register(input), self.register(out));
                let (weight, eps) = (self.vector(weight), eps.get());
                if input == out {
                    // The same operator, whose one mean is over the whole row.
                    Op::QkNorm {
                        register: out,
                        weight,
                        eps,
                    }
                } else {
                    Op::RmsNorm {
                        input,
                        out,
                        weight,
                        eps,
                    }
                }
            }
            NamedOp::Linear {
                input,
                out,
                weight,
                bias,
            } => Op::Linear {
                input: self.register(input),
                out: self.register(out),
                weight: self.matrix(weight),
                bias: self.optional(bias.as_ref()),
            },
            NamedOp::QkNorm {
                register,
                weight,
                eps,
                ..
            } => Op::QkNorm {
                register: self.register(register),
                weight: self.vector(weight),
                eps: eps.get(),
            },
            NamedOp::Rope {
                register,
                heads,
                dims,
                theta,
                pairing,
                yarn,
            } => {
                if !theta.get().is_normal() {
                    return Err(self.refuse(place, at, "the base of its angles is subnormal"));
                }
                Op::Rope {
                    register: self.register(register),
                    heads: index("heads", *heads)?,
                    pairing: *pairing,
                    rope: self.rope(RopeForm {
                        theta: theta.get(),
                        dims: index("rotated dimensions", *dims)?,
                        yarn: yarn.as_ref().map(stretch),
                    }),
                }
            }
            NamedOp::Attention {
                q,
                k,
                v,
                out,
                heads,
                kv_heads,
                scale,
            } => {
                let [q, k, v, out] = [q, k, v, out].map(|name| self.register(name));
                if [q, k, v].contains(&out) {
                    return Err(self.refuse(place, at, "attention writes one of its inputs"));
                }
                Op::Attention {
                    q,
                    k,
                    v,
                    out,
                    heads: index("heads", *heads)?,
                    kv_heads: index("key heads", *kv_heads)?,
                    scale: scale.get(),
                    history: self.history(HistoryForm::Rows {
                        widths: [k, v].map(|id| self.width(id)),
                    }),
                }
            }
            NamedOp::Mla {
                q,
                latent,
                k_pe,
                out,
                heads,
                weights,
                scale,
            } => {
                let [q, latent, k_pe, out] = [q, latent, k_pe, out].map(|name| self.register(name));
                if [q, latent, k_pe].contains(&out) {
                    return Err(self.refuse(place, at, "attention writes one of its inputs"));
                }
                let heads = index("heads", *heads)?;
                Op::Mla {
                    q,
                    latent,
                    k_pe,
                    out,
                    kv_b: self.kv_b(weights, heads),
                    heads,
                    scale: scale.get(),
                    history: self.history(HistoryForm::Rows {
                        widths: [latent, k_pe].map(|id| self.width(id)),
                    }),
                }
            }
            NamedOp::ShortConv { input, out, weight } => {
                let (input, out) = (self.register(input), self.register(out));
                let tensor = &self.tensors[self.tensor_ids[weight.as_str()]];
                let taps = index("taps", tensor.matrix().1)?;
                let len = (taps - 1).checked_mul(self.width(out));
                Op::ShortConv {
                    input,
                    out,
                    weight: self.vector(weight),
                    history: self.history(HistoryForm::State {
                        len: len.unwrap_or(usize::MAX),
                    }),
                }
            }
            NamedOp::Mlp {
                input,
                out,
                gate,
                up,
                down,
                token_gate,
            } => Op::Mlp {
                input: self.register(input),
                out: self.register(out),
                gate: self.matrix(gate),
                up: self.matrix(up),
                down: self.matrix(down),
                token_gate: token_gate.as_ref().map(|name| self.matrix(name)),
            },
            NamedOp::Router {
                input,
                weight,
                selection_bias,
                form,
            } => Op::Router {
                input: self.register(input),
                weight: self.matrix(weight),
                selection_bias: self.optional(selection_bias.as_ref()),
                form: form.clone(),
            },
            NamedOp::Experts { input, out } => {
                let layer = match place {
                    Place::Layer(layer) => self.expert_layers.get(&(layer as u64)).copied(),
                    Place::Prologue | Place::Epilogue => None,
                };
                Op::Experts {
                    input: self.register(input),
                    out: self.register(out),
                    layer: layer
                        .ok_or_else(|| self.refuse(place, at, "there are no experts here"))?,
                }
            }
            NamedOp::Add { input, out, scale } => Op::Add {
                input: self.register(input),
                out: self.register(out),
                scale: scale.get(),
            },
            NamedOp::Embed { .. } => {
                return Err(self.refuse(place, at, "an embedding is not first"));
            }
            NamedOp::LmHead { .. } => return Err(self.refuse(place, at, "a head is not last")),
        })
    }
}

fn stretch(yarn: &NamedYarn) -> Yarn {
    Yarn {
        factor: yarn.factor.get(),
        original_context: yarn.original_context,
        beta_fast: yarn.beta_fast.get(),
        beta_slow: yarn.beta_slow.get(),
        magnitude: yarn.magnitude.get(),
    }
}
