//! What is simulated: a device, a model, and prompts.

use std::path::Path;

use estream_order::{NoCost, Orders, Setting, StoredLayer};
use estream_planner::{Forecast, What, expected_routes};
use estream_runtime::reader::BundleReader;
use estream_runtime::{Doing, Event};
use estream_schemas::exit::Exit;
use estream_schemas::limits::{MAX_EXPERTS, MAX_LAYERS};
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_schemas::profile::{Profile, Service};
use estream_schemas::routes::{RoutedLayer, RoutedPrompt, Rows};
use serde::Deserialize;

use crate::failure::Failure;
use crate::routes::{bytes, layers};
use crate::templates::{Class, add_capacity, classes};

/// Bytes of what `estream run --json --stats` prints; logits are not among them.
const MAX_STATS_BYTES: u64 = 64 << 20;

/// A model without a bundle: layers × experts × experts a token × bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShapeArg {
    layers: u64,
    experts: u64,
    top_k: u64,
    record_bytes: u64,
}

impl std::str::FromStr for ShapeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<ShapeArg, String> {
        let numbers: Result<Vec<u64>, _> = text.split('x').map(str::parse).collect();
        let shape = match numbers.as_deref() {
            Ok(&[layers, experts, top_k, record_bytes]) => ShapeArg {
                layers,
                experts,
                top_k,
                record_bytes,
            },
            _ => return Err("write it as LAYERSxEXPERTSxTOP_KxRECORD_BYTES".to_owned()),
        };
        let holds = (1..=MAX_LAYERS).contains(&shape.layers)
            && (1..=MAX_EXPERTS).contains(&shape.experts)
            && (1..=shape.experts).contains(&shape.top_k)
            && shape.record_bytes > 0;
        match holds {
            true => Ok(shape),
            false => Err(format!(
                "1 to {MAX_LAYERS} layers, 1 to {MAX_EXPERTS} experts, of which a token has at least one, and bytes"
            )),
        }
    }
}

impl std::fmt::Display for ShapeArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ShapeArg {
            layers,
            experts,
            top_k,
            record_bytes,
        } = self;
        write!(f, "{layers}x{experts}x{top_k}x{record_bytes}")
    }
}

/// A model, as far as it is simulated.
pub(crate) struct Model {
    pub(crate) layers: Vec<StoredLayer>,
    routed: Vec<RoutedLayer>,
    /// None are known of a shape.
    classes: Vec<Class>,
    /// Its storage order; by id, of a shape.
    pub(crate) stored: Orders,
}

impl Model {
    pub(crate) fn of_bundle(path: &Path) -> Result<Model, Failure> {
        let reader = BundleReader::open(path)?;
        let manifest = reader.bundle().manifest();
        let experts = manifest.experts.layers.iter();
        let stored = experts
            .clone()
            .map(|layer| (layer.layer, layer.order.clone()));
        Ok(Model {
            stored: stored.collect(),
            layers: experts
                .map(|layer| StoredLayer {
                    layer: layer.layer,
                    experts: layer.experts,
                    shards: layer.shards,
                    record_bytes: layer.record_bytes,
                })
                .collect(),
            routed: layers(manifest),
            classes: classes(&manifest.experts.layers),
        })
    }

    pub(crate) fn of_shape(shape: ShapeArg) -> Model {
        let layers = 0..shape.layers;
        Model {
            stored: Orders::new(),
            classes: Vec::new(),
            layers: layers
                .clone()
                .map(|layer| StoredLayer {
                    layer,
                    experts: shape.experts,
                    shards: 1,
                    record_bytes: shape.record_bytes,
                })
                .collect(),
            routed: layers
                .map(|layer| RoutedLayer {
                    layer,
                    experts: shape.experts,
                    top_k: shape.top_k,
                    pairs: Vec::new(),
                })
                .collect(),
        }
    }

    /// Layers and their experts.
    pub(crate) fn experts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let layers = self.layers.iter();
        layers.map(|layer| (layer.layer, layer.experts))
    }

    /// Records of the largest layer.
    pub(crate) fn most_records(&self) -> usize {
        let records = self.layers.iter().map(|layer| layer.experts * layer.shards);
        usize::try_from(records.max().unwrap_or(1)).unwrap_or(usize::MAX)
    }

    /// A prompt of `tokens` tokens whose routes follow the planner's model, by place in storage.
    pub(crate) fn expected(&self, tokens: u32, skew: u32) -> RoutedPrompt {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let routed = self.routed.iter().enumerate();
        let rows = routed.map(|(at, layer)| {
            let experts = (count(layer.experts), count(layer.top_k));
            let rows = expected_routes(experts, u64::from(tokens), skew, at).into_iter();
            let by_place: Vec<u32> = rows.map(|rows| rows.try_into().unwrap_or(tokens)).collect();
            match self.stored.get(&layer.layer) {
                None => Rows(by_place),
                Some(order) => {
                    let mut by_id = vec![0; by_place.len()];
                    for (expert, rows) in order.iter().zip(by_place) {
                        by_id[count(*expert)] = rows;
                    }
                    Rows(by_id)
                }
            }
        });
        RoutedPrompt {
            name: format!("{tokens} tokens"),
            tokens,
            rows: rows.collect(),
        }
    }

    /// As [`add_capacity`], for this model.
    pub(crate) fn add_capacity(&self, profile: &mut Profile) -> Option<String> {
        add_capacity(profile, self.slot_bytes(), &self.classes)
    }

    /// Bytes of the largest record.
    fn slot_bytes(&self) -> u64 {
        let layers = self.layers.iter();
        layers.map(|layer| layer.record_bytes).max().unwrap_or(0)
    }

    /// This model on a device, whose times are those of this name, or of records as large as the model's
    /// largest.
    pub(crate) fn on(&self, profile: &Profile, service: Option<&str>) -> Result<Setting, Failure> {
        let mut services = profile.services.iter();
        let fits = |service: &&Service| service.record_bytes == self.slot_bytes();
        let found = match service {
            Some(name) => services.find(|service| service.name == name),
            None => services.find(fits),
        };
        let found = found.ok_or_else(|| {
            let all: Vec<String> = profile
                .services
                .iter()
                .map(|service| format!("{:?} of {} bytes", service.name, service.record_bytes))
                .collect();
            let what = match service {
                Some(name) => format!("{name:?}"),
                None => format!("records of {} bytes", self.slot_bytes()),
            };
            let message = format!(
                "the profile {:?} has no times of {what}; it has [{}]",
                profile.name,
                all.join(", ")
            );
            Failure::new(Exit::CannotRun, anyhow::Error::msg(message))
        })?;
        Ok(Setting {
            storage: profile.storage.clone(),
            service: found.clone(),
            layers: self.layers.clone(),
            pinned: 0,
        })
    }
}

impl From<NoCost> for Failure {
    fn from(error: NoCost) -> Failure {
        Failure::new(Exit::Usage, error)
    }
}

/// What is simulated, as a run's timeline would have it.
pub(crate) fn events(forecast: &Forecast) -> Vec<Event> {
    let spans = forecast.spans.iter();
    spans
        .map(|span| {
            let (doing, thread) = match span.what {
                What::Other => (Doing::Layer, 0),
                What::Group => (Doing::Experts, 0),
                What::Head => (Doing::Head, 0),
                What::Read { lane } => (Doing::Read, lane + 1),
            };
            Event {
                doing,
                thread,
                step: span.step,
                first: span.first,
                records: span.records,
                start_ns: span.start_ns,
                end_ns: span.end_ns,
            }
        })
        .collect()
}

/// What `estream run --json --stats` printed, as far as it is predicted.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) prompt: Vec<u32>,
    pub(crate) stats: MeasuredStats,
}

#[derive(Debug, Deserialize)]
pub(crate) struct MeasuredStats {
    pub(crate) ttft_us: u64,
    #[serde(default)]
    pub(crate) stream: Option<MeasuredStream>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct MeasuredStream {
    schedule: Schedule,
    group: usize,
    depth: usize,
    banks: usize,
    early_records: usize,
    pub(crate) pinned: usize,
    pub(crate) reads: u64,
    pub(crate) records_read: u64,
    pub(crate) read_bytes: u64,
    pub(crate) io_us: u64,
    pub(crate) exec_us: u64,
    pub(crate) bubble: f64,
}

impl MeasuredStream {
    pub(crate) fn config(&self) -> StreamConfig {
        StreamConfig {
            schedule: self.schedule,
            group: self.group,
            depth: self.depth,
            banks: self.banks,
            early_records: self.early_records,
        }
    }
}

/// The statistics in a file.
pub(crate) fn measured(path: &Path) -> Result<Measured, Failure> {
    let text = bytes(path, MAX_STATS_BYTES)?;
    serde_json::from_slice(&text).map_err(|error| {
        let what = format!(
            "{}: not what estream run --json --stats prints: {error}",
            path.display()
        );
        Failure::new(Exit::Invalid, anyhow::Error::msg(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_four_numbers_that_can_be() {
        let shape: ShapeArg = "48x128x8x2654208".parse().unwrap();
        assert_eq!((shape.layers, shape.experts), (48, 128));
        assert_eq!(shape.to_string(), "48x128x8x2654208");
        for text in [
            "",
            "1x2x3",
            "1x2x1x4x5",
            "0x2x1x4",
            "1x2x3x4",
            "1x2x0x4",
            "1x2x1x0",
            "1x-2x1x4",
        ] {
            assert!(text.parse::<ShapeArg>().is_err(), "{text}");
        }
    }

    #[test]
    fn expected_routes_stand_where_the_planner_puts_them_whatever_the_order() {
        let shape: ShapeArg = "2x8x2x100".parse().unwrap();
        let plain = Model::of_shape(shape);
        let mut turned = Model::of_shape(shape);
        turned.stored = Orders::from([(0, vec![7, 6, 5, 4, 3, 2, 1, 0])]);
        let (plain, turned) = (plain.expected(5, 2), turned.expected(5, 2));
        let back: Vec<u32> = turned.rows[0].0.iter().rev().copied().collect();
        assert_eq!(back, plain.rows[0].0);
        assert_eq!(turned.rows[1], plain.rows[1]);
        assert_eq!(plain.rows[0].0.iter().sum::<u32>(), 10);
    }
}
