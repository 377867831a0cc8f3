//! Service times: how long a device computes, by model.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Serialize};

use super::line;
use crate::limits::at_most;

/// Points of one list.
const MAX_POINTS: usize = 1 << 10;

/// How long a device computes for one model, its experts in records of one size. Reading is not
/// part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// What the times are of, such as a model's name.
    pub name: String,
    /// Bytes of the largest record that they are of: times of another size say nothing.
    pub record_bytes: u64,
    /// Rows that an execution works on at a time: it takes as long for fewer. 32 on Hexagon; 1
    /// where it is left out.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub tile_rows: u64,
    /// C: rows that one invocation of a kernel takes at most. A record with more takes several, one after
    /// another; no limit where it is left out.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "capacity"
    )]
    pub capacity: Option<u64>,
    /// T^ne by tokens: what a layer with experts computes besides them, and its share of what layers
    /// without experts do. Tokens ascend; at least one point.
    #[serde(deserialize_with = "other")]
    pub other: Vec<OtherTime>,
    /// Execution of one record by its routed rows, which ascend; at least one point.
    #[serde(deserialize_with = "records")]
    pub records: Vec<RecordTime>,
    /// What the submission of a group takes besides, in nanoseconds.
    #[serde(default)]
    pub dispatch_ns: u64,
    /// What comes between the end of a read and the use of its records, in nanoseconds.
    #[serde(default)]
    pub publish_ns: u64,
    /// What comes after the last layer, in nanoseconds.
    #[serde(default)]
    pub head_ns: u64,
}

/// Time of what is no expert's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OtherTime {
    /// Tokens of a pass.
    pub tokens: u64,
    /// G while it was measured, for the record: it does not depend on it, so points of the
    /// same tokens are pooled (paper §3.4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// Nanoseconds a layer.
    pub ns: u64,
}

/// Time of the execution of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RecordTime {
    /// Routed rows.
    pub rows: u64,
    /// Nanoseconds.
    pub ns: u64,
}

fn one() -> u64 {
    1
}

fn is_one(rows: &u64) -> bool {
    *rows == 1
}

fn capacity<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    match Deserialize::deserialize(d)? {
        Some(0) => Err(Error::custom("capacity is 0; leave it out for no limit")),
        rows => Ok(rows),
    }
}

fn other<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<OtherTime>, D::Error> {
    let points: Vec<OtherTime> = at_most(d, MAX_POINTS)?;
    let ascends = points.is_sorted_by_key(|point| point.tokens);
    match points.first() {
        Some(first) if first.tokens > 0 && ascends => Ok(points),
        _ => Err(Error::custom(
            "other is empty, or its tokens do not ascend from 1 on",
        )),
    }
}

fn records<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<RecordTime>, D::Error> {
    let points: Vec<RecordTime> = at_most(d, MAX_POINTS)?;
    let ascends = points.is_sorted_by(|a, b| a.rows < b.rows);
    match points.first() {
        Some(first) if first.rows > 0 && ascends => Ok(points),
        _ => Err(Error::custom(
            "records is empty, or its rows do not ascend from 1 on",
        )),
    }
}

impl Service {
    /// T^ne of one layer for a pass of `tokens` tokens: points of the same tokens are one, their
    /// mean; linear between points and after the last two.
    pub fn other_ns(&self, tokens: u64) -> u64 {
        let mut sums: BTreeMap<u64, (u128, u128)> = BTreeMap::new();
        for point in &self.other {
            let (sum, count) = sums.entry(point.tokens).or_default();
            *sum += u128::from(point.ns);
            *count += 1;
        }
        let mean = |(sum, count): (u128, u128)| u64::try_from(sum / count).unwrap_or(u64::MAX);
        let pooled = sums.into_iter().map(|(tokens, of)| (tokens, mean(of)));
        line::at(&pooled.collect::<Vec<_>>(), tokens)
    }

    /// Execution of a record with so many rows: 0 for none. They are ⌈rows / C⌉ invocations, of
    /// [`capacity`](Service::capacity) rows each but for the rest.
    pub fn record_ns(&self, rows: u64) -> u64 {
        let capacity = self.capacity.unwrap_or(u64::MAX).max(1);
        let whole = match rows / capacity {
            0 => 0,
            count => self.invocation_ns(capacity).saturating_mul(count),
        };
        whole.saturating_add(self.invocation_ns(rows % capacity))
    }

    /// One invocation with so many rows: 0 for none. Rows are rounded up to a multiple of
    /// [`tile_rows`](Service::tile_rows); linear between points and after the last two.
    fn invocation_ns(&self, rows: u64) -> u64 {
        if rows == 0 {
            return 0;
        }
        let tile = self.tile_rows.max(1);
        let rows = rows.div_ceil(tile).saturating_mul(tile);
        let points: Vec<_> = self
            .records
            .iter()
            .map(|point| (point.rows, point.ns))
            .collect();
        line::at(&points, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = r#""name":"x","record_bytes":9"#;

    fn parse(rest: &str) -> Result<Service, serde_json::Error> {
        serde_json::from_str(&format!("{{{SERVICE},{rest}}}"))
    }

    #[test]
    fn a_tile_takes_as_long_for_one_row_as_for_all() {
        let service = parse(
            r#""tile_rows":32,"other":[{"tokens":1,"ns":1}],"records":[{"rows":32,"ns":1000},{"rows":96,"ns":2000}]"#,
        )
        .unwrap();
        for (rows, ns) in [
            (0, 0),
            (1, 1000),
            (32, 1000),
            (33, 1500),
            (64, 1500),
            (97, 2500),
        ] {
            assert_eq!(service.record_ns(rows), ns, "{rows} rows");
        }
        assert_eq!(service.record_ns(u64::MAX), u64::MAX);
    }

    #[test]
    fn more_rows_than_an_invocation_takes_are_several() {
        let limited = |capacity: &str| {
            parse(&format!(
                r#""tile_rows":32,{capacity}"other":[{{"tokens":1,"ns":1}}],"records":[{{"rows":32,"ns":1000}},{{"rows":96,"ns":2000}}]"#
            ))
        };
        let service = limited(r#""capacity":64,"#).unwrap();
        for (rows, ns) in [
            (0, 0),
            (33, 1500),
            (64, 1500),
            (65, 1500 + 1000),
            (128, 2 * 1500),
            (161, 2 * 1500 + 1500),
        ] {
            assert_eq!(service.record_ns(rows), ns, "{rows} rows");
        }
        assert_eq!(service.record_ns(u64::MAX), u64::MAX);
        assert_eq!(limited("").unwrap().record_ns(161), 3500);
        let none = limited(r#""capacity":0,"#).unwrap_err().to_string();
        assert!(none.contains("capacity is 0"), "{none}");
    }

    #[test]
    fn other_times_are_pooled_over_groups() {
        let service = parse(
            r#""other":[{"tokens":100,"group":4,"ns":10},{"tokens":100,"group":8,"ns":30},{"tokens":200,"ns":40}],"records":[{"rows":1,"ns":1}]"#,
        )
        .unwrap();
        assert_eq!(
            [100, 150, 300].map(|tokens| service.other_ns(tokens)),
            [20, 30, 60]
        );
        assert_eq!(service.tile_rows, 1);
        assert_eq!(
            [service.dispatch_ns, service.publish_ns, service.head_ns],
            [0; 3]
        );
    }

    #[test]
    fn lists_that_say_nothing_are_refused() {
        let other = r#""other":[{"tokens":1,"ns":1}]"#;
        let records = r#""records":[{"rows":1,"ns":1}]"#;
        for (rest, says) in [
            (format!(r#""other":[],{records}"#), "other is empty"),
            (
                format!(r#""other":[{{"tokens":0,"ns":1}}],{records}"#),
                "from 1 on",
            ),
            (
                format!(r#""other":[{{"tokens":2,"ns":1}},{{"tokens":1,"ns":1}}],{records}"#),
                "tokens do not ascend",
            ),
            (format!(r#"{other},"records":[]"#), "records is empty"),
            (
                format!(r#"{other},"records":[{{"rows":2,"ns":1}},{{"rows":2,"ns":1}}]"#),
                "rows do not ascend",
            ),
            (
                format!(
                    r#"{other},"records":[{}]"#,
                    vec![r#"{"rows":1,"ns":1}"#; 1025].join(",")
                ),
                "at most 1024",
            ),
            (records.to_owned(), "missing field `other`"),
        ] {
            let error = parse(&rest).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
