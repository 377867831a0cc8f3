//! A family that estream does not come with is a file: listed, shown, checked and used.

use std::fs;
use std::path::{Path, PathBuf};

use estream_tests::{
    Checkpoint, Finished, Tensors, Trace, compile, estream, finish, fixture, manifest, max_diff,
    model, prompts,
};
use serde_json::{Value, json};
use tempfile::TempDir;

#[track_caller]
fn arch(args: &[&str]) -> Finished {
    finish(estream().arg("arch").args(args))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The descriptor of a built-in family under another name, for checkpoints of another name.
fn renamed(family: &str, model_type: &str, dir: &Path) -> PathBuf {
    let descriptor = text(&arch(&["show", family]).success().stdout);
    let replace = |text: String, old: String, new: &str| {
        assert_eq!(text.matches(&old).count(), 1, "{old}");
        text.replace(&old, new)
    };
    let descriptor = replace(
        descriptor,
        format!("family = \"{family}\""),
        "family = \"rock\"",
    );
    let descriptor = replace(
        descriptor,
        format!("hf = [\"{model_type}\"]"),
        "hf = [\"rock\"]",
    );
    let path = dir.join("rock.toml");
    fs::write(&path, descriptor).unwrap();
    path
}

/// Fixture `name` as a checkpoint of a model type that estream does not know.
fn unknown(name: &str, dir: &Path) -> PathBuf {
    let mut checkpoint = Checkpoint::read(&fixture(name));
    checkpoint.config["model_type"] = json!("rock");
    let path = dir.join("checkpoint");
    checkpoint.write(&path);
    path
}

fn desk(family: &str, model_type: &str) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let descriptor = renamed(family, model_type, dir.path());
    let checkpoint = unknown(family, dir.path());
    (dir, descriptor, checkpoint)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_descriptor_of_ones_own_builds_what_a_built_in_one_would() {
    for (family, model_type) in [("granitemoe", "granitemoe"), ("qwen2moe", "qwen2_moe")] {
        let (dir, descriptor, checkpoint) = desk(family, model_type);
        let bundle = dir.path().join("rock.estream");
        compile(
            &checkpoint,
            &bundle,
            &["--recipe", "keep", "--strict", "--arch", path(&descriptor)],
        );
        let manifest = manifest(&bundle);
        assert_eq!(manifest["model"]["family"], "rock");
        let used = manifest["descriptor"]["text"].as_str().unwrap();
        assert_eq!(used, fs::read_to_string(&descriptor).unwrap());
        let golden = Tensors::read(&fixture(&format!("{family}/golden.safetensors")));
        let mut model = model(&bundle);
        for prompt in prompts(&golden) {
            let logits = Trace::of(&mut model, &prompt.ids).logits;
            let expected = golden.floats(&format!("{}.logits", prompt.name));
            assert!(
                max_diff(&logits, expected) < 2e-3,
                "{family} {}",
                prompt.name
            );
        }
    }
}

#[test]
fn an_unknown_family_names_the_nearest_and_the_way_out() {
    let (dir, _, checkpoint) = desk("granitemoe", "granitemoe");
    let bundle = dir.path().join("out.estream");
    for verb in [&["compile", "-o", path(&bundle)][..], &["inspect"]] {
        let done = finish(estream().args(verb).arg(&checkpoint));
        assert_eq!(done.code, 4, "{}", done.stderr);
        for part in [
            "model_type \"rock\"",
            "olmoe",
            "the nearest family is granitemoe, which knows 20 of its 20 tensor names",
            "docs/adding-a-family.md",
            "--arch FILE",
        ] {
            assert!(done.stderr.contains(part), "no {part:?} in {}", done.stderr);
        }
    }
}

#[test]
fn a_descriptor_for_other_checkpoints_is_refused_by_both_names() {
    let (dir, descriptor, _) = desk("granitemoe", "granitemoe");
    let bundle = dir.path().join("out.estream");
    let mut command = estream();
    command
        .args(["compile", "--arch", path(&descriptor), "-o"])
        .arg(&bundle);
    let done = finish(command.arg(fixture("granitemoe")));
    assert_eq!(done.code, 2, "{}", done.stderr);
    for part in [
        "rock.toml",
        "model_type \"granitemoe\"",
        "model_type \"rock\"",
        "[match]",
    ] {
        assert!(done.stderr.contains(part), "no {part:?} in {}", done.stderr);
    }
    assert!(!bundle.exists());
}

#[test]
fn a_file_that_is_no_descriptor_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("odd.toml"), "family = \"odd\"\n").unwrap();
    fs::write(at("bytes.toml"), [0xff, 0xfe, 0]).unwrap();
    fs::write(at("long.toml"), vec![b'#'; 2 << 20]).unwrap();
    fs::create_dir(at("dir.toml")).unwrap();
    let olmoe = fixture("olmoe");
    for name in [
        "odd.toml",
        "bytes.toml",
        "long.toml",
        "dir.toml",
        "gone.toml",
    ] {
        for verb in [&["inspect", "--arch"][..], &["arch", "check"]] {
            let done = finish(estream().args(verb).arg(at(name)).arg(&olmoe));
            assert_eq!(done.code, 2, "{name}: {}", done.stderr);
            assert!(done.stderr.contains(name), "{}", done.stderr);
            assert_eq!(text(&done.stdout), "");
        }
    }
    for args in [&["show", "gpt9"][..], &["check", "gpt9", path(&olmoe)]] {
        let done = arch(args);
        assert_eq!(done.code, 2, "{}", done.stderr);
        assert!(
            done.stderr.contains("gpt9") && done.stderr.contains("olmoe"),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn every_built_in_family_is_listed_and_can_be_shown() {
    let listed = arch(&["list", "--json"]).success().json();
    let families = listed["families"].as_array().unwrap();
    assert!(families.len() > 4);
    let words = text(&arch(&["list"]).success().stdout);
    for family in families {
        let name = family["family"].as_str().unwrap();
        let shown = text(&arch(&["show", name]).success().stdout);
        assert!(
            shown.contains(&format!("\nfamily = \"{name}\"\n")),
            "{shown}"
        );
        let json = arch(&["show", name, "--json"]).success().json();
        assert_eq!(json["descriptor"].as_str(), Some(shown.as_str()));
        for model_type in family["model_types"].as_array().unwrap() {
            assert!(words.contains(model_type.as_str().unwrap()), "{words}");
        }
        assert!(words.contains(family["about"].as_str().unwrap()), "{words}");
    }
}

#[test]
fn a_check_says_yes_where_everything_maps() {
    let (_dir, descriptor, checkpoint) = desk("granitemoe", "granitemoe");
    let args = ["check", path(&descriptor), path(&checkpoint)];
    let words = text(&arch(&args).success().stdout);
    for line in [
        " score_factor      0.11     attention_multiplier",
        " head_dim          16       default",
        " expert_up    model.layers.{layer}.block_sparse_moe.input_linear.weight × 2   bf16  [8, 64, 64]",
        " embed        tied to head",
        "everything maps: family rock",
    ] {
        let mut lines = words.lines();
        assert!(
            lines.any(|other| other.trim_end() == line),
            "{line}\n{words}"
        );
    }
    let json = arch(&[&args[..], &["--json"]].concat()).success().json();
    assert_eq!(json["maps"], true);
    assert_eq!(
        json["keys"][0],
        json!({
            "key": "layers", "value": 2, "from": {"config": "num_hidden_layers"}
        })
    );
    let gguf = fixture("gguf/olmoe-q4_0.gguf");
    assert_eq!(
        arch(&["check", "olmoe", path(&gguf), "--json"])
            .success()
            .json()["maps"],
        true
    );
}

#[test]
fn a_check_says_no_with_everything_that_is_wrong() {
    let granite = fixture("granitemoe");
    let args = ["check", "olmoe", path(&granite)];
    let done = arch(&args);
    assert_eq!((done.code, done.stderr.as_str()), (1, ""));
    let words = text(&done.stdout);
    let json = arch(&[&args[..], &["--json"]].concat());
    assert_eq!(json.code, 1);
    let json = json.json();
    assert_eq!(json["maps"], false);
    let list = |field: &str| -> Vec<String> {
        let strings = json[field].as_array().unwrap().iter();
        strings
            .map(|line| line.as_str().unwrap().to_owned())
            .collect()
    };
    for (field, part) in [
        ("problems", "this is model_type \"granitemoe\""),
        (
            "problems",
            "missing: \"model.layers.0.self_attn.q_norm.weight\" (attn_q_norm)",
        ),
        ("problems", "(expert_gate) × 16 (layers 0-1; experts 0-7)"),
        (
            "problems",
            "unmapped: \"model.layers.1.block_sparse_moe.router.layer.weight\"",
        ),
        (
            "surprises",
            "\"residual_multiplier\" is unknown to the olmoe descriptor",
        ),
    ] {
        assert!(
            list(field).iter().any(|line| line.contains(part)),
            "{part}: {json}"
        );
        assert!(words.contains(part), "{part}: {words}");
    }
    let missing = |role: &Value| role["is_needed"] == true && role["sources"] == json!([]);
    let roles = json["roles"].as_array().unwrap();
    let missing: Vec<&str> = roles
        .iter()
        .filter(|role| missing(role) && role["tied_to"].is_null())
        .map(|role| role["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        missing,
        [
            "attn_q_norm",
            "attn_k_norm",
            "router",
            "expert_gate",
            "expert_up",
            "expert_down"
        ]
    );
    let nowhere = arch(&["check", "olmoe", "nowhere"]);
    assert_eq!(nowhere.code, 2, "{}", nowhere.stderr);
}
