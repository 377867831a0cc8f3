//! The buffers of an arena, against the runtime's own rule, for bundles of all sizes.

#[path = "../../../../runtime-min/src/stream/buffers.rs"]
#[expect(dead_code, reason = "not all of the runtime's is used here")]
mod buffers;

use estream_schemas::dtype::DType;
use estream_schemas::layout::Layout;
use estream_schemas::manifest::{ALIGN, ExpertLayer, Experts, Region};
use estream_schemas::plan::Schedule;
use estream_schemas::profile::Limits;

use self::buffers::Buffers;
use super::{Dice, Reads, question};
use crate::{Problem, Rule};

/// One record a layer, with gate, up and down of so many bytes.
fn experts(layers: &[[u64; 3]]) -> Experts {
    let layer = |&[gate, up, down]: &[u64; 3]| {
        let region = |offset, bytes| Region {
            layout: Layout::rows(DType::F32),
            rows: 32,
            cols: bytes / 128,
            offset,
            bytes,
        };
        ExpertLayer {
            layer: 0,
            part: 0,
            offset: 0,
            record_bytes: gate + up + down,
            experts: 1,
            shards: 1,
            order: vec![0],
            digests: Vec::new(),
            gate: region(0, gate),
            up: region(gate, up),
            down: region(gate + up, down),
        }
    };
    let layers: Vec<ExpertLayer> = layers.iter().map(layer).collect();
    Experts {
        slot_bytes: layers.iter().map(|layer| layer.record_bytes).max().unwrap(),
        parts: Vec::new(),
        layers,
    }
}

#[test]
fn a_bank_is_refused_where_the_runtime_refuses_it_and_its_buffers_are_the_runtimes() {
    let mut dice = Dice(14);
    // Refused, in one buffer, in one a bank, in three a bank.
    let mut ways = [0; 4];
    for _ in 0..600 {
        let mut question = question(&mut dice, Reads::Equal, 100);
        let mut layers = Vec::new();
        for layer in &mut question.layers {
            let regions = [(); 3].map(|()| dice.between(1, 9) * ALIGN);
            layer.record_bytes = regions.iter().sum();
            layers.push(regions);
        }
        let experts = experts(&layers);
        // Sizes at which something just fits, or just not.
        let limit = dice.between(1, 60) * ALIGN - dice.below(2);
        let limit = dice.chance(80).then_some(limit);
        question.service.record_bytes = experts.slot_bytes;
        question.region_bytes = *layers.iter().flatten().max().unwrap();
        question.storage.buffer_bytes = limit;
        question.budget_bytes = u64::MAX;
        question.limits = Limits {
            buffers: Some(u64::MAX),
            // The runtime has slots of its own.
            alignment_bytes: dice.chance(20).then_some(8 * ALIGN),
            ..Limits::default()
        };
        let problem = Problem::new(question).unwrap();
        for (schedule, size, depth) in problem.lanes() {
            let most = problem.max_banks(schedule, &size);
            for banks in 1..=5 {
                let config = problem.plain(schedule, &size, depth, banks);
                let inequalities = problem.inequalities(&config, &size);
                let find = |rule| inequalities.iter().find(|one| one.rule == rule);
                let (bank, count) = (find(Rule::Buffer), find(Rule::Buffers));
                if schedule == Schedule::Resident {
                    assert!(bank.is_none() && count.is_none(), "no arena, no buffers");
                    continue;
                }
                let way = match Buffers::new(&experts, config.slots(), config.group, limit) {
                    Err(refused) => {
                        let bank = bank.unwrap();
                        assert!(!bank.holds(), "{bank}");
                        assert_eq!(bank.left, u128::from(refused.needed));
                        assert_eq!(most, 0);
                        0
                    }
                    Ok(buffers) => {
                        assert!(bank.is_none_or(|bank| bank.holds()), "{bank:?}");
                        assert_eq!(most, problem.most_banks(schedule, size.group));
                        let buffers = buffers.sizes().count();
                        assert_eq!(count.unwrap().left, buffers as u128, "{config:?}");
                        if limit.is_none() {
                            1
                        } else {
                            1 + buffers / banks
                        }
                    }
                };
                ways[way.min(3)] += 1;
            }
        }
    }
    assert!(ways.iter().all(|count| *count > 1000), "{ways:?}");
}

#[test]
fn a_plan_has_no_more_buffers_than_the_device_takes() {
    let mut dice = Dice(15);
    let (mut planned, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut question = question(&mut dice, Reads::BySize, 100);
        let layers: Vec<_> = question.layers.iter().map(|_| [ALIGN; 3]).collect();
        question
            .layers
            .iter_mut()
            .for_each(|layer| layer.record_bytes = 3 * ALIGN);
        let experts = experts(&layers);
        let most = dice.between(1, 8);
        question.service.record_bytes = 3 * ALIGN;
        question.region_bytes = ALIGN;
        question.storage.buffer_bytes = Some(dice.between(1, 16) * ALIGN);
        question.budget_bytes = u64::MAX;
        question.limits = Limits {
            buffers: Some(most),
            ..Limits::default()
        };
        question
            .schedules
            .retain(|schedule| *schedule != Schedule::Resident);
        let limit = question.storage.buffer_bytes;
        let problem = Problem::new(question).unwrap();
        match crate::plan(&problem) {
            Ok(choice) => {
                planned += 1;
                let config = choice.chosen.config;
                let buffers = Buffers::new(&experts, config.slots(), config.group, limit);
                assert!(buffers.unwrap().sizes().count() as u64 <= most);
            }
            Err(error) => {
                refused += 1;
                let mut failed = error.inequalities.iter().filter(|one| !one.holds());
                let rules = [Rule::Buffer, Rule::Buffers, Rule::Banks];
                assert!(failed.all(|one| rules.contains(&one.rule)), "{error}");
            }
        }
    }
    assert!(planned > 50 && refused > 20, "{planned}, {refused}");
}
