//! What a refusal says would do, does.

use std::path::Path;
use std::process::Command;

use estream_tests::{Finished, compile, estream, estream_run, finish, fixture};
use serde_json::Value;
use tempfile::TempDir;

/// The process itself takes more or less from time to time, in steps.
const TRIES: usize = 5;

struct Desk {
    dir: TempDir,
}

/// What a refusal names.
#[derive(Debug)]
struct Advice {
    /// The least budget for what was asked.
    least: u64,
    /// The options of the smallest arena, and the least budget with them.
    smallest: Option<(Vec<String>, u64)>,
}

/// The number that `text` begins with.
fn leading(text: &str) -> u64 {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().unwrap()
}

impl Advice {
    fn of(refused: &Finished) -> Advice {
        assert_eq!(refused.code, 3, "{}", refused.stderr);
        let text = &refused.stderr;
        let (_, rest) = text.split_once("the least that would do is ").unwrap();
        let smallest = rest.split_once("with room for one record (");
        let smallest = smallest.map(|(_, rest)| {
            let (options, rest) = rest.split_once(", no --plan) ").unwrap();
            let options = options.split(' ').map(String::from).collect();
            (options, leading(rest))
        });
        Advice {
            least: leading(rest),
            smallest,
        }
    }
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::tempdir().unwrap();
        compile(&fixture("olmoe"), &dir.path().join("b.estream"), &[]);
        let ids: Vec<String> = (0..96).map(|at| (at * 7 % 500).to_string()).collect();
        std::fs::write(dir.path().join("ids"), ids.join(",")).unwrap();
        Desk { dir }
    }

    fn run(&self, program: fn() -> Command, options: &[&str], budget: u64) -> Finished {
        let mut command = program();
        command.current_dir(self.dir.path());
        if Path::new(command.get_program()).ends_with("estream") {
            command.arg("run");
        }
        command.args(["b.estream", "--ids-file", "ids", "--threads", "2"]);
        command.args(options);
        finish(command.arg("--budget").arg(budget.to_string()))
    }

    /// Runs with `budget`, which is to do, and with a byte less, which is not.
    fn is_the_least(&self, program: fn() -> Command, options: &[&str], budget: u64) -> bool {
        let refused = self.run(program, options, budget - 1);
        let done = self.run(program, options, budget);
        // The process may have grown or shrunk by a step since the advice.
        done.code == 0 && refused.code == 3
    }
}

#[test]
fn what_a_refusal_says_would_do_does_and_a_byte_less_does_not() {
    let desk = Desk::new();
    let lines: &[&str] = &[
        "",
        "--top 5 --all-positions",
        "--top 500 --all-positions --chunk 10",
        "--schedule resident",
        "--schedule early -G 3 -Q 3 -B 4",
        "--schedule ahead -G 1 -Q 1 -B 1",
        "--schedule compact -G 4 -Q 2 -B 2 --pin 5",
        "--schedule ahead -G 2 -Q 9 -B 9 --pin max --all-positions",
    ];
    for program in [estream, estream_run] {
        for line in lines {
            let options: Vec<&str> = line.split_whitespace().collect();
            let mut seen = Vec::new();
            let followed = (0..TRIES).any(|_| {
                let advice = Advice::of(&desk.run(program, &options, 1));
                let least = desk.is_the_least(program, &options, advice.least);
                let smallest = advice.smallest.as_ref();
                let smallest = smallest.is_none_or(|(words, budget)| {
                    assert!(*budget < advice.least);
                    // What was asked for of a way of streaming or of pieces gives way.
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let kept = without(&options, &words);
                    desk.is_the_least(program, &[kept, words].concat(), *budget)
                });
                let followed = least && smallest;
                seen.push((advice, least, smallest));
                followed
            });
            assert!(followed, "{line:?}: {seen:?}");
        }
    }
}

/// `options` without those that `others` name.
fn without<'a>(options: &[&'a str], others: &[&str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut skips = false;
    for word in options {
        let is_option = word.starts_with('-');
        skips = if is_option {
            others.contains(word)
        } else {
            skips
        };
        if !skips {
            kept.push(*word);
        }
    }
    kept
}

#[test]
fn the_smallest_arena_cannot_be_asked_for_where_it_is_asked_for_already() {
    let desk = Desk::new();
    let options = ["--schedule", "ahead", "-G", "1", "-Q", "1", "-B", "1"];
    let advice = Advice::of(&desk.run(estream, &options, 1));
    assert!(advice.smallest.is_none(), "{advice:?}");
    let wider = ["--schedule", "ahead", "-G", "1", "-Q", "2", "-B", "2"];
    let advice = Advice::of(&desk.run(estream, &wider, 1));
    assert!(advice.smallest.is_some(), "{advice:?}");
}

fn stacks(done: &Finished) -> u64 {
    let answer = done.json();
    let terms = answer["stats"]["memory"].as_array().unwrap();
    let mut stacks = terms.iter().filter(|term| term["term"] == "stacks");
    stacks
        .next()
        .and_then(|term| term["bytes"].as_u64())
        .unwrap()
}

#[test]
fn threads_that_could_not_read_anything_are_not_started() {
    let desk = Desk::new();
    let with = |program: fn() -> Command, depth: &str| {
        let mut options = vec!["--stats", "--json", "-G", "1", "-B", "4096"];
        options.extend(["-Q", depth]);
        let done = desk.run(program, &options, 1 << 40).success();
        let answer: Value = done.json();
        assert_eq!(answer["stats"]["stream"]["depth"].to_string(), depth);
        stacks(&done)
    };
    for program in [estream, estream_run] {
        // A layer has 16 records, and reads are of two layers at most.
        assert!(with(program, "15") < with(program, "16"));
        assert_eq!(with(program, "16"), with(program, "4096"));
    }
}
