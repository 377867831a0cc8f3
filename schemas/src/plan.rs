//! How experts are streamed: (G, Q, B) and a schedule, by the length of the prompt.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::limits::at_most;
use crate::profile::Profile;

/// Value of [`Plan::format`].
pub const PLAN_FORMAT: &str = "estream-plan";
/// Value of [`Plan::version`].
pub const PLAN_VERSION: u64 = 1;
/// Folder of a bundle that holds plans, `NAME.json` each.
pub const PLANS: &str = "plans";

/// Bytes of a plan file.
pub const MAX_PLAN_BYTES: u64 = 1 << 20;
/// Rows of a plan.
const MAX_ROWS: usize = 64;
/// Records of a group, reads at a time, banks.
const MAX_COUNT: usize = 1 << 16;

/// Which records are read when. All execute records in storage order, so results are the
/// same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// All records are in memory before the first request.
    Resident,
    /// A group is read when the executor needs it, and nothing runs meanwhile.
    OnDemand,
    /// Groups are read in advance once a layer's routes are known.
    Prefetch,
    /// Groups are read in storage order from the start of a layer, before its routes are
    /// known; those without routes are then passed over (paper §3.4).
    Early,
    /// As `early` for the first records; then routed records only, into any free slot.
    Compact,
    /// As `compact`, and free slots take the next layer's first records while this layer's
    /// last ones run.
    Ahead,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Schedule; 6] = [
        Schedule::Resident,
        Schedule::OnDemand,
        Schedule::Prefetch,
        Schedule::Early,
        Schedule::Compact,
        Schedule::Ahead,
    ];

    /// Its name, on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Resident => "resident",
            Schedule::OnDemand => "on-demand",
            Schedule::Prefetch => "prefetch",
            Schedule::Early => "early",
            Schedule::Compact => "compact",
            Schedule::Ahead => "ahead",
        }
    }

    /// Whether it chooses records one by one, so that it can leave out those that stay in memory.
    pub fn is_by_record(self) -> bool {
        matches!(self, Schedule::Compact | Schedule::Ahead)
    }
}

/// Whether a record of a layer of `records` is one of the `pinned` that stay in memory: an even spread
/// over the storage order, which needs to know nothing of routes. All of them, if there are no more.
pub fn is_pinned(record: usize, records: usize, pinned: usize) -> bool {
    pinned >= records || (record as u64 * pinned as u64) % (records as u64) < pinned as u64
}

/// One way of streaming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Which records are read when.
    pub schedule: Schedule,
    /// G: records that are read and executed together.
    pub group: usize,
    /// Q: reads at a time.
    pub depth: usize,
    /// B: groups that fit into the arena.
    pub banks: usize,
    /// The most records of a layer that are read before its routes are known.
    pub early_records: usize,
}

/// A number of a [`StreamConfig`] that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}, outside {low} to {high}")]
pub struct NoConfig {
    /// Which number.
    pub what: &'static str,
    /// What it is.
    pub value: usize,
    /// The least it can be.
    pub low: usize,
    /// The most it can be.
    pub high: usize,
}

impl StreamConfig {
    /// What is used for layers of up to `records` records and a prompt of `tokens` tokens
    /// where nobody says otherwise.
    pub fn default_for(records: usize, tokens: usize) -> StreamConfig {
        let group = (records / 4).clamp(1, 8);
        StreamConfig::new(Schedule::Ahead, group, 2, 3, tokens)
    }

    /// A configuration whose early records are those of the rule: half a group for a prompt of up to
    /// 64 tokens, which need few of them, and all that fit for a longer one.
    pub fn new(
        schedule: Schedule,
        group: usize,
        depth: usize,
        banks: usize,
        tokens: usize,
    ) -> StreamConfig {
        StreamConfig {
            schedule,
            group,
            depth,
            banks,
            early_records: match tokens {
                0..=64 => group / 2,
                _ => group.saturating_mul(banks),
            },
        }
    }

    /// Slots of the arena: P = B · G (paper §3.3).
    pub fn slots(&self) -> usize {
        match self.schedule {
            Schedule::Resident => 0,
            _ => self.group.saturating_mul(self.banks),
        }
    }

    /// Errors unless every number is within its bounds, and Q ≤ B (paper eq. 6).
    pub fn check(&self) -> Result<(), NoConfig> {
        let within = |what, value: usize, high: usize| match (1..=high).contains(&value) {
            true => Ok(()),
            false => Err(NoConfig {
                what,
                value,
                low: 1,
                high,
            }),
        };
        within("group (G)", self.group, MAX_COUNT)?;
        within("banks (B)", self.banks, MAX_COUNT)?;
        within("depth (Q, at most B)", self.depth, self.banks)
    }
}

/// A plan: what to do for prompts of each length, on one device. Who follows one need not
/// read what is known of the device, and has [`serde::de::IgnoredAny`] in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Plan")
)]
#[serde(deny_unknown_fields)]
pub struct Plan<P = Profile> {
    /// `estream-plan`.
    pub format: String,
    /// 1.
    pub version: u64,
    /// The bundle it was made for.
    pub bundle: Digest,
    /// The device it was made for.
    pub profile: P,
    /// Records of each layer that stay in memory between requests; all of a layer that has fewer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pinned: u64,
    /// By length of the prompt, ascending; at least one.
    #[serde(deserialize_with = "rows")]
    pub rows: Vec<PlanRow>,
}

/// What to do for prompts up to a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PlanRow {
    /// The longest prompt it is for; the last row is also for longer ones.
    pub max_tokens: u64,
    /// How to stream.
    pub stream: StreamConfig,
    /// How to stream while the device is hot and reads slower; as ever, if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<StreamConfig>,
    /// T_max: the most tokens that go through the model together; a longer prompt is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u64>,
}

impl PlanRow {
    /// Every way of streaming that it has.
    pub fn configs(&self) -> impl Iterator<Item = &StreamConfig> {
        std::iter::once(&self.stream).chain(&self.hot)
    }

    /// The way for a device that is hot, or is not.
    pub fn config(&self, is_hot: bool) -> StreamConfig {
        self.hot.filter(|_| is_hot).unwrap_or(self.stream)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn rows<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<PlanRow>, D::Error> {
    let rows: Vec<PlanRow> = at_most(d, MAX_ROWS)?;
    if rows.is_empty() || !rows.is_sorted_by(|a, b| a.max_tokens < b.max_tokens) {
        return Err(serde::de::Error::custom("rows are none, or not ascending"));
    }
    for (at, row) in (1..).zip(&rows) {
        let refuse = |why: &dyn Display| serde::de::Error::custom(format!("row {at}: {why}"));
        row.stream.check().map_err(|why| refuse(&why))?;
        if let Some(hot) = row.hot {
            let checked = hot.check();
            checked.map_err(|why| refuse(&format_args!("hot: {why}")))?;
        }
        if row.chunk == Some(0) {
            return Err(refuse(&"chunk is 0; leave it out, or state tokens"));
        }
    }
    Ok(rows)
}

impl<P> Plan<P> {
    /// Says why it cannot be followed for the bundle whose identity this is, if it cannot.
    pub fn check(&self, bundle: Digest) -> Result<(), String> {
        match (self.format.as_str(), self.version, self.bundle == bundle) {
            (PLAN_FORMAT, PLAN_VERSION, true) => self.check_pins(),
            (PLAN_FORMAT, PLAN_VERSION, false) => Err(format!(
                "it was made for bundle {}, not {bundle}",
                self.bundle
            )),
            (PLAN_FORMAT, version, _) => Err(format!(
                "it has version {version}, this is for {PLAN_VERSION}"
            )),
            (format, ..) => Err(format!("it is {format:?}, not {PLAN_FORMAT:?}")),
        }
    }

    fn check_pins(&self) -> Result<(), String> {
        let configs = self.rows.iter().flat_map(PlanRow::configs);
        let mut schedules = configs.map(|config| config.schedule);
        match schedules.find(|schedule| !schedule.is_by_record()) {
            Some(schedule) if self.pinned > 0 => Err(format!(
                "it keeps {} records of each layer in memory, which schedule {} cannot leave out",
                self.pinned,
                schedule.name()
            )),
            _ => Ok(()),
        }
    }

    /// The row for a prompt of `tokens` tokens.
    pub fn row(&self, tokens: usize) -> &PlanRow {
        let at = self
            .rows
            .partition_point(|row| row.max_tokens < tokens as u64);
        &self.rows[at.min(self.rows.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_grows_with_the_layer_and_stops_at_eight() {
        let groups = [1, 3, 8, 31, 32, 128].map(|e| StreamConfig::default_for(e, 512).group);
        assert_eq!(groups, [1, 1, 2, 7, 8, 8]);
        assert_eq!(StreamConfig::default_for(64, 512).early_records, 24);
        assert_eq!(StreamConfig::default_for(64, 64).early_records, 4);
        assert_eq!(StreamConfig::default_for(64, 512).slots(), 24);
    }

    #[test]
    fn pins_are_spread_over_the_layer_and_as_many_as_asked_for() {
        let pins = |records, pinned| {
            let all = (0..records).filter(move |record| is_pinned(*record, records, pinned));
            all.collect::<Vec<_>>()
        };
        assert!(pins(8, 0).is_empty());
        assert_eq!(pins(8, 2), [0, 4]);
        assert_eq!(pins(8, 3), [0, 3, 6]);
        assert_eq!(pins(2, 3), [0, 1]);
        for records in [1, 5, 64, 127] {
            for pinned in 0..=records {
                let pins = pins(records, pinned);
                assert_eq!(pins.len(), pinned);
                let gaps = pins.windows(2).map(|pair| pair[1] - pair[0]);
                assert!(gaps.into_iter().all(|gap| gap <= records.div_ceil(pinned)));
            }
        }
    }

    #[test]
    fn pins_need_a_schedule_that_can_leave_records_out() {
        let with = |rows: &str| {
            let plan = Plan {
                pinned: 2,
                ..plan(rows).unwrap()
            };
            plan.check(plan.bundle)
        };
        let of = |schedule: &str| row(16, 1).replace("on-demand", schedule);
        assert_eq!(with(&of("ahead")), Ok(()));
        assert!(with(&of("early")).unwrap_err().contains("schedule early"));
        let both = |cold: &str, hot: &str| with(&with_hot(&of(cold), &of(hot)));
        assert_eq!(both("ahead", "compact"), Ok(()));
        for (cold, hot) in [("ahead", "early"), ("early", "ahead")] {
            assert!(both(cold, hot).unwrap_err().contains("schedule early"));
        }
    }

    fn plan(rows: &str) -> Result<Plan, serde_json::Error> {
        let zeros = "0".repeat(64);
        let rate = r#"{"read_bytes":1,"outstanding":1,"bytes_per_second":1}"#;
        let profile = format!(r#"{{"name":"x","storage":{{"latency_ns":0,"rates":[{rate}]}}}}"#);
        serde_json::from_str(&format!(
            r#"{{"format":"{PLAN_FORMAT}","version":1,"bundle":"{zeros}","profile":{profile},"rows":[{rows}]}}"#
        ))
    }

    fn row(max_tokens: u64, depth: usize) -> String {
        format!(
            r#"{{"max_tokens":{max_tokens},"stream":{{"schedule":"on-demand","group":8,"depth":{depth},"banks":3,"early_records":4}}}}"#
        )
    }

    /// A row that streams like another one on a hot device.
    fn with_hot(row: &str, other: &str) -> String {
        let row: PlanRow = serde_json::from_str(row).unwrap();
        let other: PlanRow = serde_json::from_str(other).unwrap();
        let row = PlanRow {
            hot: Some(other.stream),
            ..row
        };
        serde_json::to_string(&row).unwrap()
    }

    #[test]
    fn a_hot_device_has_its_own_way_where_the_row_has_one() {
        let plain = plan(&row(16, 1)).unwrap().rows[0];
        assert_eq!(plain.config(true), plain.config(false));
        assert!(!serde_json::to_string(&plain).unwrap().contains("hot"));
        let both = plan(&with_hot(&row(16, 1), &row(16, 3))).unwrap().rows[0];
        assert_eq!([false, true].map(|hot| both.config(hot).depth), [1, 3]);
        let depths = both.configs().map(|config| config.depth);
        assert_eq!(depths.collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_prompt_has_the_first_row_that_is_long_enough_or_the_last() {
        let plan = plan(&[row(16, 1), row(64, 2), row(512, 3)].join(",")).unwrap();
        let depths = [1, 16, 17, 64, 65, 512, 5000].map(|tokens| plan.row(tokens).stream.depth);
        assert_eq!(depths, [1, 1, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn who_follows_a_plan_need_not_read_its_profile() {
        let text = serde_json::to_string(&plan(&row(16, 1)).unwrap()).unwrap();
        let rows = serde_json::from_str::<Plan>(&text).unwrap().rows;
        let skipping: Plan<serde::de::IgnoredAny> = serde_json::from_str(&text).unwrap();
        assert_eq!(skipping.rows, rows);
        assert!(serde_json::from_str::<Plan<serde::de::IgnoredAny>>("{}").is_err());
    }

    #[test]
    fn rows_that_cannot_be_are_refused() {
        for (rows, says) in [
            (String::new(), "rows are none"),
            ([row(16, 1), row(16, 1)].join(","), "not ascending"),
            (
                row(16, 0),
                "row 1: depth (Q, at most B) is 0, outside 1 to 3",
            ),
            (
                row(16, 4),
                "row 1: depth (Q, at most B) is 4, outside 1 to 3",
            ),
            (
                row(16, 1).replace(r#""stream""#, r#""chunk":0,"stream""#),
                "row 1: chunk is 0",
            ),
            (
                [row(16, 1), with_hot(&row(32, 1), &row(16, 4))].join(","),
                "row 2: hot: depth (Q, at most B) is 4, outside 1 to 3",
            ),
            (
                with_hot(&row(16, 1), &row(16, 1).replace(":8", ":65537")),
                "row 1: hot: group (G) is 65537, outside 1 to 65536",
            ),
            (
                row(16, 1).replace(r#""stream""#, r#""hot":7,"stream""#),
                "invalid type: integer `7`, expected struct StreamConfig",
            ),
            (
                row(16, 1).replace(r#""stream""#, r#""hot":{"group":8},"stream""#),
                "missing field `schedule`",
            ),
            (
                with_hot(&row(16, 1), &row(16, 1)).replace(r#""hot":{"#, r#""hot":{"x":1,"#),
                "unknown field `x`",
            ),
        ] {
            let error = plan(&rows).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
