//! From what was asked for to a way of streaming, and why it is this one.

use std::str::FromStr;

use estream_schemas::plan::{Plan, PlanRow, Schedule, StreamConfig};
use estream_schemas::profile::Storage as StorageProfile;
use serde::Deserialize;

use super::{Streaming, is_resident};
use crate::error::RunError;
use crate::reader::BundleReader;

/// The longest prompt of which half a group is read before its routes are known.
const SHORT: usize = 64;

/// Records of each layer that stay in memory from one request to the next: an even spread over
/// the storage order, and all of a layer that has fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// So many.
    Records(usize),
    /// As many as the budget leaves room for.
    Max,
}

impl Default for Pin {
    fn default() -> Pin {
        Pin::Records(0)
    }
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Pin, String> {
        match (text, text.parse()) {
            ("max", _) => Ok(Pin::Max),
            (_, Ok(count)) => Ok(Pin::Records(count)),
            (_, Err(_)) => Err(format!("{text:?} is neither a number of records nor max")),
        }
    }
}

impl Pin {
    /// Errors unless every row's schedules can leave records out.
    pub(crate) fn check(self, rows: &[PlanRow]) -> Result<(), RunError> {
        let configs = rows.iter().flat_map(PlanRow::configs);
        let mut schedules = configs.map(|config| config.schedule);
        match schedules.find(|schedule| !schedule.is_by_record()) {
            Some(schedule) if self != Pin::default() => Err(RunError::Pins {
                schedule: schedule.name(),
            }),
            _ => Ok(()),
        }
    }
}

/// How somebody wants experts to be streamed; what is left out follows the defaults.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// A plan of the bundle, instead of all that follows but pins and the throttle.
    pub plan: Option<String>,
    /// Which records are read when.
    pub schedule: Option<Schedule>,
    /// G.
    pub group: Option<usize>,
    /// Q.
    pub depth: Option<usize>,
    /// B.
    pub banks: Option<usize>,
    /// Records that stay in memory, instead of those of the plan.
    pub pin: Option<Pin>,
    /// Storage to imitate.
    pub throttle: Option<StorageProfile>,
}

/// A way of streaming, and where it comes from.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// None if all experts stay in memory.
    pub streaming: Option<Streaming>,
    /// One line for people.
    pub why: String,
}

impl Choice {
    /// What it means for a bundle.
    ///
    /// # Errors
    /// If the bundle has no such plan, it is not for this bundle, or a number cannot be.
    pub fn resolve(&self, reader: &BundleReader) -> Result<Chosen, RunError> {
        let (rows, pin, buffer_bytes, why) = match &self.plan {
            Some(name) => {
                let plan = plan(reader, name)?;
                let pinned = usize::try_from(plan.pinned).unwrap_or(usize::MAX);
                let buffer_bytes = plan.profile.storage.buffer_bytes;
                let why = format!("plan {name}");
                (plan.rows, Pin::Records(pinned), buffer_bytes, why)
            }
            None => {
                let (rows, why) = self.rows(reader);
                (rows, Pin::default(), None, why)
            }
        };
        let pin = self.pin.unwrap_or(pin);
        pin.check(&rows)?;
        let configs = || rows.iter().flat_map(PlanRow::configs);
        if configs().all(is_resident) {
            return match configs().find_map(|config| config.check().err()) {
                Some(bad) => Err(RunError::Stream(bad)),
                None => Ok(Chosen {
                    streaming: None,
                    why: format!("{why}: all experts stay in memory"),
                }),
            };
        }
        let streaming = Streaming::new(rows)?.pinned(pin)?.limited(buffer_bytes);
        let streaming = match &self.throttle {
            Some(profile) => streaming.throttled(profile.clone()),
            None => streaming,
        };
        Ok(Chosen {
            streaming: Some(streaming),
            why,
        })
    }

    fn rows(&self, reader: &BundleReader) -> (Vec<PlanRow>, String) {
        let layers = reader.bundle().manifest().experts.layers.iter();
        let records = layers.map(|layer| layer.records()).max().unwrap_or(1);
        let records = usize::try_from(records).unwrap_or(usize::MAX);
        let default = StreamConfig::default_for(records, 0);
        let banks = self.banks.unwrap_or(default.banks);
        let depth = self.depth.unwrap_or(default.depth.min(banks));
        let row = |max_tokens: u64, tokens: usize| PlanRow {
            max_tokens,
            stream: StreamConfig::new(
                self.schedule.unwrap_or(default.schedule),
                self.group.unwrap_or(default.group),
                depth,
                banks,
                tokens,
            ),
            hot: None,
            chunk: None,
        };
        let stated = self.schedule.is_some()
            || [self.group, self.depth, self.banks]
                .iter()
                .any(Option::is_some);
        let why = match stated {
            true => "as asked for".to_owned(),
            false => format!("the default for layers of {records} records"),
        };
        let rows = vec![row(SHORT as u64, SHORT), row(u64::MAX, SHORT + 1)];
        (rows, why)
    }
}

/// What a run needs of the profile that a plan carries.
#[derive(Deserialize)]
struct Device {
    storage: Limits,
}

#[derive(Deserialize)]
struct Limits {
    #[serde(default)]
    buffer_bytes: Option<u64>,
}

fn plan(reader: &BundleReader, name: &str) -> Result<Plan<Device>, RunError> {
    let (path, text) = reader.plan(name)?;
    let refuse = |why: String| RunError::Plan {
        path: path.clone(),
        why,
    };
    let plan: Plan<_> = serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
    plan.check(reader.identity()).map_err(refuse)?;
    Ok(plan)
}

/// A size: bytes, or a number with K, M, G or T, alone or with `iB` (powers of 1,024), or with
/// `B` (of 1,000).
///
/// # Errors
/// If it is none, or 0.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix('b') {
        Some(prefix) => match prefix.strip_suffix('i') {
            Some(prefix) if !prefix.is_empty() => (prefix, 1024u64),
            _ => (prefix, 1000),
        },
        None => (&*unit, 1024),
    };
    let power = match prefix {
        "" => Some(0),
        "k" => Some(1),
        "m" => Some(2),
        "g" => Some(3),
        "t" => Some(4),
        _ => None,
    };
    let value = number.parse::<u64>().ok().zip(power);
    let value = value.and_then(|(number, power)| number.checked_mul(base.pow(power)));
    value.filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!("{text:?} is not a size; write it as 2GiB, 512M, 500MB or a number of bytes")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_a_number_or_max() {
        assert_eq!("0".parse(), Ok(Pin::default()));
        assert_eq!("12".parse(), Ok(Pin::Records(12)));
        assert_eq!("max".parse(), Ok(Pin::Max));
        for text in ["", "-1", "all", "1.5"] {
            let error = text.parse::<Pin>().unwrap_err();
            assert!(error.contains("neither a number"), "{error}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_have_units() {
        for (text, size) in [
            ("1", 1),
            ("300b", 300),
            ("2k", 2048),
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("64 kib", 64 << 10),
            ("500MB", 500_000_000),
            ("1T", 1 << 40),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in [
            "",
            "0",
            "M",
            "GiB",
            "1iB",
            "1XB",
            "-1",
            "1.5G",
            "17179869184G",
            "1Gi",
            "é",
        ] {
            assert!(bytes(text).unwrap_err().contains("not a size"), "{text}");
        }
    }
}
