//! `estream routes`: which experts the tokens of some prompts go to.

mod picture;

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use estream_compiler::ingest::imatrix;
use estream_runtime::reader::BundleReader;
use estream_runtime::{LoadOptions, Model, Request, check_prompt, ids};
use estream_schemas::digest::Digest;
use estream_schemas::limits::MAX_NAME_BYTES;
use estream_schemas::routes::{MAX_ROUTES_PROMPTS, Recording, RoutedPrompt, Rows};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::NewFile;
use crate::parity::Windows;
use crate::paths;
use crate::routes::{empty, layers, record, write};
use crate::signals;
use crate::stream::StreamArgs;
use crate::tables::table;
use crate::text::Text;
use crate::ui::Ui;
use crate::verbs::reorder::read_for;

/// Record which experts the tokens of some prompts go to
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle
    bundle: PathBuf,
    #[command(flatten)]
    prompts: Prompts,
    /// The file of routes to make; nothing may have its name
    #[arg(
        long,
        short,
        value_name = "FILE",
        required_unless_present = "routes",
        conflicts_with = "routes"
    )]
    output: Option<PathBuf>,
    /// Draw the share of tokens that goes to each expert, layer by layer, into a new SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Cut every file into prompts of so many tokens
    #[arg(long, value_name = "N", conflicts_with_all = ["imatrix", "routes"])]
    window: Option<usize>,
    /// Tokens that go through the model together [default: all]
    #[arg(long, value_name = "N")]
    chunk: Option<NonZeroUsize>,
    /// Threads to compute with; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    stream: StreamArgs,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Prompts {
    /// A prompt in words, by the bundle's tokenizer; may be repeated, - is standard input
    #[arg(
        long,
        alias = "text",
        value_name = "FILE",
        help_heading = "Prompts",
        conflicts_with = "imatrix"
    )]
    text_file: Vec<PathBuf>,
    /// A prompt as token ids, separated by commas or spaces; may be repeated
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Prompts",
        conflicts_with = "imatrix"
    )]
    ids_file: Vec<PathBuf>,
    /// No prompts, but the counts of experts in an importance matrix of llama.cpp (GGUF)
    #[arg(long, value_name = "FILE", help_heading = "Prompts")]
    imatrix: Option<PathBuf>,
    /// No prompts, but routes that were recorded before
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Prompts",
        conflicts_with_all = ["text_file", "ids_file", "imatrix"]
    )]
    routes: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report<'a> {
    /// The file that was made, or read.
    #[serde(serialize_with = "paths::one")]
    routes: &'a Path,
    bytes: u64,
    bundle: Digest,
    prompts: usize,
    tokens: u64,
    layers: Vec<LayerReport>,
    #[serde(serialize_with = "paths::maybe")]
    svg: Option<&'a Path>,
}

/// How a layer is used.
#[derive(Serialize)]
struct LayerReport {
    layer: u64,
    experts: u64,
    /// Experts that any prompt uses.
    used: usize,
    /// Experts a prompt uses, on average.
    used_by_prompt: f64,
    /// Share of the routes that the busiest eighth of the experts has.
    busiest_eighth: f64,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    args.stream.refuse_timeline()?;
    let reader = BundleReader::open(&args.bundle)?;
    // What may wait for a writer comes first: nothing is begun, and a signal ends the process.
    let input = Input::of(args, &reader)?;
    signals::watch().map_err(Failure::io)?;
    let output = args.output.as_deref().map(NewFile::new).transpose()?;
    let svg = args.svg.as_deref().map(NewFile::new).transpose()?;
    let recording = match input {
        Input::Counts(recording) => recording,
        Input::Prompts(prompts) => recorded(args, &reader, prompts, ui)?,
    };
    if signals::go_on().is_break() {
        return Err(stopped("before the routes were written"));
    }
    // One of the two is there.
    let file = args.output.as_deref().or(args.prompts.routes.as_deref());
    let file = file.unwrap_or(Path::new(""));
    let bytes = match output {
        Some(output) => write(&recording, output)?,
        None => fs::metadata(file).map_err(Failure::io)?.len(),
    };
    if let Some(svg) = svg {
        let picture = picture::picture(&reader, &recording);
        svg.write(picture.as_bytes())?;
    }
    let report = Report {
        routes: file,
        bytes,
        bundle: recording.bundle,
        prompts: recording.prompts.len(),
        tokens: tokens(&recording),
        layers: (0..recording.layers.len())
            .map(|at| LayerReport::of(&recording, at))
            .collect(),
        svg: args.svg.as_deref(),
    };
    ui.answer(&report, text)
}

/// Tokens of all prompts.
fn tokens(recording: &Recording) -> u64 {
    let prompts = recording.prompts.iter();
    prompts.map(|prompt| u64::from(prompt.tokens)).sum()
}

/// What was named to take routes from.
enum Input {
    /// They are counted already.
    Counts(Recording),
    /// Names and tokens of prompts to run.
    Prompts(Vec<(String, Vec<u32>)>),
}

impl Input {
    fn of(args: &Args, reader: &BundleReader) -> Result<Input, Failure> {
        match &args.prompts {
            Prompts {
                routes: Some(path), ..
            } => {
                let layers = layers(reader.bundle().manifest());
                let layers = layers.iter().map(|layer| (layer.layer, layer.experts));
                Ok(Input::Counts(read_for(path, layers)?))
            }
            Prompts {
                imatrix: Some(path),
                ..
            } => Ok(Input::Counts(counted(reader, path)?)),
            prompts => Ok(Input::Prompts(prompts.ids(reader, args.window)?)),
        }
    }
}

/// A signal has come.
fn stopped(when: &str) -> Failure {
    Failure::io(std::io::Error::other(format!("stopped {when}")))
}

/// Runs every prompt.
fn recorded(
    args: &Args,
    reader: &BundleReader,
    prompts: Vec<(String, Vec<u32>)>,
    ui: &Ui,
) -> Result<Recording, Failure> {
    let program = &reader.bundle().manifest().program;
    for (_, ids) in &prompts {
        check_prompt(ids, program.vocab, program.context)?;
    }
    let longest = prompts.iter().map(|(_, ids)| ids.len()).max().unwrap_or(0);
    let options = LoadOptions {
        threads: args.threads,
        streaming: args.stream.chosen(reader)?.streaming,
        budget_bytes: args.stream.budget,
        expected: Some((longest, args.chunk)),
        ..LoadOptions::default()
    };
    let mut model = Model::load(reader, &options)?;
    let mut recording = empty(reader);
    let request = Request {
        chunk: args.chunk,
        hot: args.stream.hot,
        ..Request::default()
    };
    let count = prompts.len();
    signals::cancelling(&model.canceller(), || {
        for (at, (name, ids)) in prompts.into_iter().enumerate() {
            if signals::go_on().is_break() {
                return Err(stopped(&format!("after {at} of {count} prompts")));
            }
            record(&mut recording, &mut model, name, &ids, &request)?;
        }
        Ok(())
    })
    .map_err(Failure::io)??;
    if count == 1 {
        ui.note("one prompt says little of others; --window cuts a text into many");
    }
    Ok(recording)
}

impl Prompts {
    /// Names and tokens of every prompt.
    fn ids(
        &self,
        reader: &BundleReader,
        window: Option<usize>,
    ) -> Result<Vec<(String, Vec<u32>)>, Failure> {
        if window.is_some_and(|window| window < Windows::MIN) {
            return Err(Failure::usage(format!(
                "--window must be at least {}",
                Windows::MIN
            )));
        }
        let mut prompts = Vec::new();
        let mut add = |path: &Path, all: Vec<u32>, bos: Option<u32>| {
            let name = path.file_name().unwrap_or(path.as_os_str());
            let name = name.to_string_lossy();
            let whole = bos.iter().len() + all.len();
            let cut = Windows::cut(&all, bos, window.unwrap_or(whole.max(2)), usize::MAX);
            for (at, ids) in cut.iter().enumerate() {
                let name = match window {
                    None => name.to_string(),
                    Some(_) => format!("{name} {at}"),
                };
                prompts.push((shortened(&name), ids.to_vec()));
            }
        };
        if !self.text_file.is_empty() {
            let text = Text::of(reader)?;
            for path in &self.text_file {
                let ids = text.continuation(&crate::text::read(path)?)?;
                add(path, ids, text.bos());
            }
        }
        for path in &self.ids_file {
            let ids = ids::read(path).map_err(|error| Failure::new(error.exit(), error))?;
            add(path, ids, None);
        }
        match prompts.len() {
            0 => Err(Failure::usage("the prompts have no tokens")),
            1..=MAX_ROUTES_PROMPTS => Ok(prompts),
            count => Err(Failure::usage(format!(
                "{count} prompts are more than {MAX_ROUTES_PROMPTS}; use a larger --window"
            ))),
        }
    }
}

/// A name as long as names may be.
fn shortened(name: &str) -> String {
    let mut name = name.to_owned();
    while name.len() > MAX_NAME_BYTES {
        name.pop();
    }
    name
}

/// The counts of an importance matrix as one long prompt.
fn counted(reader: &BundleReader, path: &Path) -> Result<Recording, Failure> {
    let mut recording = empty(reader);
    let found = imatrix::read(path)?;
    let invalid = |why: String| {
        let what = format!("{}: {why}", path.display());
        Failure::new(
            estream_schemas::exit::Exit::Invalid,
            anyhow::Error::msg(what),
        )
    };
    let mut rows = Vec::with_capacity(recording.layers.len());
    let mut tokens = 0;
    let mut missing = Vec::new();
    for layer in &recording.layers {
        let Some(counts) = found.get(&layer.layer) else {
            missing.push(layer.layer.to_string());
            continue;
        };
        let sum: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let most = counts.iter().max().copied().unwrap_or(0);
        let least = sum.div_ceil(layer.top_k.max(1)).max(u64::from(most));
        tokens = tokens.max(least);
        rows.push(Rows(counts.clone()));
    }
    if !missing.is_empty() {
        let layers = missing.join(", ");
        return Err(invalid(format!(
            "no counts of the experts of layers {layers}; it is of another model, or older than counts by expert"
        )));
    }
    recording.prompts.push(RoutedPrompt {
        name: "imatrix".to_owned(),
        tokens: u32::try_from(tokens).map_err(|_| invalid(format!("{tokens} tokens")))?,
        rows,
    });
    recording
        .check()
        .map_err(|error| invalid(error.to_string()))?;
    Ok(recording)
}

impl LayerReport {
    fn of(recording: &Recording, at: usize) -> LayerReport {
        let layer = &recording.layers[at];
        let of_prompts = recording.prompts.iter().map(|prompt| &prompt.rows[at].0);
        let mut sums = vec![0u64; usize::try_from(layer.experts).unwrap_or(0)];
        let mut uses = 0;
        for rows in of_prompts {
            uses += rows.iter().filter(|rows| **rows > 0).count();
            for (sum, rows) in sums.iter_mut().zip(rows) {
                *sum += u64::from(*rows);
            }
        }
        let used = sums.iter().filter(|sum| **sum > 0).count();
        let all: u64 = sums.iter().sum();
        sums.sort_unstable_by(|a, b| b.cmp(a));
        let busiest: u64 = sums[..sums.len().div_ceil(8)].iter().sum();
        LayerReport {
            layer: layer.layer,
            experts: layer.experts,
            used,
            used_by_prompt: uses as f64 / recording.prompts.len().max(1) as f64,
            busiest_eighth: busiest as f64 / all.max(1) as f64,
        }
    }
}

fn text(report: &Report<'_>) -> String {
    let mut layers = table(&[
        "layer",
        "experts",
        "used",
        "a prompt uses",
        "routes of the busiest eighth",
    ]);
    for layer in &report.layers {
        layers.add_row([
            layer.layer.to_string(),
            layer.experts.to_string(),
            layer.used.to_string(),
            format!("{:.1}", layer.used_by_prompt),
            format!("{:.1} %", 100.0 * layer.busiest_eighth),
        ]);
    }
    let prompts = match report.prompts {
        1 => "one prompt".to_owned(),
        count => format!("{count} prompts"),
    };
    let mut text = format!(
        "{layers}\n{} {prompts}, {} tokens\n",
        report.routes.display(),
        report.tokens
    );
    if let Some(path) = report.svg {
        text += &format!("drawn: {}\n", path.display());
    }
    text
}
