//! The same weights give the same bundle, however their checkpoint spells them.

use std::fs;
use std::path::{Path, PathBuf};

use estream_tests::{
    Checkpoint, GgufFile, Tensors, Trace, compile, files, fixture, manifest, model, prompts,
};
use serde_json::Value;

/// The families, which are directories of `fixtures/` too.
const FAMILIES: [&str; 5] = ["deepseek2", "lfm2moe", "mixtral", "olmoe", "qwen3moe"];

/// A family's fixture in every encoding of safetensors.
fn hugging_face(family: &str, dir: &Path) -> Vec<PathBuf> {
    let plain = Checkpoint::read(&fixture(family));
    let [two, four, fused, stacked] =
        ["two", "four", "fused", "stacked"].map(|name| dir.join(name));
    plain.write_sharded(&two, 2);
    plain.write_sharded(&four, 4);
    plain.clone().fused().write(&fused);
    plain.stacked().write(&stacked);
    vec![fixture(family), two, four, fused, stacked]
}

/// What must be equal of two bundles: the manifest but for where the weights came from.
fn essence(bundle: &Path) -> Value {
    let mut manifest = manifest(bundle);
    let fields = manifest.as_object_mut().unwrap();
    for origin in ["ledger", "source", "tokenizer", "license"] {
        assert!(fields.remove(origin).is_some(), "{origin}");
    }
    manifest
}

/// Compiles every one of `sources` with `recipe`, one bundle each.
fn bundles(sources: &[PathBuf], recipe: &str, dir: &Path) -> Vec<PathBuf> {
    let bundle = |(index, source): (usize, &PathBuf)| {
        let bundle = dir.join(format!("{recipe}-{index}.estream"));
        compile(source, &bundle, &["--strict", "--recipe", recipe]);
        bundle
    };
    sources.iter().enumerate().map(bundle).collect()
}

const EXPERTS: &str = "experts-00001.bin";
const RESIDENT: &str = "resident.bin";

fn file(bundle: &Path, name: &str) -> Vec<u8> {
    fs::read(bundle.join(name)).unwrap()
}

/// Compiles all of `sources`, which must give the same bundle.
fn assert_one_bundle(sources: &[PathBuf], recipe: &str, dir: &Path) {
    let bundles = bundles(sources, recipe, dir);
    let expected = essence(&bundles[0]);
    for (bundle, source) in bundles.iter().zip(sources).skip(1) {
        for weights in [EXPERTS, RESIDENT] {
            assert!(
                file(bundle, weights) == file(&bundles[0], weights),
                "{weights} of {source:?} with {recipe}"
            );
        }
        assert_eq!(essence(bundle), expected, "{source:?} with {recipe}");
    }
}

#[test]
fn every_encoding_of_safetensors_gives_the_same_bundle() {
    for family in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let sources = hugging_face(family, dir.path());
        for recipe in ["keep", "q4_0"] {
            assert_one_bundle(&sources, recipe, dir.path());
        }
    }
}

#[test]
fn gguf_gives_the_same_bundle_and_keeps_at_least_the_experts() {
    for family in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let gguf = format!("gguf/{family}-bf16.gguf");
        let sources = [fixture(family), fixture(&gguf)];
        // A converter widens norms to f32, so only what is quantised anew is equal in all,
        // and turns projections of latent attention, which are then others.
        for (recipe, all) in [("keep", false), ("q4_0", family != "deepseek2")] {
            let bundles = bundles(&sources, recipe, dir.path());
            let [ours, gguf] = &bundles[..] else {
                panic!("two bundles");
            };
            assert!(
                file(ours, EXPERTS) == file(gguf, EXPERTS),
                "{family}, {recipe}"
            );
            if all {
                assert!(
                    file(ours, RESIDENT) == file(gguf, RESIDENT),
                    "{family}, {recipe}"
                );
                assert_eq!(essence(ours), essence(gguf), "{family}, {recipe}");
            }
        }
    }
}

/// What else a GGUF file may call the same rows of the same blocks.
#[test]
fn every_encoding_of_gguf_gives_the_same_bundle() {
    type Respell = fn(GgufFile) -> GgufFile;
    let cases: [(&str, Respell); 4] = [
        ("lfm2moe", GgufFile::with_fused_attention),
        ("mixtral", GgufFile::with_single_experts),
        ("olmoe", GgufFile::with_fused_attention),
        ("qwen3moe", GgufFile::with_fused_attention),
    ];
    for (family, respell) in cases {
        let dir = tempfile::tempdir().unwrap();
        let plain = fixture(&format!("gguf/{family}-q4_0.gguf"));
        let other = dir.path().join("other.gguf");
        respell(GgufFile::read(&plain)).write(&other);
        assert_one_bundle(&[plain, other], "keep", dir.path());
    }
}

#[test]
fn auto_is_q4_0_for_float_weights_and_keep_for_quantised_ones() {
    for (source, recipe) in [("olmoe", "q4_0"), ("gguf/olmoe-q8_0.gguf", "keep")] {
        let dir = tempfile::tempdir().unwrap();
        let sources = [fixture(source)];
        let [auto, named] = ["auto", recipe].map(|recipe| bundles(&sources, recipe, dir.path()));
        assert!(files(&auto[0]) == files(&named[0]), "{source}");
    }
}

/// The types of a file of llama.cpp's that is called Q4_0.
const LIKE_THE_GGUF: &str = r#"
name = "like-the-gguf"
about = "what llama.cpp's converter makes of it"

[[rule]]
tensor = "head"
type = "q8_0"

[[rule]]
tensor = "*norm"
type = "f32"

[[rule]]
tensor = "layers.*.router*"
type = "f32"

[[rule]]
role = "conv"
type = "f32"

[[rule]]
family = "mixtral"
role = "attn_k"
type = "q8_0"

[[rule]]
family = "mixtral"
role = "attn_v"
type = "q8_0"

[[rule]]
role = "*"
type = "q4_0"
"#;

#[test]
fn q4_0_made_here_computes_the_bits_of_q4_0_made_elsewhere() {
    for family in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let recipe = dir.path().join("like-the-gguf.toml");
        fs::write(&recipe, LIKE_THE_GGUF).unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| dir.path().join(name));
        let flags = ["--recipe", recipe.to_str().unwrap()];
        compile(&fixture(family), &ours, &flags);
        let elsewhere = fixture(&format!("gguf/{family}-q4_0.gguf"));
        compile(&elsewhere, &theirs, &["--recipe", "keep"]);
        assert!(file(&ours, EXPERTS) == file(&theirs, EXPERTS), "{family}");
        // GGUF turns projections of latent attention before it makes blocks of their rows.
        if family == "deepseek2" {
            continue;
        }
        assert!(file(&ours, RESIDENT) == file(&theirs, RESIDENT), "{family}");
        let golden = Tensors::read(&fixture(&format!("{family}/golden.safetensors")));
        let mut models = [model(&ours), model(&theirs)];
        for prompt in prompts(&golden) {
            let [ours, theirs] = models.each_mut().map(|model| {
                let logits = Trace::of(model, &prompt.ids).logits;
                logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            });
            assert!(ours == theirs, "{family}, {}", prompt.name);
        }
    }
}
