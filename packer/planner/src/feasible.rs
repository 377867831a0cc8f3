//! What has to hold of a configuration (paper equations 6 and 8), with its numbers.

use std::fmt;

use estream_schemas::manifest::ALIGN;
use estream_schemas::plan::{Schedule, StreamConfig};

use crate::problem::{GroupSize, Problem};

/// Which inequality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Q ≤ B (equation 6).
    Depth,
    /// B ≤ ⌈max_l R_l / G⌉, R_l the records of layer l: more are never used. Twice that for `ahead`.
    Banks,
    /// B·G·W_e + M_other(G) ≤ M_max (equation 6).
    Memory,
    /// What an accelerator has mapped fits.
    Mapping,
    /// A buffer holds a bank, or at least one projection of its records.
    Buffer,
    /// The arena consists of so many buffers: one or three a bank, or one in all where their size has no limit.
    Buffers,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 6] = [
        Rule::Depth,
        Rule::Banks,
        Rule::Memory,
        Rule::Mapping,
        Rule::Buffer,
        Rule::Buffers,
    ];
}

/// An inequality and its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inequality {
    /// Which one.
    pub rule: Rule,
    /// Of which configuration.
    pub config: StreamConfig,
    /// What has to be at most [`right`](Inequality::right).
    pub left: u128,
    /// The limit.
    pub right: u128,
    /// How the left side comes about.
    sum: String,
}

impl Inequality {
    /// Whether it does.
    pub fn holds(&self) -> bool {
        self.left <= self.right
    }
}

impl fmt::Display for Inequality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.rule {
            Rule::Depth => "Q ≤ B",
            Rule::Banks => "B ≤ ⌈records / G⌉",
            Rule::Memory => "B·G·W_e + M_other(G) ≤ M_max",
            Rule::Mapping => "B·G·W_e + mapped ≤ mapping limit",
            Rule::Buffer => "a bank, or a projection of it, ≤ buffer",
            Rule::Buffers => "buffers of the arena ≤ buffers",
        };
        let (sign, verdict) = match self.holds() {
            true => ("≤", "holds"),
            false => (">", "does not hold"),
        };
        let Inequality {
            sum, right, config, ..
        } = self;
        let StreamConfig { group, banks, .. } = config;
        write!(
            f,
            "G = {group}, B = {banks}: {name} {verdict}: {sum} {sign} {right}"
        )
    }
}

/// A buffer of `group` records or projections, with what it takes to align them.
fn buffer_bytes(group: usize, each_bytes: u64) -> u128 {
    group as u128 * u128::from(each_bytes) + u128::from(ALIGN)
}

impl Problem {
    /// Bytes of the arena: B·G·W_e (paper §3.3). For `resident`, of all records.
    pub(crate) fn arena_bytes(&self, config: &StreamConfig) -> u128 {
        match config.schedule {
            Schedule::Resident => self.expert_bytes,
            _ => config.slots() as u128 * u128::from(self.slot_bytes),
        }
    }

    /// The most banks that can be of use.
    pub(crate) fn most_banks(&self, schedule: Schedule, group: usize) -> usize {
        let banks = self.most_records.div_ceil(group);
        match schedule {
            Schedule::Resident => 1,
            Schedule::Ahead => 2 * banks,
            _ => banks,
        }
    }

    /// Both sides of an inequality; none if there is no such limit.
    fn sides(&self, rule: Rule, config: &StreamConfig, size: &GroupSize) -> Option<(u128, u128)> {
        let question = self.question();
        let (banks, resident) = (config.banks as u128, config.schedule == Schedule::Resident);
        let wide = |bytes: Option<u64>| bytes.map(u128::from);
        match rule {
            Rule::Depth => (!resident).then_some((config.depth as u128, banks)),
            Rule::Banks => {
                let most = self.most_banks(config.schedule, config.group);
                (!resident).then_some((banks, most as u128))
            }
            Rule::Memory => {
                let used = self.arena_bytes(config) + u128::from(size.other_bytes);
                Some((used, u128::from(question.budget_bytes)))
            }
            Rule::Mapping => {
                let limit = wide(question.limits.mapping_bytes)?;
                let used = self.arena_bytes(config) + u128::from(size.mapped_bytes);
                Some((used, limit))
            }
            // What is resident is in no arena.
            Rule::Buffer | Rule::Buffers if resident => None,
            Rule::Buffer => {
                let limit = wide(question.storage.buffer_bytes)?;
                Some((buffer_bytes(config.group, self.smallest_bytes()), limit))
            }
            Rule::Buffers => Some((self.buffers(config), wide(question.limits.buffers)?)),
        }
    }

    /// What a buffer holds at least of each record of a bank: a projection.
    fn smallest_bytes(&self) -> u64 {
        self.record_bytes().min(self.question().region_bytes)
    }

    /// The buffers that the runtime makes an arena of (`runtime-min/src/stream/buffers.rs`).
    fn buffers(&self, config: &StreamConfig) -> u128 {
        let Some(limit) = self.question().storage.buffer_bytes else {
            return 1;
        };
        let bank_bytes = buffer_bytes(config.group, self.record_bytes());
        let each = if bank_bytes <= u128::from(limit) {
            1
        } else {
            3
        };
        each * config.banks as u128
    }

    /// Bytes between slots, as the runtime has them.
    fn record_bytes(&self) -> u64 {
        self.question().service.record_bytes
    }

    /// Every inequality of a configuration, if its G is a candidate.
    pub(crate) fn inequalities(&self, config: &StreamConfig, size: &GroupSize) -> Vec<Inequality> {
        let of = |rule: Rule| {
            let (left, right) = self.sides(rule, config, size)?;
            let StreamConfig { group, banks, .. } = config;
            let slot = self.slot_bytes;
            let arena = match config.schedule {
                Schedule::Resident => self.expert_bytes.to_string(),
                _ => format!("{banks}·{group}·{slot}"),
            };
            let sum = match rule {
                Rule::Memory => format!("{arena} + {} = {left}", size.other_bytes),
                Rule::Mapping => format!("{arena} + {} = {left}", size.mapped_bytes),
                Rule::Buffer => format!("{group}·{} + {ALIGN} = {left}", self.smallest_bytes()),
                _ => left.to_string(),
            };
            Some(Inequality {
                rule,
                config: *config,
                left,
                right,
                sum,
            })
        };
        Rule::ALL.into_iter().filter_map(of).collect()
    }

    fn holds(&self, rules: &[Rule], config: &StreamConfig, size: &GroupSize) -> bool {
        let sides = rules
            .iter()
            .filter_map(|rule| self.sides(*rule, config, size));
        sides.into_iter().all(|(left, right)| left <= right)
    }

    /// B_max(G) of paper equation 8, also for what a device can take; 0 if no B does.
    pub(crate) fn max_banks(&self, schedule: Schedule, size: &GroupSize) -> usize {
        let fits = |banks| self.holds(&Rule::ALL[2..], &self.plain(schedule, size, 1, banks), size);
        // All of these hold for fewer banks where they hold for more.
        let (mut low, mut high) = (0, self.most_banks(schedule, size.group));
        while low < high {
            let middle = high - (high - low) / 2;
            match fits(middle) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        low
    }

    /// The least M_max with which a configuration of this schedule and G is feasible; none if something
    /// else forbids all.
    pub(crate) fn least_budget(
        &self,
        schedule: Schedule,
        size: &GroupSize,
        depth: usize,
    ) -> Option<u64> {
        let config = self.plain(schedule, size, depth, depth);
        let rules = [
            Rule::Depth,
            Rule::Banks,
            Rule::Mapping,
            Rule::Buffer,
            Rule::Buffers,
        ];
        let (used, _) = self.sides(Rule::Memory, &config, size)?;
        let used = u64::try_from(used).ok()?;
        self.holds(&rules, &config, size).then_some(used)
    }

    /// A configuration as far as inequalities are concerned.
    pub(crate) fn plain(
        &self,
        schedule: Schedule,
        size: &GroupSize,
        depth: usize,
        banks: usize,
    ) -> StreamConfig {
        StreamConfig::new(schedule, size.group, depth, banks, self.tokens)
    }
}
