//! What is printed.

use std::io::{self, Write};

use estream_runtime::answer::{Answer, Position, Token};
use estream_runtime::stats::{Peak, Stats, Term};
use serde::Serialize;

/// Everything a run found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Digest of the manifest.
    pub(crate) identity: String,
    pub(crate) tokens: usize,
    #[serde(flatten)]
    pub(crate) answer: Answer,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stats: Option<Stats>,
}

/// For people, on standard error.
pub(crate) fn table(stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    for Term { term, bytes } in &stats.memory {
        writeln!(out, "memory  {term:<10}  {bytes:>16}")?;
    }
    writeln!(out, "memory  {:<10}  {:>16}", "ceiling", stats.memory_bytes)?;
    if let Some(Peak { bytes, ratio }) = stats.peak {
        let share = percent(ratio);
        writeln!(
            out,
            "memory  {:<10}  {bytes:>16}  {share} % of it",
            "measured"
        )?;
    }
    writeln!(
        out,
        "records run {}, skipped {}",
        stats.records_run, stats.records_skipped
    )?;
    if let Some(stream) = &stats.stream {
        let config = stream.config;
        writeln!(
            out,
            "stream {}, G {}, Q {}, B {}, {} pinned ({}), {} reads, {}\n\
             records read {}: in time {}, late {}, wasted {}; each {} times\n\
             bytes read {}, {} times those with routes; waited {} times, {} us\n\
             T_io {} us, T_exec {} us, T_total {} us, bubble {} %, overlap {} %",
            config.schedule.name(),
            config.group,
            config.depth,
            config.banks,
            stream.pinned,
            stats.plan,
            stream.reads,
            stream.io_text(),
            stream.records_read,
            stream.records_in_time,
            stream.records_late,
            stream.records_wasted,
            hundredths(stream.reads_per_record),
            stream.read_bytes,
            hundredths(stream.read_ratio),
            stream.waits,
            stream.wait_us,
            stream.io_us,
            stream.exec_us,
            stats.ttft_us,
            percent(stream.bubble),
            percent(stream.overlap),
        )?;
    }
    writeln!(
        out,
        "load {} us, TTFT {} us on {} ({} threads)",
        stats.load_us, stats.ttft_us, stats.backend, stats.threads
    )
}

/// A share in whole percents: spelling floats would take a percent of the program.
#[expect(clippy::cast_possible_truncation, reason = "a share is small")]
fn percent(share: f64) -> i64 {
    (share * 100.0 + 0.5) as i64
}

/// A ratio with two decimals.
fn hundredths(ratio: f64) -> String {
    let all = percent(ratio);
    format!("{}.{:02}", all / 100, all % 100)
}

/// A number as JSON spells it. The standard library's other spellings of floats would
/// take a percent of the whole program.
fn number<T: Serialize>(value: T) -> io::Result<String> {
    Ok(serde_json::to_string(&value)?)
}

impl Report {
    /// One JSON object and a line feed.
    pub(crate) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Lines of columns separated by tabs.
    pub(crate) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Answer {
            positions,
            continuation,
        } = &self.answer;
        if !positions.is_empty() {
            writeln!(out, "position\tid\tlogit\tlogprob")?;
        }
        for Position { position, top } in positions {
            for token in top {
                let Token { id, logit, logprob } = token;
                writeln!(
                    out,
                    "{position}\t{id}\t{}\t{}",
                    number(*logit)?,
                    number(*logprob)?
                )?;
            }
        }
        if let Some(continuation) = continuation {
            writeln!(out, "continuation\tid\tlogit\tlogprob")?;
            for (at, Token { id, logit, logprob }) in continuation.tokens.iter().enumerate() {
                writeln!(
                    out,
                    "{at}\t{id}\t{}\t{}",
                    number(*logit)?,
                    number(*logprob)?
                )?;
            }
            writeln!(out, "total\t\t\t{}", number(continuation.total_logprob)?)?;
        }
        Ok(())
    }
}
