//! Flash storage: how long reads take.

use serde::{Deserialize, Serialize};

use crate::limits::at_most;

/// Rates of one list.
const MAX_RATES: usize = 256;

/// Flash storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// From a read's issue to its first byte, in nanoseconds.
    pub latency_ns: u64,
    /// Bandwidth by size and number of reads, from single records on; at least one. Of a device
    /// that is not hot.
    #[serde(deserialize_with = "rates")]
    pub rates: Vec<Rate>,
    /// The same of a device that is hot; none if that is not known.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "hot_rates"
    )]
    pub hot_rates: Vec<Rate>,
    /// The largest buffer that one read may fill, where there is a limit (Linux udmabuf: 64 MiB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<u64>,
}

/// Bandwidth of reads of one size, so many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Bytes of a read.
    pub read_bytes: u64,
    /// Reads at a time.
    pub outstanding: u64,
    /// Bytes a second of all of them together.
    pub bytes_per_second: u64,
}

fn rates<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<Rate>, D::Error> {
    let rates = hot_rates(d)?;
    match rates.is_empty() {
        false => Ok(rates),
        true => Err(serde::de::Error::custom(UNUSABLE)),
    }
}

const UNUSABLE: &str = "rates are none, or one of them has a 0";

fn hot_rates<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<Rate>, D::Error> {
    let rates: Vec<Rate> = at_most(d, MAX_RATES)?;
    let usable =
        |rate: &Rate| rate.read_bytes > 0 && rate.outstanding > 0 && rate.bytes_per_second > 0;
    match rates.iter().all(usable) {
        true => Ok(rates),
        false => Err(serde::de::Error::custom(UNUSABLE)),
    }
}

impl Storage {
    /// The storage of the same device when it is hot, if that is known.
    pub fn when_hot(&self) -> Option<Storage> {
        (!self.hot_rates.is_empty()).then(|| Storage {
            rates: self.hot_rates.clone(),
            hot_rates: Vec::new(),
            ..*self
        })
    }

    /// Bandwidth of reads of `bytes`, `outstanding` at a time: of the stated rate that is nearest
    /// below in both, or above where there is none below.
    pub fn bytes_per_second(&self, bytes: u64, outstanding: u64) -> u64 {
        let distance = |rate: &&Rate| {
            let of = |stated: u64, wanted: u64| (stated > wanted, stated.abs_diff(wanted));
            (
                of(rate.outstanding, outstanding),
                of(rate.read_bytes, bytes),
            )
        };
        let nearest = self.rates.iter().min_by_key(distance);
        nearest.map_or(u64::MAX, |rate| rate.bytes_per_second)
    }

    /// Nanoseconds that a read of `bytes` takes while `outstanding` are under way, itself
    /// included: latency + bytes · outstanding / bandwidth.
    pub fn read_ns(&self, bytes: u64, outstanding: u64) -> u64 {
        let rate = u128::from(self.bytes_per_second(bytes, outstanding));
        let work = u128::from(bytes) * u128::from(outstanding);
        let work = work.saturating_mul(1_000_000_000);
        let transfer = u64::try_from(work / rate.max(1)).unwrap_or(u64::MAX);
        self.latency_ns.saturating_add(transfer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage() -> Storage {
        let rate = |read_bytes, outstanding, bytes_per_second| Rate {
            read_bytes,
            outstanding,
            bytes_per_second,
        };
        Storage {
            latency_ns: 100_000,
            rates: vec![
                rate(1 << 20, 1, 1_000_000_000),
                rate(16 << 20, 1, 1_500_000_000),
                rate(1 << 20, 2, 2_000_000_000),
            ],
            hot_rates: Vec::new(),
            buffer_bytes: None,
        }
    }

    #[test]
    fn the_nearest_rate_below_counts() {
        let storage = storage();
        for (bytes, outstanding, expected) in [
            (1 << 20, 1, 1_000_000_000),
            (15 << 20, 1, 1_000_000_000),
            (17 << 20, 1, 1_500_000_000),
            (1, 1, 1_000_000_000),
            (16 << 20, 2, 2_000_000_000),
            (16 << 20, 9, 2_000_000_000),
        ] {
            assert_eq!(storage.bytes_per_second(bytes, outstanding), expected);
        }
    }

    #[test]
    fn reads_share_the_bandwidth() {
        // 2,000,000 bytes at 1 GB/s: 2 ms; two of them at 2 GB/s together: 2 ms each.
        assert_eq!(storage().read_ns(2_000_000, 1), 2_100_000);
        assert_eq!(storage().read_ns(2_000_000, 2), 2_100_000);
        assert_eq!(storage().read_ns(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_hot_device_has_rates_of_its_own() {
        let mut storage = storage();
        assert_eq!(storage.when_hot(), None);
        storage.hot_rates = vec![Rate {
            bytes_per_second: 500_000_000,
            ..storage.rates[0]
        }];
        assert_eq!(storage.read_ns(2_000_000, 1), 2_100_000);
        let hot = storage.when_hot().unwrap();
        assert_eq!(hot.read_ns(2_000_000, 1), 4_100_000);
    }

    #[test]
    fn no_rate_and_a_rate_of_nothing_are_refused() {
        for rates in [
            "[]",
            r#"[{"read_bytes":1,"outstanding":0,"bytes_per_second":1}]"#,
        ] {
            let text = format!(r#"{{"latency_ns":0,"rates":{rates}}}"#);
            let error = serde_json::from_str::<Storage>(&text).unwrap_err();
            assert!(error.to_string().contains("rates are none"), "{error}");
        }
        let many = vec![r#"{"read_bytes":1,"outstanding":1,"bytes_per_second":1}"#; 257].join(",");
        let text = format!(r#"{{"latency_ns":0,"rates":[{many}]}}"#);
        assert!(serde_json::from_str::<Storage>(&text).is_err());
    }
}
