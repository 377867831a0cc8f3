//! `estream parity`: a bundle beside its source, on real text.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use estream_tests::{Checkpoint, Finished, compile, estream, finish, fixture};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

/// Bundles of the fixture, a directory to work in, and one for what is temporary.
struct Desk {
    dir: TempDir,
}

impl Desk {
    fn new(recipes: &[&str]) -> Desk {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        for recipe in recipes {
            let bundle = dir.path().join(recipe);
            compile(&fixture("olmoe"), &bundle, &["--recipe", recipe]);
        }
        Desk { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the verb; afterwards nothing temporary is left.
    #[track_caller]
    fn parity(&self, bundle: &str, reference: &Path, flags: &[&str]) -> Finished {
        let mut command = estream();
        command.current_dir(self.dir.path()).arg("parity");
        command.arg(bundle).arg("--reference").arg(reference);
        let done = finish(command.args(["--json", "--work-dir", "work"]).args(flags));
        assert_eq!(fs::read_dir(self.at("work")).unwrap().count(), 0);
        done
    }
}

/// A short run: three windows of the text that comes with the program.
const SHORT: [&str; 4] = ["--window", "200", "--max-tokens", "600"];

fn with<'a>(flags: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [flags, more].concat()
}

#[track_caller]
fn number(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number {path} in {value}"))
}

#[test]
fn a_bundle_that_keeps_its_source_is_the_same_everywhere() {
    let desk = Desk::new(&["keep"]);
    let done = desk.parity("keep", &fixture("olmoe"), &[]).success();
    assert!(
        done.stderr.contains("removed afterwards"),
        "{}",
        done.stderr
    );
    let report = done.json();
    // The whole text: some 7 KB.
    assert!(number(&report, "/text/positions") > 2000.0);
    for figure in ["/kl/mean", "/kl/p99", "/kl/max"] {
        assert!(number(&report, figure) <= 1e-9, "{figure} of {report}");
    }
    assert_eq!(report["kl"]["exact"], true);
    assert_eq!(number(&report, "/kl/bins"), 544.0);
    for figure in ["/same_top_pct", "/common_top5_pct", "/experts/common_pct"] {
        assert_eq!(number(&report, figure), 100.0, "{figure}");
    }
    let layers = report["experts"]["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3);
    for layer in layers {
        assert_eq!(number(layer, "/same_rows_pct"), 100.0);
        assert_eq!(number(layer, "/rows"), number(&report, "/text/positions"));
        assert!(layer["first"].is_null());
    }
    assert_eq!(number(&report, "/perplexity/ratio"), 1.0);
    // The model was trained on such text: it is far better than a guess among 544.
    let perplexity = number(&report, "/perplexity/reference");
    assert!((2.0..50.0).contains(&perplexity), "{perplexity}");
}

#[test]
fn c90_real_text_shows_what_quantising_costs_and_where_it_first_shows() {
    let desk = Desk::new(&["q4_0"]);
    let loose: &[&str] = &[
        "--max-kl=0.2",
        "--max-kl-p99=2",
        "--min-top1=70",
        "--max-ppl-ratio=1.2",
        "--min-experts=80",
    ];
    let done = desk.parity("q4_0", &fixture("olmoe"), &with(&SHORT, loose));
    let report = done.success().json();
    let mean = number(&report, "/kl/mean");
    assert!((1e-3..0.2).contains(&mean), "{mean}");
    assert!(number(&report, "/kl/median") < number(&report, "/kl/p90"));
    assert!(number(&report, "/kl/p99") < number(&report, "/kl/max"));
    let ratio = number(&report, "/perplexity/ratio");
    assert!(ratio != 1.0 && (0.9..1.2).contains(&ratio), "{ratio}");
    // 600 tokens in three windows, the first of each predicted by nothing.
    assert_eq!(number(&report, "/perplexity/tokens"), 597.0);

    let first = &report["experts"]["first"];
    let mut places = Vec::new();
    for layer in report["experts"]["layers"].as_array().unwrap() {
        let same = number(layer, "/same_rows_pct");
        assert!((20.0..100.0).contains(&same), "{same}");
        assert!(number(layer, "/common_pct") > same);
        let place = |name: &str| number(layer, &format!("/first/{name}"));
        places.push([place("window"), place("position"), place("layer")].map(|x| x as usize));
        let margin = number(layer, "/first/margin");
        assert!(0.0 < margin && margin <= number(layer, "/widest_margin"));
    }
    let earliest = ["window", "position", "layer"].map(|name| number(first, &format!("/{name}")));
    assert_eq!(places.iter().min(), Some(&earliest.map(|x| x as usize)));
    assert_ne!(first["reference"], first["bundle"]);

    // Each limit on its own is enough to fail, and is named with its numbers.
    for (flag, figure) in [
        ("--max-kl=1e-4", "/kl/mean"),
        ("--max-kl-p99=1e-4", "/kl/p99"),
        ("--min-top1=99.9", "/same_top_pct"),
        ("--max-ppl-ratio=0.5", "/perplexity/ratio"),
        ("--min-experts=99.9", "/experts/common_pct"),
    ] {
        let done = desk.parity("q4_0", &fixture("olmoe"), &with(&SHORT, &[flag]));
        assert_eq!(done.code, 1, "{flag}: {}", done.stderr);
        let tight = done.json();
        assert_eq!(number(&tight, "/limits/0/found"), number(&report, figure));
        assert_eq!(tight["limits"][0]["kept"], false);
        let (option, limit) = flag.split_once('=').unwrap();
        let limit: f64 = limit.parse().unwrap();
        let said = format!("{option} {limit}: found {}", number(&report, figure));
        assert!(done.stderr.contains(&said), "{said}: {}", done.stderr);
    }
}

#[test]
fn a_stored_reference_says_what_its_model_did_within_its_bins() {
    let desk = Desk::new(&["q4_0"]);
    let store = with(&SHORT, &["--save-reference", "ref.safetensors"]);
    let direct = desk.parity("q4_0", &fixture("olmoe"), &store);
    let direct = direct.success().json();
    let stored = desk.parity("q4_0", &desk.at("ref.safetensors"), &[]);
    let bytes = stored.stdout.clone();
    let stored = stored.success().json();
    assert_eq!(stored["reference"]["kind"], "logits");
    assert_eq!(
        stored["reference"]["identity"],
        direct["reference"]["identity"]
    );
    for same in [
        "text",
        "perplexity",
        "experts",
        "same_top_pct",
        "common_top5_pct",
    ] {
        assert_eq!(stored[same], direct[same], "{same}");
    }
    // 65 bins can hide some of what 544 show, and add nothing.
    assert_eq!(stored["kl"]["exact"], false);
    assert_eq!(number(&stored, "/kl/bins"), 65.0);
    let (bins, all) = (number(&stored, "/kl/mean"), number(&direct, "/kl/mean"));
    assert!(bins < all && bins > 0.8 * all, "{bins} of {all}");

    // As many bins as tokens hide nothing.
    let store = with(
        &SHORT,
        &["--top", "544", "--save-reference", "all.safetensors"],
    );
    desk.parity("q4_0", &fixture("olmoe"), &store).success();
    let whole = desk.parity("q4_0", &desk.at("all.safetensors"), &[]);
    let whole = whole.success().json();
    assert_eq!(whole["kl"]["exact"], true);
    assert!((number(&whole, "/kl/mean") - all).abs() < 1e-12);

    // The same input is the same bytes, also when a stored reference is stored again.
    let again = ["--save-reference", "again.safetensors"];
    let again = desk.parity("q4_0", &desk.at("ref.safetensors"), &again);
    assert!(again.success().stdout == bytes);
    let read = |name: &str| fs::read(desk.at(name)).unwrap();
    assert!(read("again.safetensors") == read("ref.safetensors"));
}

#[test]
fn a_reference_may_be_another_bundle_and_its_own_is_no_way_off() {
    let desk = Desk::new(&["q4_0", "paper"]);
    let itself = desk.parity("q4_0", &desk.at("q4_0"), &SHORT);
    assert_eq!(number(&itself.success().json(), "/kl/max"), 0.0);
    let other = desk.parity("paper", &desk.at("q4_0"), &SHORT);
    let other = other.success().json();
    assert_eq!(other["reference"]["kind"], "bundle");
    assert!(number(&other, "/kl/mean") > 0.0);
}

#[test]
fn another_model_is_refused_with_all_that_differs() {
    let desk = Desk::new(&["q4_0"]);
    let mut narrow = Checkpoint::read(&fixture("olmoe"));
    narrow.config["num_experts_per_tok"] = 2.into();
    narrow.write(&desk.at("narrow"));
    let mut short = Checkpoint::read(&fixture("olmoe"));
    short.config["num_hidden_layers"] = 2.into();
    short.tensors.retain(|name, _| !name.contains("layers.2."));
    short.write(&desk.at("short"));
    compile(&desk.at("narrow"), &desk.at("narrow.estream"), &[]);
    let store = with(&SHORT, &["--save-reference", "ref.safetensors"]);
    desk.parity("q4_0", &fixture("olmoe"), &store).success();
    let mixtral = fixture("mixtral");
    for (bundle, reference, parts) in [
        (
            "q4_0",
            desk.at("narrow"),
            &["narrow", "4 of 16", "2 of 16"][..],
        ),
        ("q4_0", desk.at("short"), &["short", "layers: 3", "2"]),
        ("q4_0", mixtral, &["mixtral", "olmoe", "family"]),
        (
            "q4_0",
            desk.at("narrow.estream"),
            &["narrow.estream", "4 of 16"],
        ),
        (
            "narrow.estream",
            desk.at("ref.safetensors"),
            &["ref.safetensors", "4 of 16"],
        ),
        ("q4_0", desk.at("nowhere"), &["nowhere"]),
    ] {
        let save = ["--save-reference", "new.safetensors"];
        let done = desk.parity(bundle, &reference, &save);
        assert_eq!(done.code, 2, "{reference:?}: {}", done.stderr);
        for part in parts {
            assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
        }
        assert!(!desk.at("new.safetensors").exists());
    }
}

#[test]
fn text_comes_from_the_user_or_with_the_reference() {
    let desk = Desk::new(&["q4_0"]);
    fs::write(desk.at("mine.txt"), "And it came to pass").unwrap();
    fs::write(desk.at("ids"), "41, 70, 276, 41, 70").unwrap();
    fs::write(desk.at("odd"), "41, 544").unwrap();
    fs::write(desk.at("none"), "").unwrap();
    let source = fixture("olmoe");
    let of = |flags: &[&str]| desk.parity("q4_0", &source, flags);
    let report = of(&["--ids-file", "ids", "--window", "3"]).success().json();
    assert_eq!(number(&report, "/text/positions"), 5.0);
    assert_eq!(number(&report, "/text/windows"), 2.0);
    assert_eq!(number(&report, "/perplexity/tokens"), 3.0);
    let report = of(&["--text-file", "mine.txt"]).success().json();
    let positions = number(&report, "/text/positions");
    assert!((5.0..=19.0).contains(&positions), "{positions}");

    // One token is compared, and predicts nothing.
    let one = [
        "--ids-file",
        "ids",
        "--max-tokens",
        "1",
        "--max-ppl-ratio=9",
    ];
    let done = of(&one);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.json()["perplexity"].is_null());
    assert!(done.stderr.contains("no such figure"), "{}", done.stderr);

    of(&["--ids-file", "ids", "--save-reference", "ref.safetensors"]).success();
    let stored = desk.at("ref.safetensors");
    let with_stored = |flags: &[&str]| desk.parity("q4_0", &stored, flags);
    for (done, part) in [
        (of(&["--ids-file", "odd"]), "544"),
        (of(&["--ids-file", "none"]), "no tokens"),
        (of(&["--window", "1"]), "window of 1"),
        (of(&["--window", "4097"]), "4096"),
        (of(&["--max-kl", "nan"]), "--max-kl"),
        (of(&["--save-reference", "ids"]), "ids"),
        (with_stored(&["--ids-file", "ids"]), "--ids-file"),
        (with_stored(&["--window", "5"]), "--window"),
    ] {
        assert_eq!(done.code, 2, "{part}: {}", done.stderr);
        assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }
}

/// A tensor's type, shape and bytes.
type Parts = (Dtype, Vec<usize>, Vec<u8>);

/// A safetensors file taken apart.
#[derive(Clone)]
struct Stored {
    metadata: HashMap<String, String>,
    tensors: BTreeMap<String, Parts>,
}

impl Stored {
    fn read(path: &Path) -> Stored {
        let bytes = fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let parts = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name, parts)
        });
        Stored {
            metadata: header.metadata().clone().unwrap(),
            tensors: tensors.collect(),
        }
    }

    fn write(&self, path: &Path) {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            let view = TensorView::new(*dtype, shape.clone(), bytes);
            (name.as_str(), view.unwrap())
        });
        let bytes = safetensors::serialize(views, Some(self.metadata.clone())).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn bytes(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.tensors.get_mut(name).unwrap().2
    }

    fn experts(&self, layer: usize) -> Vec<Vec<u16>> {
        let (_, shape, bytes) = &self.tensors[&format!("experts.{layer}")];
        let (pairs, _) = bytes.as_chunks::<2>();
        let all: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        all.chunks_exact(shape[1]).map(<[u16]>::to_vec).collect()
    }

    fn margins(&self, layer: usize) -> Vec<f32> {
        let (words, _) = self.tensors[&format!("margins.{layer}")].2.as_chunks::<4>();
        words.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }
}

#[test]
fn a_stored_reference_that_is_not_sound_is_refused_by_name() {
    let desk = Desk::new(&["q4_0"]);
    let short = [
        "--window=20",
        "--max-tokens=50",
        "--save-reference=ref.safetensors",
    ];
    desk.parity("q4_0", &fixture("olmoe"), &short).success();
    let path = desk.at("ref.safetensors");
    let sound = Stored::read(&path);
    // What other programs write is read too, whatever the order of its tensors.
    sound.write(&desk.at("other.safetensors"));
    desk.parity("q4_0", &desk.at("other.safetensors"), &[])
        .success();

    type Change = fn(&mut Stored);
    let cases: &[(&str, Change)] = &[
        ("tokens: an id", |s| {
            s.bytes("tokens")[0..4].copy_from_slice(&544i32.to_le_bytes())
        }),
        ("tokens: an id", |s| {
            s.bytes("tokens")[0..4].copy_from_slice(&(-1i32).to_le_bytes())
        }),
        ("stated digest", |s| s.bytes("tokens")[0] ^= 1),
        ("top_ids: an id", |s| s.bytes("top_ids")[3] = 0x7f),
        ("position 0", |s| {
            let ids = s.bytes("top_ids");
            ids.copy_within(0..4, 4);
        }),
        ("top_logits: a value", |s| {
            s.bytes("top_logits")[0..4].copy_from_slice(&f32::NAN.to_le_bytes())
        }),
        ("position 1", |s| {
            let logits = s.bytes("top_logits");
            logits[256..260].copy_from_slice(&1e6f32.to_le_bytes());
        }),
        ("log_norms: a value", |s| {
            s.bytes("log_norms")[0..8].copy_from_slice(&f64::NAN.to_le_bytes())
        }),
        ("position 0", |s| {
            s.bytes("log_norms")[0..8].copy_from_slice(&1e300f64.to_le_bytes())
        }),
        ("log_tails: a value", |s| {
            s.bytes("log_tails")[0..8].copy_from_slice(&f64::INFINITY.to_le_bytes())
        }),
        ("position 0", |s| {
            s.bytes("log_tails")[0..8].copy_from_slice(&f64::NEG_INFINITY.to_le_bytes());
        }),
        ("position 0", |s| {
            s.bytes("next_logits")[0..4].copy_from_slice(&1e9f32.to_le_bytes())
        }),
        ("experts.0: an expert that is not below 16", |s| {
            s.bytes("experts.0")[0] = 16
        }),
        ("experts.1: an expert twice", |s| {
            s.bytes("experts.1").copy_within(0..2, 2)
        }),
        ("margins.2: a negative", |s| {
            s.bytes("margins.2")[0..4].copy_from_slice(&(-1f32).to_le_bytes())
        }),
        ("experts.2: absent", |s| drop(s.tensors.remove("experts.2"))),
        ("top_ids: absent", |s| drop(s.tensors.remove("top_ids"))),
        ("1 tensors of unknown names", |s| {
            s.tensors
                .insert("extra".into(), (Dtype::U8, vec![1], vec![0]));
        }),
        ("log_tails: F32", |s| {
            let (dtype, _, bytes) = s.tensors.get_mut("log_tails").unwrap();
            *dtype = Dtype::F32;
            bytes.truncate(200);
        }),
        ("next_logits: F32 [25, 2]", |s| {
            s.tensors.get_mut("next_logits").unwrap().1 = vec![25, 2];
        }),
        ("tokens: absent, or without", |s| {
            let (_, shape, bytes) = s.tensors.get_mut("tokens").unwrap();
            *shape = vec![0];
            bytes.clear();
        }),
        ("window: \"1\"", |s| {
            drop(s.metadata.insert("window".into(), "1".into()))
        }),
        ("window: \"+20\"", |s| {
            drop(s.metadata.insert("window".into(), "+20".into()))
        }),
        ("version", |s| {
            drop(s.metadata.insert("version".into(), "2".into()))
        }),
        ("identity", |s| {
            drop(s.metadata.insert("identity".into(), "x".into()))
        }),
        ("model", |s| {
            drop(s.metadata.insert("model".into(), "[".into()))
        }),
        ("metadata", |s| drop(s.metadata.remove("tokens"))),
    ];
    let mut wrong = Vec::new();
    let mut check = |path: &Path, part: &str| {
        let done = desk.parity("q4_0", path, &[]);
        let named = done.stderr.contains("bad.safetensors") && done.stderr.contains(part);
        if done.code != 4 || !named {
            wrong.push(format!("{part}: {} {}", done.code, done.stderr));
        }
    };
    let bad = desk.at("bad.safetensors");
    for (part, change) in cases {
        let mut stored = sound.clone();
        change(&mut stored);
        stored.write(&bad);
        check(&bad, part);
    }
    // Cut short: in the data, in the header, in its length.
    let bytes = fs::read(&path).unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2, 3000, 300, 7, 0] {
        fs::write(&bad, &bytes[..length]).unwrap();
        check(&bad, "");
    }
    let longer = [bytes.as_slice(), b"more"].concat();
    fs::write(&bad, longer).unwrap();
    check(&bad, "");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn c91_of_experts_that_tie_the_lower_is_chosen_in_both() {
    let desk = Desk::new(&[]);
    // Experts 3n, 3n + 1 and 3n + 2 get one score, so that ties stand at every place.
    let mut tied = Checkpoint::read(&fixture("olmoe"));
    for layer in 0..3 {
        let name = format!("model.layers.{layer}.mlp.gate.weight");
        let router = tied.tensors.get_mut(&name).unwrap();
        let row = router.bytes.len() / 16;
        for expert in 0..16 {
            let first = expert / 3 * 3;
            router
                .bytes
                .copy_within(first * row..(first + 1) * row, expert * row);
        }
    }
    tied.write(&desk.at("tied"));
    compile(&desk.at("tied"), &desk.at("keep"), &["--recipe", "keep"]);
    compile(&desk.at("tied"), &desk.at("q4_0"), &["--recipe", "q4_0"]);
    let ids: Vec<String> = (0..300).map(|n| (n * 37 % 500 + 20).to_string()).collect();
    fs::write(desk.at("ids"), ids.join(" ")).unwrap();
    for bundle in ["keep", "q4_0"] {
        let store = [
            "--ids-file",
            "ids",
            "--save-reference",
            &format!("{bundle}.ref"),
        ];
        let done = desk.parity(bundle, &desk.at(bundle), &store);
        assert_eq!(
            number(&done.success().json(), "/experts/same_rows_pct"),
            100.0
        );
        let stored = Stored::read(&desk.at(&format!("{bundle}.ref")));
        let mut at_the_edge = 0;
        for layer in 0..3 {
            let margins = stored.margins(layer);
            for (chosen, margin) in stored.experts(layer).iter().zip(margins) {
                for (place, expert) in chosen.iter().enumerate() {
                    let first_of_three = expert % 3 == 0;
                    let before = place.checked_sub(1).map(|place| chosen[place]);
                    assert!(first_of_three || before == Some(expert - 1), "{chosen:?}");
                }
                let last = chosen.last().unwrap();
                let cut = last % 3 != 2 && *last != 15;
                assert_eq!(margin == 0.0, cut, "{chosen:?} by {margin}");
                at_the_edge += usize::from(cut);
            }
        }
        // Four of threes: the fourth ties with its neighbour wherever 15 has no place.
        assert!(at_the_edge > 400, "{at_the_edge}");
    }
    let done = desk.parity("keep", &desk.at("tied"), &["--ids-file", "ids"]);
    let report = done.success().json();
    assert_eq!(number(&report, "/experts/same_rows_pct"), 100.0);
    assert_eq!(number(&report, "/kl/max"), 0.0);
}

#[test]
fn c92_a_stored_reference_is_a_small_part_of_the_logits() {
    let desk = Desk::new(&["keep"]);
    let store = ["--save-reference", "ref.safetensors"];
    let report = desk
        .parity("keep", &fixture("olmoe"), &store)
        .success()
        .json();
    let bytes = fs::metadata(desk.at("ref.safetensors")).unwrap().len();
    let positions = report["text"]["positions"].as_u64().unwrap();
    // 64 ids and logits, five numbers beside them, and 4 experts and a margin of 3 layers.
    let row = 64 * 8 + 4 + 8 + 8 + 4 + 3 * (4 * 2 + 4);
    let header = bytes - positions * row;
    assert!(header < 4096, "{header} bytes of header");
    assert!(bytes < 2 << 20, "{bytes}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_nothing() {
    let desk = Desk::new(&["q4_0"]);
    let line = "And it came to pass in those days, that there went out a decree.\n";
    fs::write(desk.at("long.txt"), line.repeat(8000)).unwrap();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = estream();
        command
            .current_dir(desk.dir.path())
            .arg("parity")
            .arg("q4_0");
        command.arg("--reference").arg(fixture("olmoe"));
        command.args(["--work-dir", "work", "--text-file", "long.txt"]);
        command.args(["--max-tokens", "1000000", "--window", "64"]);
        command.args(["--save-reference", "out/ref.safetensors"]);
        fs::create_dir_all(desk.at("out")).unwrap();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        // The bundle is complete once its manifest is at its place; then its run begins.
        let compiled = || {
            let mut entries = fs::read_dir(desk.at("work")).unwrap();
            let dir = entries.next().map(|entry| entry.unwrap().path());
            dir.is_some_and(|dir| dir.join("reference.estream/manifest.json").is_file())
        };
        while !compiled() {
            assert!(child.try_wait().unwrap().is_none(), "it has ended already");
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "nothing is compiled"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut shell = std::process::Command::new("sh");
        let kill = format!("kill -{signal} {}", child.id());
        finish(shell.args(["-c", &kill])).success();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        for dir in ["work", "out"] {
            assert_eq!(fs::read_dir(desk.at(dir)).unwrap().count(), 0, "{dir}");
        }
    }
}
