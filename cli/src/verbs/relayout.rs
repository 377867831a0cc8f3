//! `estream relayout`: the same bundle with the nibbles of its tiles in another order.

use std::path::PathBuf;

use estream_packer::{ReplacedPlans, WriteOptions, relayout, write};
use estream_runtime::reader::BundleReader;
use estream_schemas::digest::Digest;
use serde::Serialize;

use crate::failure::Failure;
use crate::paths;
use crate::source::LayoutArg;
use crate::ui::Ui;

/// Convert a bundle between nibble orders, losing nothing
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle to read
    bundle: PathBuf,
    /// The bundle to make
    #[arg(long, short, value_name = "BUNDLE")]
    output: PathBuf,
    /// Order of nibbles in the tiles of the new bundle
    #[arg(long, value_name = "LAYOUT")]
    layout: LayoutArg,
    /// Replace an existing bundle (and nothing else)
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(serialize_with = "paths::one")]
    bundle: &'a PathBuf,
    identity: Digest,
    bytes: u64,
    /// Of a bundle that was replaced.
    plans: ReplacedPlans,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let reader = BundleReader::open(&args.bundle)?;
    let (spec, payload) = relayout(&reader, args.layout.order())?;
    let options = WriteOptions {
        force: args.force,
        verify: false,
        inputs: vec![args.bundle.clone()],
    };
    let written = ui.until_signal("converting", |progress| {
        write(&spec, &payload, &args.output, &options, progress)
    })??;
    ui.replaced(&args.output, &written);
    let report = Report {
        bundle: &args.output,
        identity: written.identity,
        bytes: written.bytes,
        plans: written.plans,
    };
    ui.answer(&report, |report| {
        format!("{} {}\n", report.bundle.display(), report.identity)
    })
}
