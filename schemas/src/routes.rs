//! `routes.json`: which experts the tokens of some prompts went to.
//!
//! Experts are named by the id the checkpoint gives them, so what is recorded with a bundle also
//! holds for one with another storage order. A prompt has one number a layer and expert, the
//! tokens that went there: that is all that decides which records a request reads. Which experts a *token*
//! goes to together is summed over all prompts, in one triangle a layer. So a file grows with prompts and
//! experts, and not with tokens.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::limits::{MAX_EXPERTS, MAX_LAYERS, MAX_NAME_BYTES, at_most, one_a_layer};

/// Value of [`Recording::format`].
pub const ROUTES_FORMAT: &str = "estream-routes";
/// Value of [`Recording::version`].
pub const ROUTES_VERSION: u64 = 1;

/// Bytes of a file of routes. A number is at least two bytes of text and four in memory, and of the
/// short lists that take more there are at most [`MAX_LAYERS`] a prompt: parsing takes at most some
/// half a gigabyte.
pub const MAX_ROUTES_BYTES: u64 = 64 << 20;
/// Prompts of a file.
pub const MAX_ROUTES_PROMPTS: usize = 1 << 12;
/// Problems that are told.
const MAX_TOLD: usize = 16;

/// Routes of some prompts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Routes")
)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// `estream-routes`.
    #[cfg_attr(feature = "schema", schemars(extend("const" = ROUTES_FORMAT)))]
    pub format: String,
    /// 1.
    #[cfg_attr(feature = "schema", schemars(extend("const" = ROUTES_VERSION)))]
    pub version: u64,
    /// The bundle that routed, or, of counts that another program made, the one they were read for.
    pub bundle: Digest,
    /// The layers that have experts, ascending; at least one.
    #[serde(deserialize_with = "one_a_layer")]
    pub layers: Vec<RoutedLayer>,
    /// The prompts; at least one.
    #[serde(deserialize_with = "prompts")]
    pub prompts: Vec<RoutedPrompt>,
}

/// A layer with experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RoutedLayer {
    /// Layer of the program.
    pub layer: u64,
    /// Its experts, E.
    pub experts: u64,
    /// Experts a token.
    pub top_k: u64,
    /// Tokens of all prompts that went to both of two experts a < b, at a·(2E − a − 1)/2 + b − a − 1
    /// of E·(E − 1)/2; none if that is not known.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "pairs"
    )]
    pub pairs: Vec<u32>,
}

/// Where the experts of one prompt's tokens were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RoutedPrompt {
    /// What people call it.
    pub name: String,
    /// Its tokens.
    pub tokens: u32,
    /// Tokens that went to each expert, by layer and by expert id.
    #[serde(deserialize_with = "rows")]
    pub rows: Vec<Rows>,
}

/// Tokens that went to each expert of a layer, by expert id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Rows(#[serde(deserialize_with = "experts")] pub Vec<u32>);

/// Where `pairs` of a layer of `experts` experts has two of them; `None` if they are one or not
/// below `experts`.
pub fn pair(experts: usize, a: usize, b: usize) -> Option<usize> {
    let (low, high) = (a.min(b), a.max(b));
    // Rows of experts − 1, experts − 2, … precede.
    (low < high && high < experts).then(|| low * (2 * experts - low - 1) / 2 + high - low - 1)
}

/// Pairs of a layer of `experts` experts.
pub fn pair_count(experts: usize) -> usize {
    experts * experts.saturating_sub(1) / 2
}

/// What is wrong with a file of routes, all of it that there is room for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are no routes: {}", .0.join("; "))]
pub struct InvalidRoutes(pub Vec<String>);

impl Recording {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// With everything that is wrong.
    pub fn parse(text: &[u8]) -> Result<Recording, InvalidRoutes> {
        let one = |why: String| InvalidRoutes(vec![why]);
        if text.len() as u64 > MAX_ROUTES_BYTES {
            return Err(one(format!("more than {MAX_ROUTES_BYTES} bytes")));
        }
        let recording: Recording =
            serde_json::from_slice(text).map_err(|error| one(error.to_string()))?;
        recording.check()?;
        Ok(recording)
    }

    /// Errors with everything that is wrong. What passes has a list of each layer's experts for
    /// every prompt, in which no number is larger than the prompt.
    pub fn check(&self) -> Result<(), InvalidRoutes> {
        let mut wrong = Wrong::default();
        match (self.format.as_str(), self.version) {
            (ROUTES_FORMAT, ROUTES_VERSION) => {}
            (ROUTES_FORMAT, version) => wrong.say(format!(
                "version {version} is not read, {ROUTES_VERSION} is"
            )),
            (format, _) => wrong.say(format!("the format is {format:?}, not {ROUTES_FORMAT:?}")),
        }
        self.check_layers(&mut wrong);
        if self.prompts.is_empty() {
            wrong.say("there are no prompts".to_owned());
        }
        for (at, prompt) in self.prompts.iter().enumerate() {
            self.check_prompt(at, prompt, &mut wrong);
        }
        wrong.done()
    }

    fn check_layers(&self, wrong: &mut Wrong) {
        if self.layers.is_empty() {
            wrong.say("there are no layers".to_owned());
        }
        if !self.layers.is_sorted_by(|a, b| a.layer < b.layer) {
            wrong.say("layers do not ascend".to_owned());
        }
        for layer in &self.layers {
            let (at, experts, top_k) = (layer.layer, layer.experts, layer.top_k);
            if at >= MAX_LAYERS {
                wrong.say(format!("layer {at} is not below {MAX_LAYERS}"));
            }
            if !(1..=MAX_EXPERTS).contains(&experts) {
                wrong.say(format!(
                    "layer {at} has {experts} experts, outside 1 to {MAX_EXPERTS}"
                ));
                continue;
            }
            if !(1..=experts).contains(&top_k) {
                wrong.say(format!(
                    "layer {at} sends a token to {top_k} of {experts} experts"
                ));
            }
            let expected = pair_count(usize::try_from(experts).unwrap_or(usize::MAX));
            let found = layer.pairs.len();
            if found != 0 && found != expected {
                wrong.say(format!(
                    "layer {at} has {found} pairs, {experts} experts have {expected}"
                ));
            }
        }
    }

    fn check_prompt(&self, at: usize, prompt: &RoutedPrompt, wrong: &mut Wrong) {
        let tokens = prompt.tokens;
        if prompt.name.len() > MAX_NAME_BYTES {
            wrong.say(format!(
                "the name of prompt {at} has more than {MAX_NAME_BYTES} bytes"
            ));
        }
        if tokens == 0 {
            wrong.say(format!("prompt {at} has no tokens"));
        }
        if prompt.rows.len() != self.layers.len() {
            wrong.say(format!(
                "prompt {at} has rows of {} layers, there are {}",
                prompt.rows.len(),
                self.layers.len()
            ));
            return;
        }
        for (layer, Rows(rows)) in self.layers.iter().zip(&prompt.rows) {
            let RoutedLayer {
                layer,
                experts,
                top_k,
                ..
            } = layer;
            if rows.len() as u64 != *experts {
                let found = rows.len();
                wrong.say(format!(
                    "prompt {at} has rows of {found} experts in layer {layer}, it has {experts}"
                ));
            }
            if let Some(most) = rows.iter().find(|rows| **rows > tokens) {
                wrong.say(format!(
                    "prompt {at} of {tokens} tokens sends {most} to one expert of layer {layer}"
                ));
            }
            // Fewer is possible: a program need not compute every row of the last layer.
            let sum: u64 = rows.iter().map(|rows| u64::from(*rows)).sum();
            if sum > u64::from(tokens).saturating_mul(*top_k) {
                wrong.say(format!(
                    "prompt {at} of {tokens} tokens has {sum} routes in layer {layer}, more than {top_k} a token"
                ));
            }
        }
    }

    /// Says in what way these are no routes of a model with these layers, each with its number of
    /// experts, if they are not.
    pub fn fits(&self, layers: impl Iterator<Item = (u64, u64)>) -> Result<(), InvalidRoutes> {
        let mut wrong = Wrong::default();
        let mut left = self.layers.iter().peekable();
        for (layer, experts) in layers {
            while let Some(extra) = left.next_if(|recorded| recorded.layer < layer) {
                wrong.say(format!("layer {} has no experts here", extra.layer));
            }
            match left.next_if(|recorded| recorded.layer == layer) {
                None => wrong.say(format!("layer {layer} has no routes")),
                Some(recorded) if recorded.experts != experts => wrong.say(format!(
                    "layer {layer} has {experts} experts here and routes of {}",
                    recorded.experts
                )),
                Some(_) => {}
            }
        }
        for extra in left {
            wrong.say(format!("layer {} has no experts here", extra.layer));
        }
        wrong.done()
    }
}

/// Gathers what is wrong.
#[derive(Default)]
struct Wrong {
    told: Vec<String>,
    more: usize,
}

impl Wrong {
    fn say(&mut self, what: String) {
        match self.told.len() < MAX_TOLD {
            true => self.told.push(what),
            false => self.more += 1,
        }
    }

    fn done(mut self) -> Result<(), InvalidRoutes> {
        if self.more > 0 {
            self.told.push(format!("and {} more", self.more));
        }
        match self.told.is_empty() {
            true => Ok(()),
            false => Err(InvalidRoutes(self.told)),
        }
    }
}

fn prompts<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<RoutedPrompt>, D::Error> {
    at_most(d, MAX_ROUTES_PROMPTS)
}

fn rows<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<Rows>, D::Error> {
    one_a_layer(d)
}

fn experts<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<u32>, D::Error> {
    at_most(d, MAX_EXPERTS as usize)
}

fn pairs<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<u32>, D::Error> {
    at_most(d, pair_count(MAX_EXPERTS as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording() -> Recording {
        let layer = |layer, pairs: &[u32]| RoutedLayer {
            layer,
            experts: 3,
            top_k: 2,
            pairs: pairs.to_vec(),
        };
        Recording {
            format: ROUTES_FORMAT.to_owned(),
            version: ROUTES_VERSION,
            bundle: Digest([7; 32]),
            layers: vec![layer(0, &[2, 1, 0]), layer(2, &[])],
            prompts: vec![RoutedPrompt {
                name: "one".to_owned(),
                tokens: 3,
                rows: vec![Rows(vec![3, 2, 1]), Rows(vec![0, 3, 3])],
            }],
        }
    }

    fn parsed(recording: &Recording) -> Result<Recording, String> {
        let text = serde_json::to_vec(recording).unwrap();
        Recording::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_recording_reads_back_as_it_was_written() {
        assert_eq!(parsed(&recording()), Ok(recording()));
    }

    #[test]
    fn every_pair_has_a_place_of_its_own() {
        for experts in [0, 1, 2, 3, 8, 17] {
            let mut places = Vec::new();
            for a in 0..experts {
                assert_eq!(pair(experts, a, a), None);
                assert_eq!(pair(experts, a, experts), None);
                for b in a + 1..experts {
                    assert_eq!(pair(experts, a, b), pair(experts, b, a));
                    places.push(pair(experts, a, b).unwrap());
                }
            }
            let all: Vec<usize> = (0..pair_count(experts)).collect();
            assert_eq!(places, all);
        }
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        let mut bad = recording();
        bad.version = 2;
        bad.layers[0].top_k = 4;
        bad.layers[1].pairs = vec![1];
        bad.prompts[0].rows[0].0.pop();
        bad.prompts[0].rows[1].0 = vec![4, 3, 3];
        let error = parsed(&bad).unwrap_err();
        for says in [
            "version 2 is not read, 1 is",
            "layer 0 sends a token to 4 of 3 experts",
            "layer 2 has 1 pairs, 3 experts have 3",
            "rows of 2 experts in layer 0, it has 3",
            "sends 4 to one expert of layer 2",
            "10 routes in layer 2, more than 2 a token",
        ] {
            assert!(error.contains(says), "{says}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        type Break = fn(&mut Recording);
        let cases: [(Break, &str); 7] = [
            (|r| r.format = "x".to_owned(), "not \"estream-routes\""),
            (|r| r.prompts.clear(), "no prompts"),
            (|r| r.layers.clear(), "no layers"),
            (|r| r.layers.swap(0, 1), "do not ascend"),
            (|r| r.prompts[0].tokens = 0, "has no tokens"),
            (|r| r.prompts[0].rows.truncate(1), "rows of 1 layers"),
            (|r| r.layers[0].experts = 0, "0 experts, outside"),
        ];
        for (spoil, says) in cases {
            let mut bad = recording();
            spoil(&mut bad);
            let error = parsed(&bad).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn hostile_text_is_refused_before_it_is_large() {
        let text = serde_json::to_string(&recording()).unwrap();
        let many = |count: usize| vec!["0"; count].join(",");
        for (from, to, says) in [
            (
                "[3,2,1]",
                format!("[{}]", many(4097)),
                "at most 4096 elements",
            ),
            (
                "[3,2,1]",
                format!("[{}]", vec!["[]"; 1025].join(",")),
                "invalid type",
            ),
            ("[3,2,1]", "[-1,2,1]".to_owned(), "invalid value"),
            ("[3,2,1]", "[4294967296,2,1]".to_owned(), "invalid value"),
            (
                "\"tokens\":3",
                "\"tokens\":3,\"x\":0".to_owned(),
                "unknown field",
            ),
        ] {
            let text = text.replacen(from, &to, 1);
            let error = Recording::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let long = vec![b' '; usize::try_from(MAX_ROUTES_BYTES).unwrap() + 1];
        assert!(Recording::parse(&long).is_err());
    }

    #[test]
    fn many_problems_are_some_and_a_number() {
        let mut bad = recording();
        let prompt = RoutedPrompt {
            tokens: 0,
            rows: Vec::new(),
            ..bad.prompts[0].clone()
        };
        bad.prompts = vec![prompt; 20];
        let InvalidRoutes(told) = bad.check().unwrap_err();
        assert_eq!(told.len(), MAX_TOLD + 1);
        assert_eq!(told[MAX_TOLD], "and 24 more");
    }

    #[test]
    fn routes_of_another_model_are_told_apart() {
        let recording = recording();
        assert_eq!(recording.fits([(0, 3), (2, 3)].into_iter()), Ok(()));
        let error = recording.fits([(0, 4), (1, 3)].into_iter()).unwrap_err();
        let expected = [
            "layer 0 has 4 experts here and routes of 3",
            "layer 1 has no routes",
            "layer 2 has no experts here",
        ];
        assert_eq!(error.0, expected);
    }
}
