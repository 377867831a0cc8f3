//! `estream profile`: what is known of devices.

mod measure;

use clap::Subcommand;

use crate::failure::Failure;
use crate::ui::Ui;

/// What is known of devices
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Measure(measure::Args),
}

pub(crate) fn run(verb: &Verb, ui: &Ui) -> Result<(), Failure> {
    match verb {
        Verb::Measure(args) => measure::run(args, ui),
    }
}
