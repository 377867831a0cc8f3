//! Files that travel with the weights, and the licence they declare.

use std::path::Path;

use estream_schemas::limits::MAX_CARRIED_FILES;

use super::super::source::{self, Source, fill_at, is_plain_name};
use super::super::{Carried, CarriedContent, IngestError, Notice};

/// The largest file that is carried along.
pub(super) const MAX_CARRIED_BYTES: u64 = 64 << 20;

/// What a tokenizer needs, and how its authors generate. Carried verbatim: a chat
/// template is a program, and none is run here. `config.json` is not among them: it
/// travels as the source's metadata.
const TOKENIZER_FILES: [&str; 11] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// How the name of a licence file begins, in any case.
const LICENSE_PREFIXES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "USE_POLICY"];
/// Name of a carried `config.json`. It is another, so that no tool takes a bundle for a checkpoint.
const CONFIG_NAME: &str = "source-config.json";
const MODEL_CARD: &str = "README.md";

/// The tokenizer files among `names`, in name order.
pub(super) fn tokenizer(dir: &Path, names: &[String]) -> Result<Vec<Carried>, IngestError> {
    let is_tokenizer = |name: &&String| TOKENIZER_FILES.contains(&name.as_str());
    names
        .iter()
        .filter(is_tokenizer)
        .map(|name| carry(dir, name))
        .collect()
}

/// The configuration of `dir`, which was read before and so may be carried.
pub(super) fn config(dir: &Path) -> Carried {
    Carried {
        name: CONFIG_NAME.to_owned(),
        content: CarriedContent::File(dir.join("config.json")),
    }
}

/// The licence files among `names`, in name order.
pub(super) fn license_files(
    dir: &Path,
    names: &[String],
    notices: &mut Vec<Notice>,
) -> Result<Vec<Carried>, IngestError> {
    let mut files = Vec::new();
    for name in names.iter().filter(|name| is_license(name)) {
        let not_carried = |reason| Notice::NotCarried {
            file: name.clone(),
            reason,
        };
        if !is_plain_name(name) {
            notices.push(not_carried("its name is not a plain one"));
        } else if source::stat(&dir.join(name))?.is_dir() {
            notices.push(not_carried("it is a directory"));
        } else {
            files.push(carry(dir, name)?);
        }
    }
    let max = MAX_CARRIED_FILES - TOKENIZER_FILES.len();
    if files.len() > max {
        return Err(IngestError::TooMany {
            path: dir.to_owned(),
            what: "licence files",
            max: max as u64,
        });
    }
    Ok(files)
}

fn is_license(name: &str) -> bool {
    LICENSE_PREFIXES.iter().any(|prefix| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    })
}

/// Checks that the file may be carried, now rather than after hours of work.
fn carry(dir: &Path, name: &str) -> Result<Carried, IngestError> {
    let path = dir.join(name);
    Source::open_small(&path, "a file to carry along", MAX_CARRIED_BYTES)?;
    Ok(Carried {
        name: name.to_owned(),
        content: CarriedContent::File(path),
    })
}

/// The licence that the model card declares. A card that is absent or malformed
/// declares none: that is worth a notice, and no reason to stop.
pub(super) fn declared_license(
    dir: &Path,
    names: &[String],
    notices: &mut Vec<Notice>,
) -> Result<Option<String>, IngestError> {
    /// Front matter is a few lines at the start of the card.
    const MAX_FRONT_BYTES: usize = 64 << 10;
    let declared = if names.iter().any(|name| name == MODEL_CARD) {
        let path = dir.join(MODEL_CARD);
        let card = Source::open(&path)?;
        let mut start = vec![0; MAX_FRONT_BYTES];
        let filled = fill_at(&card.file, &mut start, 0)
            .map_err(|source| IngestError::Read { path, source })?;
        start.truncate(filled);
        license_of(&String::from_utf8_lossy(&start))
    } else {
        Err("there is no README.md")
    };
    Ok(declared
        .map_err(|reason| {
            notices.push(Notice::License {
                reason: reason.to_owned(),
            });
        })
        .ok())
}

/// The value of the line `license: VALUE` in a card's front matter. This is not a
/// YAML reader: anything but a plain or quoted scalar counts as undeclared.
fn license_of(card: &str) -> Result<String, &'static str> {
    const FENCE: &str = "---";
    const MAX_CHARS: usize = 128;
    let mut lines = card.strip_prefix('\u{feff}').unwrap_or(card).lines();
    if lines.next().map(str::trim_end) != Some(FENCE) {
        return Err("README.md has no front matter");
    }
    let mut declared = None;
    let mut is_closed = false;
    for line in lines {
        if line.trim_end() == FENCE {
            is_closed = true;
            break;
        }
        if let Some(value) = line.strip_prefix("license:")
            && declared.replace(value).is_some()
        {
            return Err("the front matter of README.md has two license lines");
        }
    }
    if !is_closed {
        return Err("the front matter of README.md does not end");
    }
    let value = declared.ok_or("the front matter of README.md has no license line")?;
    let value = match value.split_once(" #") {
        Some((value, _comment)) => value.trim(),
        None => value.trim(),
    };
    let unquoted = ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value);
    let is_identifier = !unquoted.is_empty()
        && unquoted.chars().count() <= MAX_CHARS
        && unquoted
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '+' | '_' | ' '))
        && unquoted.starts_with(|c: char| c.is_ascii_alphanumeric());
    if is_identifier {
        Ok(unquoted.to_owned())
    } else {
        Err("the license line of README.md is not an identifier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_license_line_is_read_from_front_matter_alone() {
        let cases = [
            (
                "---\nlicense: apache-2.0\n---\n# Model\n",
                Some("apache-2.0"),
            ),
            (
                "---\r\nlicense: \"mit\"\r\ntags: [x]\r\n---\r\n",
                Some("mit"),
            ),
            (
                "---\ntags:\n- moe\nlicense: 'other' # see below\nlicense_name: own\n---\n",
                Some("other"),
            ),
            (
                "\u{feff}---\nlicense: bsd-3-clause\n---\n",
                Some("bsd-3-clause"),
            ),
            ("# Model\nlicense: mit\n", None),
            ("---\ntags: [moe]\n---\nlicense: mit\n", None),
            ("---\nlicense: mit\n", None),
            ("---\nlicense: mit\nlicense: gpl-3.0\n---\n", None),
            ("---\nlicense:\n- mit\n---\n", None),
            ("---\nlicense: [mit]\n---\n", None),
            ("---\nlicense: \"mit\n---\n", None),
            ("---\nlicense: *anchor\n---\n", None),
            ("---\nlicense: \u{1b}[31mmit\n---\n", None),
            ("---\n\t: : bad\n  yaml [\n---\n", None),
            ("", None),
        ];
        for (card, expected) in cases {
            assert_eq!(license_of(card).ok().as_deref(), expected, "{card:?}");
        }
    }

    #[test]
    fn licence_files_are_known_by_how_their_names_begin() {
        for name in [
            "LICENSE",
            "license.txt",
            "LICENCE.md",
            "COPYING",
            "NOTICE",
            "USE_POLICY.md",
        ] {
            assert!(is_license(name), "{name}");
        }
        for name in ["README.md", "LIC", "model.safetensors", "ÖLICENSE"] {
            assert!(!is_license(name), "{name}");
        }
    }
}
