//! `estream compile`: a checkpoint in, a bundle out.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use estream_packer::report::{Sizes, sizes};
use estream_packer::{ReplacedPlans, WriteOptions, rehearse, spec, write};
use estream_schemas::digest::Digest;
use estream_schemas::exit::Exit;
use serde::Serialize;

use crate::failure::Failure;
use crate::paths;
use crate::source::{BuildArgs, inputs, open};
use crate::tables;
use crate::ui::Ui;
use crate::verbs::reorder::OrderBy;

/// Compile a checkpoint into a bundle
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Hugging Face directory, or GGUF file
    source: PathBuf,
    /// The bundle to make, as NAME.estream
    #[arg(long, short, value_name = "BUNDLE")]
    output: PathBuf,
    /// Do everything but write; the exit code is what it would be
    #[arg(long)]
    dry_run: bool,
    /// Replace an existing bundle (and nothing else)
    #[arg(long)]
    force: bool,
    /// Threads to quantise with [default: as many as the machine has]; the bytes do not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Store experts in the order of these routes, as estream routes records them [default: by number]
    #[arg(long, value_name = "ROUTES", help_heading = "Storage order")]
    order: Option<PathBuf>,
    #[command(flatten)]
    order_by: OrderBy,
    #[command(flatten)]
    build: BuildArgs,
}

/// Starts the threads that quantise; the environment has no say in how many there are.
pub(crate) fn start_threads(threads: Option<NonZeroUsize>) -> Result<(), Failure> {
    let threads = threads.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build_global()
        .map_err(|error| Failure::new(Exit::CannotRun, error))
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(serialize_with = "paths::maybe")]
    bundle: Option<&'a PathBuf>,
    identity: Option<Digest>,
    family: &'a str,
    recipe: &'a str,
    /// Of a bundle that was replaced.
    plans: Option<ReplacedPlans>,
    sizes: Sizes,
    notices: Vec<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    if args.order.is_none() {
        args.order_by.refuse("--order")?;
    }
    start_threads(args.threads.and_then(|n| NonZeroUsize::new(n.into())))?;
    let checkpoint = open(&args.source)?;
    let compiled = args.build.plan(&checkpoint)?;
    for notice in &compiled.notices {
        ui.note(notice);
    }
    let mut spec = spec(&compiled, args.build.max_part_size);
    if let Some(routes) = &args.order {
        let layers = spec.layers.iter().map(|layer| (layer.layer, layer.experts));
        let (orders, routed) = args.order_by.orders(routes, layers)?;
        ui.note(format!(
            "{}: bundle {routed} routed; that it is of this checkpoint is for you to know",
            routes.display()
        ));
        spec.reorder(&orders);
    }
    let options = WriteOptions {
        force: args.force,
        verify: false,
        inputs: inputs(&checkpoint)
            .into_iter()
            .chain(args.order.clone())
            .collect(),
    };
    let manifest = rehearse(&spec, &args.output, &options)?;
    let written = match args.dry_run {
        true => None,
        false => Some(ui.until_signal("compiling", |progress| {
            write(&spec, &compiled, &args.output, &options, progress)
        })??),
    };
    if let Some(written) = &written {
        ui.replaced(&args.output, written);
    }
    let identity = written.as_ref().map(|written| written.identity);
    let report = Report {
        bundle: identity.map(|_| &args.output),
        identity,
        family: &manifest.model.family,
        recipe: &manifest.recipe.name,
        plans: written.map(|written| written.plans),
        sizes: sizes(&manifest),
        notices: compiled.notices.iter().map(ToString::to_string).collect(),
    };
    ui.answer(&report, |report| {
        let head = match report.identity {
            Some(identity) => format!("{} {identity}", args.output.display()),
            None => "dry run: nothing was written".to_owned(),
        };
        format!(
            "{}{head}\nfamily {}, recipe {}\n",
            tables::sizes(&report.sizes),
            report.family,
            report.recipe
        )
    })
}
