//! Chores of the repository: `cargo xtask --help` lists them.
#![forbid(unsafe_code)]

mod golden;
mod header;
mod hexagon;
mod schema;
mod synth;

use clap::{Parser, Subcommand};

/// Chores of the repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Write the JSON Schemas of the published files, or check that they are fresh.
    Schema(schema::Args),
    /// Write the header of the C ABI, or check that it is fresh.
    Header(header::Args),
    /// Build the Hexagon kernels for this machine, for an emulator and, in part, for a device.
    Hexagon(hexagon::Args),
    /// Run a bundle on the prompts of a golden file and compare the logits.
    Golden(golden::Args),
    /// Write a checkpoint of a model's real shape with random weights.
    Synth(synth::Args),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().chore {
        Chore::Schema(args) => schema::run(&args),
        Chore::Header(args) => header::run(&args),
        Chore::Hexagon(args) => hexagon::run(&args),
        Chore::Golden(args) => golden::run(&args),
        Chore::Synth(args) => synth::run(&args),
    }
}
