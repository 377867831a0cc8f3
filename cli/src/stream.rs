//! Options that say how experts come from storage.

use std::path::PathBuf;

use clap::ValueEnum;
use estream_runtime::reader::BundleReader;
use estream_runtime::{Choice, Chosen, Pin, parse_size};
use estream_schemas::plan::Schedule;

use crate::failure::Failure;
use crate::{plans, profiles};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Streaming")]
pub(crate) struct StreamArgs {
    /// Follow this plan of the bundle
    #[arg(long, value_name = "NAME", conflicts_with_all = ["schedule", "group", "depth", "banks"])]
    plan: Option<String>,
    /// The device is hot: follow the plan's column for that, and imitate a profile's rates of a hot device
    #[arg(long)]
    pub(crate) hot: bool,
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
    /// Imitate the storage of a profile: one that comes with estream, or a file (TOML or JSON)
    #[arg(long, value_name = "PROFILE")]
    throttle: Option<String>,
    /// Write what happened when, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ScheduleArg {
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
        if self.hot && self.plan.is_none() && self.throttle.is_none() {
            return Err(Failure::usage(
                "--hot is a column of a plan, or of the rates that are imitated; name one with --plan or --throttle",
            ));
        }
        let throttle = self.throttle.as_deref().map(profiles::named).transpose()?;
        let choice = Choice {
            plan: self.plan.clone(),
            schedule: self.schedule.map(Schedule::from),
            group: self.group,
            depth: self.depth,
            banks: self.banks,
            pin: self.pin,
            throttle: throttle.map(|profile| profile.storage),
        };
        choice.resolve(reader).map_err(|error| match &self.plan {
            Some(name) => plans::unknown(reader, name, error),
            None => error.into(),
        })
    }

    /// Errors if a timeline is wanted, of what is no single run.
    pub(crate) fn refuse_timeline(&self) -> Result<(), Failure> {
        match &self.timeline {
            None => Ok(()),
            Some(_) => Err(Failure::usage(
                "--timeline is of one run; use it with estream run",
            )),
        }
    }
}
