//! A build that is interrupted exits as interrupted and leaves nothing behind.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use estream_tests::{estream, finish, roomy_dir, xtask};

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
