//! Which layers a block is for.

use super::expr::{error, is_key};
use super::{ExprError, Keys};

/// Which layers something applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predicate {
    /// Every layer.
    All,
    /// `layer < KEY`.
    Below(String),
    /// `layer in KEY`.
    In(String),
    /// `(layer + 1) % KEY == 0`.
    Every(String),
    /// `KEY[layer] == VALUE`.
    Is(String, String),
    /// `has ROLE`: the checkpoint has a tensor for it.
    Has(String),
}

impl Predicate {
    /// Parses `text`.
    pub fn parse(text: &str) -> Result<Predicate, ExprError> {
        let compact: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let name = |name: &str| {
            let name = name.trim();
            is_key(name)
                .then(|| name.to_owned())
                .ok_or_else(|| error(text, format!("{name:?} is not a name")))
        };
        if compact == "all" {
            Ok(Predicate::All)
        } else if let Some(rest) = compact.strip_prefix("layer < ") {
            Ok(Predicate::Below(name(rest)?))
        } else if let Some(rest) = compact.strip_prefix("layer in ") {
            Ok(Predicate::In(name(rest)?))
        } else if let Some(rest) = compact.strip_prefix("(layer + 1) % ") {
            let rest = rest.strip_suffix(" == 0");
            Ok(Predicate::Every(name(
                rest.ok_or_else(|| error(text, "must end with == 0"))?,
            )?))
        } else if let Some((list, value)) = compact.split_once("[layer] == ") {
            Ok(Predicate::Is(
                name(list)?,
                value.trim_matches('\'').to_owned(),
            ))
        } else if let Some(rest) = compact.strip_prefix("has ") {
            Ok(Predicate::Has(name(rest)?))
        } else {
            Err(error(
                text,
                "is not `all`, `layer < KEY`, `layer in KEY`, `(layer + 1) % KEY == 0`, \
                 `KEY[layer] == VALUE` or `has ROLE`",
            ))
        }
    }

    /// The key it names.
    pub fn key(&self) -> Option<&str> {
        match self {
            Predicate::All | Predicate::Has(_) => None,
            Predicate::Below(key)
            | Predicate::In(key)
            | Predicate::Every(key)
            | Predicate::Is(key, _) => Some(key),
        }
    }

    /// Whether it holds for `layer`, where the checkpoint `has` tensors for some roles.
    pub fn holds(
        &self,
        keys: &Keys,
        layer: u64,
        has: impl Fn(&str) -> bool,
    ) -> Result<bool, String> {
        match self {
            Predicate::All => Ok(true),
            Predicate::Below(key) => Ok(layer < keys.integer(key)?),
            Predicate::In(key) => Ok(keys.integers(key)?.contains(&layer)),
            Predicate::Every(key) => match keys.integer(key)? {
                0 => Err(format!("key {key:?} is 0, and layers are counted by it")),
                step => Ok((layer + 1).is_multiple_of(step)),
            },
            Predicate::Is(key, value) => Ok(keys.text_of(key, layer)? == *value),
            Predicate::Has(role) => Ok(has(role)),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Predicate {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Predicate, D::Error> {
        let text = String::deserialize(d)?;
        Predicate::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn predicates_choose_layers() {
        let keys = Keys::of(&[
            ("dense", json!(2)),
            ("list", json!([0, 3])),
            ("kinds", json!(["conv", "full_attention"])),
        ]);
        let chosen = |text: &str| -> Vec<u64> {
            let predicate = Predicate::parse(text).unwrap();
            let holds = |layer| predicate.holds(&keys, layer, |role| role == "bias" && layer == 4);
            (0..6)
                .filter(|&layer| holds(layer).unwrap_or(false))
                .collect()
        };
        assert_eq!(chosen("all"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(chosen("layer < dense"), [0, 1]);
        assert_eq!(chosen("layer in list"), [0, 3]);
        assert_eq!(chosen("(layer + 1) % dense == 0"), [1, 3, 5]);
        assert_eq!(chosen("kinds[layer] == 'conv'"), [0]);
        assert_eq!(chosen("has bias"), [4]);
        assert!(Predicate::parse("layer > dense").is_err());
        assert!(Predicate::parse("has Two words").is_err());
    }
}
