//! stdout is data, stderr is talk; a closed pipe is success.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use estream_packer::Written;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;
use crate::signals;

/// How this run talks.
#[derive(Debug)]
pub(crate) struct Ui {
    pub(crate) json: bool,
    quiet: bool,
}

impl Ui {
    pub(crate) fn new(json: bool, quiet: bool) -> Ui {
        Ui { json, quiet }
    }

    /// Writes `bytes` to stdout.
    pub(crate) fn data(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::io(error)),
            _ => Ok(()),
        }
    }

    /// The answer: as JSON if asked for, else as `text` writes it.
    pub(crate) fn answer<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            let mut json = serde_json::to_vec_pretty(value).map_err(|e| Failure::io(e.into()))?;
            json.push(b'\n');
            self.data(&json)
        } else {
            self.data(visible(&text(value)).as_bytes())
        }
    }

    /// Something the user should know.
    pub(crate) fn note(&self, note: impl Display) {
        if !self.quiet {
            say(&format!("note: {note}"));
        }
    }

    /// What became of a bundle that was replaced, where the user should know.
    pub(crate) fn replaced(&self, out: &Path, written: &Written) {
        if let Some(leftover) = &written.leftover {
            let leftover = leftover.display();
            self.note(format!(
                "{leftover}: the replaced bundle could not be removed"
            ));
        }
        let plans = match written.plans.gone {
            0 => return,
            1 => "a plan".to_owned(),
            gone => format!("{gone} plans"),
        };
        self.note(format!(
            "{}: {plans} of the replaced bundle, made for another or not to be read, went with it",
            out.display()
        ));
    }

    /// An error with everything that caused it, each said once: most errors quote their cause.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        let text = error.chain().fold(String::new(), |text, cause| {
            let cause = cause.to_string();
            match text.as_str() {
                "" => cause,
                said if said.contains(&cause) => text,
                said => format!("{said}: {cause}"),
            }
        });
        say(&format!("error: {text}"));
    }

    /// Runs `work` that leaves something behind if it is cut short: it stops and cleans
    /// up when a signal says so.
    pub(crate) fn until_signal<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> T,
    ) -> Result<T, Failure> {
        signals::watch().map_err(Failure::io)?;
        Ok(self.progress(doing, |progress| {
            work(&mut |done, total| {
                progress(done, total);
                signals::go_on()
            })
        }))
    }

    /// Runs `work` under a bar of bytes on a terminal.
    pub(crate) fn progress<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T,
    ) -> T {
        let bar = self.bar(doing);
        let done = work(&mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        done
    }

    fn bar(&self, doing: &'static str) -> ProgressBar {
        let show = !self.quiet && io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(0),
            match show {
                true => ProgressDrawTarget::stderr(),
                false => ProgressDrawTarget::hidden(),
            },
        );
        let style = "{msg:>10} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(doing);
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }
}

/// Writes a line to stderr. There is nobody left to tell if that fails.
fn say(line: &str) {
    let line = visible(line);
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// `text` with control characters other than line ends spelled out: names in files are
/// free text, and must not steer a terminal.
fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && c != '\n' {
            true => out.extend(c.escape_debug()),
            false => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(
            visible("a\u{1b}[2J\r\nb \u{9b}é"),
            "a\\u{1b}[2J\\r\nb \\u{9b}é"
        );
    }
}
