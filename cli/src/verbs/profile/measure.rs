//! `estream profile measure`: a profile of this machine, from a bundle's own records and requests.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use estream_runtime::measure::{Measure, measure};
use estream_runtime::partial::PartialFile;
use estream_runtime::reader::BundleReader;
use estream_runtime::{BackendKind, LoadOptions, parse_size};
use estream_schemas::exit::Exit;
use estream_schemas::profile::Profile;

use crate::failure::Failure;
use crate::profiles;
use crate::ui::Ui;
use crate::verbs::run::VerifyArg;

/// Measure a profile of this machine on a bundle
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle to read records of, and to run
    #[arg(long, value_name = "BUNDLE")]
    on: PathBuf,
    /// Write the profile to a file that does not exist: JSON if its name ends so, else TOML
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What the profile is called
    #[arg(long, default_value = "measured")]
    name: String,
    /// Lengths of the prompts to run
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [64, 512])]
    tokens: Vec<usize>,
    /// Records of a group [default: 1,2,4,8, as far as half of a layer and an arena of 1 GiB go]
    #[arg(short = 'G', value_name = "LIST", value_delimiter = ',')]
    groups: Vec<usize>,
    /// Requests of each length with each group, whose medians count
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroUsize,
    /// The most memory, as 512M or 2G, which the profile has too; groups that need more are left out
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    budget: Option<u64>,
    /// Imitate the storage of this profile (TOML or JSON)
    #[arg(long, value_name = "FILE")]
    throttle: Option<String>,
    /// What to compute on
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: String,
    /// Threads to compute with
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// When records are compared with their digests; always is as in a first request
    #[arg(long, value_name = "WHEN", default_value = "always")]
    verify: VerifyArg,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let backend: BackendKind = args.backend.parse()?;
    let throttle = args.throttle.as_deref().map(profiles::named).transpose()?;
    let reader = BundleReader::open(&args.on)?;
    // Known before minutes are spent. Nothing stays there meanwhile.
    if let Some(path) = &args.output {
        PartialFile::beside(path).map_err(|error| failed(path, &error))?;
    }
    let what = Measure {
        name: args.name.clone(),
        tokens: args.tokens.clone(),
        groups: args.groups.clone(),
        runs: args.runs,
        load: LoadOptions {
            verify: args.verify.into(),
            threads: args.threads,
            backend,
            budget_bytes: args.budget,
            ..LoadOptions::default()
        },
        throttle: throttle.map(|profile| profile.storage),
    };
    let measured = measure(&reader, &what, &mut |line| ui.note(line))?;
    if let Some(why) = &measured.io_why {
        ui.note(format!(
            "the rates are those of the page cache, not of storage: {why}"
        ));
    }
    ui.note(&measured);
    let profile = &Profile {
        sources: measured.sources(),
        ..measured.profile
    };
    match &args.output {
        Some(path) => write(path, profile),
        None if ui.json => ui.answer(profile, |_| String::new()),
        None => ui.data(toml(profile)?.as_bytes()),
    }
}

fn toml(profile: &Profile) -> Result<String, Failure> {
    toml::to_string(profile).map_err(|error| Failure::new(Exit::Internal, error))
}

fn write(path: &Path, profile: &Profile) -> Result<(), Failure> {
    let text = match path.extension().is_some_and(|ending| ending == "json") {
        true => serde_json::to_string_pretty(profile).map_err(|e| Failure::io(e.into()))? + "\n",
        false => toml(profile)?,
    };
    let whole = || -> io::Result<()> {
        let (partial, mut file) = PartialFile::beside(path)?;
        file.write_all(text.as_bytes())?;
        partial.publish()
    };
    whole().map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::InvalidFilename => Exit::Usage,
        _ => Exit::Io,
    };
    let what = format!("{}: cannot write the profile: {error}", path.display());
    Failure::new(exit, anyhow::Error::msg(what))
}
