//! `estream-run` as a process: exit codes, standard output, files.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::rows::{Rows, load};
use crate::toy::{HIDDEN, Packing, Toy, VOCAB};
use estream_runtime::Positions;

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_estream-run"));
    command.args(args).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    assert_eq!(
        code(output),
        0,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output)).unwrap()
}

struct Bundle(tempfile::TempDir);

impl Bundle {
    fn new() -> Bundle {
        Bundle(Toy::new().bundle(&Packing::default()))
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn logits(&self, ids: &[u32]) -> Vec<f32> {
        Rows::of(&mut load(self.0.path(), 1), ids, Positions::All).logits
    }
}

/// Rows of a safetensors file of one matrix.
fn read_matrix(path: &Path, name: &str) -> (Vec<u64>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    assert_eq!(header.as_object().unwrap().len(), 1);
    let shape = serde_json::from_value(header[name]["shape"].clone()).unwrap();
    let floats = data.as_chunks().0.iter();
    (shape, floats.map(|x| f32::from_le_bytes(*x)).collect())
}

#[test]
fn exit_codes_say_who_is_to_blame() {
    let bundle = Bundle::new();
    let broken = Bundle::new();
    let part = broken.0.path().join("experts-00001.bin");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let (good, broken) = (bundle.path(), broken.path());
    let folder = empty.path().to_str().unwrap();
    let missing = format!("{folder}/missing/out");
    let cases: &[(i32, &[&str])] = &[
        (0, &[good, "--ids", "1,2,3"]),
        (0, &["--help"]),
        (0, &["-V"]),
        (2, &[]),
        (2, &[good]),
        (2, &["--ids", "1"]),
        (2, &[good, "more", "--ids", "1"]),
        (2, &[good, "--ids", ""]),
        (2, &[good, "--ids", "1,x"]),
        (2, &[good, "--ids", "40"]),
        (2, &[good, "--ids", "1", "--ids", "2"]),
        (2, &[good, "--ids", "1", "--threads", "0"]),
        (2, &[good, "--ids", "1", "--verify", "sometimes"]),
        (2, &[good, "--ids", "1", "--backend", "abacus"]),
        (2, &[good, "--ids", "1", "--logprob-ids", ","]),
        (2, &[good, "--ids", "1", "--logits", "a", "--hidden", "a"]),
        (2, &[good, "--ids", "1", "--nonsense"]),
        (3, &[good, "--ids", "1", "--backend", "hexagon"]),
        (4, &[folder, "--ids", "1"]),
        (2, &[good, "--ids-file", "/nowhere/ids"]),
        (2, &[good, "--ids", "1", "--logits", folder]),
        (5, &[good, "--ids", "1", "--logits", &missing]),
        (6, &[broken, "--ids", "1"]),
        (0, &[broken, "--ids", "1", "--verify", "never"]),
    ];
    for (expected, args) in cases {
        let output = run(args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(code(&output), *expected, "{args:?}: {message}");
        assert_eq!(*expected == 0, message.is_empty(), "{args:?}: {message}");
        if *expected != 0 {
            assert!(message.starts_with("estream-run: "), "{message}");
            assert!(output.stdout.is_empty(), "{args:?}");
        }
    }
}

#[test]
fn the_table_holds_the_best_tokens_of_each_position() {
    let bundle = Bundle::new();
    let text = stdout(&run(&[
        bundle.path(),
        "--ids",
        "5 6,7",
        "--top",
        "3",
        "--all-positions",
    ]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 3);
    assert_eq!(lines[0], "position\tid\tlogit\tlogprob");
    let logits = bundle.logits(&[5, 6, 7]);
    for (position, row) in logits.chunks(VOCAB).enumerate() {
        let best = row.iter().copied().fold(f32::MIN, f32::max);
        let id = row.iter().position(|x| *x == best).unwrap();
        let line = lines[1 + 3 * position];
        assert!(
            line.starts_with(&format!("{position}\t{id}\t{best}\t-")),
            "{line}"
        );
    }
}

#[test]
fn json_says_the_same_from_a_file_of_ids() {
    let bundle = Bundle::new();
    let file = bundle.0.path().join("ids.txt");
    std::fs::write(&file, "5, 6\n7\n").unwrap();
    let file = file.to_str().unwrap();
    let found = json(&run(&[
        bundle.path(),
        "--ids-file",
        file,
        "--json",
        "--stats",
    ]));
    assert_eq!(found["tokens"], 3);
    assert_eq!(found["positions"][0]["position"], 2);
    assert_eq!(found["positions"][0]["top"].as_array().unwrap().len(), 5);
    let stats = &found["stats"];
    let terms = stats["memory"].as_array().unwrap();
    let sum: u64 = terms
        .iter()
        .map(|term| term["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(stats["memory_bytes"], sum);
    let experts = terms.iter().find(|term| term["term"] == "experts").unwrap();
    // Three slots, for three matrices of 64 × 64 f32 each, and room to align them.
    assert_eq!(experts["bytes"], 3 * 3 * 64 * 64 * 4 + 16384);
    assert_eq!(stats["stream"]["schedule"], "ahead");
    let plain = json(&run(&[
        bundle.path(),
        "--ids",
        "5,6,7",
        "--json",
        "--threads",
        "3",
    ]));
    assert_eq!(plain["positions"], found["positions"]);
    assert!(plain.get("stats").is_none());
}

#[test]
fn a_continuation_is_scored_token_by_token() {
    let bundle = Bundle::new();
    let args = [
        bundle.path(),
        "--ids",
        "5,6",
        "--logprob-ids",
        "7,8,9",
        "--json",
    ];
    let found = json(&run(&args));
    assert_eq!(found["positions"].as_array().unwrap().len(), 0);
    let tokens = found["continuation"]["tokens"].as_array().unwrap();
    let logits = bundle.logits(&[5, 6, 7, 8, 9]);
    let mut total = 0.0;
    for ((at, id), token) in [(1, 7), (2, 8), (3, 9)].into_iter().zip(tokens) {
        let row: Vec<f64> = logits[at * VOCAB..][..VOCAB]
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        let expected = row[id] - row.iter().map(|x| x.exp()).sum::<f64>().ln();
        let logprob = token["logprob"].as_f64().unwrap();
        assert!(
            (logprob - expected).abs() < 1e-9,
            "{logprob}, not {expected}"
        );
        assert_eq!(token["id"], id);
        total += logprob;
    }
    assert_eq!(tokens.len(), 3);
    assert!((found["continuation"]["total_logprob"].as_f64().unwrap() - total).abs() < 1e-12);
    // Asking for more rows changes nothing about these.
    let more = json(&run(
        &[&args[..], &["--all-positions", "--top", "1"]].concat()
    ));
    assert_eq!(more["continuation"], found["continuation"]);
    assert_eq!(more["positions"].as_array().unwrap().len(), 5);
}

#[test]
fn files_hold_every_row_that_was_asked_for() {
    let bundle = Bundle::new();
    let out = tempfile::tempdir().unwrap();
    let [logits, hidden] = ["l.safetensors", "h.safetensors"].map(|name| out.path().join(name));
    let paths = [&logits, &hidden].map(|path| path.to_str().unwrap());
    let args = [
        bundle.path(),
        "--ids",
        "5,6,7",
        "--logits",
        paths[0],
        "--hidden",
        paths[1],
    ];
    stdout(&run(
        &[&args[..], &["--all-positions", "--top", "0"]].concat()
    ));
    let expected = Rows::of(&mut load(bundle.0.path(), 1), &[5, 6, 7], Positions::All);
    let vocab = VOCAB as u64;
    assert_eq!(
        read_matrix(&logits, "logits"),
        (vec![3, vocab], expected.logits.clone())
    );
    assert_eq!(
        read_matrix(&hidden, "hidden"),
        (vec![3, HIDDEN as u64], expected.hidden)
    );
    // What is there is never written over.
    assert_eq!(code(&run(&args)), 2);
    for path in [&logits, &hidden] {
        std::fs::remove_file(path).unwrap();
    }
    stdout(&run(&args));
    let last = expected.logits[2 * VOCAB..].to_vec();
    assert_eq!(read_matrix(&logits, "logits"), (vec![1, vocab], last));
}

#[test]
fn a_closed_pipe_is_success() {
    let bundle = Bundle::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_estream-run"));
    command.args([bundle.path(), "--ids", "1"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let bundle = Bundle::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_estream-run"));
    command.args([bundle.path(), "--ids", "1"]);
    let output = command.stdout(full.unwrap()).stderr(Stdio::piped());
    assert_eq!(code(&output.output().unwrap()), 5);
}

/// The system would end a process that writes a file beyond its limit.
#[test]
fn a_file_that_would_be_too_large_is_an_error_and_leaves_nothing() {
    let toy = Toy::new().bundle(&Packing::default());
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("logits");
    let runner = env!("CARGO_BIN_EXE_estream-run");
    let command = format!(
        "ulimit -f 1; {runner} {} --ids 1,2,3,4,5,6,7,8,9,10 --all-positions --logits {}",
        toy.path().display(),
        out.display()
    );
    let done = Command::new("bash")
        .args(["-c", &command])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(5), "{said}");
    assert!(said.contains("logits"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
