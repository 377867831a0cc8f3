//! `estream-run`: runs a bundle on the device it is for. Token ids in, logits out.

mod args;
mod report;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use args::{Args, Command, HELP, Prompt};
use estream_runtime::ids::{self, IdsError};
use estream_runtime::output::{LogSoftmax, top};
use estream_runtime::reader::{BundleReader, ReadError};
use estream_runtime::tensor_file::TensorFile;
use estream_runtime::{LoadOptions, Model, Positions, Request, RunError, Sink, check_prompt};
use estream_schemas::exit::Exit;
use report::{Continuation, Position, Report, Stats, Token};

fn main() -> ExitCode {
    let failed = match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => print(|out| out.write_all(HELP.as_bytes())),
        Ok(Command::Version) => {
            print(|out| writeln!(out, "estream-run {}", env!("CARGO_PKG_VERSION")))
        }
        Ok(Command::Run(args)) => run(&args),
        Err(bad) => {
            let message = format!("{}\nfor help: estream-run --help", bad.message);
            Err(Failed::new(bad.exit, message))
        }
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

    fn io(error: &io::Error) -> Failed {
        Failed::new(Exit::Io, error)
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
    let mut tokens = match &args.prompt {
        Prompt::Ids(ids) => ids.clone(),
        Prompt::File(path) => ids::read(path)?,
    };
    let prompt_len = tokens.len();
    if prompt_len == 0 {
        return Err(RunError::EmptyPrompt.into());
    }
    tokens.extend(args.continuation.iter().flatten());
    let reader = BundleReader::open(&args.bundle)?;
    let program = &reader.bundle().manifest().program;
    check_prompt(&tokens, program.vocab, program.context)?;

    let start = Instant::now();
    let options = LoadOptions {
        verify: args.verify,
        threads: args.threads,
        backend: args.backend,
    };
    let mut model = Model::load(&reader, &options)?;
    let load = start.elapsed();

    let positions = match (args.all_positions, &args.continuation) {
        (true, _) => Positions::All,
        (false, None) => Positions::Last,
        // What each token of the continuation is predicted from.
        (false, Some(_)) => Positions::Some((prompt_len - 1..tokens.len() - 1).collect()),
    };
    let rows = match &positions {
        Positions::All => tokens.len(),
        Positions::Last => 1,
        Positions::Some(chosen) => chosen.len(),
    };
    let create = |path: &Option<_>, name, cols| {
        let file = path.as_ref();
        file.map(|path: &std::path::PathBuf| TensorFile::create(path, name, rows, cols))
            .transpose()
            .map_err(|error| Failed::io(&error))
    };
    let mut collect = Collect {
        tokens: &tokens,
        scored_from: prompt_len,
        top: args.top,
        positions: Vec::new(),
        continuation: args.continuation.as_ref().map(|_| Continuation::default()),
        logits: create(&args.logits, "logits", model.vocab())?,
        hidden: create(&args.hidden, "hidden", model.hidden_width())?,
    };
    let request = Request {
        positions,
        hidden: args.hidden.is_some(),
    };
    let outcome = match model.prefill(&tokens, &request, &mut collect) {
        // Files name themselves.
        Err(RunError::Sink(error)) => return Err(Failed::io(&error)),
        other => other?,
    };
    for file in [collect.logits, collect.hidden].into_iter().flatten() {
        file.finish().map_err(|error| Failed::io(&error))?;
    }
    let stats = Stats::new(model.backend(), &outcome, load);
    if args.stats && !args.json {
        // Talk that nobody can read changes nothing.
        let _ = stats.table(&mut io::stderr().lock());
    }
    let report = Report {
        identity: reader.identity().to_string(),
        tokens: outcome.tokens,
        positions: collect.positions,
        continuation: collect.continuation,
        stats: args.stats.then_some(stats),
    };
    print(|out| match args.json {
        true => report.json(out),
        false => report.text(out),
    })
}

/// Takes rows of results apart as they come.
struct Collect<'a> {
    tokens: &'a [u32],
    /// Index of the first token of the continuation.
    scored_from: usize,
    top: usize,
    positions: Vec<Position>,
    continuation: Option<Continuation>,
    logits: Option<TensorFile>,
    hidden: Option<TensorFile>,
}

impl Sink for Collect<'_> {
    fn logits(&mut self, position: usize, row: &[f32]) -> io::Result<()> {
        if let Some(file) = &mut self.logits {
            file.row(row)?;
        }
        let next = position + 1;
        let scored = self.continuation.as_mut();
        let scored = scored.filter(|_| next >= self.scored_from);
        let scored = scored.zip(self.tokens.get(next).copied());
        if self.top == 0 && scored.is_none() {
            return Ok(());
        }
        let norm = LogSoftmax::of(row);
        let token = |id, logit| Token {
            id,
            logit,
            logprob: norm.log_prob(logit),
        };
        if let Some((continuation, id)) = scored {
            // The model has checked that every id is one of the vocabulary.
            let token = token(id, row[id as usize]);
            continuation.total_logprob += token.logprob;
            continuation.tokens.push(token);
        }
        if self.top > 0 {
            let best = top(row, self.top).into_iter();
            self.positions.push(Position {
                position,
                top: best.map(|best| token(best.id, best.logit)).collect(),
            });
        }
        Ok(())
    }

    fn hidden(&mut self, _position: usize, row: &[f32]) -> io::Result<()> {
        self.hidden.as_mut().map_or(Ok(()), |file| file.row(row))
    }
}
