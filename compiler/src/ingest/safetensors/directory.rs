//! Which weights a directory holds.

use std::fs;
use std::path::Path;

use estream_schemas::manifest::{MANIFEST_FILE, RESIDENT_FILE};

use super::super::IngestError;
use super::super::source::is_plain_name;

/// How a weight file's name ends.
pub(super) const EXTENSION: &str = ".safetensors";
const INDEX_EXTENSION: &str = ".safetensors.index.json";
const GGUF_EXTENSION: &str = ".gguf";
/// How names of files end that `torch.save` wrote.
pub(in super::super) const PICKLE_EXTENSIONS: [&str; 4] = [".bin", ".pt", ".pth", ".ckpt"];
/// The stem under which `transformers` saves.
const USUAL_STEM: &str = "model";

/// The weights of a directory, by file name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// The only weight file.
    Single(String),
    /// An index.
    Indexed(String),
    /// The first or only file of a GGUF set.
    Gguf(String),
}

impl Weights {
    pub(super) fn name(&self) -> &str {
        let (Weights::Single(name) | Weights::Indexed(name) | Weights::Gguf(name)) = self;
        name
    }
}

/// The names in directory `dir` that are UTF-8, ascending.
pub(super) fn list(dir: &Path) -> Result<Vec<String>, IngestError> {
    /// A directory of more is not a checkpoint's.
    const MAX_ENTRIES: usize = 1 << 16;
    let read = |source| IngestError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(read)? {
        if names.len() >= MAX_ENTRIES {
            return Err(IngestError::TooMany {
                path: dir.to_owned(),
                what: "directory entries",
                max: MAX_ENTRIES as u64,
            });
        }
        if let Ok(name) = entry.map_err(read)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Picks the weights to read: an index before a single file, the usual name before
/// others, safetensors before GGUF. What stays ambiguous is refused.
pub(super) fn choose(dir: &Path, names: &[String]) -> Result<Weights, IngestError> {
    let ending = |extension: &str| -> Vec<String> {
        let matches = names
            .iter()
            .filter(|name| name.ends_with(extension) && is_plain_name(name));
        matches.cloned().collect()
    };
    let path = || dir.to_owned();

    let mut indexes = ending(INDEX_EXTENSION);
    if let Some(name) = take_usual(&mut indexes, INDEX_EXTENSION) {
        return Ok(Weights::Indexed(name));
    }
    let mut files = ending(EXTENSION);
    if indexes.is_empty()
        && let Some(name) = take_usual(&mut files, EXTENSION)
    {
        if part(&name, EXTENSION).is_some_and(|part| part.count != "00001") {
            return Err(IngestError::MissingIndex {
                path: path(),
                files: vec![name],
            });
        }
        return Ok(Weights::Single(name));
    }
    if !indexes.is_empty() {
        return Err(IngestError::Ambiguous {
            path: path(),
            files: indexes,
        });
    }
    if !files.is_empty() {
        return Err(IngestError::MissingIndex {
            path: path(),
            files,
        });
    }
    // A bundle carries the metadata of a GGUF source, and its parts end as pickles do.
    if [MANIFEST_FILE, RESIDENT_FILE]
        .iter()
        .all(|file| names.iter().any(|name| name == file))
    {
        return Err(IngestError::Bundle { path: path() });
    }
    let gguf = ending(GGUF_EXTENSION);
    if !gguf.is_empty() {
        return choose_gguf(dir, gguf);
    }
    let pickles: Vec<String> = PICKLE_EXTENSIONS.into_iter().flat_map(ending).collect();
    if pickles.is_empty() {
        return Err(IngestError::NoWeights { path: path() });
    }
    Err(IngestError::Pickle {
        path: path(),
        files: pickles,
    })
}

/// Takes `model` + `extension` out of `names`, or the only name there is.
fn take_usual(names: &mut Vec<String>, extension: &str) -> Option<String> {
    let usual = names
        .iter()
        .position(|name| name.strip_suffix(extension) == Some(USUAL_STEM));
    match usual {
        Some(index) => Some(names.swap_remove(index)),
        None if names.len() == 1 => names.pop(),
        None => None,
    }
}

/// The one set that `files` are; its first part, if it has parts.
fn choose_gguf(dir: &Path, files: Vec<String>) -> Result<Weights, IngestError> {
    let parts: Vec<_> = files
        .iter()
        .map(|name| part(name, GGUF_EXTENSION))
        .collect();
    let is_one_set = files.len() == 1
        || parts.windows(2).all(|pair| match pair {
            [Some(a), Some(b)] => a.stem == b.stem && a.count == b.count,
            _ => false,
        });
    match files.first() {
        Some(first) if is_one_set => Ok(Weights::Gguf(first.clone())),
        _ => Err(IngestError::Ambiguous {
            path: dir.to_owned(),
            files,
        }),
    }
}

/// A name of the form `STEM-00001-of-00003.EXT`.
struct Part<'a> {
    stem: &'a str,
    count: &'a str,
}

fn part<'a>(name: &'a str, extension: &str) -> Option<Part<'a>> {
    const DIGITS: usize = 5;
    let is_number = |text: &str| text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit());
    let (rest, count) = name.strip_suffix(extension)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    (is_number(number) && is_number(count)).then_some(Part { stem, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Result<Weights, IngestError> {
        let mut names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        names.sort_unstable();
        choose(Path::new("dir"), &names)
    }

    #[test]
    fn one_set_of_weights_is_found_under_any_name() {
        let cases: &[(&[&str], &str)] = &[
            (&["model.safetensors", "config.json"], "model.safetensors"),
            (&["weights.safetensors"], "weights.safetensors"),
            (
                &["golden.safetensors", "model.safetensors"],
                "model.safetensors",
            ),
            (
                &["model-00001-of-00001.safetensors"],
                "model-00001-of-00001.safetensors",
            ),
            (
                &["model.safetensors", "model.safetensors.index.json"],
                "model.safetensors.index.json",
            ),
            (
                &["a.safetensors", "b.safetensors", "a.safetensors.index.json"],
                "a.safetensors.index.json",
            ),
            (&["a.gguf", "model.safetensors"], "model.safetensors"),
            (&["a.gguf"], "a.gguf"),
            (
                &["a-00002-of-00002.gguf", "a-00001-of-00002.gguf"],
                "a-00001-of-00002.gguf",
            ),
            (
                &["pytorch_model.bin", "model.safetensors"],
                "model.safetensors",
            ),
        ];
        for (names, expected) in cases {
            let weights = chosen(names).unwrap_or_else(|error| panic!("{names:?}: {error}"));
            assert_eq!(weights.name(), *expected, "{names:?}");
        }
    }

    #[test]
    fn what_is_ambiguous_or_incomplete_is_refused() {
        type Check = fn(&IngestError) -> bool;
        let cases: &[(&[&str], Check)] = &[
            (
                &["a.safetensors", "b.safetensors"],
                |e| matches!(e, IngestError::MissingIndex { files, .. } if files.len() == 2),
            ),
            (
                &["model-00001-of-00002.safetensors"],
                |e| matches!(e, IngestError::MissingIndex { files, .. } if files.len() == 1),
            ),
            (
                &["a.safetensors.index.json", "b.safetensors.index.json"],
                |e| matches!(e, IngestError::Ambiguous { .. }),
            ),
            (&["a.gguf", "b.gguf"], |e| {
                matches!(e, IngestError::Ambiguous { .. })
            }),
            (&["a-00001-of-00002.gguf", "b-00002-of-00002.gguf"], |e| {
                matches!(e, IngestError::Ambiguous { .. })
            }),
            (
                &["pytorch_model.bin", "x.pt"],
                |e| matches!(e, IngestError::Pickle { files, .. } if files.len() == 2),
            ),
            (&["config.json"], |e| {
                matches!(e, IngestError::NoWeights { .. })
            }),
        ];
        for (names, check) in cases {
            let error = chosen(names).expect_err("refused");
            assert!(check(&error), "{names:?}: {error:?}");
        }
    }
}
