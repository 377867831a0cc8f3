//! Pictures show what the answers say.

use std::fs;
use std::path::PathBuf;

use estream_tests::{
    Finished, Picture, Tensors, compile, estream, finish, fixture, id_list, prompts,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROFILE: &str = r#"
name = "a phone"

[storage]
latency_ns = 20000
rates = [
  { read_bytes = 16384, outstanding = 1, bytes_per_second = 600000000 },
  { read_bytes = 16384, outstanding = 2, bytes_per_second = 1000000000 },
]

[[services]]
name = "small"
record_bytes = 49152
dispatch_ns = 5000
other = [{ tokens = 1, ns = 50000 }, { tokens = 64, ns = 900000 }]
records = [{ rows = 1, ns = 20000 }, { rows = 64, ns = 400000 }]
head_ns = 300000
"#;

struct Desk {
    dir: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::tempdir().unwrap();
        compile(
            &fixture("olmoe"),
            &dir.path().join("a.estream"),
            &["--recipe", "keep"],
        );
        fs::write(dir.path().join("phone.toml"), PROFILE).unwrap();
        Desk { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn estream(&self, line: &str) -> Finished {
        let mut command = estream();
        command.current_dir(self.dir.path());
        command.args(["--json"]).args(line.split_whitespace());
        finish(&mut command)
    }

    fn plan(&self, rest: &str) -> Finished {
        self.estream(&format!("plan a.estream --device phone.toml {rest}"))
    }

    fn simulate(&self, rest: &str) -> Finished {
        self.estream(&format!("simulate a.estream --device phone.toml {rest}"))
    }

    fn picture(&self, name: &str) -> Picture {
        Picture::read(&self.at(name))
    }

    /// Names of what lies here.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Routes of the prompts of the fixture.
    fn record(&self, more: &str) -> Value {
        let golden = Tensors::read(&fixture("olmoe/golden.safetensors"));
        let mut line = "routes a.estream -o routes.json".to_owned();
        for prompt in prompts(&golden) {
            fs::write(self.at(&prompt.name), id_list(&prompt.ids)).unwrap();
            line += &format!(" --ids-file {}", prompt.name);
        }
        self.estream(&format!("{line} {more}")).success().json()
    }
}

fn array(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// A configuration of an answer, as pictures name it.
fn name(config: &Value) -> String {
    let schedule = config["schedule"].as_str().unwrap();
    let (group, depth, banks) = (&config["group"], &config["depth"], &config["banks"]);
    match schedule {
        "resident" => schedule.to_owned(),
        _ => format!("{schedule}, G = {group}, Q = {depth}, B = {banks}"),
    }
}

#[test]
fn a_plan_is_drawn_with_every_configuration_and_what_is_chosen() {
    let desk = Desk::new();
    let refused = desk.plan("--budget 1MiB --tokens 4,64").json();
    let least = number(&refused["plans"][0]["refused"]["least_budget_bytes"]);
    let budgets = [least, least + 4 * 49_152, 1 << 30];
    let asked = format!(
        "--budget {},{},{} --tokens 4,64 --pareto",
        budgets[0], budgets[1], budgets[2]
    );
    let answer = desk.plan(&format!("{asked} --svg p.svg")).success().json();
    assert_eq!(answer["svg"], json!("p.svg"));
    let picture = desk.picture("p.svg");
    assert_eq!(picture.title, "a.estream on a phone, times of small");
    assert_eq!(picture.panels.len(), 2);
    for (at, (panel, tokens)) in picture.panels.iter().zip([4, 64]).enumerate() {
        assert_eq!(panel.title, format!("{tokens} tokens"));
        assert_eq!(panel.axes, ["memory (MiB)", "time to first token (ms)"]);
        let rows: Vec<&Value> = array(&answer["plans"])
            .iter()
            .map(|plan| &plan["rows"][at])
            .collect();
        let all = panel.marks("every configuration");
        assert!(all.len() > 100);
        assert_eq!(all.len() as u64, number(&rows[0]["configurations"]));
        let mut titles: Vec<&str> = all.iter().map(|mark| &*mark.title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), all.len(), "each once");

        let frontier = panel.marks("least time for the memory");
        let expected: Vec<String> = array(&rows[0]["pareto"]).iter().map(name).collect();
        let found: Vec<&String> = frontier.iter().map(|mark| &mark.title).collect();
        assert_eq!(found, expected.iter().collect::<Vec<_>>());
        // More memory is to the right, less time below.
        assert!(frontier.is_sorted_by(|a, b| a.x < b.x && a.y < b.y));
        let fastest = panel.marks("the fastest of all");
        assert_eq!(fastest[0].title, *expected.last().unwrap());

        let (stars, next) = (
            panel.marks("chosen within a budget"),
            panel.marks("next best"),
        );
        assert_eq!((stars.len(), next.len()), (3, 3));
        for (row, (star, next)) in rows.iter().zip(stars.iter().zip(next)) {
            let wanted = name(&row["chosen"]);
            assert_eq!(star.title, wanted);
            // It stands on the mark of that configuration; the upper corner of a star is some pixels above its middle.
            let under = all.iter().find(|mark| mark.title == wanted).unwrap();
            assert!((under.x - star.x).abs() < 0.02, "{under:?}, {star:?}");
            assert!((under.y - star.y - 9.0).abs() < 0.02);
            assert_eq!(next.title, name(&row["runner_up"]));
        }
        let limits: Vec<&String> = panel
            .series
            .iter()
            .map(|(name, _)| name)
            .filter(|name| name.starts_with("budget of"))
            .collect();
        assert_eq!(limits.len(), 3);
        assert_eq!(limits[2], "budget of 1 GiB, more than any takes");
        for (limit, budget) in limits.iter().zip(&budgets[..2]) {
            let digits: String = limit.chars().filter(char::is_ascii_digit).collect();
            assert_eq!(digits, budget.to_string(), "{limit}");
            assert!(picture.legend.contains(limit), "{limit}");
        }
    }
    desk.plan(&format!("{asked} --svg again.svg")).success();
    let bytes = |name: &str| fs::read(desk.at(name)).unwrap();
    assert!(bytes("p.svg") == bytes("again.svg"));
    // The frontier is not printed unless it is asked for.
    let answer = desk.plan("--budget 1GiB --tokens 4 --svg c.svg").success();
    assert!(answer.json()["plans"][0]["rows"][0].get("pareto").is_none());
    assert_eq!(
        desk.picture("c.svg").panels[0]
            .marks("chosen within a budget")
            .len(),
        1
    );
}

#[test]
fn where_no_budget_is_large_enough_the_picture_says_what_would_be() {
    let desk = Desk::new();
    let refused = desk.plan("--budget 1MiB --tokens 4 --svg p.svg");
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    let panel = &desk.picture("p.svg").panels[0];
    assert!(panel.marks("every configuration").len() > 100);
    assert!(panel.marks("chosen within a budget").is_empty());
    panel.marks("budget of 1 MiB, less than any takes");
}

#[test]
fn a_picture_replaces_nothing_and_is_whole_or_absent() {
    let desk = Desk::new();
    fs::write(desk.at("mine.svg"), "mine").unwrap();
    fs::write(desk.at("ids"), "1,2,3").unwrap();
    let before = desk.names();
    for line in [
        "plan a.estream --device phone.toml --budget 1GiB --tokens 4 --svg mine.svg",
        "simulate a.estream --device phone.toml --tokens 4 --svg mine.svg",
        "simulate a.estream --device phone.toml --tokens 4 --timeline-svg mine.svg",
        "routes a.estream --ids-file ids -o r.json --svg mine.svg",
    ] {
        let refused = desk.estream(line);
        assert_eq!(refused.code, 2, "{line}: {}", refused.stderr);
        assert!(refused.stderr.contains("mine.svg"), "{}", refused.stderr);
        let missing = line.replace("--svg mine.svg", "--svg no/p.svg");
        let missing = missing.replace("--timeline-svg mine.svg", "--timeline-svg no/p.svg");
        let failed = desk.estream(&missing);
        assert_eq!(failed.code, 5, "{missing}: {}", failed.stderr);
        assert!(failed.stderr.contains("no/p.svg"), "{}", failed.stderr);
    }
    // What fails later leaves nothing either.
    let refused = desk.plan("--budget 1GiB --tokens 1000000 --svg p.svg");
    assert_eq!(refused.code, 2);
    assert_eq!(desk.names(), before);
    assert_eq!(fs::read(desk.at("mine.svg")).unwrap(), b"mine");
}

#[test]
fn schedules_are_drawn_by_length_of_prompt() {
    let desk = Desk::new();
    let answer = desk
        .simulate("--tokens 64,4,16 --svg s.svg")
        .success()
        .json();
    assert_eq!(answer["svg"], json!("s.svg"));
    let rows = array(&answer["schedules"]);
    assert_eq!(rows.len(), 3 * 6);
    // Several lengths are each what they are alone.
    for (at, tokens) in [4, 16, 64].into_iter().enumerate() {
        let alone = desk.simulate(&format!("--tokens {tokens}")).success();
        assert_eq!(
            array(&alone.json()["schedules"])[..],
            rows[6 * at..6 * at + 6]
        );
        assert!(
            rows[6 * at..6 * at + 6]
                .iter()
                .all(|row| row["tokens"] == json!(tokens))
        );
    }
    let picture = desk.picture("s.svg");
    let [time, bytes] = &picture.panels[..] else {
        panic!("{picture:?}")
    };
    assert_eq!(time.axes[0], "prompt (tokens)");
    assert!(
        bytes.axes[1].starts_with("bytes read ("),
        "{:?}",
        bytes.axes
    );
    let schedules = [
        "resident",
        "on-demand",
        "prefetch",
        "early",
        "compact",
        "ahead",
    ];
    assert_eq!(picture.legend, schedules);
    for schedule in schedules {
        let of = |member: &str| -> Vec<u64> {
            let rows = rows.iter().filter(|row| row["schedule"] == json!(schedule));
            rows.map(|row| number(&row[member])).collect()
        };
        for (panel, values) in [(time, of("ttft_us")), (bytes, of("read_bytes"))] {
            let marks = panel.marks(schedule);
            assert_eq!(marks.len(), 3, "{schedule}");
            for (a, x) in marks.iter().zip(&values) {
                for (b, y) in marks.iter().zip(&values) {
                    assert_eq!(a.y < b.y, x > y, "{schedule}: more is above");
                }
            }
        }
    }
    // Nothing is read of what is resident.
    let flat = bytes.marks("resident");
    assert!(flat[0].y == flat[1].y && flat[0].y > bytes.marks("early")[0].y);
    let routes = desk.record("");
    assert_eq!(routes["svg"], Value::Null);
    desk.simulate("--routes routes.json --tokens 5,130 --svg r.svg")
        .success();
    assert_eq!(desk.picture("r.svg").panels[0].marks("ahead").len(), 2);
    let refused = desk.simulate("--routes routes.json --tokens 5,6");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("6 tokens"), "{}", refused.stderr);
}

#[test]
fn a_timeline_is_drawn_with_every_read_and_the_bubble() {
    let desk = Desk::new();
    let line = "--tokens 64,128 -G 4 -Q 2 -B 3 --timeline-svg t.svg";
    let answer = desk.simulate(line).success().json();
    assert_eq!(answer["timeline_svg"], json!("t.svg"));
    let picture = desk.picture("t.svg");
    assert_eq!(
        picture.title,
        "a.estream on a phone, times of small: 64 tokens"
    );
    let rows = &array(&answer["schedules"])[..6];
    assert_eq!(picture.tracks.len(), rows.len());
    for ((track, caption, lanes), row) in picture.tracks.iter().zip(rows) {
        assert_eq!(*track, name(row));
        let bubble = 100.0 * row["bubble"].as_f64().unwrap();
        assert!(
            caption.starts_with(&format!("bubble {bubble:.1} %")),
            "{caption}"
        );
        let count = |class: &str| -> usize {
            let bars = lanes.iter().flat_map(|(_, bars)| bars);
            let bars = bars.filter(|(name, _)| name == class);
            bars.map(|(_, count)| count).sum()
        };
        assert_eq!(count("reading") as u64, number(&row["reads"]), "{track}");
        assert_eq!(count("attention, router"), 3, "{track}: one a layer");
        assert_eq!(count("head"), 1);
        assert!(count("experts") >= 3);
        let names: Vec<&str> = lanes.iter().map(|(name, _)| &**name).collect();
        let expected: &[&str] = match row["schedule"].as_str() {
            Some("resident") => &["executor"],
            Some("on-demand") => &["I/O", "executor"],
            _ => &["I/O 1", "I/O 2", "executor"],
        };
        assert_eq!(names, expected, "{track}");
    }
    for class in ["reading", "attention, router", "experts", "head"] {
        assert!(picture.legend.iter().any(|name| name == class), "{class}");
    }
    // Of one schedule, the picture is of that one.
    desk.simulate("--schedule early --timeline-svg one.svg")
        .success();
    assert_eq!(desk.picture("one.svg").tracks.len(), 1);
    let refused = desk.simulate("--train x.json --routes x.json --timeline-svg two.svg");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

/// Tokens that went to each expert, by layer.
fn sums(desk: &Desk) -> Vec<Vec<u64>> {
    let text = fs::read(desk.at("routes.json")).unwrap();
    let routes: Value = serde_json::from_slice(&text).unwrap();
    let prompts = array(&routes["prompts"]);
    let layer = |at: usize| -> Vec<u64> {
        let mut sums = vec![0; 16];
        for prompt in prompts {
            for (sum, rows) in sums.iter_mut().zip(array(&prompt["rows"][at])) {
                *sum += number(rows);
            }
        }
        sums
    };
    (0..3).map(layer).collect()
}

/// Whether darker cells are those with larger numbers.
fn agree(shades: &[Option<usize>], numbers: &[u64]) -> bool {
    let mut pairs: Vec<(u64, usize)> = numbers
        .iter()
        .zip(shades)
        .map(|(number, shade)| (*number, shade.expect("no cell is blank")))
        .collect();
    pairs.sort_unstable();
    pairs.is_sorted_by_key(|(_, shade)| *shade)
}

#[test]
fn routes_are_drawn_by_layer_and_place() {
    let desk = Desk::new();
    let answer = desk.record("--svg r.svg");
    assert_eq!(answer["svg"], json!("r.svg"));
    let picture = desk.picture("r.svg");
    assert_eq!(picture.title, "a.estream: 3 prompts, 168 tokens");
    let sums = sums(&desk);
    assert_eq!(picture.cells.len(), 3);
    for (cells, sums) in picture.cells.iter().zip(&sums) {
        assert_eq!(cells.len(), 16);
        assert!(agree(cells, sums), "{cells:?}, {sums:?}");
    }

    // A recording is drawn as it was when it was made, and nothing is run or written but that.
    let again = desk.estream("routes a.estream --routes routes.json --svg again.svg");
    let again = again.success().json();
    assert_eq!(again["layers"], answer["layers"]);
    assert_eq!(again["bytes"], answer["bytes"]);
    let bytes = |name: &str| fs::read(desk.at(name)).unwrap();
    assert!(bytes("r.svg") == bytes("again.svg"));
    for line in [
        "routes a.estream --routes routes.json -o other.json",
        "routes a.estream --routes routes.json --ids-file t5",
        "routes a.estream --ids-file t5",
    ] {
        assert_eq!(desk.estream(line).code, 2, "{line}");
    }

    // In another order the same cells are at other places.
    desk.estream("reorder a.estream --routes routes.json -o b.estream")
        .success();
    desk.estream("routes b.estream --routes routes.json --svg b.svg")
        .success();
    let manifest = estream_tests::manifest(&desk.at("b.estream"));
    let other = desk.picture("b.svg");
    assert_ne!(other.cells, picture.cells);
    for (at, (cells, sums)) in other.cells.iter().zip(&sums).enumerate() {
        let order = array(&manifest["experts"]["layers"][at]["order"]).iter();
        let expert = |id: &Value| usize::try_from(number(id)).unwrap();
        let there: Vec<Option<usize>> = order
            .clone()
            .map(|id| picture.cells[at][expert(id)])
            .collect();
        assert_eq!(cells, &there);
        let there: Vec<u64> = order.map(|id| sums[expert(id)]).collect();
        assert!(agree(cells, &there));
    }
}
