//! `estream profile`: what is known of devices.

pub(crate) mod check;
mod measure;

use clap::Subcommand;
use estream_schemas::exit::Exit;
use estream_schemas::profile::{Device, Profile};
use serde::Serialize;

use crate::failure::Failure;
use crate::profiles::{shipped, shipped_as, text_of};
use crate::tables::{grouped, left_table};
use crate::ui::Ui;

/// Devices: list the profiles estream comes with, show them, check one of your own
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the profiles estream comes with
    List,
    /// Print a profile: a start for one of your own
    Show {
        /// Name of the profile
        name: String,
    },
    /// Say what is wrong with a profile, all of it, and what it lacks for planning
    Check {
        /// A file (TOML, or JSON if its name ends so), or the name of a profile estream comes with
        profile: String,
    },
    Measure(measure::Args),
}

pub(crate) fn run(verb: &Verb, ui: &Ui) -> Result<(), Failure> {
    match verb {
        Verb::List => list(ui),
        Verb::Show { name } => show(name, ui),
        Verb::Check { profile } => check(profile, ui),
        Verb::Measure(args) => measure::run(args, ui),
    }
}

#[derive(Serialize)]
struct Listed {
    profiles: Vec<Known>,
}

/// A profile that estream comes with.
#[derive(Serialize)]
struct Known {
    profile: String,
    device: Option<Device>,
    /// Of the fastest reads.
    bytes_per_second: u64,
    hot_bytes_per_second: Option<u64>,
    /// Models it has times of.
    services: Vec<String>,
    assumed: Vec<String>,
}

impl Known {
    fn new(profile: Profile) -> Known {
        let fastest = |rates: &[estream_schemas::profile::Rate]| {
            rates.iter().map(|rate| rate.bytes_per_second).max()
        };
        let services = profile.services.into_iter();
        Known {
            bytes_per_second: fastest(&profile.storage.rates).unwrap_or(0),
            hot_bytes_per_second: fastest(&profile.storage.hot_rates),
            services: services.map(|service| service.name).collect(),
            assumed: profile.sources.assumed().map(str::to_owned).collect(),
            device: profile.device,
            profile: profile.name,
        }
    }
}

fn list(ui: &Ui) -> Result<(), Failure> {
    let profiles = shipped().map(|shipped| Ok(Known::new(shipped.profile()?)));
    let listed = Listed {
        profiles: profiles.collect::<Result<_, Failure>>()?,
    };
    ui.answer(&listed, |listed| {
        let mut table = left_table(&[
            "profile", "SoC", "NPU", "bytes/s", "hot", "times of", "assumed",
        ]);
        for known in &listed.profiles {
            let part = |of: fn(&Device) -> &Option<String>| {
                let part = known.device.as_ref().and_then(|device| of(device).clone());
                part.unwrap_or_else(|| "-".to_owned())
            };
            let hot = known.hot_bytes_per_second.map(grouped);
            table.add_row([
                known.profile.clone(),
                part(|device| &device.soc),
                part(|device| &device.hexagon),
                grouped(known.bytes_per_second),
                hot.unwrap_or_else(|| "-".to_owned()),
                listing(&known.services),
                known.assumed.len().to_string(),
            ]);
        }
        format!("{table}\n")
    })
}

fn listing(names: &[String]) -> String {
    match names {
        [] => "-".to_owned(),
        names => names.join(", "),
    }
}

#[derive(Serialize)]
struct Shown {
    profile: Profile,
    text: String,
}

fn show(name: &str, ui: &Ui) -> Result<(), Failure> {
    let found = shipped_as(name)?;
    let shown = Shown {
        profile: found.profile()?,
        text: found.text,
    };
    ui.answer(&shown, |shown| shown.text.clone())
}

fn check(wanted: &str, ui: &Ui) -> Result<(), Failure> {
    let checked = check::check(&text_of(wanted)?);
    ui.answer(&checked, check::Checked::text)?;
    match checked.problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::silent(Exit::No)),
    }
}
