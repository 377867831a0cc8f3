//! The operators as their documentation says them, in f64 and in the plainest order.

use std::collections::BTreeMap;

use estream_schemas::program::{
    MlaWeights, NormWidth, Op, Renormalise, RopePairing, RouterForm, Scoring, Yarn,
};

use crate::toy::{Plain, PlainExpert, Toy};

type Rows = Vec<Vec<f64>>;

/// What a pass computed.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    /// Layer (none in the prologue), operator, register, and its rows after that operator.
    pub(crate) trace: Vec<(Option<usize>, usize, String, Rows)>,
    /// By layer and token: experts and weights, best first.
    pub(crate) routes: Vec<Vec<Vec<(usize, f64)>>>,
    /// Input of the head, by position.
    pub(crate) hidden: Rows,
    /// By position.
    pub(crate) logits: Rows,
}

/// Runs `ids` through `toy`.
pub(crate) fn run(toy: &Toy, ids: &[u32]) -> Reference {
    let mut state = State {
        toy,
        ids,
        registers: BTreeMap::new(),
        routes: Vec::new(),
        out: Reference::default(),
    };
    state.ops(None, &toy.program.prologue);
    for (layer, ops) in toy.program.layers.iter().enumerate() {
        state.ops(Some(layer), ops);
        if layer < toy.experts.len() {
            state.out.routes.push(state.routes.clone());
        }
    }
    for op in &toy.program.epilogue {
        state.op(0, op);
    }
    state.out
}

struct State<'a> {
    toy: &'a Toy,
    ids: &'a [u32],
    registers: BTreeMap<String, Rows>,
    routes: Vec<Vec<(usize, f64)>>,
    out: Reference,
}

fn dot(a: &[f32], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum()
}

fn times(matrix: &Plain, x: &[f64]) -> Vec<f64> {
    (0..matrix.rows)
        .map(|row| dot(matrix.row(row), x))
        .collect()
}

fn rms(x: &mut [f64], weight: &[f32], eps: f32) {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x *= factor * f64::from(*w);
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
    x.iter().map(|x| (x - max).exp() / sum).collect()
}

fn gated(gate: &Plain, up: &Plain, down: &Plain, x: &[f64]) -> Vec<f64> {
    let gate = times(gate, x);
    let up = times(up, x);
    let gated: Vec<f64> = gate
        .iter()
        .zip(&up)
        .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
        .collect();
    times(down, &gated)
}

impl State<'_> {
    fn tensor(&self, name: &str) -> &Plain {
        &self.toy.tensors[name]
    }

    /// Keys and values of all heads from one latent row.
    fn expanded(
        &self,
        weights: &MlaWeights,
        heads: usize,
        latent: &[f64],
        k_pe: &[f64],
    ) -> (Vec<f64>, Vec<f64>) {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for head in 0..heads {
            let (key, value) = match weights {
                MlaWeights::Joined(kv) => {
                    // 24 rows of a key, then 16 of a value.
                    let all = times(self.tensor(kv), latent);
                    let rows = &all[head * all.len() / heads..][..all.len() / heads];
                    (rows[..24].to_vec(), rows[24..].to_vec())
                }
                MlaWeights::Split { k, v } => {
                    let (k, v) = (self.tensor(k), times(self.tensor(v), latent));
                    let mut key = vec![0.0; k.cols];
                    for (rank, x) in latent.iter().enumerate() {
                        let row = k.row(head * latent.len() + rank);
                        for (key, w) in key.iter_mut().zip(row) {
                            *key += f64::from(*w) * x;
                        }
                    }
                    (key, v[head * v.len() / heads..][..v.len() / heads].to_vec())
                }
            };
            keys.extend(key);
            keys.extend(k_pe);
            values.extend(value);
        }
        (keys, values)
    }

    fn ops(&mut self, layer: Option<usize>, ops: &[Op]) {
        for (at, op) in ops.iter().enumerate() {
            if let Some(register) = self.op(layer.unwrap_or(0), op) {
                let rows = self.registers[&register].clone();
                self.out.trace.push((layer, at, register, rows));
            }
        }
    }

    /// Runs one operator and names the register it wrote.
    fn op(&mut self, layer: usize, op: &Op) -> Option<String> {
        let rows = |name: &String| self.registers[name].clone();
        let (out, result) = match op {
            Op::Embed { out, weight, scale } => {
                let row = |id: &u32| {
                    let row = self.tensor(weight).row(*id as usize).iter();
                    row.map(|x| f64::from(*x) * f64::from(scale.get()))
                        .collect()
                };
                (out, self.ids.iter().map(row).collect())
            }
            Op::RmsNorm {
                input,
                out,
                weight,
                eps,
            } => {
                let mut x = rows(input);
                for x in &mut x {
                    rms(x, &self.tensor(weight).data, eps.get());
                }
                (out, x)
            }
            Op::Linear {
                input,
                out,
                weight,
                bias,
            } => {
                let mut y: Rows = rows(input)
                    .iter()
                    .map(|x| times(self.tensor(weight), x))
                    .collect();
                if let Some(bias) = bias {
                    for y in &mut y {
                        for (y, b) in y.iter_mut().zip(&self.tensor(bias).data) {
                            *y += f64::from(*b);
                        }
                    }
                }
                (out, y)
            }
            Op::QkNorm {
                register,
                weight,
                eps,
                heads,
                over,
            } => {
                let mut x = rows(register);
                for x in &mut x {
                    let width = match over {
                        NormWidth::Full => x.len(),
                        NormWidth::Head => x.len() / usize::try_from(*heads).unwrap(),
                    };
                    for x in x.chunks_mut(width) {
                        rms(x, &self.tensor(weight).data, eps.get());
                    }
                }
                (register, x)
            }
            Op::Rope {
                register,
                heads,
                dims,
                theta,
                pairing,
                yarn,
            } => {
                let mut x = rows(register);
                let (heads, dims) = (*heads as usize, *dims as usize);
                for (position, x) in x.iter_mut().enumerate() {
                    let head_dim = x.len() / heads;
                    for head in x.chunks_mut(head_dim) {
                        let head = &mut head[head_dim - dims..];
                        for i in 0..dims / 2 {
                            let power = -2.0 * i as f64 / dims as f64;
                            let frequency = f64::from(theta.get()).powf(power);
                            let angle = position as f64 * stretched(frequency, yarn.as_ref());
                            let (a, b) = match pairing {
                                RopePairing::Half => (i, i + dims / 2),
                                RopePairing::Adjacent => (2 * i, 2 * i + 1),
                            };
                            let m = yarn.as_ref().map_or(1.0, |yarn| yarn.magnitude.get());
                            let (sin, cos) = angle.sin_cos();
                            let (sin, cos) = (sin * f64::from(m), cos * f64::from(m));
                            (head[a], head[b]) =
                                (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                        }
                    }
                }
                (register, x)
            }
            Op::Attention {
                q,
                k,
                v,
                out,
                heads,
                kv_heads,
                scale,
            } => {
                let heads = (*heads as usize, *kv_heads as usize);
                (
                    out,
                    attend(heads, scale.get(), &rows(q), &rows(k), &rows(v)),
                )
            }
            Op::Mla {
                q,
                latent,
                k_pe,
                out,
                heads,
                weights,
                scale,
            } => {
                let heads = *heads as usize;
                let pairs = rows(latent).into_iter().zip(rows(k_pe));
                let (k, v): (Rows, Rows) = pairs
                    .map(|(latent, k_pe)| self.expanded(weights, heads, &latent, &k_pe))
                    .unzip();
                (out, attend((heads, heads), scale.get(), &rows(q), &k, &v))
            }
            Op::ShortConv { input, out, weight } => {
                let (x, weight) = (rows(input), self.tensor(weight));
                let (width, taps) = (weight.rows, weight.cols);
                let value = |t: usize, c: usize| {
                    let past = (0..taps).filter_map(|k| Some((k, (t + k + 1).checked_sub(taps)?)));
                    let terms = past
                        .map(|(k, t)| f64::from(weight.row(c)[k]) * x[t][c] * x[t][2 * width + c]);
                    terms.sum::<f64>() * x[t][width + c]
                };
                let row = |t| (0..width).map(|c| value(t, c)).collect();
                (out, (0..x.len()).map(row).collect())
            }
            Op::Mlp {
                input,
                out,
                gate,
                up,
                down,
                token_gate,
            } => {
                let [gate, up, down] = [gate, up, down].map(|name| self.tensor(name));
                let mut y = rows(out);
                for (x, y) in rows(input).iter().zip(&mut y) {
                    let factor = token_gate.as_ref().map_or(1.0, |gate| {
                        1.0 / (1.0 + (-dot(self.tensor(gate).row(0), x)).exp())
                    });
                    for (y, part) in y.iter_mut().zip(gated(gate, up, down, x)) {
                        *y += factor * part;
                    }
                }
                (out, y)
            }
            Op::Router {
                input,
                weight,
                selection_bias,
                form,
            } => {
                let bias = selection_bias.as_ref().map(|name| &self.tensor(name).data);
                let routes = rows(input)
                    .iter()
                    .map(|x| route(&times(self.tensor(weight), x), bias, form))
                    .collect();
                self.routes = routes;
                return None;
            }
            Op::Experts { input, out } => {
                let mut y = rows(out);
                for ((x, y), routes) in rows(input).iter().zip(&mut y).zip(&self.routes) {
                    for (id, weight) in routes {
                        let PlainExpert { gate, up, down } = &self.toy.experts[layer][*id];
                        let part = gated(gate, up, down, x);
                        for (y, part) in y.iter_mut().zip(part) {
                            *y += weight * part;
                        }
                    }
                }
                (out, y)
            }
            Op::Add { input, out, scale } => {
                let mut y = rows(out);
                for (x, y) in rows(input).iter().zip(&mut y) {
                    for (x, y) in x.iter().zip(y) {
                        *y += x * f64::from(scale.get());
                    }
                }
                (out, y)
            }
            Op::LmHead {
                input,
                weight,
                scale,
            } => {
                let hidden = rows(input);
                let logits = |x: &Vec<f64>| {
                    let row = times(self.tensor(weight), x).into_iter();
                    row.map(|x| x * f64::from(scale.get())).collect()
                };
                self.out.logits = hidden.iter().map(logits).collect();
                self.out.hidden = hidden;
                return None;
            }
        };
        let out = out.clone();
        self.registers.insert(out.clone(), result);
        Some(out)
    }
}

/// Causal attention of heads and key heads.
fn attend((heads, kv_heads): (usize, usize), scale: f32, q: &Rows, k: &Rows, v: &Rows) -> Rows {
    let (key_dim, value_dim) = (k[0].len() / kv_heads, v[0].len() / kv_heads);
    let mut y = vec![vec![0.0; heads * value_dim]; q.len()];
    for t in 0..q.len() {
        for head in 0..heads {
            let shared = head / (heads / kv_heads);
            let query = &q[t][head * key_dim..][..key_dim];
            let score = |s: usize| {
                let pairs = query.iter().zip(&k[s][shared * key_dim..]);
                pairs.map(|(q, k)| q * k).sum::<f64>() * f64::from(scale)
            };
            let weights = softmax(&(0..=t).map(score).collect::<Vec<_>>());
            for (s, weight) in weights.iter().enumerate() {
                for i in 0..value_dim {
                    y[t][head * value_dim + i] += weight * v[s][shared * value_dim + i];
                }
            }
        }
    }
    y
}

/// A frequency as YaRN has it, by the turns it makes within the original context: from
/// `beta_fast` on as it is, up to `beta_slow` divided, between them in proportion to the
/// whole-numbered pair, which for this model (theta 10,000, 8 dimensions) is log10 of 1/frequency.
fn stretched(frequency: f64, yarn: Option<&Yarn>) -> f64 {
    let Some(yarn) = yarn else {
        return frequency;
    };
    let pair_of = |turns: f32| {
        let period = yarn.original_context as f64 / (f64::from(turns) * std::f64::consts::TAU);
        period.log10()
    };
    let low = pair_of(yarn.beta_fast.get()).floor().max(0.0);
    let high = pair_of(yarn.beta_slow.get()).ceil();
    let share = ((-frequency.log10() - low) / (high - low)).clamp(0.0, 1.0);
    frequency / f64::from(yarn.factor.get()) * share + frequency * (1.0 - share)
}

/// Routes of one token; only the forms that score before the choice.
fn route(logits: &[f64], bias: Option<&Vec<f32>>, form: &RouterForm) -> Vec<(usize, f64)> {
    let scores = match form.scoring {
        Scoring::Softmax => softmax(logits),
        Scoring::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
    };
    let key = |id: usize| scores[id] + bias.map_or(0.0, |bias| f64::from(bias[id]));
    let mut ids: Vec<usize> = (0..scores.len()).collect();
    ids.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
    ids.truncate(form.top_k as usize);
    let sum: f64 = ids.iter().map(|id| scores[*id]).sum();
    let divisor = match form.renormalise {
        Renormalise::None => 1.0,
        Renormalise::Sum => sum,
        Renormalise::SumPlus(eps) => sum + f64::from(eps.get()),
    };
    let weight = |id: usize| (id, scores[id] / divisor * f64::from(form.scale.get()));
    ids.into_iter().map(weight).collect()
}
