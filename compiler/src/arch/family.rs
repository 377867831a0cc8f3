//! The families estream knows, and finding the one a checkpoint belongs to.

use std::path::PathBuf;

use estream_schemas::manifest::SourceFormat;
use serde_json::Value;

use super::check::check;
use super::{Descriptor, GgufPairs, Keys, keys};
use crate::ingest::{Checkpoint, Config};
use crate::problem::{Problems, problem_list};

/// Bytes of a descriptor file.
const MAX_DESCRIPTOR_BYTES: usize = 1 << 20;

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
        "{}: no descriptor is for {found}; compile a checkpoint of a known family ({known})",
        path.display()
    )]
    UnknownFamily {
        /// The checkpoint.
        path: PathBuf,
        /// What it says it is.
        found: String,
        /// The families there are.
        known: String,
    },
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
        let descriptor: Descriptor = toml::from_str(text).map_err(|e| error(e.to_string()))?;
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
        let families = Family::built_in()?;
        let known: Vec<&str> = families
            .iter()
            .map(|family| family.descriptor.family.as_str())
            .collect();
        let known = known.join(", ");
        families
            .into_iter()
            .find(|family| family.recognises(checkpoint))
            .ok_or_else(|| ArchError::UnknownFamily {
                path: checkpoint.path.clone(),
                found: stated_family(checkpoint),
                known,
            })
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
