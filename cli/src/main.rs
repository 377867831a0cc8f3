//! The estream command line: what was typed, what it means, a call into a library.
//!
//! Data goes to stdout, everything else to stderr; exit codes are those of
//! [`estream_schemas::exit::Exit`], and 130 or 143 after a signal.
#![forbid(unsafe_code)]

mod failure;
mod output;
mod parity;
mod paths;
mod pictures;
mod plans;
mod profiles;
mod routes;
mod scene;
mod signals;
mod source;
mod stream;
mod tables;
mod templates;
mod text;
mod ui;
mod verbs;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use estream_schemas::exit::Exit;

use failure::Failure;
use ui::Ui;

#[derive(Debug, Parser)]
#[command(
    name = "estream",
    version,
    about = "Compiles Mixture-of-Experts checkpoints into bundles that a small runtime streams from flash",
    after_help = "Exit codes: 0 ok, 1 the answer is no, 2 usage or recipe, 3 the target cannot run this, \
                  4 input invalid, 5 I/O, 6 integrity, 70 internal, 129, 130 and 143 signals.\n\
                  Everything here runs on the host; estream-run is the program for the device."
)]
struct Cli {
    /// Print one JSON object to stdout instead of tables
    #[arg(long, global = true)]
    json: bool,
    /// Print nothing but results and errors
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Compile(verbs::compile::Args),
    Relayout(verbs::relayout::Args),
    Routes(verbs::routes::Args),
    Reorder(verbs::reorder::Args),
    Simulate(verbs::simulate::Args),
    Inspect(verbs::inspect::Args),
    Verify(verbs::verify::Args),
    Unpack(verbs::unpack::Args),
    Run(verbs::run::Args),
    Parity(verbs::parity::Args),
    Plan(verbs::plan::Args),
    #[command(subcommand)]
    Profile(verbs::profile::Verb),
    #[command(subcommand)]
    Arch(verbs::arch::Verb),
    Kernels(verbs::kernels::Args),
    /// Print a shell's completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ui = Ui::new(cli.json, cli.quiet);
    // Unwinding first lets whatever is half written be removed.
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| run(&cli.verb, &ui)));
    let done = done.unwrap_or_else(|_| {
        let bug = anyhow::anyhow!(
            "this is a bug in estream: please report it with what is printed above"
        );
        Err(Failure::new(Exit::Internal, bug))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(error) = &failure.error {
                ui.error(error);
            }
            ExitCode::from(signals::received().unwrap_or(failure.exit.code()))
        }
    }
}

fn run(verb: &Verb, ui: &Ui) -> Result<(), Failure> {
    match verb {
        Verb::Compile(args) => verbs::compile::run(args, ui),
        Verb::Relayout(args) => verbs::relayout::run(args, ui),
        Verb::Routes(args) => verbs::routes::run(args, ui),
        Verb::Reorder(args) => verbs::reorder::run(args, ui),
        Verb::Simulate(args) => verbs::simulate::run(args, ui),
        Verb::Inspect(args) => verbs::inspect::run(args, ui),
        Verb::Verify(args) => verbs::verify::run(args, ui),
        Verb::Unpack(args) => verbs::unpack::run(args, ui),
        Verb::Run(args) => verbs::run::run(args, ui),
        Verb::Parity(args) => verbs::parity::run(args, ui),
        Verb::Plan(args) => verbs::plan::run(args, ui),
        Verb::Profile(verb) => verbs::profile::run(verb, ui),
        Verb::Arch(verb) => verbs::arch::run(verb, ui),
        Verb::Kernels(args) => verbs::kernels::run(args, ui),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "estream", &mut script);
            ui.data(&script)
        }
    }
}
