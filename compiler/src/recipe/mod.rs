//! Recipes: which type each weight is stored in, as ordered rules.
//!
//! A recipe is a TOML file. The first rule whose patterns all match a weight decides
//! its type; `*` stands for any run of characters, and a rule without a pattern
//! for something matches all of it.
//!
//! ```toml
//! name = "mine"
//! about = "experts in q4_0, the rest as it is"
//!
//! [[rule]]
//! role = "expert_*"            # or: tensor = "layers.0.*", family = "olmoe"
//! type = "q4_0"
//!
//! [[rule]]
//! role = "*"
//! type = "keep"
//! ```

mod fit;

use std::fmt;

use estream_schemas::dtype::DType;
use serde::Deserialize;

pub use fit::{Fit, Place};

/// Bytes of a recipe file.
pub const MAX_RECIPE_BYTES: usize = 1 << 20;

/// The built-in recipes, by name. `auto` is one of them, chosen by the source's experts.
const BUILT_IN: &[(&str, &str)] = &[
    ("q4_0", include_str!("../../recipes/q4_0.toml")),
    ("keep", include_str!("../../recipes/keep.toml")),
    ("paper", include_str!("../../recipes/paper.toml")),
];

/// A recipe that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("recipe {name}: {why}")]
pub struct RecipeError {
    /// Its name or file.
    pub name: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// An ordered list of rules.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its name.
    pub name: String,
    /// One line for people.
    pub about: String,
    /// The rules, in the order they are tried.
    pub rule: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Families it is for.
    #[serde(default)]
    pub family: Option<String>,
    /// Roles it is for.
    #[serde(default)]
    pub role: Option<String>,
    /// Weights it is for, by their name in the bundle; an expert's weights share one
    /// name (`layers.0.expert_gate`), because they share one type.
    #[serde(default)]
    pub tensor: Option<String>,
    /// The type they get.
    #[serde(rename = "type")]
    pub choice: Choice,
}

/// The type of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// As the source has it.
    Keep,
    /// This one.
    As(DType),
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Choice, D::Error> {
        let text = String::deserialize(d)?;
        match text.as_str() {
            "keep" => Ok(Choice::Keep),
            name => name
                .parse()
                .map(Choice::As)
                .map_err(serde::de::Error::custom),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Keep => f.write_str("keep"),
            Choice::As(dtype) => dtype.fmt(f),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns = [
            ("family", &self.family),
            ("role", &self.role),
            ("tensor", &self.tensor),
        ];
        for (what, pattern) in patterns {
            if let Some(pattern) = pattern {
                write!(f, "{what} {pattern}, ")?;
            }
        }
        write!(f, "type {}", self.choice)
    }
}

impl Recipe {
    /// Parses the text of recipe file `file`.
    pub fn parse(file: &str, text: &str) -> Result<Recipe, RecipeError> {
        let error = |why: String| RecipeError {
            name: file.to_owned(),
            why,
        };
        if text.len() > MAX_RECIPE_BYTES {
            return Err(error(format!("more than {MAX_RECIPE_BYTES} bytes")));
        }
        toml::from_str(text).map_err(|e| error(e.to_string()))
    }

    /// The built-in recipe called `name`.
    pub fn built_in(name: &str) -> Result<Recipe, RecipeError> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((file, text)) => Recipe::parse(file, text),
            None => Err(RecipeError {
                name: format!("{name:?}"),
                why: format!(
                    "is not built in; use auto, {}, or the path of a .toml file",
                    Recipe::names().collect::<Vec<_>>().join(", ")
                ),
            }),
        }
    }

    /// Names of the built-in recipes, without `auto`.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The type of a weight; `None` if no rule is for it.
    pub fn choose(&self, family: &str, role: &str, tensor: &str) -> Option<Choice> {
        let fits = |pattern: &Option<String>, text: &str| {
            pattern.as_deref().is_none_or(|pattern| glob(pattern, text))
        };
        let rule = self.rule.iter().find(|rule| {
            fits(&rule.family, family) && fits(&rule.role, role) && fits(&rule.tensor, tensor)
        });
        rule.map(|rule| rule.choice)
    }
}

/// Whether `text` is `pattern`, where `*` stands for any run of characters.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut pieces = rest.split('*').peekable();
    while let Some(piece) = pieces.next() {
        // The last piece must end the text; each before it is taken where it first stands.
        if pieces.peek().is_none() {
            return text.ends_with(piece);
        }
        match text.find(piece) {
            Some(at) => text = &text[at + piece.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, text, fits) in [
            ("head", "head", true),
            ("head", "heads", false),
            ("*norm", "attn_q_norm", true),
            ("*norm", "norms", false),
            ("expert_*", "expert_gate", true),
            ("attn_k*_b", "attn_kv_b", true),
            ("attn_k*_b", "attn_k_b", true),
            ("attn_k*_b", "attn_k", false),
            ("layers.*.attn_*", "layers.12.attn_q", true),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let paper = Recipe::built_in("paper").unwrap();
        let choose = |family, role| paper.choose(family, role, role).unwrap();
        assert_eq!(choose("olmoe", "head"), Choice::As(DType::Q6_K));
        assert_eq!(choose("qwen3moe", "head"), Choice::As(DType::Q4_0));
        assert_eq!(choose("mixtral", "attn_k"), Choice::As(DType::Q8_0));
        assert_eq!(choose("olmoe", "attn_k_norm"), Choice::As(DType::F32));
    }

    #[test]
    fn what_a_recipe_cannot_mean_is_an_error() {
        for text in [
            "name = 'x'\nabout = ''\nrule = []\nmore = 1",
            "name = 'x'\nabout = ''\n[[rule]]\nrole = '*'\ntype = 'q9_9'",
            "name = 'x'\nabout = ''\n[[rule]]\nrolle = '*'\ntype = 'keep'",
            "name = 'x'",
        ] {
            assert!(Recipe::parse("x.toml", text).is_err(), "{text}");
        }
        assert!(Recipe::built_in("q3").unwrap_err().why.contains("paper"));
    }
}
