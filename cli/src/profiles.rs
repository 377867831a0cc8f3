//! Device profiles: those that come with the program, and those in files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use anyhow::Error;
use estream_schemas::exit::Exit;
use estream_schemas::profile::Profile;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Bytes of a profile.
const MAX_PROFILE_BYTES: u64 = 1 << 20;

/// Name and text of the profiles that come with the program.
const SHIPPED: [(&str, &str); 3] = [
    ("nvme-laptop", include_str!("../profiles/nvme-laptop.toml")),
    ("oneplus-15", include_str!("../profiles/oneplus-15.toml")),
    ("ufs4-phone", include_str!("../profiles/ufs4-phone.toml")),
];

/// The text of a profile, which may be none.
#[derive(Debug)]
pub(crate) struct ProfileText {
    /// What it is called here: its file's name without the ending.
    pub(crate) name: String,
    /// What errors call it.
    place: String,
    pub(crate) text: String,
    /// TOML if not.
    is_json: bool,
}

/// Those that come with the program.
pub(crate) fn shipped() -> impl Iterator<Item = ProfileText> {
    SHIPPED.into_iter().map(|(name, text)| ProfileText {
        name: name.to_owned(),
        place: format!("profile {name}"),
        text: text.to_owned(),
        is_json: false,
    })
}

/// The one that comes with the program and is called `name`.
pub(crate) fn shipped_as(name: &str) -> Result<ProfileText, Failure> {
    let found = shipped().find(|profile| profile.name == name);
    found.ok_or_else(|| Failure::usage(format!("there is no profile {name:?}; {}", known())))
}

/// The profile `wanted` means: one that comes with the program, or a file.
pub(crate) fn named(wanted: &str) -> Result<Profile, Failure> {
    text_of(wanted)?.profile()
}

/// The text that `wanted` means.
pub(crate) fn text_of(wanted: &str) -> Result<ProfileText, Failure> {
    match shipped().find(|profile| profile.name == wanted) {
        Some(found) => Ok(found),
        None => read(Path::new(wanted)),
    }
}

fn known() -> String {
    let names = SHIPPED.map(|(name, _)| name);
    format!("with estream come {}", names.join(", "))
}

/// The text of a file: JSON if its name says so, else TOML.
fn read(path: &Path) -> Result<ProfileText, Failure> {
    let place = path.display().to_string();
    let failed = |exit, why: String| Failure::new(exit, Error::msg(format!("{place}: {why}")));
    let open = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => failed(
            Exit::Usage,
            format!(
                "there is no such profile; {}, and a file is named by its path",
                known()
            ),
        ),
        _ => failed(Exit::Io, format!("cannot be read: {error}")),
    };
    let about = fs::metadata(path).map_err(open)?;
    if !about.is_file() {
        return Err(failed(Exit::Usage, "it is no file".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(open)?;
    let read = file.take(MAX_PROFILE_BYTES + 1).read_to_end(&mut bytes);
    if read.map_err(open)? as u64 > MAX_PROFILE_BYTES {
        let why = format!("more than {MAX_PROFILE_BYTES} bytes are no profile");
        return Err(failed(Exit::Invalid, why));
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| failed(Exit::Invalid, "it is no UTF-8".to_owned()))?;
    let stem = path.file_stem().unwrap_or_default();
    Ok(ProfileText {
        name: stem.to_string_lossy().into_owned(),
        text,
        is_json: path.extension().is_some_and(|ending| ending == "json"),
        place,
    })
}

impl ProfileText {
    /// What it says, read as a `T`.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        match self.is_json {
            true => serde_json::from_str(&self.text).map_err(|error| error.to_string()),
            false => toml::from_str(&self.text).map_err(|error| error.to_string()),
        }
    }

    /// The profile.
    pub(crate) fn profile(&self) -> Result<Profile, Failure> {
        self.parse().map_err(|why| {
            let place = &self.place;
            Failure::new(
                Exit::Invalid,
                Error::msg(format!(
                    "{place}: {why}\nestream profile check lists all that is wrong"
                )),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_that_come_with_the_program_say_where_every_figure_is_from() {
        for shipped in shipped() {
            let profile = shipped.profile().unwrap_or_else(|failure| {
                panic!("{}: {:?}", shipped.name, failure.error);
            });
            assert_eq!(profile.name, shipped.name);
            let checked = crate::verbs::profile::check::check(&shipped);
            assert!(checked.problems.is_empty(), "{:?}", checked.problems);
            assert!(checked.unsourced.is_empty(), "{:?}", checked.unsourced);
        }
    }

    #[test]
    fn times_that_nobody_measured_are_marked() {
        for shipped in shipped() {
            let profile = shipped.profile().expect("a profile");
            let assumed: Vec<&str> = profile.sources.assumed().collect();
            for figure in ["services.other", "services.records"] {
                assert!(profile.services.is_empty() || assumed.contains(&figure));
            }
        }
    }
}
