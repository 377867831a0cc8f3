//! The families estream knows, and finding the one a checkpoint belongs to.

use std::collections::BTreeSet;
use std::path::PathBuf;

use estream_schemas::manifest::SourceFormat;
use serde_json::Value;

use super::check::check;
use super::{Descriptor, GgufPairs, Keys, keys};
use crate::ingest::{Checkpoint, Config};
use crate::near;
use crate::problem::{Problems, cut, problem_list};

/// The most bytes that the text of a descriptor may have.
pub const MAX_DESCRIPTOR_BYTES: usize = 1 << 20;
/// Characters of a message about TOML, which shows the line it is about.
const MAX_TOML_CHARS: usize = 1000;

/// The built-in descriptors, by file name.
const BUILT_IN: &[(&str, &str)] = &[
    ("deepseek2.toml", include_str!("../../arch/deepseek2.toml")),
    (
        "granitemoe.toml",
        include_str!("../../arch/granitemoe.toml"),
    ),
    ("lfm2moe.toml", include_str!("../../arch/lfm2moe.toml")),
    ("mixtral.toml", include_str!("../../arch/mixtral.toml")),
    ("olmoe.toml", include_str!("../../arch/olmoe.toml")),
    ("qwen2moe.toml", include_str!("../../arch/qwen2moe.toml")),
    ("qwen3moe.toml", include_str!("../../arch/qwen3moe.toml")),
];

/// A descriptor that is not one, or a checkpoint that no descriptor is for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchError {
    /// The descriptor cannot be parsed.
    #[error("descriptor {file}: {why}")]
    Descriptor {
        /// Which file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// The checkpoint names a family that no descriptor is for.
    #[error(
        "{}: no descriptor is for {found}; known are {}{}; write a descriptor as \
         docs/adding-a-family.md shows, and name it with --arch FILE",
        path.display(), known.join(", "), nearest_hint(nearest.as_deref())
    )]
    UnknownFamily {
        /// The checkpoint.
        path: PathBuf,
        /// What it says it is.
        found: String,
        /// The families there are.
        known: Vec<String>,
        /// The one that knows most of its tensors, if any knows one.
        nearest: Option<Box<Nearest>>,
    },
    /// The descriptor is for other checkpoints.
    #[error(
        "{}: this is {found}, and descriptor {file} is for {expected}; if they are the same \
         architecture, add the name to [match]",
        path.display()
    )]
    OtherFamily {
        /// The checkpoint.
        path: PathBuf,
        /// What it says it is.
        found: String,
        /// The descriptor's file.
        file: String,
        /// What the descriptor is for.
        expected: String,
    },
}

/// The family that knows most of a checkpoint's tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Its name.
    pub family: String,
    /// Tensors whose names it knows.
    pub known_count: usize,
    /// Tensors of the checkpoint.
    pub tensor_count: usize,
}

fn nearest_hint(nearest: Option<&Nearest>) -> String {
    nearest.map_or_else(String::new, |nearest| {
        let Nearest {
            family,
            known_count,
            tensor_count,
        } = nearest;
        format!(
            "; the nearest family is {family}, which knows {known_count} of its {tensor_count} \
             tensor names (`estream arch check {family} CHECKPOINT` shows the rest)"
        )
    })
}

/// A descriptor together with its text.
#[derive(Clone, Debug)]
pub struct Family {
    /// The descriptor.
    pub descriptor: Descriptor,
    text: String,
}

impl Family {
    /// Parses the text of descriptor file `file`, and checks all that needs no checkpoint.
    pub fn parse(file: &str, text: &str) -> Result<Family, ArchError> {
        let error = |why: String| ArchError::Descriptor {
            file: file.to_owned(),
            why,
        };
        if text.len() > MAX_DESCRIPTOR_BYTES {
            return Err(error(format!("more than {MAX_DESCRIPTOR_BYTES} bytes")));
        }
        let unparsed = |e: toml::de::Error| error(cut(&e.to_string(), MAX_TOML_CHARS));
        let descriptor: Descriptor = toml::from_str(text).map_err(unparsed)?;
        let problems = check(&descriptor);
        if !problems.is_empty() {
            return Err(error(problem_list(&problems)));
        }
        Ok(Family {
            descriptor,
            text: text.to_owned(),
        })
    }

    /// The families estream comes with.
    pub fn built_in() -> Result<Vec<Family>, ArchError> {
        let parse = |(file, text): &(&str, &str)| Family::parse(file, text);
        BUILT_IN.iter().map(parse).collect()
    }

    /// The built-in family that `checkpoint` says it belongs to.
    pub fn of(checkpoint: &Checkpoint) -> Result<Family, ArchError> {
        let mut families = Family::built_in()?;
        let of = families
            .iter()
            .position(|family| family.recognises(checkpoint));
        match of {
            Some(index) => Ok(families.swap_remove(index)),
            None => Err(ArchError::UnknownFamily {
                path: checkpoint.path.clone(),
                found: stated_family(checkpoint),
                nearest: nearest(checkpoint, &families).map(Box::new),
                known: families
                    .into_iter()
                    .map(|family| family.descriptor.family)
                    .collect(),
            }),
        }
    }

    /// That `checkpoint` says it belongs to this family, whose descriptor is in `file`.
    pub fn require(&self, file: &str, checkpoint: &Checkpoint) -> Result<(), ArchError> {
        if self.recognises(checkpoint) {
            return Ok(());
        }
        Err(ArchError::OtherFamily {
            path: checkpoint.path.clone(),
            found: stated_family(checkpoint),
            file: file.to_owned(),
            expected: self.expected(checkpoint.format),
        })
    }

    /// What checkpoints of the family say they are.
    fn expected(&self, format: SourceFormat) -> String {
        let matches = &self.descriptor.matches;
        let (what, names) = match format {
            SourceFormat::Safetensors => ("model_type", &matches.hf),
            SourceFormat::Gguf => ("GGUF architecture", &matches.gguf),
        };
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let required = matches.gguf_requires.as_ref();
        match (
            names.is_empty(),
            required.filter(|_| format == SourceFormat::Gguf),
        ) {
            (true, _) => format!("no {what}"),
            (false, None) => format!("{what} {}", names.join(" or ")),
            (false, Some(key)) => {
                format!("{what} {} with a {key} above 0", names.join(" or "))
            }
        }
    }

    fn recognises(&self, checkpoint: &Checkpoint) -> bool {
        let config = &checkpoint.config;
        let matches = &self.descriptor.matches;
        match checkpoint.format {
            SourceFormat::Safetensors => {
                let mut places = self.descriptor.hf.places(&["model_type"]).into_iter();
                places.any(|place| {
                    let stated = config.get(&place).and_then(Value::as_str);
                    stated.is_some_and(|stated| matches.hf.iter().any(|name| name == stated))
                })
            }
            SourceFormat::Gguf => config.gguf_architecture().is_some_and(|stated| {
                let required = matches.gguf_requires.as_ref();
                matches.gguf.iter().any(|name| name == stated)
                    && required.is_none_or(|key| {
                        let value = config.get(&format!("{stated}.{key}"));
                        value.and_then(Value::as_u64).is_some_and(|value| value > 0)
                    })
            }),
        }
    }

    /// What `checkpoint` says that this family cannot honour (problems) or does not know (surprises).
    pub fn audit(&self, checkpoint: &Checkpoint) -> (Vec<String>, Vec<String>) {
        keys::audit(&self.descriptor, &checkpoint.config)
    }

    /// The numbers of a model whose configuration is `config`; else what is wrong with it.
    pub fn keys(&self, config: &Config) -> Result<Keys, Vec<String>> {
        let mut problems = Problems::default();
        let keys = Keys::resolve(&self.descriptor, config, &mut problems);
        match problems.into_list() {
            problems if problems.is_empty() => Ok(keys),
            problems => Err(problems),
        }
    }

    /// What a GGUF file says of a model of `layers` layers and these numbers; else everything
    /// that GGUF cannot say of it.
    pub fn gguf_pairs(&self, keys: &Keys, layers: u64) -> Result<GgufPairs<'_>, Vec<String>> {
        let form = self.descriptor.unpack.as_ref();
        let (Some(form), Some(architecture)) = (form, self.descriptor.matches.gguf.first()) else {
            return Err(vec![format!(
                "the descriptor of {} has no table [unpack]",
                self.descriptor.family
            )]);
        };
        Ok(GgufPairs {
            form,
            architecture,
            pairs: form.pairs(architecture, keys, layers)?,
        })
    }

    /// Whether GGUF files may hold the rows or elements of `role` in another order.
    pub fn reorders_gguf(&self, role: &str) -> bool {
        let mut roles = self
            .descriptor
            .tensor
            .iter()
            .filter(|tensor| tensor.role == role);
        roles.any(|tensor| {
            let mut encodings = tensor.encodings(SourceFormat::Gguf).iter();
            encodings.any(|encoding| {
                encoding.transposed
                    || encoding.rope_pairs_of_heads.is_some()
                    || encoding.row_step.is_some()
            })
        })
    }

    /// The TOML file itself.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Of `families`, the one that knows most tensors of `checkpoint` by name.
fn nearest(checkpoint: &Checkpoint, families: &[Family]) -> Option<Nearest> {
    let patterns = checkpoint
        .tensors
        .iter()
        .map(|tensor| near::pattern(&tensor.name));
    let patterns: Vec<String> = patterns.collect();
    let counts = families.iter().map(|family| {
        let roles = family.descriptor.tensor.iter();
        let encodings = roles.flat_map(|role| role.encodings(checkpoint.format));
        let known: BTreeSet<&str> = encodings.map(|encoding| encoding.name.as_str()).collect();
        let of_these = patterns.iter().filter(|name| known.contains(name.as_str()));
        Nearest {
            family: family.descriptor.family.clone(),
            known_count: of_these.count(),
            tensor_count: patterns.len(),
        }
    });
    let counts = counts.filter(|nearest| nearest.known_count > 0);
    counts.max_by_key(|nearest| nearest.known_count)
}

fn stated_family(checkpoint: &Checkpoint) -> String {
    let config = &checkpoint.config;
    match checkpoint.format {
        SourceFormat::Safetensors => match config.get("model_type") {
            Some(name) => format!("model_type {name}"),
            None => "a config.json without model_type".to_owned(),
        },
        SourceFormat::Gguf => match config.gguf_architecture() {
            Some(name) => format!("GGUF architecture {name:?}"),
            None => "a GGUF file without general.architecture".to_owned(),
        },
    }
}
