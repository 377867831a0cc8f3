//! `estream verify`: is every byte of a bundle what its manifest says?

use std::path::PathBuf;

use estream_runtime::reader::BundleReader;
use serde::Serialize;

use crate::failure::Failure;
use crate::ui::Ui;

/// Check every byte of a bundle against its manifest
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle
    bundle: PathBuf,
}

#[derive(Serialize)]
struct Report {
    bundle: PathBuf,
    identity: String,
    bytes: u64,
    problems: Vec<String>,
    strays: Vec<PathBuf>,
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
    };
    for stray in &report.strays {
        ui.note(format!("{}: is no part of the bundle", stray.display()));
    }
    ui.answer(&report, |report| {
        let name = report.bundle.display();
        match report.problems.is_empty() {
            true => format!(
                "{name}: every byte is as the manifest says\n{name} {}\n",
                report.identity
            ),
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
