//! A timeline as a file that ui.perfetto.dev reads (the JSON trace event format).

use std::io::{self, Write};

use super::timeline::Event;

/// Writes `events` to `out`: one track a thread, times in microseconds.
///
/// # Errors
/// If a write fails.
pub fn write_trace(events: &[Event], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"traceEvents\":[")?;
    for (index, event) in events.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let (start, length) = (event.start_ns, event.end_ns - event.start_ns);
        write!(
            out,
            "{comma}\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03},\
             \"args\":{{\"step\":{},\"first\":{},\"records\":{}}}}}",
            event.doing.name(),
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

#[cfg(test)]
mod tests {
    use super::super::timeline::Doing;
    use super::*;

    #[test]
    fn a_trace_is_json_with_every_event() {
        let event = Event {
            doing: Doing::Read,
            thread: 2,
            step: 3,
            first: 4,
            records: 5,
            start_ns: 1_234_567,
            end_ns: 2_000_000,
        };
        let mut out = Vec::new();
        write_trace(&[event, event], &mut out).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(trace["traceEvents"].as_array().unwrap().len(), 2);
        let first = &trace["traceEvents"][0];
        assert_eq!(
            (first["ts"].as_f64(), first["dur"].as_f64()),
            (Some(1234.567), Some(765.433))
        );
        assert_eq!(
            (first["name"].as_str(), first["tid"].as_u64()),
            (Some("read"), Some(2))
        );
        assert_eq!(first["args"]["records"], 5);
    }
}
