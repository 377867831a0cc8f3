//! What is printed.

use std::io::{self, Write};
use std::time::Duration;

use estream_runtime::Outcome;
use serde::Serialize;

/// Everything a run found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Digest of the manifest.
    pub(crate) identity: String,
    pub(crate) tokens: usize,
    /// One a printed position; empty with `--top 0`.
    pub(crate) positions: Vec<Position>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) continuation: Option<Continuation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stats: Option<Stats>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Position {
    pub(crate) position: usize,
    pub(crate) top: Vec<Token>,
}

/// A token and how likely it is.
#[derive(Debug, Serialize)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) logit: f32,
    pub(crate) logprob: f64,
}

/// Log-probabilities of given tokens, each after all before it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Continuation {
    pub(crate) tokens: Vec<Token>,
    pub(crate) total_logprob: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Stats {
    pub(crate) backend: &'static str,
    pub(crate) threads: usize,
    pub(crate) records_run: u64,
    pub(crate) records_skipped: u64,
    pub(crate) load_us: u64,
    pub(crate) prefill_us: u64,
    pub(crate) memory: Vec<Term>,
    pub(crate) memory_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Term {
    pub(crate) term: &'static str,
    pub(crate) bytes: u64,
}

impl Stats {
    pub(crate) fn new(
        (backend, threads): (&'static str, usize),
        outcome: &Outcome,
        load: Duration,
    ) -> Stats {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let terms = outcome.memory.terms().into_iter();
        Stats {
            backend,
            threads,
            records_run: outcome.records_run,
            records_skipped: outcome.records_skipped,
            load_us: micros(load),
            prefill_us: micros(outcome.elapsed),
            memory: terms.map(|(term, bytes)| Term { term, bytes }).collect(),
            memory_bytes: outcome.memory.total_bytes(),
        }
    }

    /// For people, on standard error.
    pub(crate) fn table(&self, out: &mut dyn Write) -> io::Result<()> {
        for Term { term, bytes } in &self.memory {
            writeln!(out, "memory  {term:<10}  {bytes:>16}")?;
        }
        writeln!(out, "memory  {:<10}  {:>16}", "ceiling", self.memory_bytes)?;
        writeln!(
            out,
            "records run {}, skipped {}",
            self.records_run, self.records_skipped
        )?;
        writeln!(
            out,
            "load {} us, prefill {} us on {} ({} threads)",
            self.load_us, self.prefill_us, self.backend, self.threads
        )
    }
}

impl Report {
    /// One JSON object and a line feed.
    pub(crate) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Lines of columns separated by tabs.
    pub(crate) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.positions.is_empty() {
            writeln!(out, "position\tid\tlogit\tlogprob")?;
        }
        for Position { position, top } in &self.positions {
            for token in top {
                let Token { id, logit, logprob } = token;
                writeln!(out, "{position}\t{id}\t{logit}\t{logprob:.6}")?;
            }
        }
        if let Some(continuation) = &self.continuation {
            writeln!(out, "continuation\tid\tlogit\tlogprob")?;
            for (at, Token { id, logit, logprob }) in continuation.tokens.iter().enumerate() {
                writeln!(out, "{at}\t{id}\t{logit}\t{logprob:.6}")?;
            }
            writeln!(out, "total\t\t\t{:.6}", continuation.total_logprob)?;
        }
        Ok(())
    }
}
