//! Checkpoints of real shape: sizes are the published ones, and memory does not follow them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use estream_tests::{estream, finish, roomy_dir, xtask};
use serde_json::json;

/// Writes a sparse checkpoint of a family's published model.
fn sparse(family: &str, dir: &Path, flags: &[&str]) -> PathBuf {
    let out = dir.join(family);
    let mut command = xtask();
    command.args(["synth", "--shape", family, "--sparse", "-o"]);
    finish(command.arg(&out).args(flags)).success();
    out
}

/// What the paper's Table 1 says of a model, to the byte.
struct Row {
    family: &'static str,
    experts: u64,
    /// Layers that have experts.
    layers: Range<u64>,
    record_bytes: u64,
    /// Without padding; the paper does not say what DeepSeek's are made of.
    resident_bytes: Option<u64>,
}

const TABLE_1: &[Row] = &[
    Row {
        family: "deepseek2",
        experts: 64,
        layers: 1..27,
        record_bytes: 4_866_048,
        resident_bytes: None,
    },
    Row {
        family: "lfm2moe",
        experts: 32,
        layers: 2..24,
        record_bytes: 6_193_152,
        resident_bytes: Some(408_876_800),
    },
    Row {
        family: "mixtral",
        experts: 8,
        layers: 0..32,
        record_bytes: 99_090_432,
        resident_bytes: Some(1_041_907_712),
    },
    Row {
        family: "olmoe",
        experts: 64,
        layers: 0..16,
        record_bytes: 3_538_944,
        resident_bytes: Some(302_376_960),
    },
    Row {
        family: "qwen3moe",
        experts: 128,
        layers: 0..48,
        record_bytes: 2_654_208,
        resident_bytes: Some(910_843_904),
    },
];

#[test]
fn the_paper_recipe_gives_the_payloads_of_table_1() {
    for row in TABLE_1 {
        let family = row.family;
        let dir = tempfile::tempdir().unwrap();
        let source = sparse(family, dir.path(), &[]);
        let mut command = estream();
        command.args(["inspect", "--json", "--strict", "--recipe", "paper"]);
        let report = finish(command.arg(source)).success().json();
        let sizes = &report["sizes"];
        let layers: Vec<u64> = row.layers.clone().collect();
        let experts = row.experts * layers.len() as u64 * row.record_bytes;
        assert_eq!(sizes["expert_payload_bytes"], json!(experts), "{family}");
        if let Some(resident) = row.resident_bytes {
            assert_eq!(sizes["resident_payload_bytes"], json!(resident), "{family}");
        }
        let records = sizes["records"].as_array().unwrap();
        let [class] = &records[..] else {
            panic!("one class of records: {records:?}");
        };
        assert_eq!(class["record_bytes"], json!(row.record_bytes), "{family}");
        assert_eq!(class["experts"], json!(row.experts), "{family}");
        assert_eq!(class["layers"], json!(layers), "{family}");
    }
}

/// The most memory `child` has had resident by its end.
fn peak_bytes(child: &mut Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().unwrap().is_none() {
        // The kernel keeps the peak, so what is read last before the end is all but it.
        let status = fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        peak_kib = kib.unwrap_or(0).max(peak_kib);
        std::thread::sleep(Duration::from_millis(5));
    }
    peak_kib << 10
}

#[cfg(target_os = "linux")]
#[test]
fn compiling_three_gigabytes_takes_a_quarter_of_one() {
    let dir = roomy_dir();
    let flags = ["--dtype", "f32", "--layers", "2", "--vocab", "16384"];
    let source = sparse("olmoe", dir.path(), &flags);
    let weights = fs::metadata(source.join("model.safetensors")).unwrap();
    assert!(weights.len() >= 3 << 30, "{}", weights.len());

    let bundle = dir.path().join("olmoe.estream");
    let mut command = estream();
    command.args(["compile", "--quiet", "--recipe", "q4_0", "-o"]);
    command.arg(&bundle).arg(&source).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let peak = peak_bytes(&mut child);
    assert!(child.wait().unwrap().success());

    let experts = fs::metadata(bundle.join("experts-00001.bin")).unwrap();
    assert_eq!(experts.len(), 2 * 64 * 3_538_944);
    assert!(bundle.join("manifest.json").is_file());
    assert!(peak > 1 << 20, "{peak} bytes are too few to be true");
    assert!(peak < 256 << 20, "a peak of {peak} bytes");
}
