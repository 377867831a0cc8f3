//! From a bundle to the constants of its kernels, and to times that know of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use estream_tests::{Finished, assert_valid, compile, estream, files, finish, fixture, manifest};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Desk {
    dir: TempDir,
}

impl Desk {
    /// With a bundle `b.estream`.
    fn new(flags: &[&str]) -> Desk {
        let dir = tempfile::tempdir().unwrap();
        compile(&fixture("olmoe"), &dir.path().join("b.estream"), flags);
        Desk { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command line of `estream` here.
    fn estream(&self, line: &str) -> Finished {
        let mut command = estream();
        command.current_dir(self.dir.path());
        finish(command.args(line.split_whitespace()))
    }

    fn kernels(&self, more: &str) -> Finished {
        self.estream(&format!("kernels --model b.estream {more}"))
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Whether a compiler takes a header, beside the types that the kernels have.
fn compiles(header: &Path) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("main.c");
    let text = format!(
        "#include \"{}\"\nint main(void) {{ return estream_template_plan.rows == 0; }}\n",
        header.display()
    );
    fs::write(&source, text).unwrap();
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hexagon-templates/c");
    let mut command = Command::new("cc");
    command.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        "-I",
    ]);
    command
        .arg(kernels)
        .arg(&source)
        .status()
        .unwrap()
        .success()
}

#[test]
fn a_header_is_written_for_every_class_and_architecture_and_nothing_into_the_bundle() {
    let desk = Desk::new(&[]);
    let before = files(&desk.at("b.estream"));
    let done = desk
        .kernels("--arch v79,v73,v79 -o new/out --json")
        .success();
    assert!(done.stderr.contains("headers only"), "{}", done.stderr);
    let answer = done.json();
    assert_eq!(answer["identity"].as_str().unwrap().len(), 64);
    assert_eq!(number(&answer["vtcm_bytes"]), 8 << 20);
    let not_built = answer["not_built"].as_str().unwrap();
    assert!(not_built.contains("compiler for Hexagon"), "{not_built}");

    let templates = answer["templates"].as_array().unwrap();
    assert_eq!(templates.len(), 1);
    let template = &templates[0];
    assert_eq!(template["layers"], json!([0, 1, 2]));
    let shape = [&template["hidden"], &template["ff"], &template["shards"]];
    assert_eq!(shape.map(number), [128, 64, 1]);
    assert_eq!(template["layouts"], json!(vec!["q4_0.t32.direct"; 3]));
    let archs: Vec<&str> = (template["headers"].as_array().unwrap().iter())
        .map(|header| header["arch"].as_str().unwrap())
        .collect();
    assert_eq!(archs, ["v73", "v79"]);

    let written = files(&desk.at("new/out"));
    let names: Vec<&str> = written.keys().map(String::as_str).collect();
    let expected = ["v73", "v79"].map(|arch| format!("experts-128x64-q4_0.t32.direct-{arch}.h"));
    assert_eq!(names, expected);
    for (header, (name, text)) in template["headers"].as_array().unwrap().iter().zip(&written) {
        assert_eq!(header["file"], json!(name));
        let text = std::str::from_utf8(text).unwrap();
        let rows = format!("    .rows = {}u,\n", template["capacity"]);
        assert!(text.contains(&rows), "{rows} is not in {text}");
        for region in template["regions"].as_array().unwrap() {
            let [name, offset] = [&region["region"], &region["offset"]];
            let line = format!(
                "{offset}  {}, {} bytes\n",
                name.as_str().unwrap(),
                region["bytes"]
            );
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(compiles(&desk.at("new/out").join(name)), "{text}");
    }
    assert!(
        files(&desk.at("b.estream")) == before,
        "the bundle was changed"
    );
    let verified = desk.estream("verify b.estream").success();
    assert_eq!(verified.stderr, "");
}

#[test]
fn more_vtcm_takes_more_rows_and_shards_take_less() {
    let capacity = |desk: &Desk, vtcm: &str| {
        let answer = desk.kernels(&format!("--arch v79 --vtcm {vtcm} -o {vtcm} --json"));
        number(&answer.success().json()["templates"][0]["capacity"])
    };
    let whole = Desk::new(&[]);
    let cut = Desk::new(&["--shards", "2"]);
    assert!(capacity(&whole, "2MiB") < capacity(&whole, "4MiB"));
    assert!(capacity(&whole, "1MiB") < capacity(&cut, "1MiB"));
}

#[test]
fn what_cannot_be_is_refused_by_name_and_leaves_nothing() {
    let desk = Desk::new(&[]);
    fs::create_dir(desk.at("mine")).unwrap();
    fs::write(desk.at("mine/thesis.txt"), "mine").unwrap();
    fs::write(desk.at("file"), "mine").unwrap();
    let plain = Desk::new(&["--recipe", "keep"]);
    copy_as_rows(&plain.at("b.estream"), &desk.at("rows.estream"));
    let before = files(desk.dir.path());
    for (line, code, parts) in [
        (
            "--model b.estream --arch v69 -o out",
            2,
            &["v69", "v73, v75, v79, v81"][..],
        ),
        (
            "--model b.estream --arch v79,x -o out",
            2,
            &["\"x\"", "v73, v75, v79, v81"],
        ),
        ("--model b.estream -o out", 2, &["--arch"]),
        ("--model b.estream --arch v79", 2, &["--output"]),
        ("--model nowhere --arch v79 -o out", 2, &["nowhere"]),
        (
            "--model b.estream --arch v79 -o mine",
            2,
            &["mine: exists", "another output"],
        ),
        ("--model b.estream --arch v79 -o file", 2, &["file: exists"]),
        (
            "--model b.estream --arch v79 -o b.estream",
            2,
            &["b.estream"],
        ),
        (
            "--model b.estream --arch v79 -o .",
            2,
            &["cannot be an output"],
        ),
        (
            "--model b.estream --arch v79 -o out --vtcm 1TiB",
            2,
            &["1099511627776", "67108864"],
        ),
        (
            "--model b.estream --arch v79 -o out --vtcm 40KiB",
            3,
            &[
                "layers 0-2",
                "hidden 128 and ff 64",
                "for 32 rows, and there are 40960",
                "--shards 2",
            ],
        ),
        (
            "--model rows.estream --arch v79 -o out",
            3,
            &[
                "layers 0-2",
                "bf16.rows (gate)",
                "known are",
                "q4_0.t32.direct",
                "q8_0.t32",
            ],
        ),
    ] {
        let done = desk.estream(&format!("kernels {line}"));
        assert_eq!(done.code, code, "{line}: {}", done.stderr);
        assert_eq!(done.stdout, b"", "{line}");
        for part in parts {
            assert!(
                done.stderr.contains(part),
                "{line}: no {part:?} in {}",
                done.stderr
            );
        }
        assert!(files(desk.dir.path()) == before, "{line} left something");
    }
}

/// The bundle with experts whose bytes are said to be rows, which take as many.
fn copy_as_rows(from: &Path, to: &Path) {
    for (name, bytes) in files(from) {
        let path = to.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let mut manifest = manifest(from);
    for layer in manifest["experts"]["layers"].as_array_mut().unwrap() {
        for projection in ["gate", "up", "down"] {
            assert_eq!(layer[projection]["layout"], "bf16.t32");
            layer[projection]["layout"] = "bf16.rows".into();
        }
    }
    let text = serde_json::to_vec_pretty(&manifest).unwrap();
    fs::write(to.join("manifest.json"), text).unwrap();
}

/// Times of records of the bundle, and VTCM with little room.
fn profile(desk: &Desk, more: &str) -> String {
    let slot = number(&manifest(&desk.at("b.estream"))["experts"]["slot_bytes"]);
    format!(
        r#"
        name = "npu"
        [storage]
        latency_ns = 20000
        rates = [{{ read_bytes = 16384, outstanding = 1, bytes_per_second = 600000000 }}]
        [limits]
        {more}
        [[services]]
        name = "olmoe"
        record_bytes = {slot}
        tile_rows = 32
        other = [{{ tokens = 1, ns = 50000 }}, {{ tokens = 64, ns = 900000 }}]
        records = [{{ rows = 32, ns = 200000 }}, {{ rows = 64, ns = 210000 }}]
        "#
    )
}

#[test]
fn a_plan_for_a_profile_with_vtcm_counts_invocations() {
    let desk = Desk::new(&[]);
    let vtcm = "vtcm_bytes = 57344";
    for (name, limits) in [
        ("plain", ""),
        ("small", vtcm),
        ("none", "vtcm_bytes = 4096"),
    ] {
        fs::write(desk.at(&format!("{name}.toml")), profile(&desk, limits)).unwrap();
    }
    let capacity = desk
        .kernels("--arch v81 --vtcm 57344 -o out --json")
        .success()
        .json();
    let capacity = number(&capacity["templates"][0]["capacity"]);
    assert_eq!(capacity, 32);
    let line = |name: &str| {
        format!("plan b.estream --device {name}.toml --budget 64MiB --tokens 512 --json")
    };
    let exec = |done: &Finished| number(&done.json()["plans"][0]["rows"][0]["chosen"]["exec_us"]);

    let plain = desk.estream(&line("plain")).success();
    let small = desk
        .estream(&format!("{} --store", line("small")))
        .success();
    let says = "an invocation takes at most 32 rows of an expert: what 57344 bytes of VTCM hold";
    assert!(small.stderr.contains(says), "{}", small.stderr);
    assert!(!plain.stderr.contains("invocation"), "{}", plain.stderr);
    // Experts have 128 rows on average, and 32 take nearly as long as 64.
    assert!(
        exec(&small) > exec(&plain) * 3 / 2,
        "{}, {}",
        exec(&small),
        exec(&plain)
    );

    let stored = fs::read(desk.at("b.estream/plans/small.json")).unwrap();
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    assert_valid("plan", &stored);
    assert_eq!(
        number(&stored["profile"]["services"][0]["capacity"]),
        capacity
    );
    let source = &stored["profile"]["sources"]["services.capacity"]["text"];
    assert!(source.as_str().unwrap().contains("57344"), "{source}");

    // What a profile says itself goes before.
    let stated = profile(&desk, vtcm).replace("tile_rows = 32", "tile_rows = 32\ncapacity = 4096");
    fs::write(desk.at("stated.toml"), stated).unwrap();
    assert_eq!(exec(&desk.estream(&line("stated")).success()), exec(&plain));
    // Where no template fits it is as if nothing were known, and that is said.
    let none = desk.estream(&line("none")).success();
    assert!(
        none.stderr.contains("there is no template"),
        "{}",
        none.stderr
    );
    assert_eq!(exec(&none), exec(&plain));

    // A simulation counts them, too.
    let simulated = |name: &str| {
        let line = format!("simulate b.estream --device {name}.toml --schedule early --json");
        let done = desk.estream(&line).success();
        let exec_us = number(&done.json()["schedules"][0]["exec_us"]);
        (exec_us, done.stderr.contains(says))
    };
    let (plain, small) = (simulated("plain"), simulated("small"));
    assert!(!plain.1 && small.1);
    assert!(small.0 > plain.0 * 3 / 2, "{small:?}, {plain:?}");
}
