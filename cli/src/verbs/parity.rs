//! `estream parity`: how far is a bundle from its source, on real text?

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::anyhow;
use estream_runtime::reader::BundleReader;
use estream_runtime::{BackendKind, LoadOptions, Model, check_prompt, ids};
use estream_schemas::exit::Exit;

use crate::failure::Failure;
use crate::output::NewFile;
use crate::parity::{
    Limits, Reference, ReferenceUsed, Report, Shape, Source, Stored, TEXT, Unquantised, Windows,
    compare, read, require_same, write,
};
use crate::signals;
use crate::tables::grouped;
use crate::text::Text;
use crate::ui::Ui;
use crate::verbs::compile::start_threads;

/// Compare a bundle's logits and routing with those of its source, on real text
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle
    bundle: PathBuf,
    /// Its source (Hugging Face directory or GGUF file), another bundle of it, or a stored reference
    #[arg(long, value_name = "SRC|LOGITS")]
    reference: PathBuf,
    /// Store the reference's results, to be a reference without the source
    #[arg(long, value_name = "FILE")]
    save_reference: Option<PathBuf>,
    /// Likeliest tokens to store of each position
    #[arg(long, value_name = "K", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    top: u32,
    /// Where the source is compiled to and whole rows of logits are kept meanwhile [default: the system's directory of temporary files]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    #[command(flatten)]
    input: Input,
    /// What to run the bundle on; the reference is run on cpu
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: String,
    /// Threads to compute with; results do not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    #[command(flatten)]
    limits: Limits,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Text")]
struct Input {
    /// A text, by the bundle's tokenizer; - is standard input [default: a passage of the King James Bible]
    #[arg(long, alias = "text", value_name = "FILE", conflicts_with = "ids_file")]
    text_file: Option<PathBuf>,
    /// Token ids, separated by commas or spaces; nothing is added to them
    #[arg(long, value_name = "FILE")]
    ids_file: Option<PathBuf>,
    /// Tokens that are run together [default: 512, or the model's context if that is shorter]
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Tokens in all
    #[arg(long, value_name = "N")]
    max_tokens: Option<NonZeroUsize>,
}

/// Tokens of a window, unless told otherwise.
const WINDOW: usize = 512;
/// Tokens in all, unless told otherwise: for a vocabulary of 150,000, whole rows of
/// logits take 2.5 GB then.
const MAX_TOKENS: usize = 4096;

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let backend: BackendKind = args.backend.parse()?;
    let threads = args
        .threads
        .and_then(|count| NonZeroUsize::new(count.into()));
    let options = |backend| LoadOptions {
        threads,
        backend,
        ..LoadOptions::default()
    };
    let reader = BundleReader::open(&args.bundle)?;
    let manifest = reader.bundle().manifest();
    let shape = Shape::of(manifest);
    let text = Text::of(&reader)?;
    let kind = Source::of(&args.reference);
    // What may wait for a writer comes first: nothing is begun, and a signal ends the process.
    let windows = match kind {
        Source::Logits => {
            args.input.refuse()?;
            None
        }
        Source::Bundle | Source::Checkpoint => {
            let windows = args.input.windows(&reader, &text, ui)?;
            check_windows(&windows, &reader)?;
            Some(windows)
        }
    };
    // Known before hours of work; and what is begun is cleaned up from here on.
    signals::watch().map_err(Failure::io)?;
    let save = args
        .save_reference
        .as_deref()
        .map(NewFile::new)
        .transpose()?;

    let mut reference = match windows {
        None => {
            let stored = read(&args.reference, &shape)?;
            check_windows(&stored.windows, &reader)?;
            Reference {
                stored,
                spool: None,
            }
        }
        Some(windows) => {
            let work_dir = args.work_dir.clone().unwrap_or_else(std::env::temp_dir);
            let compiled;
            let bundle;
            let source = match kind {
                Source::Checkpoint => {
                    start_threads(threads)?;
                    compiled = Unquantised::compile(&args.reference, manifest, &work_dir, ui)?;
                    &compiled.reader
                }
                _ => {
                    bundle = BundleReader::open(&args.reference)?;
                    let other = Shape::of(bundle.bundle().manifest());
                    require_same(&args.reference, &shape, &other)?;
                    &bundle
                }
            };
            let top = usize::try_from(args.top).unwrap_or(usize::MAX);
            let identity = source.identity().to_string();
            let stored = Stored::new(shape, identity, windows, top);
            Reference::run(stored, source, &options(BackendKind::Cpu), &work_dir, ui)?
        }
    };
    if let Some(save) = save {
        save.write_with(|out| write(&reference.stored, out))?;
    }

    let mut model = Model::load(&reader, &options(backend))?;
    let comparison = compare(&mut reference, &mut model, ui)?;
    drop(model);
    let used = ReferenceUsed {
        path: args.reference.clone(),
        kind,
        identity: reference.stored.identity.clone(),
    };
    let bundle = (args.bundle.clone(), reader.identity().to_string());
    let report = Report::new(bundle, used, &reference, &comparison, &args.limits);
    let report = report.ok_or_else(|| Failure::usage("the text has no tokens"))?;
    ui.answer(&report, |report| {
        let windows = &reference.stored.windows;
        let worst = windows.index(report.kl.max_at);
        let id = windows.ids().get(worst).copied().unwrap_or_default();
        report.text(format!("token {id} {}", text.token(id)).trim_end())
    })?;
    match report.failed() {
        failed if failed.is_empty() => Ok(()),
        failed => Err(Failure::new(
            Exit::No,
            anyhow!("not within the limits: {}", failed.join("; ")),
        )),
    }
}

impl Input {
    /// A stored reference has its text with it.
    fn refuse(&self) -> Result<(), Failure> {
        let given = [
            ("--text-file", self.text_file.is_some()),
            ("--ids-file", self.ids_file.is_some()),
            ("--window", self.window.is_some()),
            ("--max-tokens", self.max_tokens.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => Err(Failure::usage(format!(
                "{option}: a stored reference has its own tokens and windows; leave it out"
            ))),
        }
    }

    /// The text in windows.
    fn windows(&self, reader: &BundleReader, text: &Text, ui: &Ui) -> Result<Windows, Failure> {
        let context = reader.bundle().manifest().program.context;
        let context = usize::try_from(context).unwrap_or(usize::MAX);
        let window = self.window.unwrap_or(WINDOW.min(context));
        if !(Windows::MIN..=context).contains(&window) {
            return Err(Failure::usage(format!(
                "a window of {window} tokens: it must have from {} to {context}, which is the model's context",
                Windows::MIN
            )));
        }
        let (ids, bos) = match (&self.ids_file, &self.text_file) {
            (Some(path), _) => (
                ids::read(path).map_err(|e| Failure::new(e.exit(), e))?,
                None,
            ),
            (_, Some(path)) => (text.continuation(&crate::text::read(path)?)?, text.bos()),
            _ => (text.continuation(TEXT)?, text.bos()),
        };
        if ids.is_empty() {
            return Err(Failure::usage("the text has no tokens"));
        }
        let most = self.max_tokens.map_or(MAX_TOKENS, NonZeroUsize::get);
        let windows = Windows::cut(&ids, bos, window, most);
        if windows.ids().len() == most && ids.len() > most {
            ui.note(format!(
                "the text has {} tokens, of which the first {} are run; --max-tokens says how many",
                grouped(ids.len() as u64),
                grouped(most as u64)
            ));
        }
        Ok(windows)
    }
}

/// Errors unless the bundle can run every window.
fn check_windows(windows: &Windows, reader: &BundleReader) -> Result<(), Failure> {
    let program = &reader.bundle().manifest().program;
    for window in windows.iter() {
        check_prompt(window, program.vocab, program.context)?;
    }
    Ok(())
}
