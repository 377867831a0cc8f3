//! Pictures as they are to be. After a change that is meant, `UPDATE=1 cargo test -p estream-plot` writes
//! them again; look at them before they are committed.

use std::fs;
use std::path::Path;

use estream_plot::{Unit, chart, heat_map, panels, spans};

use crate::examples::{frontier, lines, timeline, usage};

fn check(name: &str, svg: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures/golden");
    let path = folder.join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, svg).unwrap();
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    if let Some((at, (old, new))) = golden
        .lines()
        .zip(svg.lines())
        .enumerate()
        .find(|(_, (old, new))| old != new)
    {
        panic!("{name}, line {}: was {old}, is {new}", at + 1);
    }
    assert!(golden == svg, "{name} has another length");
}

#[test]
fn a_chart_looks_as_it_did() {
    check("chart.svg", &chart(&frontier("OLMoE, 1,024 tokens", 12, 4)));
}

#[test]
fn panels_look_as_they_did() {
    let names = ["on-demand", "early", "ahead"];
    let charts = [
        lines("time to first token", Unit::Nanoseconds, &names),
        lines("bytes read", Unit::Bytes, &names),
    ];
    check("panels.svg", &panels("Schedules", &charts));
}

#[test]
fn spans_look_as_they_did() {
    check("spans.svg", &spans(&timeline(6)));
}

#[test]
fn a_heat_map_looks_as_it_did() {
    check("heat_map.svg", &heat_map(&usage(3, 16)));
}
