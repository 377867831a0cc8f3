//! A build that is interrupted exits as interrupted and leaves nothing behind.
#![cfg(unix)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use estream_tests::{compile, estream, finish, fixture, roomy_dir, xtask};

/// Everything in `dir`, files and directories alike.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn send(signal: &str, child: &Child) {
    let script = format!("kill -{signal} {}", child.id());
    let mut shell = Command::new("sh");
    finish(shell.args(["-c", &script])).success();
}

/// The first signal is the lowest bit of the mask.
fn hang_up_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1))
}

#[test]
fn an_interrupted_build_leaves_nothing() {
    let dir = roomy_dir();
    let source = dir.path().join("source");
    let mut command = xtask();
    command.args([
        "synth", "--shape", "olmoe", "--sparse", "--layers", "4", "-o",
    ]);
    finish(command.arg(&source)).success();

    for (signal, code) in [("HUP", 129), ("INT", 130), ("TERM", 143)] {
        // Under `nohup` the child has it ignored, and it is to stay so.
        if signal == "HUP" && hang_up_is_ignored() {
            continue;
        }
        let outputs = dir.path().join(code.to_string());
        fs::create_dir(&outputs).unwrap();
        let mut command = estream();
        command.arg("compile").arg(&source).arg("-o");
        command.arg(outputs.join("out.estream"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        // Weights are being written once one of the files is there.
        let writing = || {
            let staged = names(&outputs).pop();
            staged.is_some_and(|name| !names(&outputs.join(name)).is_empty())
        };
        while !writing() {
            assert!(child.try_wait().unwrap().is_none(), "it has ended already");
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "nothing is written"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        send(signal, &child);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(names(&outputs), Vec::<String>::new());
    }
}

/// What `child` ends with, which must be soon.
fn ends(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > Duration::from_secs(15) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_first_signal_ends_what_waits_for_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    compile(&fixture("olmoe"), &dir.path().join("b.estream"), &[]);
    finish(Command::new("mkfifo").arg(dir.path().join("pipe"))).success();
    let before = names(dir.path());
    let source = fixture("olmoe").display().to_string();
    for line in [
        "routes b.estream --text-file pipe -o out".to_owned(),
        "routes b.estream --ids-file pipe -o out".to_owned(),
        "routes b.estream --text-file - -o out".to_owned(),
        format!("parity b.estream --reference {source} --text-file pipe --save-reference out"),
        format!("parity b.estream --reference {source} --text-file - --save-reference out"),
    ] {
        let mut command = estream();
        command
            .current_dir(dir.path())
            .args(line.split_whitespace());
        // A pipe that nobody writes to and nobody closes.
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let held = child.stdin.take();
        // Long enough for it to wait there.
        std::thread::sleep(Duration::from_millis(700));
        assert!(child.try_wait().unwrap().is_none(), "{line}: it has ended");
        send("TERM", &child);
        let status = ends(&mut child);
        drop(held);
        assert_eq!(status.signal(), Some(15), "{line}: {status}");
        assert_eq!(names(dir.path()), before, "{line}");
    }
}

#[test]
fn a_signal_ends_a_prompt_that_runs_and_no_routes_are_written() {
    let dir = tempfile::tempdir().unwrap();
    compile(&fixture("olmoe"), &dir.path().join("b.estream"), &[]);
    fs::write(dir.path().join("ids"), "1,2,3,4").unwrap();
    // A read takes a quarter of a second, and there are dozens.
    let slow = "name = \"slow\"\n[storage]\nlatency_ns = 250000000\n\
                rates = [{ read_bytes = 1, outstanding = 1, bytes_per_second = 1000000000 }]\n";
    fs::write(dir.path().join("slow.toml"), slow).unwrap();
    let before = names(dir.path());
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = estream();
        command.current_dir(dir.path()).args([
            "routes",
            "b.estream",
            "--ids-file",
            "ids",
            "-o",
            "out",
            "--schedule",
            "early",
            "--throttle",
            "slow.toml",
        ]);
        command.args(["-G", "1", "-Q", "1", "-B", "1"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while names(dir.path()) == before {
            assert!(child.try_wait().unwrap().is_none(), "it has ended already");
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(700));
        send(signal, &child);
        let sent = Instant::now();
        assert_eq!(ends(&mut child).code(), Some(code));
        assert!(sent.elapsed() < Duration::from_secs(6), "{signal}");
        assert_eq!(names(dir.path()), before);
    }
}
