//! What was typed.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use estream_runtime::reader::Verify;
use estream_runtime::{BackendKind, Choice, ids, parse_size};
use estream_schemas::exit::Exit;
use estream_schemas::plan::Schedule;
use lexopt::prelude::*;

pub(crate) const HELP: &str = "\
Runs the model in a bundle on token ids and prints what it would say next.

Usage: estream-run BUNDLE (--ids LIST | --ids-file FILE) [OPTIONS]
       estream-run profile BUNDLE [OPTIONS]        measures this device: profile --help

Prompt:
      --ids LIST           token ids, separated by commas or spaces
      --ids-file FILE      the same from a file; - is standard input

Results:
      --top K              tokens to print for a position [default: 5; 0 with --logprob-ids]
      --all-positions      results for every position, not for the last alone
      --logprob-ids LIST   print the log-probability of these ids after the prompt
      --logits FILE        write the logits as f32 safetensors [positions, vocabulary]
      --hidden FILE        write the input of the head as f32 safetensors [positions, width]
      --json               print one JSON object
      --stats              add memory by term and as measured, times and reads

Running:
      --chunk N            tokens that go through the model together [default: all]; results
                           do not depend on it, memory does, and each chunk reads all experts
      --schedule NAME      resident, on-demand, prefetch, early, compact or ahead [default: ahead]
  -G N, -Q N, -B N         experts a group, reads at a time, groups in memory
                           [defaults: a quarter of a layer but at most 8, 2, 3]
      --plan NAME          a plan of the bundle, instead of these
      --hot                the device is hot: follow the plan's column for that
      --pin N              experts of each layer that stay in memory, or max: what the budget
                           leaves room for; with ahead and compact [default: the plan's, or 0]
      --budget SIZE        the most memory, as 512M or 2G; what needs more is refused
      --timeline FILE      write what happened when, for ui.perfetto.dev
      --backend NAME       cpu [default: cpu]
      --threads N          [default: as many as the machine has]; results do not depend on it
      --verify WHEN        always, first-use or never [default: first-use]

  -h, --help               print this
  -V, --version            print the version

Exit codes: 0 ok, 2 usage, 3 cannot run here, 4 invalid input, 5 I/O, 6 integrity, 70 a bug
";

/// A run.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) bundle: PathBuf,
    pub(crate) prompt: Prompt,
    pub(crate) continuation: Option<Vec<u32>>,
    pub(crate) all_positions: bool,
    pub(crate) top: usize,
    pub(crate) logits: Option<PathBuf>,
    pub(crate) hidden: Option<PathBuf>,
    pub(crate) chunk: Option<NonZeroUsize>,
    pub(crate) json: bool,
    pub(crate) stats: bool,
    pub(crate) backend: BackendKind,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) verify: Verify,
    pub(crate) stream: Choice,
    pub(crate) hot: bool,
    pub(crate) budget: Option<u64>,
    pub(crate) timeline: Option<PathBuf>,
}

/// Where the prompt is.
#[derive(Debug)]
pub(crate) enum Prompt {
    Ids(Vec<u32>),
    File(PathBuf),
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Command {
    Run(Box<Args>),
    Help,
    Version,
}

/// A command line that cannot be followed.
#[derive(Debug)]
pub(crate) struct BadArgs {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

pub(crate) fn usage(message: impl Into<String>) -> BadArgs {
    BadArgs {
        exit: Exit::Usage,
        message: message.into(),
    }
}

impl From<lexopt::Error> for BadArgs {
    fn from(error: lexopt::Error) -> BadArgs {
        usage(error.to_string())
    }
}

pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, BadArgs> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut bundle = None;
    let mut prompt = None;
    let mut top = None;
    let mut args = Args {
        bundle: PathBuf::new(),
        prompt: Prompt::Ids(Vec::new()),
        continuation: None,
        all_positions: false,
        top: 0,
        logits: None,
        hidden: None,
        chunk: None,
        json: false,
        stats: false,
        backend: BackendKind::Cpu,
        threads: None,
        verify: Verify::FirstUse,
        stream: Choice::default(),
        hot: false,
        budget: None,
        timeline: None,
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Value(path) if bundle.is_none() => bundle = Some(PathBuf::from(path)),
            Long("ids" | "ids-file") if prompt.is_some() => {
                return Err(usage(
                    "the prompt is given twice; use one --ids or --ids-file",
                ));
            }
            Long("ids") => prompt = Some(Prompt::Ids(list("--ids", &mut parser)?)),
            Long("ids-file") => prompt = Some(Prompt::File(parser.value()?.into())),
            Long("logprob-ids") => {
                args.continuation = Some(list("--logprob-ids", &mut parser)?);
            }
            Long("all-positions") => args.all_positions = true,
            Long("top") => top = Some(parser.value()?.parse()?),
            Long("logits") => args.logits = Some(parser.value()?.into()),
            Long("hidden") => args.hidden = Some(parser.value()?.into()),
            Long("json") => args.json = true,
            Long("stats") => args.stats = true,
            Long("chunk") => args.chunk = Some(parser.value()?.parse()?),
            Long("threads") => args.threads = Some(parser.value()?.parse()?),
            Long("schedule") => {
                let name = parser.value()?.string()?;
                let known = Schedule::ALL.into_iter().find(|known| known.name() == name);
                let known = known.ok_or_else(|| {
                    let names = Schedule::ALL.map(Schedule::name).join(", ");
                    usage(format!("--schedule {name:?}: name one of {names}"))
                })?;
                args.stream.schedule = Some(known);
            }
            Short('G') => args.stream.group = Some(parser.value()?.parse()?),
            Short('Q') => args.stream.depth = Some(parser.value()?.parse()?),
            Short('B') => args.stream.banks = Some(parser.value()?.parse()?),
            Long("pin") => args.stream.pin = Some(parser.value()?.parse()?),
            Long("plan") => args.stream.plan = Some(parser.value()?.string()?),
            Long("hot") => args.hot = true,
            Long("budget") => {
                let size = parse_size(&parser.value()?.string()?);
                args.budget = Some(size.map_err(|why| usage(format!("--budget: {why}")))?);
            }
            Long("timeline") => args.timeline = Some(parser.value()?.into()),
            Long("verify") => args.verify = verify(&parser.value()?)?,
            Long("backend") => {
                let name = parser.value()?;
                let kind = name.to_string_lossy().parse::<BackendKind>();
                args.backend = kind.map_err(|error| BadArgs {
                    exit: error.exit(),
                    message: error.to_string(),
                })?;
            }
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            other => return Err(other.unexpected().into()),
        }
    }
    args.bundle = bundle.ok_or_else(|| usage("no bundle; name its directory"))?;
    args.prompt = prompt.ok_or_else(|| usage("no prompt; use --ids or --ids-file"))?;
    if args.continuation.as_ref().is_some_and(Vec::is_empty) {
        return Err(usage("--logprob-ids: no ids; name at least one"));
    }
    if estream_runtime::answer::Ask::names_a_file_twice(&args.logits, &args.hidden, &args.timeline)
    {
        return Err(usage(
            "--logits, --hidden and --timeline name a file twice; name others",
        ));
    }
    let Choice {
        schedule,
        group,
        depth,
        banks,
        ..
    } = &args.stream;
    let stated = schedule.is_some() || [group, depth, banks].iter().any(|n| n.is_some());
    if args.stream.plan.is_some() && stated {
        return Err(usage(
            "--plan says what --schedule, -G, -Q and -B say; use one or the others",
        ));
    }
    if args.hot && args.stream.plan.is_none() {
        return Err(usage(
            "--hot is a column of a plan; name the plan with --plan",
        ));
    }
    args.top = top.unwrap_or(if args.continuation.is_some() { 0 } else { 5 });
    Ok(Command::Run(Box::new(args)))
}

/// When weights are compared with their digests.
pub(crate) fn verify(when: &OsStr) -> Result<Verify, BadArgs> {
    match when.to_str() {
        Some("always") => Ok(Verify::Always),
        Some("first-use") => Ok(Verify::FirstUse),
        Some("never") => Ok(Verify::Never),
        _ => Err(usage(format!(
            "--verify {when:?}: name one of always, first-use, never"
        ))),
    }
}

fn list(flag: &str, parser: &mut lexopt::Parser) -> Result<Vec<u32>, BadArgs> {
    let text = parser.value()?.string()?;
    ids::parse(&text).map_err(|error| usage(format!("{flag}: {error}")))
}
