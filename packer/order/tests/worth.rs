//! Orders are worth what they should be worth, and no more.

use estream_order::{By, Cost, Orders, Setting, StoredLayer, arranged, best, compare, orders};
use estream_schemas::digest::Digest;
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_schemas::profile::{OtherTime, Rate, RecordTime, Service, Storage};
use estream_schemas::routes::{Recording, RoutedLayer, RoutedPrompt, Rows, pair, pair_count};

const RECORD_BYTES: u64 = 100;

/// A byte takes a nanosecond, a record 30 to run, the rest of a layer 50.
fn setting(layers: u64, experts: u64, shards: u64) -> Setting {
    let rate = |outstanding| Rate {
        read_bytes: 1,
        outstanding,
        bytes_per_second: 1_000_000_000 * outstanding,
    };
    Setting {
        storage: Storage {
            latency_ns: 0,
            rates: vec![rate(1), rate(2)],
            hot_rates: Vec::new(),
            buffer_bytes: None,
        },
        service: Service {
            name: "x".to_owned(),
            record_bytes: RECORD_BYTES,
            tile_rows: 32,
            capacity: None,
            other: [1, 16]
                .map(|tokens| OtherTime {
                    tokens,
                    group: None,
                    ns: 50,
                })
                .into(),
            records: vec![RecordTime { rows: 32, ns: 30 }],
            dispatch_ns: 0,
            publish_ns: 0,
            head_ns: 0,
        },
        layers: (0..layers)
            .map(|layer| StoredLayer {
                layer,
                experts,
                shards,
                record_bytes: RECORD_BYTES,
            })
            .collect(),
        pinned: 0,
    }
}

fn recording(layers: u64, top_k: u64, prompts: &[Vec<Vec<usize>>]) -> Recording {
    recording_of(layers, 16, top_k, prompts)
}

/// Of prompts, which are lists of the choices of each token, the same in all layers.
fn recording_of(layers: u64, experts: usize, top_k: u64, prompts: &[Vec<Vec<usize>>]) -> Recording {
    let mut pairs = vec![0; pair_count(experts)];
    let mut routed = Vec::new();
    for prompt in prompts {
        let mut rows = vec![0; experts];
        for chosen in prompt {
            for (at, expert) in chosen.iter().enumerate() {
                rows[*expert] += 1;
                for other in &chosen[..at] {
                    pairs[pair(experts, *expert, *other).unwrap()] += 1;
                }
            }
        }
        routed.push(RoutedPrompt {
            name: "p".to_owned(),
            tokens: u32::try_from(prompt.len()).unwrap(),
            rows: vec![Rows(rows); usize::try_from(layers).unwrap()],
        });
    }
    let recording = Recording {
        format: "estream-routes".to_owned(),
        version: 1,
        bundle: Digest([0; 32]),
        layers: (0..layers)
            .map(|layer| RoutedLayer {
                layer,
                experts: experts as u64,
                top_k,
                pairs: pairs.clone(),
            })
            .collect(),
        prompts: routed,
    };
    recording.check().unwrap();
    recording
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    /// Two different ones of a list.
    fn two(&mut self, of: &[usize]) -> Vec<usize> {
        let first = self.below(of.len());
        let second = (first + 1 + self.below(of.len() - 1)) % of.len();
        vec![of[first], of[second]]
    }
}

/// Prompts of 6 tokens with 2 of 16 experts each: those of one of four topics, to which every fourth expert
/// belongs; or any.
fn prompts(seed: u64, count: usize, topics: bool) -> Vec<Vec<Vec<usize>>> {
    let mut dice = Dice(seed);
    let prompt = |_| {
        let topic = dice.below(4);
        let of: Vec<usize> = match topics {
            true => (0..4).map(|at| 4 * at + topic).collect(),
            false => (0..16).collect(),
        };
        (0..6).map(|_| dice.two(&of)).collect()
    };
    (0..count).map(prompt).collect()
}

fn prefetch() -> StreamConfig {
    StreamConfig::new(Schedule::Prefetch, 4, 1, 2, 16)
}

fn named(name: &str, orders: Orders) -> (String, Orders) {
    (name.to_owned(), orders)
}

#[test]
fn a_cost_is_what_a_drawing_says() {
    // Experts 0 and 2 of 4 have rows; slices of 2. By id both are read, and run at 250 and 450.
    let setting = setting(1, 4, 1);
    let recording = recording_of(1, 4, 2, &[vec![vec![0, 2]]]);
    let config = StreamConfig::new(Schedule::Prefetch, 2, 1, 2, 1);
    let cost = |order: &[u64]| {
        let orders = Orders::from([(0, order.to_vec())]);
        setting.costs(&recording.prompts, &orders, &config).unwrap()[0]
    };
    let scattered = Cost {
        read_bytes: 400,
        reads: 2,
        total_ns: 50 + 400 + 30,
        first_group_ns: 200,
    };
    assert_eq!(cost(&[0, 1, 2, 3]), scattered);
    let together = Cost {
        read_bytes: 200,
        reads: 1,
        total_ns: 50 + 200 + 60,
        first_group_ns: 200,
    };
    assert_eq!(cost(&[1, 3, 2, 0]), together);
    // No order is by id.
    let by_id = setting.costs(&recording.prompts, &Orders::new(), &config);
    assert_eq!(by_id.unwrap(), [scattered]);
}

#[test]
fn shards_of_an_expert_have_its_rows_and_stay_together() {
    let setting = setting(1, 2, 2);
    let recording = recording_of(1, 2, 1, &[vec![vec![1]]]);
    let config = StreamConfig::new(Schedule::Compact, 1, 1, 2, 1);
    let orders = Orders::from([(0, vec![1, 0])]);
    let cost = setting.costs(&recording.prompts, &orders, &config).unwrap()[0];
    assert_eq!((cost.read_bytes, cost.reads), (200, 2));
}

#[test]
fn topics_are_found_and_help_with_prompts_that_nobody_has_seen() {
    let setting = setting(3, 16, 1);
    let train = recording(3, 2, &prompts(1, 40, true));
    let unseen = recording(3, 2, &prompts(2, 40, true));
    let by_topic = orders(&train, By::Coactivation { group: 4 });
    let all = [
        named("id", orders(&train, By::Id)),
        named("coactivation", by_topic),
    ];
    let compared = compare(&setting, &prefetch(), &unseen.prompts, &all).unwrap();
    let bytes = compared[1].read_change.unwrap();
    // One slice of four instead of nearly all of them.
    assert!(bytes.high < -0.6 && bytes.is_clear(), "{bytes:?}");
    assert!(compared[1].ttft_change.unwrap().high < 0.0);
    assert_eq!(compared[0].read_change, None);
}

#[test]
fn where_there_is_nothing_to_find_nothing_is_claimed() {
    let setting = setting(3, 16, 1);
    let train = recording(3, 2, &prompts(3, 40, false));
    let unseen = recording(3, 2, &prompts(4, 40, false));
    let all = [
        named("id", orders(&train, By::Id)),
        named(
            "coactivation",
            orders(&train, By::Coactivation { group: 4 }),
        ),
    ];
    let compared = compare(&setting, &prefetch(), &unseen.prompts, &all).unwrap();
    let bytes = compared[1].read_change.unwrap();
    assert!(!bytes.is_clear() && bytes.mean.abs() < 0.05, "{bytes:?}");
}

/// Popular experts have the high numbers, so that by id what is read early is in vain.
#[test]
fn frequency_is_no_worse_than_any_arrangement_where_it_decides_what_is_read_early() {
    let setting = setting(1, 8, 1);
    let mut dice = Dice(5);
    let popular = |dice: &mut Dice| vec![7 - dice.below(8).min(dice.below(8)).min(dice.below(8))];
    let prompts: Vec<_> = (0..12).map(|_| vec![popular(&mut dice)]).collect();
    let recording = recording_of(1, 8, 1, &prompts);
    let config = StreamConfig {
        early_records: 2,
        ..StreamConfig::new(Schedule::Compact, 1, 1, 8, 1)
    };
    let total = |order: &[u64]| {
        let orders = Orders::from([(0, order.to_vec())]);
        let costs = setting.costs(&recording.prompts, &orders, &config).unwrap();
        costs.iter().map(|cost| cost.total_ns).sum::<u64>()
    };
    let by_frequency = total(&orders(&recording, By::Frequency)[&0]);
    let by_id = total(&orders(&recording, By::Id)[&0]);
    let (_, least) = best(&[0, 1, 2, 3, 4, 5, 6, 7], total).unwrap();
    assert!(by_frequency < by_id, "{by_frequency}, {by_id}");
    assert_eq!(by_frequency, least);
}

#[test]
fn arranged_groups_are_the_same_groups_and_cost_no_more() {
    let setting = setting(2, 16, 1);
    let recording = recording(2, 2, &prompts(6, 5, true));
    let config = StreamConfig::new(Schedule::Early, 4, 1, 2, 16);
    let by_id = orders(&recording, By::Id);
    let found = arranged(&setting, &config, &recording.prompts, &by_id).unwrap();
    let total = |orders: &Orders| {
        let costs = setting.costs(&recording.prompts, orders, &config).unwrap();
        costs.iter().map(|cost| cost.total_ns).sum::<u64>()
    };
    assert!(total(&found) <= total(&by_id));
    for (layer, order) in &found {
        let groups = |order: &[u64]| {
            let mut groups: Vec<_> = order.chunks(4).map(<[u64]>::to_vec).collect();
            groups.sort_unstable();
            groups
        };
        assert_eq!(groups(order), groups(&by_id[layer]));
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let setting = setting(1, 4, 1);
    let recording = recording_of(1, 3, 1, &[vec![vec![0]]]);
    let config = StreamConfig::new(Schedule::Ahead, 2, 1, 2, 1);
    let short = Orders::from([(0, vec![0, 1, 2])]);
    let error = setting
        .costs(&recording.prompts, &short, &config)
        .unwrap_err();
    assert!(error.to_string().contains("routes of 3 records"), "{error}");
    let config = StreamConfig { depth: 3, ..config };
    let error = setting.costs(&recording.prompts, &Orders::new(), &config);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("depth (Q, at most B) is 3"), "{error}");
}
