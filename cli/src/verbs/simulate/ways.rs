//! Which ways of streaming are simulated, and on a device how warm.

use std::path::Path;

use estream_runtime::reader::BundleReader;
use estream_runtime::{Choice, Pin};
use estream_schemas::exit::Exit;
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_schemas::profile::{Profile, Storage};
use estream_schemas::routes::RoutedPrompt;

use crate::failure::Failure;
use crate::stream::ScheduleArg;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Streaming")]
pub(super) struct WayArgs {
    /// Follow this plan of the bundle
    #[arg(
        long,
        value_name = "NAME",
        requires = "bundle",
        conflicts_with_all = ["schedule", "group", "depth", "banks", "measured"]
    )]
    plan: Option<String>,
    /// The device is hot: the profile's rates of a hot one, and the plan's column for that
    #[arg(long)]
    pub(super) hot: bool,
    /// This schedule alone [default: all of them]
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
    /// Records of each layer that stay in memory, for the schedules ahead and compact [default: the plan's, or 0]
    #[arg(long, value_name = "N", conflicts_with = "measured")]
    pin: Option<usize>,
}

/// Ways of streaming, with as many records of each layer pinned.
#[derive(Debug)]
pub(super) struct Ways {
    pub(super) configs: Vec<StreamConfig>,
    pub(super) pinned: usize,
}

impl WayArgs {
    /// The storage of the device, as warm as it is said to be.
    pub(super) fn storage(&self, profile: &Profile) -> Result<Storage, Failure> {
        let storage = &profile.storage;
        match self.hot {
            false => Ok(storage.clone()),
            true => storage.when_hot().ok_or_else(|| {
                let name = &profile.name;
                let why = format!(
                    "the profile {name:?} has no rates of a hot device (storage.hot_rates)"
                );
                Failure::new(Exit::CannotRun, anyhow::Error::msg(why))
            }),
        }
    }

    /// The ways that are simulated, in layers of up to `records` records.
    pub(super) fn of(
        &self,
        bundle: Option<&Path>,
        records: usize,
        prompts: &[RoutedPrompt],
        ui: &Ui,
    ) -> Result<Ways, Failure> {
        match (&self.plan, bundle) {
            (Some(plan), Some(bundle)) => self.planned(plan, bundle, prompts, ui),
            _ => Ok(self.stated(records, prompts)),
        }
    }

    fn stated(&self, records: usize, prompts: &[RoutedPrompt]) -> Ways {
        let tokens = prompts.iter().map(tokens_of).max().unwrap_or(0);
        let default = StreamConfig::default_for(records, tokens);
        let group = self.group.unwrap_or(default.group);
        let depth = self.depth.unwrap_or(default.depth);
        let banks = self.banks.unwrap_or(default.banks.max(depth));
        let pinned = self.pin.unwrap_or(0);
        let schedules: Vec<Schedule> = match self.schedule {
            Some(schedule) => vec![schedule.into()],
            None => {
                let all = Schedule::ALL.into_iter();
                all.filter(|schedule| pinned == 0 || schedule.is_by_record())
                    .collect()
            }
        };
        let config = |schedule| StreamConfig::new(schedule, group, depth, banks, tokens);
        Ways {
            configs: schedules.into_iter().map(config).collect(),
            pinned,
        }
    }

    /// What a plan has for all of the prompts.
    fn planned(
        &self,
        plan: &str,
        bundle: &Path,
        prompts: &[RoutedPrompt],
        ui: &Ui,
    ) -> Result<Ways, Failure> {
        let choice = Choice {
            plan: Some(plan.to_owned()),
            pin: self.pin.map(Pin::Records),
            ..Choice::default()
        };
        let Some(streaming) = choice.resolve(&BundleReader::open(bundle)?)?.streaming else {
            return Ok(Ways {
                configs: vec![StreamConfig::new(Schedule::Resident, 1, 1, 1, 0)],
                pinned: 0,
            });
        };
        let mut rows = prompts
            .iter()
            .map(|prompt| streaming.row(tokens_of(prompt)));
        let first = rows.next().filter(|row| rows.all(|other| other == *row));
        let row = first.ok_or_else(|| {
            Failure::usage(format!(
                "plan {plan} has several rows for prompts of these lengths; name one length with --tokens"
            ))
        })?;
        if self.hot && row.hot.is_none() {
            ui.note(format!(
                "plan {plan} has no column for a hot device; it is followed as on any other"
            ));
        }
        let cut = |chunk: &u64| {
            prompts
                .iter()
                .any(|prompt| u64::from(prompt.tokens) > *chunk)
        };
        if let Some(chunk) = row.chunk.filter(cut) {
            ui.note(format!(
                "plan {plan} cuts a prompt into pieces of {chunk} tokens, of which the prediction knows nothing"
            ));
        }
        Ok(Ways {
            configs: vec![row.config(self.hot)],
            pinned: match streaming.pin() {
                Pin::Records(pinned) => pinned,
                // Of which a plan has nothing.
                Pin::Max => 0,
            },
        })
    }
}

fn tokens_of(prompt: &RoutedPrompt) -> usize {
    usize::try_from(prompt.tokens).unwrap_or(usize::MAX)
}
