//! `estream parity`: a bundle beside its source, on real text.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use estream_tests::{
    Checkpoint, ParityDesk, SHORT, Tensors, compile, estream, finish, fixture, number, with,
};
use serde_json::Value;

#[test]
fn a_bundle_that_keeps_its_source_is_the_same_everywhere() {
    let desk = ParityDesk::new(&["keep"]);
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
    let desk = ParityDesk::new(&["q4_0"]);
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
    let place = |first: &Value| {
        let place = ["window", "position", "layer"].map(|name| first[name].as_u64());
        assert!(place.iter().all(Option::is_some), "{first}");
        place
    };
    let mut places = Vec::new();
    for layer in report["experts"]["layers"].as_array().unwrap() {
        let same = number(layer, "/same_rows_pct");
        assert!((20.0..100.0).contains(&same), "{same}");
        assert!(number(layer, "/common_pct") > same);
        places.push(place(&layer["first"]));
        let margin = number(layer, "/first/margin");
        assert!(0.0 < margin && margin <= number(layer, "/widest_margin"));
    }
    assert_eq!(places.iter().min(), Some(&place(first)));
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

/// ln of the probabilities of every position, from the logits that `run` writes.
fn log_probs(desk: &ParityDesk, bundle: &str) -> Vec<Vec<f64>> {
    let logits = desk.at(&format!("{bundle}.logits"));
    let mut command = estream();
    command.arg("run").arg(desk.at(bundle)).arg("--ids-file");
    command.arg(desk.at("ids")).arg("--all-positions");
    finish(command.arg("--logits").arg(&logits)).success();
    let logits = Tensors::read(&logits);
    let rows = logits.floats("logits").chunks_exact(544);
    let rows = rows.map(|row| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        row.iter().map(|x| f64::from(*x) - sum.ln()).collect()
    });
    rows.collect()
}

#[test]
fn figures_are_those_of_the_logits_that_run_writes() {
    let desk = ParityDesk::new(&["keep", "q4_0"]);
    let ids: Vec<usize> = (0..200).map(|n| n * n % 400 + 30).collect();
    let list: Vec<String> = ids.iter().map(usize::to_string).collect();
    fs::write(desk.at("ids"), list.join(",")).unwrap();
    let (p, q) = (log_probs(&desk, "keep"), log_probs(&desk, "q4_0"));
    let report = desk.parity("q4_0", &fixture("olmoe"), &["--ids-file", "ids"]);
    let report = report.success().json();

    let pairs = || p.iter().zip(&q);
    let kl = |(p, q): (&Vec<f64>, &Vec<f64>)| -> f64 {
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    let all: Vec<f64> = pairs().map(kl).collect();
    let best = |row: &Vec<f64>| (0..544).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    let same = pairs().filter(|(p, q)| best(p) == best(q)).count();
    let surprise = |rows: &[Vec<f64>]| {
        let next = ids[1..].iter().zip(rows).map(|(id, row)| -row[*id]);
        next.sum::<f64>() / 199.0
    };
    for (figure, exact) in [
        ("/kl/mean", all.iter().sum::<f64>() / 200.0),
        ("/kl/max", all.iter().copied().fold(0.0, f64::max)),
        ("/same_top_pct", same as f64 / 2.0),
        ("/perplexity/reference", surprise(&p).exp()),
        ("/perplexity/bundle", surprise(&q).exp()),
    ] {
        let found = number(&report, figure);
        assert!(
            (found / exact - 1.0).abs() < 1e-9,
            "{figure}: {found}, not {exact}"
        );
    }
}

#[test]
fn a_reference_may_be_another_bundle_and_its_own_is_no_way_off() {
    let desk = ParityDesk::new(&["q4_0", "keep"]);
    let itself = desk.parity("q4_0", &desk.at("q4_0"), &SHORT);
    assert_eq!(number(&itself.success().json(), "/kl/max"), 0.0);
    let other = desk.parity("keep", &desk.at("q4_0"), &SHORT);
    let other = other.success().json();
    assert_eq!(other["reference"]["kind"], "bundle");
    assert!(number(&other, "/kl/mean") > 0.0);
}

#[test]
fn another_model_is_refused_with_all_that_differs() {
    let desk = ParityDesk::new(&["q4_0"]);
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
    let desk = ParityDesk::new(&["q4_0"]);
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

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_nothing() {
    let desk = ParityDesk::new(&["q4_0"]);
    let line = "And it came to pass in those days, that there went out a decree.\n";
    fs::write(desk.at("long.txt"), line.repeat(8000)).unwrap();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = estream();
        command.current_dir(desk.at("")).arg("parity").arg("q4_0");
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
