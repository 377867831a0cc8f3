//! What a device can do, as far as streaming needs to know it; stated by hand or measured.
//!
//! All quantities are whole numbers of one unit, which the name of the field says. Only
//! [`Profile::storage`] is required: a profile without the rest serves to imitate storage, and
//! one with [`services`](Profile::services) serves to choose a way of streaming.

mod line;
mod service;
mod sources;
mod storage;

use serde::{Deserialize, Serialize};

pub use self::service::{OtherTime, RecordTime, Service};
pub use self::sources::{FIGURES, Source, Sources};
pub use self::storage::{Rate, Storage};
use crate::limits::at_most;

/// Version of the form, which has no field for it: files by hand are short.
pub const PROFILE_VERSION: u64 = 1;
/// Models of one profile.
const MAX_SERVICES: usize = 64;

/// A device, as far as streaming needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What people call the device.
    pub name: String,
    /// What it is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Where experts are read from.
    pub storage: Storage,
    /// Memory a process may take: M_max of paper equation 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// What an accelerator can take at most.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// How long it computes, by model.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "services"
    )]
    pub services: Vec<Service>,
    /// Where figures come from.
    #[serde(default, skip_serializing_if = "Sources::is_empty")]
    pub sources: Sources,
}

/// What a device is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The system on a chip, such as `SM8850`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soc: Option<String>,
    /// Architecture of the Hexagon NPU, such as `v81`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hexagon: Option<String>,
    /// Memory of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_bytes: Option<u64>,
}

/// What an accelerator can take at most. What is left out is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory that it has mapped at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapping_bytes: Option<u64>,
    /// Buffers that the arena may consist of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffers: Option<u64>,
    /// Its own memory on the chip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtcm_bytes: Option<u64>,
    /// What the address of a slot is a multiple of; a power of two.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "alignment"
    )]
    pub alignment_bytes: Option<u64>,
}

impl Limits {
    fn is_none(&self) -> bool {
        *self == Limits::default()
    }
}

impl Profile {
    /// The times of a model, by its name.
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }
}

fn alignment<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    let bytes: Option<u64> = Deserialize::deserialize(d)?;
    match bytes.is_none_or(u64::is_power_of_two) {
        true => Ok(bytes),
        false => Err(serde::de::Error::custom(
            "alignment_bytes is no power of two",
        )),
    }
}

fn services<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<Service>, D::Error> {
    let services: Vec<Service> = at_most(d, MAX_SERVICES)?;
    for (at, service) in services.iter().enumerate() {
        if services[..at]
            .iter()
            .any(|other| other.name == service.name)
        {
            let name = &service.name;
            return Err(serde::de::Error::custom(format!(
                "services has {name:?} twice"
            )));
        }
    }
    Ok(services)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORAGE: &str = r#""storage":{"latency_ns":0,"rates":[{"read_bytes":1,"outstanding":1,"bytes_per_second":1}]}"#;

    fn parse(rest: &str) -> Result<Profile, serde_json::Error> {
        serde_json::from_str(&format!(r#"{{"name":"x",{STORAGE}{rest}}}"#))
    }

    fn service(name: &str) -> String {
        format!(
            r#"{{"name":"{name}","record_bytes":4096,"other":[{{"tokens":1,"ns":7}}],"records":[{{"rows":1,"ns":5}}]}}"#
        )
    }

    #[test]
    fn storage_alone_is_a_profile_and_is_written_alone() {
        let profile = parse("").unwrap();
        assert_eq!(profile.limits, Limits::default());
        assert!(profile.services.is_empty());
        let text = serde_json::to_string(&profile).unwrap();
        assert_eq!(text, format!(r#"{{"name":"x",{STORAGE}}}"#));
    }

    #[test]
    fn a_profile_reads_back_as_it_was_written() {
        let (one, other) = (service("one"), service("other"));
        let profile = parse(&format!(
            r#","device":{{"soc":"SM8850","hexagon":"v81","ram_bytes":9}},"budget_bytes":8,"limits":{{"mapping_bytes":7,"buffers":6,"vtcm_bytes":5,"alignment_bytes":4}},"services":[{one},{other}],"sources":{{"limits.buffers":{{"text":"a header","assumed":true}}}}"#
        ))
        .unwrap();
        assert_eq!(profile.service("other").unwrap().name, "other");
        assert_eq!(profile.service("none"), None);
        let text = serde_json::to_string(&profile).unwrap();
        assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (one, many) = (service("one"), vec![service("one"); 65].join(","));
        for (rest, says) in [
            (
                r#","limits":{"alignment_bytes":12}"#.to_owned(),
                "no power of two",
            ),
            (format!(r#","services":[{one},{one}]"#), r#""one" twice"#),
            (format!(r#","services":[{many}]"#), "at most 64"),
            (r#","limits":{"mapping":1}"#.to_owned(), "unknown field"),
        ] {
            let error = parse(&rest).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
