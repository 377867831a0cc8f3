//! Options that say how experts come from storage.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use estream_runtime::reader::BundleReader;
use estream_runtime::{Choice, Chosen, Event, Pin, parse_size, write_trace};
use estream_schemas::exit::Exit;
use estream_schemas::plan::Schedule;
use estream_schemas::profile::Profile;

use crate::failure::Failure;

/// Bytes of a profile.
const MAX_PROFILE_BYTES: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Streaming")]
pub(crate) struct StreamArgs {
    /// Follow this plan of the bundle
    #[arg(long, value_name = "NAME", conflicts_with_all = ["schedule", "group", "depth", "banks"])]
    plan: Option<String>,
    /// Which experts are read when [default: ahead]
    #[arg(long, value_name = "NAME")]
    schedule: Option<ScheduleArg>,
    /// Records that are read and executed together [default: a quarter of a layer, at most 8]
    #[arg(short = 'G', value_name = "N")]
    group: Option<usize>,
    /// Reads at a time [default: 2]
    #[arg(short = 'Q', value_name = "N")]
    depth: Option<usize>,
    /// Groups that fit into memory [default: 3]
    #[arg(short = 'B', value_name = "N")]
    banks: Option<usize>,
    /// Records of each layer that stay in memory, or max: what the budget leaves room for; for the
    /// schedules ahead and compact [default: the plan's, or 0]
    #[arg(long, value_name = "N")]
    pin: Option<Pin>,
    /// The most memory, as 512M or 2G; what needs more is refused
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) budget: Option<u64>,
    /// Imitate the storage of this profile (TOML or JSON)
    #[arg(long, value_name = "FILE")]
    throttle: Option<PathBuf>,
    /// Write what happened when, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScheduleArg {
    /// All experts are read before the first token and stay in memory
    Resident,
    /// A group is read when it is needed, and nothing runs meanwhile
    OnDemand,
    /// Groups are read in advance once a layer's routes are known
    Prefetch,
    /// Groups are read from the start of a layer on, in storage order
    Early,
    /// As early for the first ones, then experts with routes only
    Compact,
    /// As compact, and the next layer's first experts while this layer's last ones run
    Ahead,
}

impl From<ScheduleArg> for Schedule {
    fn from(arg: ScheduleArg) -> Schedule {
        match arg {
            ScheduleArg::Resident => Schedule::Resident,
            ScheduleArg::OnDemand => Schedule::OnDemand,
            ScheduleArg::Prefetch => Schedule::Prefetch,
            ScheduleArg::Early => Schedule::Early,
            ScheduleArg::Compact => Schedule::Compact,
            ScheduleArg::Ahead => Schedule::Ahead,
        }
    }
}

impl StreamArgs {
    /// What the options mean for a bundle.
    pub(crate) fn chosen(&self, reader: &BundleReader) -> Result<Chosen, Failure> {
        let throttle = self.throttle.as_deref().map(profile).transpose()?;
        let choice = Choice {
            plan: self.plan.clone(),
            schedule: self.schedule.map(Schedule::from),
            group: self.group,
            depth: self.depth,
            banks: self.banks,
            pin: self.pin,
            throttle: throttle.map(|profile| profile.storage),
        };
        Ok(choice.resolve(reader)?)
    }

    /// Writes the timeline, if one is wanted, to a file that must not exist.
    pub(crate) fn write_timeline(&self, events: &[Event]) -> Result<(), Failure> {
        let Some(path) = &self.timeline else {
            return Ok(());
        };
        let write = || {
            let mut out = io::BufWriter::new(File::create_new(path)?);
            write_trace(events, &mut out)?;
            out.flush()
        };
        write().map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::AlreadyExists => Exit::Usage,
                _ => Exit::Io,
            };
            let what = format!("{}: cannot write the timeline: {error}", path.display());
            Failure::new(exit, anyhow::Error::msg(what))
        })
    }
}

/// The profile in a file: JSON if its name says so, else TOML.
pub(crate) fn profile(path: &Path) -> Result<Profile, Failure> {
    let failed = |exit, why: String| {
        Failure::new(
            exit,
            anyhow::Error::msg(format!("{}: {why}", path.display())),
        )
    };
    let open = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => failed(Exit::Usage, "there is no such profile".to_owned()),
        _ => failed(Exit::Io, format!("cannot be read: {error}")),
    };
    let file = File::open(path).map_err(open)?;
    if fs::metadata(path).map_err(open)?.len() > MAX_PROFILE_BYTES {
        let why = format!("more than {MAX_PROFILE_BYTES} bytes are no profile");
        return Err(failed(Exit::Invalid, why));
    }
    let mut text = String::new();
    let mut file = file.take(MAX_PROFILE_BYTES);
    file.read_to_string(&mut text).map_err(open)?;
    let parsed = match path.extension().is_some_and(|ending| ending == "json") {
        true => serde_json::from_str(&text).map_err(|error| error.to_string()),
        false => toml::from_str(&text).map_err(|error| error.to_string()),
    };
    parsed.map_err(|why| failed(Exit::Invalid, why))
}
