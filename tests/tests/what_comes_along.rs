//! What a checkpoint has beside its weights: a tokenizer, and two ways to write its angles.

use std::fs;
use std::path::{Path, PathBuf};

use estream_tests::{compile, estream, finish, fixture, manifest};
use serde_json::{Value, json};

/// A copy of a fixture's checkpoint.
fn copy(name: &str, dir: &Path) -> PathBuf {
    let copy = dir.join(name);
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// Changes a JSON file in place.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn c72_a_tokenizer_nobody_knows_is_carried_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let source = copy("olmoe", dir.path());
    let tokenizer = source.join("tokenizer.json");
    edit(&tokenizer, |tokenizer| {
        tokenizer["pre_tokenizer"] = json!({ "type": "Digits", "individual_digits": true });
    });
    let bundle = dir.path().join("o.estream");
    compile(&source, &bundle, &["--recipe", "keep"]);
    let carried = fs::read(bundle.join("tokenizer/tokenizer.json")).unwrap();
    assert!(carried == fs::read(&tokenizer).unwrap());
    let stated = manifest(&bundle)["tokenizer"].as_array().unwrap().clone();
    let entry = stated
        .iter()
        .find(|entry| entry["file"] == "tokenizer/tokenizer.json");
    assert_eq!(
        entry.unwrap()["digest"],
        json!(blake3::hash(&carried).to_hex().as_str())
    );
}

/// The configuration of DeepSeek with its YaRN as transformers 5 writes it.
fn in_rope_parameters(config: &mut Value, rope_type: &str) {
    let config = config.as_object_mut().unwrap();
    let mut rope = config.remove("rope_scaling").unwrap();
    let fields = rope.as_object_mut().unwrap();
    assert_eq!(fields.remove("type"), Some(json!("yarn")));
    fields.insert("rope_type".into(), rope_type.into());
    let theta = config.remove("rope_theta").unwrap();
    fields.insert("rope_theta".into(), theta);
    config.insert("rope_parameters".into(), rope);
}

#[test]
fn c74_both_ways_to_write_yarn_are_one_and_an_unknown_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = copy("deepseek2", dir.path());
    let program = |name: &str| {
        let bundle = dir.path().join(name);
        compile(&source, &bundle, &["--recipe", "keep"]);
        manifest(&bundle)["program"].clone()
    };
    let older = program("older.estream");
    let rope = older["layers"][0]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|op| op.get("rope"))
        .unwrap();
    assert_eq!(rope["yarn"]["factor"], json!("40"));
    let config = source.join("config.json");
    edit(&config, |config| in_rope_parameters(config, "yarn"));
    assert_eq!(program("newer.estream"), older);
    edit(&config, |config| {
        config["rope_parameters"]["rope_type"] = json!("zzz");
    });
    let mut command = estream();
    command.arg("compile").arg(&source).arg("-o");
    let refused = finish(command.arg(dir.path().join("no.estream")));
    assert_eq!(refused.code, 4, "{}", refused.stderr);
    let says = refused.stderr.contains("rope_type") && refused.stderr.contains("zzz");
    assert!(says, "{}", refused.stderr);
}

#[test]
fn c76_a_tokenizer_that_is_missing_is_told_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let source = copy("olmoe", dir.path());
    let rehearse = || {
        let mut command = estream();
        command.args(["compile", "--dry-run", "-o"]);
        let out = dir.path().join("o.estream");
        finish(command.arg(out).arg(&source)).success().stderr
    };
    let told = "no tokenizer.json";
    assert!(!rehearse().contains(told));
    fs::remove_file(source.join("tokenizer.json")).unwrap();
    let said = rehearse();
    assert!(said.contains(told) && said.contains("token ids"), "{said}");
}
