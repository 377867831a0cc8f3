//! What orders are worth on prompts that they need not have been derived from.

use estream_schemas::plan::StreamConfig;
use estream_schemas::routes::{RoutedPrompt, Rows};
use serde::Serialize;

use crate::setting::{Cost, NoCost, Setting};
use crate::{Interval, MAX_UNITS, Orders, best};

/// An order beside the first one, over all prompts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What it is called.
    pub name: String,
    /// Bytes read, the mean over the prompts.
    pub read_bytes: u64,
    /// Reads, the mean over the prompts.
    pub reads: f64,
    /// Time to first token, the mean, in microseconds.
    pub ttft_us: u64,
    /// Waiting for the first group of every layer, the mean of the sums, in microseconds.
    pub first_group_us: u64,
    /// Change of the bytes against the first order; none of the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_change: Option<Interval>,
    /// Change of the time to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_change: Option<Interval>,
}

/// Costs of `orders`, each with a name, on `prompts`; changes are against the first.
///
/// # Errors
/// As [`Setting::costs`].
pub fn compare(
    setting: &Setting,
    config: &StreamConfig,
    prompts: &[RoutedPrompt],
    orders: &[(String, Orders)],
) -> Result<Vec<Compared>, NoCost> {
    let mut all = Vec::with_capacity(orders.len());
    let mut first: Option<Vec<Cost>> = None;
    for (name, orders) in orders {
        let costs = setting.costs(prompts, orders, config)?;
        all.push(compared(name, &costs, first.as_deref()));
        first.get_or_insert(costs);
    }
    Ok(all)
}

fn compared(name: &str, costs: &[Cost], first: Option<&[Cost]>) -> Compared {
    let sum = |of: fn(&Cost) -> u64| costs.iter().map(|cost| u128::from(of(cost))).sum::<u128>();
    let count = costs.len().max(1);
    let mean = |of| u64::try_from(sum(of) / count as u128).unwrap_or(u64::MAX);
    let change = |of: fn(&Cost) -> u64| {
        let pairs = costs.iter().zip(first?);
        let pairs: Vec<(u64, u64)> = pairs.map(|(this, that)| (of(this), of(that))).collect();
        Interval::of_change(&pairs)
    };
    Compared {
        name: name.to_owned(),
        read_bytes: mean(|cost| cost.read_bytes),
        reads: sum(|cost| cost.reads) as f64 / count as f64,
        ttft_us: mean(|cost| cost.total_ns) / 1000,
        first_group_us: mean(|cost| cost.first_group_ns) / 1000,
        read_change: change(|cost| cost.read_bytes),
        ttft_change: change(|cost| cost.total_ns),
    }
}

/// For every layer, the best arrangement of the groups of `orders` for `prompts`: all are
/// tried where there are at most [`MAX_UNITS`], by the time that the layer takes alone. A layer of more
/// groups keeps its order. What comes out knows the prompts, so it bounds what arranging these groups can
/// bring and is no order to store.
///
/// # Errors
/// As [`Setting::costs`].
pub fn arranged(
    setting: &Setting,
    config: &StreamConfig,
    prompts: &[RoutedPrompt],
    orders: &Orders,
) -> Result<Orders, NoCost> {
    let mut arranged = orders.clone();
    for (at, layer) in setting.layers.iter().enumerate() {
        let Some(order) = orders.get(&layer.layer) else {
            continue;
        };
        let groups: Vec<&[u64]> = order.chunks(config.group.max(1)).collect();
        if groups.len() > MAX_UNITS {
            continue;
        }
        let alone = Setting {
            layers: vec![*layer],
            ..setting.clone()
        };
        let rows = |prompt: &RoutedPrompt| RoutedPrompt {
            name: String::new(),
            tokens: prompt.tokens,
            rows: prompt
                .rows
                .get(at)
                .cloned()
                .into_iter()
                .collect::<Vec<Rows>>(),
        };
        let prompts: Vec<RoutedPrompt> = prompts.iter().map(rows).collect();
        let mut failed = None;
        let found = best(&groups, |groups| {
            let orders = Orders::from([(layer.layer, groups.concat())]);
            match alone.costs(&prompts, &orders, config) {
                Ok(costs) => costs
                    .iter()
                    .fold(0, |sum: u64, cost| sum.saturating_add(cost.total_ns)),
                Err(error) => {
                    failed = Some(error);
                    u64::MAX
                }
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some((groups, _)) = found {
            arranged.insert(layer.layer, groups.concat());
        }
    }
    Ok(arranged)
}
