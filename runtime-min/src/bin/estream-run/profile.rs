//! `estream-run profile`: measures what a profile says of this device.

use std::ffi::OsString;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use estream_runtime::measure::{Measure, measure};
use estream_runtime::partial::PartialFile;
use estream_runtime::reader::BundleReader;
use estream_runtime::{ids, parse_size};
use estream_schemas::exit::Exit;
use lexopt::prelude::*;

use crate::args::{BadArgs, usage, verify};
use crate::{Failed, print};

const HELP: &str = "\
Measures a profile of this device on a bundle, and prints it as JSON; what is found on the way
is on standard error.

Usage: estream-run profile BUNDLE [OPTIONS]

      --tokens LIST        lengths of the prompts to run [default: 64,512]
  -G LIST                  experts a group [default: 1,2,4,8 as far as half a layer and 1 GiB go]
      --runs N             requests of each length with each group; medians count [default: 3]
      --name NAME          what the profile is called [default: measured]
  -o FILE                  write the profile to a file that does not exist
      --budget SIZE        the most memory, as 512M or 2G; groups that need more are left out
      --threads N          [default: as many as the machine has]
      --verify WHEN        always, first-use or never [default: always, as in a first request]

  -h, --help               print this
";

/// What to measure, and where the profile goes.
struct Args {
    bundle: PathBuf,
    output: Option<PathBuf>,
    what: Measure,
}

/// None if it is help that is wanted.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Args>, BadArgs> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut bundle = None;
    let mut args = Args {
        bundle: PathBuf::new(),
        output: None,
        what: Measure::default(),
    };
    let what = &mut args.what;
    while let Some(arg) = parser.next()? {
        match arg {
            Value(path) if bundle.is_none() => bundle = Some(PathBuf::from(path)),
            Long("tokens") => what.tokens = numbers("--tokens", &mut parser)?,
            Short('G') => what.groups = numbers("-G", &mut parser)?,
            Long("runs") => what.runs = parser.value()?.parse()?,
            Long("name") => what.name = parser.value()?.string()?,
            Short('o') => args.output = Some(parser.value()?.into()),
            Long("budget") => {
                let size = parse_size(&parser.value()?.string()?);
                let size = size.map_err(|why| usage(format!("--budget: {why}")))?;
                what.load.budget_bytes = Some(size);
            }
            Long("threads") => {
                what.load.threads = Some(parser.value()?.parse::<NonZeroUsize>()?);
            }
            Long("verify") => what.load.verify = verify(&parser.value()?)?,
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected().into()),
        }
    }
    args.bundle = bundle.ok_or_else(|| usage("no bundle; name its directory"))?;
    Ok(Some(args))
}

fn numbers(flag: &str, parser: &mut lexopt::Parser) -> Result<Vec<usize>, BadArgs> {
    let text = parser.value()?.string()?;
    match ids::parse(&text) {
        Ok(list) if !list.is_empty() => Ok(list.into_iter().map(|id| id as usize).collect()),
        _ => Err(usage(format!(
            "{flag} {text:?}: name whole numbers, separated by commas"
        ))),
    }
}

pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> Result<(), Failed> {
    let args = match parse(args) {
        Ok(Some(args)) => args,
        Ok(None) => return print(|out| out.write_all(HELP.as_bytes())),
        Err(bad) => {
            let message = format!("{}\nfor help: estream-run profile --help", bad.message);
            return Err(Failed::new(bad.exit, message));
        }
    };
    let reader = BundleReader::open(&args.bundle)?;
    // Known before minutes are spent. Nothing stays there meanwhile.
    if let Some(path) = &args.output {
        PartialFile::beside(path).map_err(|error| failed(path, &error))?;
    }
    // Talk that nobody can read changes nothing.
    let measured = measure(&reader, &args.what, &mut |line| {
        let _ = writeln!(io::stderr(), "{line}");
    });
    let measured = measured?;
    let _ = writeln!(io::stderr(), "{measured}");
    let write = |out: &mut dyn Write| {
        serde_json::to_writer_pretty(&mut *out, &measured.profile)?;
        out.write_all(b"\n")
    };
    let Some(path) = &args.output else {
        return print(write);
    };
    let whole = || -> io::Result<()> {
        let (partial, mut file) = PartialFile::beside(path)?;
        write(&mut file)?;
        partial.publish()
    };
    whole().map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> Failed {
    let exit = match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::InvalidFilename => Exit::Usage,
        _ => Exit::Io,
    };
    Failed::new(exit, format!("{}: cannot write: {error}", path.display()))
}
