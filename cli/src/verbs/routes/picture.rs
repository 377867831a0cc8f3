//! Routes as a heat map.

use std::collections::BTreeMap;

use estream_plot::{HeatMap, HeatRow, heat_map};
use estream_runtime::reader::BundleReader;
use estream_schemas::routes::Recording;

use super::tokens;
use crate::pictures::name_of;
use crate::tables::grouped;

/// Of every layer, the share of all tokens that goes to each expert, by the experts' places in storage.
pub(super) fn picture(reader: &BundleReader, recording: &Recording) -> String {
    let tokens = tokens(recording);
    let experts = &reader.bundle().manifest().experts;
    let orders: BTreeMap<u64, &Vec<u64>> = experts
        .layers
        .iter()
        .map(|layer| (layer.layer, &layer.order))
        .collect();
    let layers = recording.layers.iter().enumerate();
    let rows = layers.filter_map(|(at, layer)| {
        let order = orders.get(&layer.layer)?;
        let share = |expert: &u64| {
            let expert = usize::try_from(*expert).ok()?;
            let prompts = recording.prompts.iter();
            let rows = prompts.filter_map(|prompt| prompt.rows.get(at)?.0.get(expert));
            let rows: u64 = rows.map(|rows| u64::from(*rows)).sum();
            Some(100.0 * rows as f64 / tokens.max(1) as f64)
        };
        Some(HeatRow {
            name: layer.layer.to_string(),
            values: order.iter().map(share).collect(),
        })
    });
    let prompts = match recording.prompts.len() {
        1 => "one prompt".to_owned(),
        count => format!("{} prompts", grouped(count as u64)),
    };
    let model = name_of(reader.path());
    heat_map(&HeatMap {
        title: format!("{model}: {prompts}, {} tokens", grouped(tokens)),
        columns: "expert, by its place in storage".to_owned(),
        rows_label: "layer".to_owned(),
        values_label: "tokens that go there (%)".to_owned(),
        rows: rows.collect(),
    })
}
