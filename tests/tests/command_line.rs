//! What the command line promises: exit codes, whose fault it is, and where words go.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use estream_tests::{Checkpoint, compile, estream, estream_run, files, finish, fixture};
use serde_json::json;
use tempfile::TempDir;

/// One of everything that can be named on a command line.
struct Desk {
    dir: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let source = Checkpoint::read(&fixture("olmoe"));
        compile(&fixture("olmoe"), &at("good.estream"), &[]);
        compile(
            &fixture("gguf/olmoe-q4_0.gguf"),
            &at("wordless.estream"),
            &[],
        );

        copy(&at("good.estream"), &at("flipped.estream"));
        flip(&at("flipped.estream/experts-00001.bin"), 70_000);
        copy(&at("good.estream"), &at("unbuilt.estream"));
        fs::write(at("unbuilt.estream/manifest.json"), "{}").unwrap();
        copy(&at("good.estream"), &at("cut.estream"));
        truncate(&at("cut.estream/resident.bin"), 100);

        source.write(&at("pointer"));
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:\
                       4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
        fs::write(at("pointer/model.safetensors"), pointer).unwrap();
        source.write_sharded(&at("truncated"), 2);
        truncate(&at("truncated/model-00002-of-00002.safetensors"), 1000);
        fs::create_dir(at("pickle")).unwrap();
        let config = source.config.to_string();
        fs::write(at("pickle/config.json"), config).unwrap();
        fs::write(at("pickle/pytorch_model.bin"), b"PK\x03\x04").unwrap();
        let mut odd = source.clone();
        odd.config["a_new_idea"] = json!(true);
        odd.write(&at("odd"));
        let mut window = source.clone();
        window.config["sliding_window"] = json!(128);
        window.write(&at("window"));
        let mut other = source.clone();
        other.config["model_type"] = json!("gpt9");
        other.write(&at("other"));
        let mut short = source;
        short.tensors.remove("model.norm.weight").unwrap();
        short.tensors.remove("lm_head.weight").unwrap();
        short.write(&at("short"));

        fs::create_dir(at("mine")).unwrap();
        fs::write(at("mine/thesis.txt"), "mine").unwrap();
        fs::write(at("file"), "a file").unwrap();
        fs::write(at("odd.toml"), "name = 'x'\nabout = ''\nrules = []\n").unwrap();
        Desk { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Everything that is there, to see whether it changed.
    fn names(&self) -> Vec<String> {
        files(self.dir.path()).into_keys().collect()
    }
}

fn copy(from: &Path, to: &Path) {
    for (name, bytes) in files(from) {
        let path = to.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
}

/// A command line, its exit code, and what standard error must say. Paths are those of
/// [`Desk`]; `olmoe` is the fixture.
const CASES: &[(&str, i32, &[&str])] = &[
    // 2: what was typed.
    ("compile OLMOE", 2, &["--output"]),
    ("compile nowhere -o out", 2, &["nowhere"]),
    ("inspect nowhere", 2, &["nowhere"]),
    ("verify nowhere", 2, &["nowhere"]),
    ("run nowhere --ids 1", 2, &["nowhere"]),
    ("run good.estream --ids-file gone", 2, &["gone"]),
    ("run good.estream --text-file gone", 2, &["gone"]),
    (
        "compile OLMOE -o out --recipe q9",
        2,
        &["q9", "auto", "keep", "paper"],
    ),
    (
        "compile OLMOE -o out --recipe odd.toml",
        2,
        &["odd.toml", "rules"],
    ),
    ("compile OLMOE -o out --recipe gone.toml", 2, &["gone.toml"]),
    (
        "compile OLMOE -o out --layout zigzag",
        2,
        &["zigzag", "direct", "pair"],
    ),
    ("compile OLMOE -o out --shards 0", 2, &["--shards"]),
    (
        "compile OLMOE -o out --max-part-size 1XB",
        2,
        &["1XB", "2GiB"],
    ),
    (
        "compile OLMOE -o out --max-part-size 1000",
        2,
        &["layer 0", "1000"],
    ),
    (
        "compile OLMOE -o good.estream",
        2,
        &["good.estream", "--force"],
    ),
    (
        "compile OLMOE -o mine --force",
        2,
        &["mine", "not a bundle"],
    ),
    (
        "compile OLMOE -o file --force",
        2,
        &["file", "not a bundle"],
    ),
    (
        "compile GGUF -o out --recipe q4_0",
        2,
        &["q8_0", "--requantize"],
    ),
    (
        "relayout good.estream -o good.estream --layout pair",
        2,
        &["good.estream"],
    ),
    (
        "relayout good.estream -o mine --layout pair --force",
        2,
        &["not a bundle"],
    ),
    ("run good.estream --ids 1,544", 2, &["token 1", "544"]),
    ("run good.estream --ids x", 2, &["token 0", "\"x\""]),
    ("run good.estream --text=", 2, &["empty"]),
    ("run good.estream", 2, &["--ids"]),
    ("parity good.estream", 2, &["--reference"]),
    ("parity nowhere --reference OLMOE", 2, &["nowhere"]),
    ("parity good.estream --reference gone", 2, &["gone"]),
    (
        "parity good.estream --reference OLMOE --work-dir nowhere",
        2,
        &["nowhere", "--work-dir"],
    ),
    (
        "parity wordless.estream --reference OLMOE",
        2,
        &["tokenizer", "--ids-file"],
    ),
    (
        "run wordless.estream --text=word",
        2,
        &["tokenizer", "--ids"],
    ),
    ("run good.estream --ids 1 --backend abacus", 2, &["abacus"]),
    (
        "run good.estream --ids 1 --logits out --hidden out",
        2,
        &["--logits", "--hidden"],
    ),
    // 3: what this target cannot do.
    (
        "run good.estream --ids 1 --backend hexagon",
        3,
        &["hexagon"],
    ),
    // 4: what the input is.
    (
        "compile pointer -o out",
        4,
        &["model.safetensors", "git lfs pull"],
    ),
    (
        "compile pickle -o out",
        4,
        &["pytorch_model.bin", "safetensors"],
    ),
    (
        "compile truncated -o out",
        4,
        &["model-00002-of-00002.safetensors"],
    ),
    (
        "compile odd -o out --strict",
        4,
        &["a_new_idea", "--strict"],
    ),
    ("compile window -o out", 4, &["sliding_window"]),
    ("compile other -o out", 4, &["gpt9"]),
    ("compile short -o out", 4, &["model.norm.weight", "no head"]),
    ("compile file -o out", 4, &["file"]),
    ("inspect short", 4, &["model.norm.weight"]),
    ("inspect unbuilt.estream", 4, &["manifest.json"]),
    ("verify mine", 4, &["mine"]),
    ("verify cut.estream", 4, &["resident.bin"]),
    // 5: what the machine cannot do.
    ("compile OLMOE -o file/out", 5, &["file"]),
    (
        "run good.estream --ids 1 --logits file/out",
        5,
        &["file/out"],
    ),
    ("unpack wordless.estream --gguf file/out", 5, &["file/out"]),
    // 6: bytes that are not what they were.
    ("verify flipped.estream", 6, &[]),
    (
        "run flipped.estream --ids 1",
        6,
        &["experts-00001.bin", "expert"],
    ),
    (
        "relayout flipped.estream -o out --layout pair",
        6,
        &["experts-00001.bin"],
    ),
    // 0: and yet.
    ("compile odd -o fine", 0, &["a_new_idea"]),
    ("run flipped.estream --ids 1 --verify never", 0, &[]),
    ("compile OLMOE -o fine --force", 0, &[]),
];

/// Same, of the program for devices.
const RUN_CASES: &[(&str, i32, &[&str])] = &[
    ("good.estream", 2, &["--ids"]),
    ("good.estream --ids 1,544", 2, &["token 1", "544"]),
    ("good.estream --ids 1 --backend hexagon", 3, &["hexagon"]),
    ("unbuilt.estream --ids 1", 4, &["manifest.json"]),
    ("good.estream --ids 1 --logits file/out", 5, &["file/out"]),
    ("nowhere --ids 1", 2, &["nowhere"]),
    ("good.estream --ids-file gone", 2, &["gone"]),
    ("flipped.estream --ids 1", 6, &["experts-00001.bin"]),
    ("good.estream --ids 1", 0, &[]),
];

fn words(line: &str) -> Vec<String> {
    let word = |word: &str| match word {
        "OLMOE" => fixture("olmoe").to_str().unwrap().to_owned(),
        "GGUF" => fixture("gguf/olmoe-q8_0.gguf").to_str().unwrap().to_owned(),
        word => word.to_owned(),
    };
    line.split_whitespace().map(word).collect()
}

#[test]
fn every_kind_of_failure_has_its_exit_code_and_says_what_it_is_about() {
    let desk = Desk::new();
    let mut wrong = Vec::new();
    for (program, cases) in [("estream", CASES), ("estream-run", RUN_CASES)] {
        for (line, code, parts) in cases {
            let before = desk.names();
            let mut command = match program {
                "estream" => estream(),
                _ => estream_run(),
            };
            let done = finish(command.current_dir(desk.dir.path()).args(words(line)));
            let once = done.stderr.matches("(os error").count() <= 1;
            let said = parts.iter().all(|part| done.stderr.contains(part)) && once;
            if done.code != *code || !said {
                wrong.push(format!(
                    "{program} {line}\n  exits with {}, not {code}: {}",
                    done.code, done.stderr
                ));
            }
            if *code != 0 && desk.names() != before {
                wrong.push(format!("{program} {line}\n  left something behind"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_rehearsal_writes_nothing_and_exits_as_the_build_would() {
    let desk = Desk::new();
    let cases: Vec<_> = CASES
        .iter()
        .filter(|(line, ..)| {
            line.starts_with("compile OLMOE -o ") || line.starts_with("compile odd")
        })
        .collect();
    assert!(cases.len() > 10);
    let before = files(desk.dir.path());
    for (line, code, parts) in cases {
        let mut command = estream();
        command.current_dir(desk.dir.path()).args(words(line));
        let done = finish(command.arg("--dry-run"));
        assert_eq!(done.code, *code, "{line}: {}", done.stderr);
        for part in *parts {
            assert!(done.stderr.contains(part), "{line}: {}", done.stderr);
        }
    }
    assert!(files(desk.dir.path()) == before);
}

#[test]
fn every_verb_answers_in_json_and_talks_on_stderr_alone() {
    let desk = Desk::new();
    let lines: &[(&str, &[&str])] = &[
        (
            "compile OLMOE -o a.estream",
            &["bundle", "identity", "family", "recipe", "sizes", "notices"],
        ),
        (
            "compile OLMOE -o b.estream --dry-run",
            &["bundle", "identity", "family", "recipe", "sizes", "notices"],
        ),
        (
            "relayout a.estream -o c.estream --layout pair",
            &["bundle", "identity", "bytes"],
        ),
        (
            "inspect a.estream",
            &[
                "bundle",
                "identity",
                "kernel_abi",
                "model",
                "sizes",
                "recipe",
                "source",
                "storage_order",
                "parts",
                "tokenizer",
                "license",
            ],
        ),
        (
            "inspect OLMOE",
            &[
                "checkpoint",
                "format",
                "model",
                "sizes",
                "recipe",
                "types",
                "tensors",
                "notices",
            ],
        ),
        (
            "verify a.estream",
            &["bundle", "identity", "bytes", "problems", "strays"],
        ),
        ("verify flipped.estream", &["problems"]),
        (
            "unpack wordless.estream --gguf out.gguf",
            &["gguf", "tensor_count", "dropped_count"],
        ),
        (
            "run a.estream --ids 1,2 --stats",
            &["identity", "prompt", "positions", "stats"],
        ),
        (
            "parity a.estream --reference OLMOE --max-tokens 20 --max-kl 9",
            &[
                "bundle",
                "identity",
                "reference",
                "text",
                "kl",
                "same_top_pct",
                "common_top5_pct",
                "perplexity",
                "experts",
                "limits",
            ],
        ),
        (
            "run a.estream --ids 1,2 --logprob-ids 3",
            &["identity", "prompt", "continuation"],
        ),
    ];
    for (line, fields) in lines {
        let mut command = estream();
        command.current_dir(desk.dir.path()).args(words(line));
        let done = finish(command.arg("--json"));
        let answer = done.json();
        for field in *fields {
            assert!(answer.get(field).is_some(), "{line}: no {field}: {answer}");
        }
        if let Some(notices) = answer.get("notices") {
            let notices = notices.as_array().unwrap();
            assert!(!notices.is_empty(), "the fixture declares no licence");
            for notice in notices {
                let line = format!("note: {}", notice.as_str().unwrap());
                assert!(done.stderr.contains(&line), "{}", done.stderr);
            }
        }
    }
    let mut command = estream();
    command.current_dir(desk.dir.path());
    command.args(words("inspect OLMOE --json --quiet"));
    assert_eq!(finish(&mut command).success().stderr, "");
}

#[test]
fn a_program_is_listed_by_the_names_of_its_operators() {
    let desk = Desk::new();
    let mut command = estream();
    command.current_dir(desk.dir.path());
    command.args(words("inspect good.estream --long"));
    let stdout = finish(&mut command).success().stdout;
    let text = String::from_utf8(stdout).unwrap();
    for line in [
        "prologue: embed",
        "from layer 0 on: rms_norm, linear, linear, linear, qk_norm, qk_norm, rope, rope, \
         attention, linear, add, rms_norm, router, experts",
        "epilogue: rms_norm, lm_head",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let desk = Desk::new();
    for line in [
        "inspect good.estream --long",
        "inspect OLMOE --json",
        "completions bash",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = estream();
        command.current_dir(desk.dir.path()).args(words(line));
        let status = command.stdout(writer).status().unwrap();
        assert_eq!(status.code(), Some(0), "{line}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = estream_run();
    command.args(words("good.estream --ids 1"));
    command.current_dir(desk.dir.path()).stdout(writer);
    assert_eq!(command.status().unwrap().code(), Some(0));
}

#[test]
fn ids_and_words_come_from_standard_input_too() {
    let desk = Desk::new();
    for (flag, text) in [("--ids-file", "41 70, 276\n"), ("--text-file", "Hel")] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        drop(writer);
        let mut command = estream();
        command.arg("run").arg(desk.at("good.estream"));
        command.args([flag, "-", "--json"]).stdin(reader);
        let prompt = &finish(&mut command).success().json()["prompt"];
        let ids = prompt.as_array().unwrap();
        assert!(!ids.is_empty(), "{flag}");
        if flag == "--ids-file" {
            assert_eq!(*prompt, json!([41, 70, 276]));
        }
    }
}
