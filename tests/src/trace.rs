//! A pass through a model with everything that a reference states about it.

use std::io;

use estream_runtime::backend::Routes;
use estream_runtime::{Model, Observer, Place, Positions, Request, Sink};

/// What a pass computed, all rows of everything.
#[derive(Debug, Default)]
pub struct Trace {
    /// The residual stream after the embedding.
    pub embed: Vec<f32>,
    /// One a layer.
    pub layers: Vec<Layer>,
    /// What the head reads.
    pub hidden: Vec<f32>,
    /// What it makes of it.
    pub logits: Vec<f32>,
}

/// What a layer computed.
#[derive(Debug, Default)]
pub struct Layer {
    /// What attention, or what stands in its place, added to the residual stream.
    pub mixer: Vec<f32>,
    /// What the feed-forward part added.
    pub ffn: Vec<f32>,
    /// The residual stream afterwards.
    pub out: Vec<f32>,
    /// The router's choice, if it has one.
    pub routes: Option<Routes>,
}

impl Trace {
    /// Runs `ids` through `model`.
    ///
    /// # Panics
    ///
    /// If the model does not run them.
    #[track_caller]
    pub fn of(model: &mut Model, ids: &[u32]) -> Trace {
        let request = Request {
            positions: Positions::All,
            hidden: true,
            ..Request::default()
        };
        let mut rows = Rows::default();
        let mut watch = Watch::default();
        model
            .prefill_observed(ids, &request, &mut rows, &mut watch)
            .expect("a pass");
        Trace {
            embed: watch.embed,
            layers: watch.layers,
            hidden: rows.hidden,
            logits: rows.logits,
        }
    }
}

#[derive(Default)]
struct Rows {
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

impl Sink for Rows {
    fn logits(&mut self, _: usize, row: &[f32]) -> io::Result<()> {
        self.logits.extend(row);
        Ok(())
    }

    fn hidden(&mut self, _: usize, row: &[f32]) -> io::Result<()> {
        self.hidden.extend(row);
        Ok(())
    }
}

/// Follows the residual stream: the register that the embedding is written to. The
/// first addition to it in a layer is the mixer's, the others are the feed-forward part.
#[derive(Default)]
struct Watch {
    stream: String,
    before: Vec<f32>,
    embed: Vec<f32>,
    layers: Vec<Layer>,
}

impl Watch {
    fn layer(&mut self, layer: usize) -> &mut Layer {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, Layer::default);
        }
        &mut self.layers[layer]
    }
}

impl Observer for Watch {
    fn after_op(&mut self, place: Place, op: usize, register: &str, rows: &[f32]) {
        match place {
            Place::Prologue => {
                if op == 0 {
                    register.clone_into(&mut self.stream);
                }
                if register == self.stream {
                    self.embed = rows.to_vec();
                    self.before = rows.to_vec();
                }
            }
            Place::Layer(layer) if register == self.stream => {
                let before = std::mem::replace(&mut self.before, rows.to_vec());
                let added = rows
                    .iter()
                    .zip(before)
                    .map(|(after, before)| after - before);
                let layer = self.layer(layer);
                if layer.mixer.is_empty() {
                    layer.mixer = added.collect();
                    layer.ffn = vec![0.0; rows.len()];
                } else {
                    for (sum, added) in layer.ffn.iter_mut().zip(added) {
                        *sum += added;
                    }
                }
                layer.out = rows.to_vec();
            }
            _ => {}
        }
    }

    fn routes(&mut self, layer: usize, routes: &Routes) {
        self.layer(layer).routes = Some(routes.clone());
    }
}
