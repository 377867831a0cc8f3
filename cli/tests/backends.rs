//! A backend that this build lacks is not a mistake in typing.

use std::process::{Command, Output};

use estream_schemas::exit::Exit;

/// The backend is looked at before the bundle, so there need not be one.
fn run_on(backend: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_estream"))
        .args(["run", "no.estream", "--ids", "1", "--backend", backend])
        .output()
        .unwrap()
}

#[test]
fn a_backend_of_another_build_cannot_run_and_an_unknown_one_is_usage() {
    for (backend, exit) in [("hexagon", Exit::CannotRun), ("zzz", Exit::Usage)] {
        let output = run_on(backend);
        assert_eq!(output.status.code(), Some(i32::from(exit.code())));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains(backend) && said.contains("--backend cpu"),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
}
