//! Types that are one string in JSON.

/// Implements serde (and, with `schema`, schemars) through `Display` and `FromStr`.
///
/// The pattern is an ECMA regular expression of what `Display` writes, where one says more than "a string".
macro_rules! serde_as_text {
    ($type:ty, $name:literal, $about:literal $(, $pattern:literal)?) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "description": $about
                    $(, "pattern": $pattern)?
                })
            }
        }
    };
}

pub(crate) use serde_as_text;
