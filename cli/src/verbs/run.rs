//! `estream run`: a prompt through a bundle, on this machine.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use estream_runtime::answer::{Answer, Ask};
use estream_runtime::reader::{BundleReader, Verify};
use estream_runtime::stats::Stats;
use estream_runtime::{BackendKind, LoadOptions, Model, check_prompt, ids};
use estream_schemas::plan::StreamConfig;
use serde::Serialize;

use crate::failure::Failure;
use crate::stream::StreamArgs;
use crate::tables::{grouped, table};
use crate::text::Text;
use crate::ui::Ui;

/// Run a prompt through a bundle
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle
    bundle: PathBuf,
    #[command(flatten)]
    prompt: Prompt,
    /// Print the log-probability of this text after the prompt
    #[arg(long, value_name = "TEXT", help_heading = "Results")]
    logprob: Option<String>,
    /// Print the log-probability of these ids after the prompt
    #[arg(
        long,
        value_name = "LIST",
        conflicts_with = "logprob",
        help_heading = "Results"
    )]
    logprob_ids: Option<String>,
    /// Results for every position, not for the last alone
    #[arg(long, help_heading = "Results")]
    all_positions: bool,
    /// Most likely tokens to print for a position [default: 5; 0 if anything else is asked for]
    #[arg(long, value_name = "K", help_heading = "Results")]
    top: Option<usize>,
    /// Write the logits as f32 safetensors, [positions, vocabulary]
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    logits: Option<PathBuf>,
    /// Write the rows the head reads as f32 safetensors, [positions, width]
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    hidden: Option<PathBuf>,
    /// Print what the run took: memory by term and as measured, times, reads
    #[arg(long, help_heading = "Results")]
    stats: bool,
    /// Tokens that go through the model together [default: all]; fewer take less memory, and
    /// each chunk reads all experts again. Results do not depend on it
    #[arg(long, value_name = "N")]
    chunk: Option<NonZeroUsize>,
    /// What to compute on
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    backend: String,
    /// Threads to compute with; results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    stream: StreamArgs,
    /// When to compare weights with their digests
    #[arg(long, value_name = "WHEN", default_value = "first-use")]
    verify: VerifyArg,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Prompt {
    /// A prompt in words, which goes through the bundle's tokenizer
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// The same from a file; - is standard input
    #[arg(long, value_name = "FILE")]
    text_file: Option<PathBuf>,
    /// Token ids, separated by commas or spaces; nothing is added to them
    #[arg(long, value_name = "LIST")]
    ids: Option<String>,
    /// The same from a file; - is standard input
    #[arg(long, value_name = "FILE")]
    ids_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum VerifyArg {
    Always,
    FirstUse,
    Never,
}

impl From<VerifyArg> for Verify {
    fn from(arg: VerifyArg) -> Verify {
        match arg {
            VerifyArg::Always => Verify::Always,
            VerifyArg::FirstUse => Verify::FirstUse,
            VerifyArg::Never => Verify::Never,
        }
    }
}

impl Args {
    fn top(&self) -> usize {
        let else_asked = self.logits.is_some()
            || self.hidden.is_some()
            || self.logprob.is_some()
            || self.logprob_ids.is_some();
        self.top.unwrap_or(if else_asked { 0 } else { 5 })
    }
}

#[derive(Serialize)]
struct Report {
    identity: String,
    prompt: Vec<u32>,
    #[serde(flatten)]
    answer: Answer,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Stats>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    // Not parsed with the rest: one that this build lacks is no mistake in typing.
    let backend: BackendKind = args.backend.parse()?;
    if Ask::names_a_file_twice(&args.logits, &args.hidden, &args.stream.timeline) {
        let message = "--logits, --hidden and --timeline name a file twice; name others";
        return Err(Failure::usage(message));
    }
    let reader = BundleReader::open(&args.bundle)?;
    let text = Text::of(&reader)?;
    let ask = Ask {
        prompt: args.prompt.ids(&text)?,
        continuation: continuation(args, &text)?,
        all_positions: args.all_positions,
        top: args.top(),
        logits: args.logits.clone(),
        hidden: args.hidden.clone(),
        timeline: args.stream.timeline.clone(),
        chunk: args.chunk,
        hot: args.stream.hot,
    };
    let program = &reader.bundle().manifest().program;
    // Known before gigabytes are read.
    check_prompt(&ask.tokens(), program.vocab, program.context)?;

    let chosen = args.stream.chosen(&reader)?;
    let start = Instant::now();
    let options = LoadOptions {
        verify: args.verify.into(),
        threads: args.threads,
        backend,
        streaming: chosen.streaming,
        budget_bytes: args.stream.budget,
        expected: Some((ask.tokens().len(), ask.chunk)),
        kept_bytes: ask.kept_bytes(usize::try_from(program.vocab).unwrap_or(usize::MAX)),
    };
    let mut model = Model::load(&reader, &options)?;
    let load = start.elapsed();
    let (answer, outcome) = ask.run(&mut model)?;
    if outcome.chunks > 1 {
        ui.note(format!(
            "the prompt was cut into {}, each of which read the experts again",
            chunks(outcome.chunks)
        ));
    }
    let why = outcome.column.why(&chosen.why);
    ui.note(plan_of(outcome.stream, model.pinned(), &why));
    let report = Report {
        identity: reader.identity().to_string(),
        prompt: ask.prompt,
        answer,
        stats: args
            .stats
            .then(|| Stats::new(&model, &outcome, load, &chosen.why)),
    };
    ui.answer(&report, |report| tables(report, &text))
}

impl Prompt {
    fn ids(&self, text: &Text) -> Result<Vec<u32>, Failure> {
        let parse = |list: &str| ids::parse(list).map_err(|e| Failure::new(e.exit(), e));
        match (&self.text, &self.text_file, &self.ids, &self.ids_file) {
            (Some(prompt), ..) => text.prompt(prompt),
            (_, Some(path), ..) => text.prompt(&crate::text::read(path)?),
            (_, _, Some(list), _) => parse(list),
            (_, _, _, Some(path)) => ids::read(path).map_err(|e| Failure::new(e.exit(), e)),
            _ => Err(Failure::usage(
                "no prompt; use --text, --text-file, --ids or --ids-file",
            )),
        }
    }
}

fn continuation(args: &Args, text: &Text) -> Result<Option<Vec<u32>>, Failure> {
    let ids = match (&args.logprob, &args.logprob_ids) {
        (Some(words), _) => text.continuation(words)?,
        (_, Some(list)) => ids::parse(list).map_err(|e| Failure::new(e.exit(), e))?,
        _ => return Ok(None),
    };
    match ids.is_empty() {
        true => Err(Failure::usage(
            "the continuation has no tokens; name at least one",
        )),
        false => Ok(Some(ids)),
    }
}

/// Which plan ran, and why.
fn plan_of(stream: Option<StreamConfig>, pinned: usize, why: &str) -> String {
    let pins = match pinned {
        0 => String::new(),
        pinned => format!(", {pinned} of each layer pinned"),
    };
    match stream {
        None => format!("experts: {why}"),
        Some(stream) => format!(
            "experts: {}, G = {}, Q = {}, B = {}{pins} ({why})",
            stream.schedule.name(),
            stream.group,
            stream.depth,
            stream.banks
        ),
    }
}

fn chunks(count: usize) -> String {
    match count {
        1 => "one chunk".to_owned(),
        count => format!("{count} chunks"),
    }
}

fn tables(report: &Report, text: &Text) -> String {
    let mut out = String::new();
    if !report.answer.positions.is_empty() {
        let mut best = table(&["position", "id", "logit", "logprob", "token"]);
        for position in &report.answer.positions {
            for token in &position.top {
                best.add_row([
                    position.position.to_string(),
                    token.id.to_string(),
                    format!("{:.4}", token.logit),
                    format!("{:.4}", token.logprob),
                    text.token(token.id),
                ]);
            }
        }
        let _ = writeln!(out, "{best}");
    }
    if let Some(continuation) = &report.answer.continuation {
        let mut given = table(&["continuation", "id", "logit", "logprob", "token"]);
        for (index, token) in continuation.tokens.iter().enumerate() {
            given.add_row([
                index.to_string(),
                token.id.to_string(),
                format!("{:.4}", token.logit),
                format!("{:.4}", token.logprob),
                text.token(token.id),
            ]);
        }
        let _ = writeln!(
            out,
            "{given}\nlog-probability {:.4}",
            continuation.total_logprob
        );
    }
    if let Some(stats) = &report.stats {
        let mut memory = table(&["memory", "bytes"]);
        for term in &stats.memory {
            memory.add_row([term.term.to_owned(), grouped(term.bytes)]);
        }
        memory.add_row(["ceiling".to_owned(), grouped(stats.memory_bytes)]);
        if let Some(peak) = stats.peak {
            let share = 100.0 * peak.ratio;
            memory.add_row([format!("measured, {share:.1} %"), grouped(peak.bytes)]);
        }
        if let Some(stream) = &stats.stream {
            let _ = writeln!(
                out,
                "{} reads, {}: {} records, {} in time, {} late, {} wasted; each {:.2} times\n\
                 {} bytes read, {:.2} times those with routes; waited {} times, {:.1} ms\n\
                 T_io {:.1} ms, T_exec {:.1} ms, T_total {:.1} ms; bubble {:.1} %, overlap {:.1} %",
                stream.reads,
                stream.io_text(),
                stream.records_read,
                stream.records_in_time,
                stream.records_late,
                stream.records_wasted,
                stream.reads_per_record,
                grouped(stream.read_bytes),
                stream.read_ratio,
                stream.waits,
                stream.wait_us as f64 / 1e3,
                stream.io_us as f64 / 1e3,
                stream.exec_us as f64 / 1e3,
                stats.ttft_us as f64 / 1e3,
                100.0 * stream.bubble,
                100.0 * stream.overlap
            );
        }
        let _ = writeln!(
            out,
            "{memory}\nread in {:.1} ms, TTFT {:.1} ms for {} tokens in {} on {} with {} threads; {} records run, {} skipped",
            stats.load_us as f64 / 1e3,
            stats.ttft_us as f64 / 1e3,
            report.prompt.len(),
            chunks(stats.chunks),
            stats.backend,
            stats.threads,
            stats.records_run,
            stats.records_skipped
        );
    }
    out
}
