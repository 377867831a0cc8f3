//! `estream-run`: runs a bundle on the device it is for. Token ids in, logits out.

mod args;
mod profile;
mod report;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use args::{Args, Command, HELP, Prompt};
use estream_runtime::answer::Ask;
use estream_runtime::ids::{self, IdsError};
use estream_runtime::reader::{BundleReader, ReadError};
use estream_runtime::stats::Stats;
use estream_runtime::{Column, LoadOptions, Model, RunError, check_prompt};
use estream_schemas::exit::Exit;
use report::Report;

fn main() -> ExitCode {
    // The shipped build aborts on a panic; a caller should see the code for a bug instead.
    std::panic::set_hook(Box::new(|bug| {
        let _ = writeln!(
            io::stderr(),
            "estream-run: {bug}\nthis is a bug in estream: please report it"
        );
        std::process::exit(i32::from(Exit::Internal.code()));
    }));
    let mut words = std::env::args_os().skip(1).peekable();
    let failed = match words.next_if(|word| word == "profile") {
        Some(_) => profile::run(words),
        None => prefill(words),
    };
    match failed {
        Ok(()) => ExitCode::from(Exit::Ok.code()),
        Err(Failed { exit, message }) => {
            // Standard error may be closed; the exit code still tells.
            let _ = writeln!(io::stderr(), "estream-run: {message}");
            ExitCode::from(exit.code())
        }
    }
}

/// Does what was typed, where it is no measurement.
fn prefill(words: impl Iterator<Item = OsString>) -> Result<(), Failed> {
    match args::parse(words) {
        Ok(Command::Help) => print(|out| out.write_all(HELP.as_bytes())),
        Ok(Command::Version) => {
            print(|out| writeln!(out, "estream-run {}", env!("CARGO_PKG_VERSION")))
        }
        Ok(Command::Run(args)) => run(&args),
        Err(bad) => {
            let message = format!("{}\nfor help: estream-run --help", bad.message);
            Err(Failed::new(bad.exit, message))
        }
    }
}

/// The end of a run that did not succeed.
struct Failed {
    exit: Exit,
    message: String,
}

impl Failed {
    fn new(exit: Exit, message: impl fmt::Display) -> Failed {
        Failed {
            exit,
            message: message.to_string(),
        }
    }
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Failed {
        Failed::new(error.exit(), error)
    }
}

impl From<RunError> for Failed {
    fn from(error: RunError) -> Failed {
        Failed::new(error.exit(), error)
    }
}

impl From<IdsError> for Failed {
    fn from(error: IdsError) -> Failed {
        Failed::new(error.exit(), error)
    }
}

/// Lets `write` print to standard output. A reader that has enough is no failure.
fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failed> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failed::new(
            Exit::Io,
            format!("cannot write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

fn run(args: &Args) -> Result<(), Failed> {
    let prompt = match &args.prompt {
        Prompt::Ids(ids) => ids.clone(),
        Prompt::File(path) => ids::read(path)?,
    };
    let ask = Ask {
        prompt,
        continuation: args.continuation.clone(),
        all_positions: args.all_positions,
        top: args.top,
        logits: args.logits.clone(),
        hidden: args.hidden.clone(),
        timeline: args.timeline.clone(),
        chunk: args.chunk,
        hot: args.hot,
    };
    if ask.prompt.is_empty() {
        return Err(RunError::EmptyPrompt.into());
    }
    let reader = BundleReader::open(&args.bundle)?;
    let program = &reader.bundle().manifest().program;
    // Known before gigabytes are read.
    check_prompt(&ask.tokens(), program.vocab, program.context)?;

    let chosen = args.stream.resolve(&reader)?;
    let start = Instant::now();
    let options = LoadOptions {
        verify: args.verify,
        threads: args.threads,
        backend: args.backend,
        streaming: chosen.streaming,
        budget_bytes: args.budget,
        expected: Some((ask.tokens().len(), ask.chunk)),
        kept_bytes: ask.kept_bytes(usize::try_from(program.vocab).unwrap_or(usize::MAX)),
    };
    let mut model = Model::load(&reader, &options)?;
    let load = start.elapsed();
    let (answer, outcome) = ask.run(&mut model)?;
    if outcome.column == Column::NoHot {
        let why = &chosen.why;
        let _ = writeln!(
            io::stderr(),
            "estream-run: {why} has no column for a hot device; it is followed as on any other"
        );
    }
    let stats = Stats::new(&model, &outcome, load, &chosen.why);
    if args.stats && !args.json {
        // Talk that nobody can read changes nothing.
        let _ = report::table(&stats, &mut io::stderr().lock());
    }
    let report = Report {
        identity: reader.identity().to_string(),
        tokens: outcome.tokens,
        answer,
        stats: args.stats.then_some(stats),
    };
    print(|out| match args.json {
        true => report.json(out),
        false => report.text(out),
    })
}
