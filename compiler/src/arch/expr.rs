//! The little that a descriptor may compute.
//!
//! Sizes are integers, keys, elements of keys (`KEY[layer]`) and `+ - * /` with the
//! usual precedence; `/` must divide exactly. There are no loops, functions or
//! parentheses, so a descriptor can be read by eye and cannot fail to end.

use std::fmt;

use super::keys::Keys;
use crate::problem::cut;

/// Characters of an expression that a message shows.
const MAX_SHOWN_CHARS: usize = 120;

/// An expression or predicate that cannot be parsed, or has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {why}")]
pub struct ExprError {
    /// The text, as the descriptor has it.
    pub text: String,
    /// What is wrong.
    pub why: String,
}

pub(super) fn error(text: &str, why: impl Into<String>) -> ExprError {
    ExprError {
        text: cut(text, MAX_SHOWN_CHARS),
        why: why.into(),
    }
}

/// An integer expression, such as `heads * head_dim`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expr {
    text: String,
    /// Sum of products; the sign belongs to the product.
    terms: Vec<(Sign, Vec<(Factor, Atom)>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Plus,
    Minus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Factor {
    Times,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Atom {
    Number(u64),
    Key(String),
    /// The element of a list for the layer at hand.
    Element(String),
}

impl Expr {
    /// Parses `text`.
    pub fn parse(text: &str) -> Result<Expr, ExprError> {
        let mut terms = Vec::new();
        for (sign, term) in split(text, '+', '-') {
            let sign = if sign == '-' { Sign::Minus } else { Sign::Plus };
            let factors = split(term, '*', '/')
                .into_iter()
                .map(|(op, atom)| {
                    let op = if op == '/' {
                        Factor::Over
                    } else {
                        Factor::Times
                    };
                    Ok((op, Atom::parse(text, atom)?))
                })
                .collect::<Result<Vec<_>, ExprError>>()?;
            terms.push((sign, factors));
        }
        Ok(Expr {
            text: text.to_owned(),
            terms,
        })
    }

    /// The keys it names.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.atoms().filter_map(|atom| match atom {
            Atom::Key(key) | Atom::Element(key) => Some(key.as_str()),
            Atom::Number(_) => None,
        })
    }

    /// Whether its value depends on the layer.
    pub fn needs_layer(&self) -> bool {
        self.atoms().any(|atom| matches!(atom, Atom::Element(_)))
    }

    fn atoms(&self) -> impl Iterator<Item = &Atom> {
        let factors = self.terms.iter().flat_map(|(_, factors)| factors);
        factors.map(|(_, atom)| atom)
    }

    /// Its value, given the keys' values and, where one is at hand, the layer.
    pub fn value(&self, keys: &Keys, layer: Option<u64>) -> Result<u64, ExprError> {
        let mut sum = 0u64;
        for (sign, factors) in &self.terms {
            let mut product = 1u64;
            for (op, atom) in factors {
                let value = match (atom, layer) {
                    (Atom::Number(value), _) => Ok(*value),
                    (Atom::Key(key), _) => keys.integer(key),
                    (Atom::Element(key), Some(layer)) => keys.integer_of(key, layer),
                    (Atom::Element(key), None) => Err(format!("{key}[layer] where no layer is")),
                };
                let value = value.map_err(|why| error(&self.text, why))?;
                product = match op {
                    Factor::Times => product.checked_mul(value),
                    Factor::Over if product.checked_rem(value) == Some(0) => {
                        product.checked_div(value)
                    }
                    Factor::Over => {
                        return Err(error(
                            &self.text,
                            format!("{value} does not divide {product}"),
                        ));
                    }
                }
                .ok_or_else(|| error(&self.text, "overflows"))?;
            }
            sum = match sign {
                Sign::Plus => sum.checked_add(product),
                Sign::Minus => sum.checked_sub(product),
            }
            .ok_or_else(|| error(&self.text, "overflows or is negative"))?;
        }
        Ok(sum)
    }
}

impl Atom {
    fn parse(text: &str, atom: &str) -> Result<Atom, ExprError> {
        let atom = atom.trim();
        let list = atom.strip_suffix("[layer]").map(str::trim_end);
        if let Ok(number) = atom.parse() {
            Ok(Atom::Number(number))
        } else if is_key(atom) {
            Ok(Atom::Key(atom.to_owned()))
        } else if let Some(list) = list.filter(|list| is_key(list)) {
            Ok(Atom::Element(list.to_owned()))
        } else {
            Err(error(
                text,
                format!("{atom:?} is neither a number nor a key"),
            ))
        }
    }
}

/// Whether `text` can name a key: a letter, then letters, digits and underscores.
pub(super) fn is_key(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The pieces between `first` and `second`, each with the operator before it.
fn split(text: &str, first: char, second: char) -> Vec<(char, &str)> {
    let mut pieces = Vec::new();
    let (mut op, mut start) = (first, 0);
    for (at, c) in text.match_indices([first, second]) {
        pieces.push((op, &text[start..at]));
        op = if c.starts_with(second) { second } else { first };
        start = at + c.len();
    }
    pieces.push((op, &text[start..]));
    pieces
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> serde::Deserialize<'de> for Expr {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Expr, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Expr;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer or an expression of keys")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Expr, E> {
                Expr::parse(&value.to_string()).map_err(E::custom)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Expr, E> {
                Expr::parse(text).map_err(E::custom)
            }
        }

        d.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::keys::Keys;
    use serde_json::json;

    fn keys() -> Keys {
        Keys::of(&[
            ("heads", json!(32)),
            ("head_dim", json!(128)),
            ("hidden", json!(4096)),
            ("dense", json!(2)),
            ("list", json!([0, 3])),
            ("kinds", json!(["conv", "full_attention"])),
        ])
    }

    #[test]
    fn sums_of_products_have_the_usual_precedence() {
        for (text, value) in [
            ("7", 7),
            ("heads * head_dim", 4096),
            ("hidden / heads", 128),
            ("2 * heads + 3 * dense - 1", 69),
            ("hidden / heads / dense", 64),
        ] {
            assert_eq!(
                Expr::parse(text).unwrap().value(&keys(), None),
                Ok(value),
                "{text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_exact_is_refused() {
        for text in [
            "hidden / 3",
            "1 - heads",
            "hidden / nothing",
            "1 / 0",
            "list",
        ] {
            assert!(
                Expr::parse(text).unwrap().value(&keys(), None).is_err(),
                "{text}"
            );
        }
        for text in [
            "",
            "(heads)",
            "heads head_dim",
            "2 ** 3",
            "2 +",
            "max(1, 2)",
            "-1",
        ] {
            assert!(Expr::parse(text).is_err(), "{text}");
        }
        let huge = format!("{0} * {0}", u64::MAX);
        assert!(Expr::parse(&huge).unwrap().value(&keys(), None).is_err());
    }

    #[test]
    fn an_element_is_that_of_the_layer_at_hand() {
        let value = |text: &str, layer| Expr::parse(text).unwrap().value(&keys(), layer);
        assert_eq!(value("2 * list[layer] + 1", Some(1)), Ok(7));
        // A number stands for the same number in every layer.
        assert_eq!(value("dense[layer]", Some(9)), Ok(2));
        for (text, layer) in [
            ("list[layer]", None),
            ("list[layer]", Some(2)),
            ("kinds[layer]", Some(0)),
        ] {
            assert!(value(text, layer).is_err(), "{text}");
        }
        for text in ["list[0]", "list[layer", "7[layer]"] {
            assert!(Expr::parse(text).is_err(), "{text}");
        }
    }
}
