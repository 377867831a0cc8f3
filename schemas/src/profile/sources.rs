//! Where the figures of a profile come from.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// What a source can be named for: members of a profile, where those of a list go by the
/// list's name.
pub const FIGURES: &[&str] = &[
    "budget_bytes",
    "device.hexagon",
    "device.ram_bytes",
    "device.soc",
    "limits.alignment_bytes",
    "limits.buffers",
    "limits.mapping_bytes",
    "limits.vtcm_bytes",
    "services.capacity",
    "services.dispatch_ns",
    "services.head_ns",
    "services.other",
    "services.publish_ns",
    "services.records",
    "services.tile_rows",
    "storage.buffer_bytes",
    "storage.hot_rates",
    "storage.latency_ns",
    "storage.rates",
];
/// Bytes of a source's text.
const MAX_SOURCE_BYTES: usize = 1 << 12;

/// Where figures come from, by their name in [`FIGURES`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Sources(pub BTreeMap<String, Source>);

/// Where a figure comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// What measured it or who says so.
    pub text: String,
    /// Whether it is a guess: nobody measured it on such a device.
    #[serde(default, skip_serializing_if = "is_false")]
    pub assumed: bool,
}

fn is_false(assumed: &bool) -> bool {
    !assumed
}

impl Sources {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names of the figures that are guesses, in order.
    pub fn assumed(&self) -> impl Iterator<Item = &str> {
        let assumed = self.0.iter().filter(|(_, source)| source.assumed);
        assumed.map(|(figure, _)| figure.as_str())
    }
}

impl<'de> Deserialize<'de> for Sources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sources, D::Error> {
        struct ByFigure;

        impl<'de> Visitor<'de> for ByFigure {
            type Value = Sources;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sources by the name of a figure")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sources, A::Error> {
                let mut sources = BTreeMap::new();
                while let Some((figure, source)) = map.next_entry::<String, Source>()? {
                    if !FIGURES.contains(&figure.as_str()) {
                        let known = FIGURES.join(", ");
                        return Err(A::Error::custom(format!(
                            "sources: {figure:?} is no figure; there are {known}"
                        )));
                    }
                    if source.text.len() > MAX_SOURCE_BYTES {
                        return Err(A::Error::custom(format!(
                            "sources: the text of {figure} has more than {MAX_SOURCE_BYTES} bytes"
                        )));
                    }
                    if sources.contains_key(&figure) {
                        return Err(A::Error::custom(format!(
                            "sources: {figure} is there twice"
                        )));
                    }
                    sources.insert(figure, source);
                }
                Ok(Sources(sources))
            }
        }

        deserializer.deserialize_map(ByFigure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_told_from_what_somebody_measured() {
        let text = r#"{"storage.rates":{"text":"a benchmark"},"services.other":{"text":"a fit","assumed":true}}"#;
        let sources: Sources = serde_json::from_str(text).unwrap();
        assert_eq!(sources.assumed().collect::<Vec<_>>(), ["services.other"]);
        assert_eq!(sources.0["storage.rates"].text, "a benchmark");
    }

    #[test]
    fn a_source_of_nothing_is_refused() {
        let long = "x".repeat(MAX_SOURCE_BYTES + 1);
        for (text, says) in [
            (
                r#"{"storage.rate":{"text":""}}"#.to_owned(),
                r#""storage.rate" is no figure"#,
            ),
            (
                r#"{"budget_bytes":{"text":""},"budget_bytes":{"text":""}}"#.to_owned(),
                "twice",
            ),
            (
                format!(r#"{{"budget_bytes":{{"text":"{long}"}}}}"#),
                "more than 4096 bytes",
            ),
        ] {
            let error = serde_json::from_str::<Sources>(&text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn figures_are_in_order() {
        assert!(FIGURES.is_sorted());
    }
}
