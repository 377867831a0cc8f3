//! What an order costs on a device.

use estream_planner::{
    Forecast, GroupSize, LayerSize, Malformed, Problem, Question, Search, Workload, forecast,
};
use estream_schemas::plan::{NoConfig, StreamConfig};
use estream_schemas::profile::{Limits, Service, Storage};
use estream_schemas::routes::{RoutedPrompt, Rows};

use crate::Orders;

/// A device and a model, as far as streaming depends on them. Which expert is where is no part of
/// it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Where experts are read from.
    pub storage: Storage,
    /// How long the device computes.
    pub service: Service,
    /// The layers with experts, ascending.
    pub layers: Vec<StoredLayer>,
    /// Records of each layer that stay in memory, at the places that [`is_pinned`](estream_schemas::plan::is_pinned)
    /// names, whatever the order.
    pub pinned: usize,
}

/// How a layer's experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredLayer {
    /// Layer of the program.
    pub layer: u64,
    /// Its experts.
    pub experts: u64,
    /// Records of each.
    pub shards: u64,
    /// Bytes of a record.
    pub record_bytes: u64,
}

/// What one prompt costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that are read.
    pub read_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Time to first token, in nanoseconds.
    pub total_ns: u64,
    /// Waiting for the first group of every layer once its routes are known, in nanoseconds.
    pub first_group_ns: u64,
}

/// A cost that cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCost {
    /// Routes, sizes and times do not fit each other.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// G, Q and B cannot be.
    #[error(transparent)]
    Config(#[from] NoConfig),
}

impl Setting {
    /// What happens to each of `prompts`, whose rows are of the same layers as this has, if experts are
    /// stored in `orders`: by id where a layer has none.
    ///
    /// # Errors
    /// If the planner cannot make a request of them, or `config` cannot be.
    pub fn forecasts(
        &self,
        prompts: &[RoutedPrompt],
        orders: &Orders,
        config: &StreamConfig,
    ) -> Result<Vec<Forecast>, NoCost> {
        let workload = |prompt: &RoutedPrompt| Workload {
            weight: 1,
            tokens: u64::from(prompt.tokens),
            routes: self.routes(prompt, orders),
        };
        let size = |layer: &StoredLayer| LayerSize {
            records: usize::try_from(layer.experts.saturating_mul(layer.shards))
                .unwrap_or(usize::MAX),
            record_bytes: layer.record_bytes,
        };
        // Whether it fits into memory is not asked.
        let problem = Problem::new(Question {
            storage: self.storage.clone(),
            service: self.service.clone(),
            limits: Limits::default(),
            budget_bytes: u64::MAX,
            layers: self.layers.iter().map(size).collect(),
            region_bytes: 0,
            pinned: self.pinned,
            groups: vec![GroupSize {
                group: config.group,
                other_bytes: 0,
                mapped_bytes: 0,
            }],
            depths: vec![config.depth],
            search: Search::Nested,
            schedules: vec![config.schedule],
            workloads: prompts.iter().map(workload).collect(),
        })?;
        Ok(forecast(&problem, config)?)
    }

    /// The cost of each of `prompts`.
    ///
    /// # Errors
    /// As [`Setting::forecasts`].
    pub fn costs(
        &self,
        prompts: &[RoutedPrompt],
        orders: &Orders,
        config: &StreamConfig,
    ) -> Result<Vec<Cost>, NoCost> {
        let forecasts = self.forecasts(prompts, orders, config)?.into_iter();
        let cost = |forecast: Forecast| Cost {
            read_bytes: forecast.prediction.bytes_read,
            reads: forecast.prediction.reads,
            total_ns: forecast.prediction.times.total_ns,
            first_group_ns: forecast.first_group_ns(),
        };
        Ok(forecasts.map(cost).collect())
    }

    /// Routed rows of every record in storage order, by layer.
    fn routes(&self, prompt: &RoutedPrompt, orders: &Orders) -> Vec<Vec<u64>> {
        let layers = self.layers.iter().zip(&prompt.rows);
        let of = |(layer, rows): (&StoredLayer, &Rows)| {
            let by_id: Vec<u64>;
            let order = match orders.get(&layer.layer) {
                Some(order) => order,
                None => {
                    by_id = (0..layer.experts).collect();
                    &by_id
                }
            };
            let rows_of = |expert: &u64| {
                let rows = usize::try_from(*expert).ok().and_then(|at| rows.0.get(at));
                let rows = rows.map_or(0, |rows| u64::from(*rows));
                (0..layer.shards).map(move |_| rows)
            };
            order.iter().flat_map(rows_of).collect()
        };
        layers.map(of).collect()
    }
}
