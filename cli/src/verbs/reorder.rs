//! `estream reorder`: the same bundle with its experts in another storage order.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use estream_order::{By, Orders, orders};
use estream_packer::{ReplacedPlans, WriteOptions, reorder, write};
use estream_runtime::reader::BundleReader;
use estream_schemas::digest::Digest;
use estream_schemas::exit::Exit;
use estream_schemas::routes::Recording;
use serde::Serialize;

use crate::failure::Failure;
use crate::paths;
use crate::routes::read;
use crate::ui::Ui;

/// Store a bundle's experts in another order; no weight changes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle to read
    bundle: PathBuf,
    /// Routes to order by, as estream routes records them
    #[arg(long, value_name = "FILE")]
    routes: PathBuf,
    /// The bundle to make
    #[arg(long, short, value_name = "BUNDLE")]
    output: PathBuf,
    #[command(flatten)]
    order: OrderBy,
    /// Replace an existing bundle (and nothing else)
    #[arg(long)]
    force: bool,
}

/// How experts are ordered.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Storage order")]
pub(crate) struct OrderBy {
    /// What decides the order [default: frequency]
    #[arg(long, value_name = "WHAT")]
    order_by: Option<OrderArg>,
    /// Experts that coactivation puts together: the G that is to come [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    order_group: Option<u16>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderArg {
    /// Experts that most prompts use first
    Frequency,
    /// Experts that are used together in one group, groups by frequency
    Coactivation,
    /// By number, as the checkpoint has them
    Id,
}

impl OrderBy {
    /// The rule that was chosen.
    pub(crate) fn by(&self) -> By {
        match self.order_by {
            None | Some(OrderArg::Frequency) => By::Frequency,
            Some(OrderArg::Coactivation) => By::Coactivation {
                group: usize::from(self.order_group.unwrap_or(8)),
            },
            Some(OrderArg::Id) => By::Id,
        }
    }

    /// Errors if something was chosen where there is nothing to order by.
    pub(crate) fn refuse(&self, without: &str) -> Result<(), Failure> {
        match self.order_by.is_none() && self.order_group.is_none() {
            true => Ok(()),
            false => Err(Failure::usage(format!(
                "--order-by and --order-group say nothing without {without}"
            ))),
        }
    }

    /// The orders that the routes in a file lead to, of a model with these layers and experts, and the bundle that
    /// routed.
    pub(crate) fn orders(
        &self,
        path: &Path,
        layers: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(Orders, Digest), Failure> {
        let recording = read_for(path, layers)?;
        Ok((orders(&recording, self.by()), recording.bundle))
    }
}

/// The routes in a file, which must be of a model with these layers and experts.
pub(crate) fn read_for(
    path: &Path,
    layers: impl Iterator<Item = (u64, u64)>,
) -> Result<Recording, Failure> {
    let recording = read(path)?;
    recording.fits(layers).map_err(|error| {
        let what = format!(
            "{}: routes of another model: {}; record routes of this one",
            path.display(),
            error.0.join("; ")
        );
        Failure::new(Exit::Usage, anyhow::Error::msg(what))
    })?;
    Ok(recording)
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(serialize_with = "paths::one")]
    bundle: &'a PathBuf,
    identity: Digest,
    bytes: u64,
    /// Of a bundle that was replaced.
    plans: ReplacedPlans,
    /// Records that are elsewhere than before.
    moved: usize,
    records: usize,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let reader = BundleReader::open(&args.bundle)?;
    let before = &reader.bundle().manifest().experts.layers;
    let layers = before.iter().map(|layer| (layer.layer, layer.experts));
    let (orders, routed) = args.order.orders(&args.routes, layers)?;
    if routed != reader.identity() {
        ui.note(format!(
            "{}: bundle {routed} routed, and this is {}; that is right if both are of one model, in other types or in \
             another order, and nothing here can tell",
            args.routes.display(),
            reader.identity()
        ));
    }
    let (spec, payload) = reorder(&reader, &orders)?;
    let options = WriteOptions {
        force: args.force,
        verify: false,
        inputs: vec![args.bundle.clone(), args.routes.clone()],
    };
    let written = ui.until_signal("reordering", |progress| {
        write(&spec, &payload, &args.output, &options, progress)
    })??;
    ui.replaced(&args.output, &written);
    let pairs = before.iter().zip(&spec.layers);
    let moved = pairs.map(|(before, after)| {
        let experts = before.order.iter().zip(&after.order);
        let moved = experts.filter(|(old, new)| old != new).count() as u64;
        moved * before.shards
    });
    let report = Report {
        bundle: &args.output,
        identity: written.identity,
        bytes: written.bytes,
        plans: written.plans,
        moved: usize::try_from(moved.sum::<u64>()).unwrap_or(usize::MAX),
        records: before.iter().map(|layer| layer.digests.len()).sum(),
    };
    ui.answer(&report, |report| {
        format!(
            "{} {}\n{} of {} records moved\n",
            report.bundle.display(),
            report.identity,
            report.moved,
            report.records
        )
    })
}
