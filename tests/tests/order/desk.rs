//! A bundle, routes of it, and the programs that make more of them.

use std::fs;
use std::path::PathBuf;

use estream_tests::{Finished, Tensors, compile, estream, finish, fixture, id_list, prompts};
use serde_json::Value;
use tempfile::TempDir;

/// Margins below which a choice of experts may differ.
pub(crate) const MIN_MARGIN: f32 = 1e-4;

/// A bundle of the fixture, and routes of its prompts.
pub(crate) struct Desk {
    pub(crate) dir: TempDir,
    pub(crate) golden: Tensors,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        let desk = Desk {
            dir: tempfile::tempdir().unwrap(),
            golden: Tensors::read(&fixture("olmoe/golden.safetensors")),
        };
        compile(
            &fixture("olmoe"),
            &desk.at("a.estream"),
            &["--recipe", "keep"],
        );
        let mut command = estream();
        command.arg("routes").arg(desk.at("a.estream"));
        for prompt in prompts(&desk.golden) {
            let file = desk.at(&prompt.name);
            fs::write(&file, id_list(&prompt.ids)).unwrap();
            command.arg("--ids-file").arg(file);
        }
        command.arg("-o").arg(desk.at("routes.json"));
        finish(&mut command).success();
        desk
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a verb; words that name something here are paths.
    pub(crate) fn estream(&self, line: &str) -> Finished {
        let mut command = estream();
        command.current_dir(self.dir.path());
        command.args(line.split_whitespace());
        finish(&mut command)
    }

    pub(crate) fn routes(&self) -> Value {
        serde_json::from_slice(&fs::read(self.at("routes.json")).unwrap()).unwrap()
    }
}
