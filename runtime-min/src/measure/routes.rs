//! How many rows go to which record.

use estream_schemas::manifest::{ExpertLayer, Experts};

use crate::backend::Routes;
use crate::request::Observer;

/// Counts routed rows while a request runs.
#[derive(Debug)]
pub struct RoutedRows<'a> {
    layers: &'a [ExpertLayer],
    /// Of each record in storage order, by step: layers with experts, chunk after chunk. The shards of
    /// an expert have the same rows.
    pub rows: Vec<Vec<u64>>,
}

impl<'a> RoutedRows<'a> {
    /// Of a bundle with these experts; nothing has run yet.
    pub fn new(experts: &'a Experts) -> RoutedRows<'a> {
        RoutedRows {
            layers: &experts.layers,
            rows: Vec::new(),
        }
    }
}

impl Observer for RoutedRows<'_> {
    fn routes(&mut self, layer: usize, routes: &Routes) {
        let Some(layer) = self.layers.iter().find(|at| at.layer == layer as u64) else {
            return;
        };
        let by_expert = routes.by_expert(layer.order.len());
        let mut rows = Vec::new();
        for expert in &layer.order {
            // A checked bundle's experts are those of its routers.
            let count = usize::try_from(*expert).map_or(0, |expert| by_expert.of(expert).len());
            rows.extend((0..layer.shards).map(|_| count as u64));
        }
        self.rows.push(rows);
    }
}
