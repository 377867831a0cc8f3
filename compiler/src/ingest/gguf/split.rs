//! Sets of files that are one model: which parts there are, and where.

use std::path::{Path, PathBuf};

use super::error::GgufFault;
use super::header::Gguf;
use super::{MAX_SPLIT_PARTS, MAX_TENSORS};

/// The part's number, from 0.
const NO: &str = "split.no";
/// Parts of the set.
const COUNT: &str = "split.count";
/// Tensors of the set.
const TENSORS: &str = "split.tensors.count";

/// The keys that describe a split and not the model.
pub(super) const KEYS: [&str; 3] = [NO, COUNT, TENSORS];

/// How many parts the set of this file has, if it is one of several.
fn part_count(gguf: &Gguf) -> Result<Option<u64>, GgufFault> {
    // A merged file keeps the key, with the value 0.
    match gguf.kv(COUNT) {
        None => Ok(None),
        Some(_) => match number(gguf, COUNT, "a number of parts")? {
            0 | 1 => Ok(None),
            count if count > MAX_SPLIT_PARTS => Err(GgufFault::SplitCount(count)),
            count => Ok(Some(count)),
        },
    }
}

fn number(gguf: &Gguf, key: &'static str, expected: &str) -> Result<u64, GgufFault> {
    let value = gguf.kv(key);
    value
        .and_then(|value| value.as_u64())
        .ok_or_else(|| GgufFault::Split {
            key,
            found: match value {
                None => "missing".to_owned(),
                Some(value) => format!("a value of type {:?}", value.value_type()),
            },
            expected: expected.to_owned(),
        })
}

fn expect(gguf: &Gguf, key: &'static str, expected: u64) -> Result<(), GgufFault> {
    let found = number(gguf, key, &expected.to_string())?;
    if found != expected {
        return Err(GgufFault::Split {
            key,
            found: found.to_string(),
            expected: expected.to_string(),
        });
    }
    Ok(())
}

/// The paths of all parts, in order, if `gguf`, opened at `path`, is one of several.
pub(super) fn parts(path: &Path, gguf: &Gguf) -> Result<Option<Vec<PathBuf>>, GgufFault> {
    let Some(count) = part_count(gguf)? else {
        return Ok(None);
    };
    let (prefix, _) = path
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(part_name)
        .filter(|(_, of)| *of == count)
        .ok_or(GgufFault::SplitName { count })?;
    let paths: Vec<PathBuf> = (1..=count)
        .map(|part| path.with_file_name(format!("{prefix}-{part:05}-of-{count:05}.gguf")))
        .collect();
    let missing: Vec<String> = paths
        .iter()
        .filter(|path| !path.exists())
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    if !missing.is_empty() {
        return Err(GgufFault::MissingParts { count, missing });
    }
    Ok(Some(paths))
}

/// Checks that `gguf` is part `index` (from 0) of `count`.
pub(super) fn check_part(gguf: &Gguf, index: u64, count: u64) -> Result<(), GgufFault> {
    expect(gguf, COUNT, count)?;
    expect(gguf, NO, index)
}

/// How many tensors the parts of the set must have together, if `gguf` says so.
pub(super) fn tensor_count(gguf: &Gguf) -> Result<Option<u64>, GgufFault> {
    match gguf.kv(TENSORS) {
        None => Ok(None),
        Some(_) => match number(gguf, TENSORS, "a number of tensors")? {
            count if count > MAX_TENSORS => Err(GgufFault::TooMany {
                what: "tensors",
                count,
                max: MAX_TENSORS,
            }),
            count => Ok(Some(count)),
        },
    }
}

/// That the set has other than the `expected` number of tensors.
pub(super) fn wrong_tensor_count(found: u64, expected: u64) -> GgufFault {
    GgufFault::Split {
        key: TENSORS,
        found: expected.to_string(),
        expected: format!("the {found} tensors the parts have"),
    }
}

/// Whether a file's name is that of one part of several.
pub(super) fn is_part_name(name: &str) -> bool {
    part_name(name).is_some_and(|(_, count)| count > 1)
}

/// What comes before `-0000K-of-0000N.gguf`, and N.
fn part_name(name: &str) -> Option<(&str, u64)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, part) = rest.rsplit_once('-')?;
    let five_digits =
        |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !five_digits(part) || !five_digits(count) {
        return None;
    }
    Some((prefix, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_part_has_two_numbers_of_five_digits() {
        assert_eq!(part_name("m-of-2-00001-of-00003.gguf"), Some(("m-of-2", 3)));
        for other in [
            "m.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003",
            "00001-of-00003.gguf",
        ] {
            assert_eq!(part_name(other), None, "{other}");
        }
        assert!(!is_part_name("m-00001-of-00001.gguf"));
    }
}
