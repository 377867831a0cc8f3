//! A checkpoint becomes the GGUF file that llama.cpp makes of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use estream_compiler::ingest::gguf::Gguf;
use estream_tests::{Checkpoint, Finished, GgufFile, compile, estream, finish, fixture};
use serde_json::{Value, json};

/// The families whose files llama.cpp made.
const FAMILIES: [&str; 5] = ["deepseek2", "lfm2moe", "mixtral", "olmoe", "qwen3moe"];

fn unpack(bundle: &Path) -> (PathBuf, Finished) {
    let gguf = bundle.with_extension("gguf");
    let mut command = estream();
    command.arg("unpack").arg(bundle).arg("--gguf").arg(&gguf);
    (gguf, finish(command.arg("--json")))
}

/// What llama.cpp made, and what is in the file at `path`, by tensor.
fn digests(path: &Path) -> BTreeMap<String, Value> {
    let file = GgufFile::read(path);
    let tensors = file.tensors.into_iter().map(|(name, tensor)| {
        let digest = blake3::hash(&tensor.bytes).to_hex();
        let about = json!({
            "type": tensor.dtype.name(),
            "shape": tensor.shape,
            "blake3": digest.as_str(),
        });
        (name, about)
    });
    tensors.collect()
}

#[track_caller]
fn assert_llama_cpp_made(name: &str, got: &Path) {
    let text = fs::read(fixture(&format!("gguf/{name}.tensors.json"))).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_slice(&text).unwrap();
    let got = digests(got);
    assert!(!expected.is_empty());
    let names = |of: &BTreeMap<String, Value>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&got), "{name}");
    for (tensor, about) in &expected {
        assert_eq!(about, &got[tensor], "{name}, {tensor}");
    }
}

#[test]
fn every_tensor_is_what_llama_cpp_made_of_the_checkpoint() {
    for family in FAMILIES {
        for dtype in ["bf16", "q8_0"] {
            let name = format!("{family}-{dtype}");
            assert_llama_cpp_made(&name, &fixture(&format!("gguf/{name}.gguf")));
        }
    }
}

/// What unpacking makes of DeepSeek's checkpoint, before a test takes its latent attention apart.
#[test]
fn latent_attention_is_as_older_files_have_it() {
    let name = "deepseek2-legacy-f32";
    let path = fixture(&format!("gguf/{name}.gguf"));
    assert_llama_cpp_made(name, &path);
    let [ours, split] =
        [path, fixture("gguf/deepseek2-q4_0.gguf")].map(|path| Gguf::open(&path).unwrap());
    let mut differing = Vec::new();
    for (key, _) in split
        .pairs()
        .filter(|(key, _)| key.starts_with("deepseek2."))
    {
        if split.kv_bytes(key) != ours.kv_bytes(key) {
            differing.push((key, ours.kv(key).and_then(|value| value.as_u64())));
        }
    }
    differing.sort_unstable();
    let expected = [
        ("deepseek2.attention.head_count_kv", Some(4)),
        ("deepseek2.attention.key_length", Some(48)),
        ("deepseek2.attention.key_length_mla", None),
        ("deepseek2.attention.value_length", Some(32)),
        ("deepseek2.attention.value_length_mla", None),
    ];
    assert_eq!(differing, expected);
}

#[test]
fn every_pair_of_llama_cpps_file_is_in_ours() {
    for family in FAMILIES {
        // Latent attention is unpacked as older files have it, with other sizes of heads.
        let older = family == "deepseek2";
        let (dtype, number) = if older {
            ("legacy-f32", 0)
        } else {
            ("bf16", 32)
        };
        let [expected, got] = ["q4_0", dtype]
            .map(|dtype| Gguf::open(&fixture(&format!("gguf/{family}-{dtype}.gguf"))).unwrap());
        let mut compared = 0;
        for (key, value) in expected.pairs() {
            // Names and a size for people, the type of the other file, and a guess at what
            // stands between two texts.
            let ours = ["general.name", "general.size_label", "general.file_type"];
            if ours.contains(&key) || key == "tokenizer.ggml.add_sep_token" {
                continue;
            }
            let of_heads = ["head_count_kv", "key_length", "value_length"];
            if older && of_heads.iter().any(|name| key.contains(name)) {
                continue;
            }
            let same = expected.kv_bytes(key) == got.kv_bytes(key);
            assert!(same, "{family}, {key}: {value:?}, not {:?}", got.kv(key));
            compared += 1;
        }
        assert!(compared > 15, "{family}: {compared} pairs");
        let file_type = got.kv("general.file_type").and_then(|value| value.as_u64());
        assert_eq!(file_type, Some(number), "{family}");
    }
}

/// A table that serves twice is stored as the head, and is the embedding in GGUF.
#[test]
fn a_tied_table_is_the_embedding() {
    let dir = tempfile::tempdir().unwrap();
    let mut tied = Checkpoint::read(&fixture("qwen3moe"));
    tied.config["tie_word_embeddings"] = true.into();
    tied.tensors.remove("lm_head.weight").unwrap();
    tied.write(&dir.path().join("tied"));
    let bundle = dir.path().join("tied.estream");
    compile(&dir.path().join("tied"), &bundle, &["--recipe", "keep"]);
    let (gguf, finished) = unpack(&bundle);
    finished.success();
    let got = digests(&gguf);
    assert!(!got.contains_key("output.weight"));
    let untied = digests(&fixture("gguf/qwen3moe-bf16.gguf"));
    assert_eq!(got["token_embd.weight"], untied["token_embd.weight"]);
    assert_eq!(got.len() + 1, untied.len());
}

#[test]
fn a_file_without_a_vocabulary_says_so_aloud() {
    let dir = tempfile::tempdir().unwrap();
    for (family, tokenizer, why) in [
        ("olmoe", None, "there is no tokenizer.json"),
        ("mixtral", None, "there is no tokenizer.model"),
        ("olmoe", Some("{}"), "tokenizer.json: missing field"),
    ] {
        let source = dir.path().join(family);
        Checkpoint::read(&fixture(family)).write(&source);
        if let Some(text) = tokenizer {
            fs::write(source.join("tokenizer.json"), text).unwrap();
        }
        let bundle = dir.path().join("none.estream");
        compile(&source, &bundle, &["--force"]);
        let (gguf, finished) = unpack(&bundle);
        let finished = finished.success();
        let report = finished.json()["no_vocabulary"].clone();
        assert!(report.as_str().unwrap().contains(why), "{report}");
        let note = "note: the file has no vocabulary";
        assert!(finished.stderr.contains(note), "{}", finished.stderr);
        let file = Gguf::open(&gguf).unwrap();
        let model = file.kv("tokenizer.ggml.model").unwrap();
        assert_eq!(model.as_str(), Some("no_vocab"));
        assert!(file.kv("tokenizer.ggml.tokens").is_none());
        let sizes = file.pairs().filter(|(key, _)| key.ends_with(".vocab_size"));
        assert_eq!(sizes.count(), 1);
        fs::remove_file(gguf).unwrap();
    }
}

/// llama.cpp never divides OLMoE's chosen weights by their sum, and GGUF cannot tell it to.
#[test]
fn what_gguf_cannot_say_of_a_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut odd = Checkpoint::read(&fixture("olmoe"));
    odd.config["norm_topk_prob"] = true.into();
    odd.write(&dir.path().join("odd"));
    let bundle = dir.path().join("odd.estream");
    compile(&dir.path().join("odd"), &bundle, &[]);
    let (gguf, refused) = unpack(&bundle);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    for part in ["odd.estream", "norm_topk_prob", "true", "false"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    assert!(!gguf.exists());
}
