//! One pass: every row goes through layer l before any goes through layer l + 1.
//!
//! Experts run in storage order and add straight into their output register, shards of
//! an expert one after another; experts without routes are skipped. So the bits of a
//! result depend on the bundle and the backend, and on nothing else.

use crate::backend::{Backend, BackendError, ExpertWeights, RopeTable, Routes};
use crate::error::{RunError, resize};
use crate::history::History;
use crate::ops::{ExpertLayerId, Graph, Op, Place, RegisterId};
use crate::registers::Registers;
use crate::request::{Observer, Sink};
use crate::resident::Resident;
use crate::store::{ExpertSource, RecordShape};
use crate::stream::{Doing, Recorder};

/// Bytes of logits that are computed together: a vocabulary of 150,000 gets 27 rows,
/// enough to decode the head's weights once for many.
const HEAD_BYTES: usize = 16 << 20;

/// Rows the head works on at a time.
pub(crate) fn head_rows(vocab: usize) -> usize {
    (HEAD_BYTES / size_of::<f32>() / vocab.max(1)).clamp(1, 64)
}

/// Buffers that outlive a pass, so that the next one need not allocate.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    registers: Registers,
    head: Registers,
    logits: Vec<f32>,
    pub(crate) history: History,
}

/// Everything a pass reads, and what it counts.
pub(crate) struct Pass<'a> {
    graph: &'a Graph,
    resident: &'a Resident,
    shapes: &'a [RecordShape],
    source: &'a mut dyn ExpertSource,
    backend: &'a mut dyn Backend,
    recorder: &'a Recorder,
    /// Position of the first row.
    first: usize,
    /// The step of the first layer with experts.
    first_step: usize,
    /// Since when it computes something other than experts.
    since_ns: u64,
    ropes: Vec<RopeTable>,
    routes: Option<Routes>,
    pub(crate) records_run: u64,
    /// Of those that were run.
    pub(crate) records_pinned: u64,
    pub(crate) records_skipped: u64,
}

impl<'a> Pass<'a> {
    /// A pass of `rows` rows from position `first` on, the `chunk`-th of a request.
    pub(crate) fn new(
        (graph, resident): (&'a Graph, &'a Resident),
        (shapes, source): (&'a [RecordShape], &'a mut dyn ExpertSource),
        backend: &'a mut dyn Backend,
        recorder: &'a Recorder,
        (chunk, first, rows): (usize, usize, usize),
    ) -> Pass<'a> {
        let ropes = graph.ropes.iter();
        Pass {
            graph,
            resident,
            backend,
            recorder,
            first,
            first_step: chunk * shapes.len(),
            since_ns: recorder.now(),
            shapes,
            source,
            ropes: ropes
                .map(|form| RopeTable::new(form, first, rows))
                .collect(),
            routes: None,
            records_run: 0,
            records_pinned: 0,
            records_skipped: 0,
        }
    }

    /// Runs `ids` through all layers; their registers are left in `buffers`.
    pub(crate) fn body(
        &mut self,
        ids: &[u32],
        buffers: &mut Buffers,
        observer: &mut dyn Observer,
    ) -> Result<(), RunError> {
        let graph = self.graph;
        let Buffers {
            registers, history, ..
        } = buffers;
        registers.reset(graph, ids.len())?;
        let table = self.resident.matrix(graph.embed.weight);
        let out = registers.get_mut(graph.embed.out);
        self.backend
            .embed(&table, ids, graph.embed.scale, out)
            .map_err(|source| RunError::backend(Place::Prologue, self.first, source))?;
        self.tell(Place::Prologue, 0, graph.embed.out, registers, observer);
        // The embedding is operator 0, so the others count from 1.
        let prologue = (Place::Prologue, 1, &graph.prologue);
        let layers = graph.layers.iter().enumerate();
        let layers = layers.map(|(layer, ops)| (Place::Layer(layer), 0, ops));
        for (place, first_op, ops) in std::iter::once(prologue).chain(layers) {
            self.routes = None;
            let layer = ops.iter().find_map(|op| match op {
                Op::Experts { layer, .. } => Some(*layer),
                _ => None,
            });
            if let Some(layer) = layer {
                self.source.start(self.first_step + layer.0);
            }
            for (at, op) in (first_op..).zip(ops) {
                match *op {
                    Op::Experts { input, out, layer } => registers
                        .write(out, |registers, out| {
                            self.experts(place, layer, registers.get(input), out)
                        })?,
                    _ => self
                        .op(op, registers, history)
                        .map_err(|source| RunError::backend(place, self.first, source))?,
                }
                match (op, place, &self.routes) {
                    (Op::Router { .. }, Place::Layer(layer), Some(routes)) => {
                        observer.routes(layer, routes);
                    }
                    _ => {
                        if let Some(out) = op.out() {
                            self.tell(place, at, out, registers, observer);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs the epilogue for rows `chosen`, a block at a time, and passes on the results.
    pub(crate) fn head(
        &mut self,
        chosen: &[usize],
        hidden: bool,
        buffers: &mut Buffers,
        sink: &mut dyn Sink,
    ) -> Result<(), RunError> {
        let graph = self.graph;
        let vocab = graph.vocab;
        let width = graph.width(graph.head.input);
        let weight = self.resident.matrix(graph.head.weight);
        for block in chosen.chunks(head_rows(vocab)) {
            let rows = &mut buffers.head;
            rows.gather(graph, &buffers.registers, block)?;
            for op in &graph.epilogue {
                self.op(op, rows, &mut buffers.history)
                    .map_err(|source| RunError::backend(Place::Epilogue, self.first, source))?;
            }
            resize("logits", &mut buffers.logits, block.len() * vocab)?;
            let input = rows.get(graph.head.input);
            self.backend
                .lm_head(input, &weight, graph.head.scale, &mut buffers.logits)
                .map_err(|source| RunError::backend(Place::Epilogue, self.first, source))?;
            let results = input
                .chunks_exact(width)
                .zip(buffers.logits.chunks_exact(vocab));
            for (row, (state, logits)) in block.iter().zip(results) {
                let position = self.first + row;
                if !logits.iter().all(|logit| logit.is_finite()) {
                    return Err(RunError::LogitsNotFinite { position });
                }
                if hidden {
                    sink.hidden(position, state).map_err(RunError::Sink)?;
                }
                sink.logits(position, logits).map_err(RunError::Sink)?;
            }
        }
        Ok(())
    }

    fn tell(
        &self,
        place: Place,
        op: usize,
        out: RegisterId,
        registers: &Registers,
        observer: &mut dyn Observer,
    ) {
        let name = &self.graph.registers[out.0].name;
        observer.after_op(place, op, name, registers.get(out));
    }

    fn op(
        &mut self,
        op: &Op,
        registers: &mut Registers,
        history: &mut History,
    ) -> Result<(), BackendError> {
        let resident = self.resident;
        let backend = &mut *self.backend;
        match *op {
            Op::RmsNorm {
                input,
                out,
                weight,
                eps,
            } => registers.write(out, |registers, out| {
                backend.rms_norm(registers.get(input), resident.vector(weight), eps, out)
            }),
            Op::Linear {
                input,
                out,
                weight,
                bias,
            } => registers.write(out, |registers, out| {
                let bias = bias.map(|bias| resident.vector(bias));
                backend.linear(registers.get(input), &resident.matrix(weight), bias, out)
            }),
            Op::QkNorm {
                register,
                weight,
                eps,
            } => backend.qk_norm(registers.get_mut(register), resident.vector(weight), eps),
            Op::Rope {
                register,
                heads,
                pairing,
                rope,
            } => backend.rope(
                registers.get_mut(register),
                heads,
                pairing,
                &self.ropes[rope.0],
            ),
            Op::Attention {
                q,
                k,
                v,
                out,
                heads,
                kv_heads,
                scale,
                history: id,
            } => {
                let form = self
                    .graph
                    .attention(q, out, heads, kv_heads, scale, self.first);
                registers.write(out, |registers, out| {
                    let [q, k, v] = [q, k, v].map(|id| registers.get(id));
                    let [k, v] = history.rows(id, [k, v]);
                    backend.attention(&form, q, k, v, out)
                })
            }
            Op::Mla {
                q,
                latent,
                k_pe,
                out,
                kv_b,
                heads,
                scale,
                history: id,
            } => {
                let form = self
                    .graph
                    .attention(q, out, heads, heads, scale, self.first);
                registers.write(out, |registers, out| {
                    let [q, latent, k_pe] = [q, latent, k_pe].map(|id| registers.get(id));
                    let [latent, k_pe] = history.rows(id, [latent, k_pe]);
                    backend.mla(&form, q, latent, k_pe, &resident.matrix(kv_b), out)
                })
            }
            Op::ShortConv {
                input,
                out,
                weight,
                history: id,
            } => registers.write(out, |registers, out| {
                let (x, weight) = (registers.get(input), resident.vector(weight));
                backend.short_conv(x, weight, history.state(id), out)
            }),
            Op::Mlp {
                input,
                out,
                gate,
                up,
                down,
                token_gate,
            } => registers.write(out, |registers, out| {
                let [gate, up, down] = [gate, up, down].map(|id| resident.matrix(id));
                let mlp = ExpertWeights { gate, up, down };
                let token_gate = token_gate.map(|id| resident.matrix(id));
                backend.mlp(registers.get(input), &mlp, token_gate.as_ref(), out)
            }),
            Op::Router {
                input,
                weight,
                selection_bias,
                ref form,
            } => {
                let bias = selection_bias.map(|bias| resident.vector(bias));
                let weight = resident.matrix(weight);
                let routes = backend.router(registers.get(input), &weight, bias, form)?;
                self.routes = Some(routes);
                Ok(())
            }
            // The body runs them; there are none elsewhere.
            Op::Experts { .. } => Err(BackendError::Rejected("experts out of place".into())),
            Op::Add { input, out, scale } => registers.write(out, |registers, out| {
                backend.add(registers.get(input), scale, out)
            }),
        }
    }

    fn experts(
        &mut self,
        place: Place,
        layer: ExpertLayerId,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), RunError> {
        let first = self.first;
        let step = self.first_step + layer.0;
        let failed = |source| RunError::backend(place, first, source);
        // A checked bundle has a router before the experts of every layer.
        let Some(routes) = &self.routes else {
            return Err(failed(BackendError::Rejected(
                "experts without routes".into(),
            )));
        };
        let shape = &self.shapes[layer.0];
        let routes = routes.by_expert(shape.order.len());
        let of = |record: usize| routes.of(shape.expert(record));
        let routed: Vec<bool> = (0..shape.records())
            .map(|record| !of(record).is_empty())
            .collect();
        let run = routed.iter().filter(|routed| **routed).count() as u64;
        let pinned = (0..routed.len()).filter(|record| routed[*record] && shape.is_pinned(*record));
        let pinned = pinned.count() as u64;
        let recorder = self.recorder;
        recorder.computed(Doing::Layer, step, 0..0, self.since_ns);
        let backend = &mut *self.backend;
        self.source.run(step, routed, &mut |record, regions| {
            let weights = shape.weights(regions);
            let start_ns = recorder.now();
            let result = backend.expert(x, &weights, of(record), out);
            recorder.computed(Doing::Experts, step, record..record + 1, start_ns);
            result.map_err(failed)
        })?;
        self.since_ns = self.recorder.now();
        self.records_run += run;
        self.records_pinned += pinned;
        self.records_skipped += shape.records() as u64 - run;
        Ok(())
    }

    /// Says that what is computed after the last experts is done.
    pub(crate) fn finish(&self) {
        let last_step = (self.first_step + self.shapes.len()).saturating_sub(1);
        self.recorder
            .computed(Doing::Head, last_step, 0..0, self.since_ns);
    }
}
