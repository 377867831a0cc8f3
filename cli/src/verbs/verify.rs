//! `estream verify`: is every byte of a bundle what its manifest says?

use std::path::PathBuf;

use estream_runtime::reader::BundleReader;
use serde::Serialize;

use crate::failure::Failure;
use crate::paths;
use crate::plans::{self, StoredPlan};
use crate::ui::Ui;

/// Check every byte of a bundle against its manifest
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle
    bundle: PathBuf,
}

#[derive(Serialize)]
struct Report {
    #[serde(serialize_with = "paths::one")]
    bundle: PathBuf,
    identity: String,
    bytes: u64,
    problems: Vec<String>,
    #[serde(serialize_with = "paths::all")]
    strays: Vec<PathBuf>,
    plans: Vec<StoredPlan>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let reader = BundleReader::open(&args.bundle)?;
    let checked = ui.progress("verifying", |progress| reader.verify_all(progress))?;
    let report = Report {
        bundle: args.bundle.clone(),
        identity: reader.identity().to_string(),
        bytes: checked.bytes,
        problems: checked.problems.iter().map(ToString::to_string).collect(),
        strays: checked.strays.clone(),
        plans: plans::stored(&reader)?,
    };
    for stray in &report.strays {
        ui.note(format!("{}: is no part of the bundle", stray.display()));
    }
    for problem in report.plans.iter().filter_map(|plan| plan.problem.as_ref()) {
        ui.note(format!("a plan cannot be followed: {problem}"));
    }
    ui.answer(&report, |report| {
        let name = report.bundle.display();
        match report.problems.is_empty() {
            true => {
                let good = report.plans.iter().filter(|plan| plan.problem.is_none());
                let plans: String = good
                    .map(|plan| format!("plan {}: can be followed\n", plan.name))
                    .collect();
                format!(
                    "{name}: every byte is as the manifest says\n{plans}{name} {}\n",
                    report.identity
                )
            }
            false => report
                .problems
                .iter()
                .fold(String::new(), |text, problem| text + problem + "\n"),
        }
    })?;
    match report.problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::silent(checked.exit())),
    }
}
