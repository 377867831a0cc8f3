//! A timeline as a file that ui.perfetto.dev reads (the JSON trace event format).

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::timeline::{Doing, Event};
use crate::partial::PartialFile;
use crate::tensor_file::{may_have, named};

/// The "processes" of a trace.
const THREADS: u8 = 1;
const SLOTS: u8 = 2;

/// Writes `events` to `out`: one track a thread and one a slot, times in microseconds.
///
/// Process 1 has the executor as thread 0, and loaders. Process 2 has the slots: which record is
/// in each, from the issue of its read until the slot is free.
///
/// # Errors
/// If a write fails.
pub fn write_trace(events: &[Event], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"traceEvents\":[")?;
    let mut comma = "";
    for (process, name) in [(THREADS, "threads"), (SLOTS, "slots")] {
        let of = |event: &&Event| (event.doing == Doing::Slot) == (process == SLOTS);
        let tracks = events.iter().filter(of).map(|event| event.thread + 1).max();
        for track in 0..tracks.unwrap_or(0) {
            if track == 0 {
                let what = "process_name";
                label(out, comma, what, (process, 0), format_args!("{name}"))?;
                comma = ",";
            }
            let kind = match (process, track) {
                (SLOTS, _) => "slot",
                (_, 0) => "executor",
                _ => "loader",
            };
            let name = format_args!("{kind} {track}");
            label(out, comma, "thread_name", (process, track), name)?;
        }
    }
    for event in events {
        let (start, length) = (event.start_ns, event.end_ns - event.start_ns);
        write!(out, "{comma}\n{{\"name\":\"{}", event.doing.name())?;
        comma = ",";
        let process = match event.doing {
            Doing::Slot => {
                write!(out, " {}", event.first)?;
                SLOTS
            }
            _ => THREADS,
        };
        write!(
            out,
            "\",\"ph\":\"X\",\"pid\":{process},\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03},\
             \"args\":{{\"step\":{},\"first\":{},\"records\":{}}}}}",
            event.thread,
            start / 1000,
            start % 1000,
            length / 1000,
            length % 1000,
            event.step,
            event.first,
            event.records,
        )?;
    }
    out.write_all(b"\n]}\n")
}

/// Names a process or a track.
fn label(
    out: &mut dyn Write,
    comma: &str,
    what: &str,
    (process, track): (u8, usize),
    name: fmt::Arguments<'_>,
) -> io::Result<()> {
    write!(
        out,
        "{comma}\n{{\"name\":\"{what}\",\"ph\":\"M\",\"pid\":{process},\"tid\":{track},\
         \"args\":{{\"name\":\"{name}\"}}}}"
    )
}

/// A file for a timeline: begun before the request, and there once it is whole.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    partial: PartialFile,
    file: File,
}

impl TraceFile {
    /// Begins the file that will be called `path`.
    ///
    /// # Errors
    /// If something is there, or nothing can be written. All errors of this type name the path.
    pub fn create(path: &Path) -> io::Result<TraceFile> {
        let begun = PartialFile::beside(path);
        let (partial, file) = begun.map_err(|error| named(path, &error))?;
        Ok(TraceFile {
            path: path.to_owned(),
            partial,
            file,
        })
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// If the disk is full or fails, or the name cannot be given.
    pub fn finish(self, events: &[Event]) -> io::Result<()> {
        let write = || {
            let mut length = Length(0);
            write_trace(events, &mut length)?;
            may_have(length.0)?;
            let mut out = io::BufWriter::new(self.file);
            write_trace(events, &mut out)?;
            out.flush()?;
            self.partial.publish()
        };
        write().map_err(|error| named(&self.path, &error))
    }
}

/// Counts what is written.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_trace_is_json_with_every_event_on_its_track() {
        let read = Event {
            doing: Doing::Read,
            thread: 2,
            step: 3,
            first: 4,
            records: 5,
            start_ns: 1_234_567,
            end_ns: 2_000_000,
        };
        let slot = Event {
            doing: Doing::Slot,
            thread: 1,
            records: 1,
            ..read
        };
        let mut out = Vec::new();
        write_trace(&[read, slot], &mut out).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        let all = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str| -> Vec<&Value> {
            let phases = all.iter().filter(|event| event["ph"] == phase);
            phases.collect()
        };
        let names: Vec<_> = of("M")
            .iter()
            .map(|label| {
                let number = |field: &str| label[field].as_u64().unwrap();
                let name = label["args"]["name"].as_str().unwrap();
                (number("pid"), number("tid"), name)
            })
            .collect();
        let expected = [
            (1, 0, "threads"),
            (1, 0, "executor 0"),
            (1, 1, "loader 1"),
            (1, 2, "loader 2"),
            (2, 0, "slots"),
            (2, 0, "slot 0"),
            (2, 1, "slot 1"),
        ];
        assert_eq!(names, expected);
        let [first, second] = of("X")[..] else {
            panic!("{all:?}");
        };
        assert_eq!(
            (first["ts"].as_f64(), first["dur"].as_f64()),
            (Some(1234.567), Some(765.433))
        );
        assert_eq!(
            (first["name"].as_str(), first["tid"].as_u64()),
            (Some("read"), Some(2))
        );
        assert_eq!(first["args"]["records"], 5);
        assert_eq!(
            (second["name"].as_str(), second["pid"].as_u64()),
            (Some("record 4"), Some(2))
        );
    }

    #[test]
    fn nothing_that_happened_is_json_too() {
        let mut out = Vec::new();
        write_trace(&[], &mut out).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(trace["traceEvents"].as_array().unwrap().len(), 0);
    }
}
