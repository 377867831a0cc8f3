//! What `estream run` prints and writes is what the references say: words become the
//! published ids, and numbers the published numbers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use estream_tests::{
    Prompt, Tensors, compile, estream, estream_run, finish, fixture, id_list, max_diff, prompts,
};
use serde_json::Value;
use tempfile::TempDir;

const MAX_DIFF: f32 = 2e-3;

fn bundle() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.estream");
    compile(&fixture("olmoe"), &bundle, &["--recipe", "keep"]);
    (dir, bundle)
}

fn golden() -> (Tensors, Vec<Prompt>) {
    let golden = Tensors::read(&fixture("olmoe/golden.safetensors"));
    let prompts = prompts(&golden);
    (golden, prompts)
}

fn ids(value: &Value) -> Vec<u64> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn words_become_the_ids_that_the_tokenizers_library_gives() {
    let (_dir, bundle) = bundle();
    let text = fs::read(fixture("olmoe/tokenizer_golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 10);
    for case in cases {
        let words = case["text"].as_str().unwrap();
        let mut command = estream();
        command.arg("run").arg(&bundle).arg("--json");
        let done = finish(command.arg(format!("--text={words}")));
        if words.is_empty() {
            assert_eq!(done.code, 2, "{}", done.stderr);
        } else {
            let prompt = &done.success().json()["prompt"];
            assert_eq!(ids(prompt), ids(&case["ids"]), "{words:?}");
        }
    }
}

/// Both programs, each asked to run `bundle` on `prompt`.
fn programs(bundle: &PathBuf, prompt: &[u32]) -> [Command; 2] {
    let (mut host, mut device) = (estream(), estream_run());
    host.arg("run");
    for command in [&mut host, &mut device] {
        command.arg(bundle).arg("--json");
        command.arg(format!("--ids={}", id_list(prompt)));
    }
    [host, device]
}

#[test]
fn rows_the_head_reads_and_logits_are_written_as_the_reference_has_them() {
    let (dir, bundle) = bundle();
    let (golden, prompts) = golden();
    for Prompt { name, ids } in &prompts {
        for (index, mut command) in programs(&bundle, ids).into_iter().enumerate() {
            let [hidden, logits] =
                ["hidden", "logits"].map(|what| dir.path().join(format!("{name}-{index}-{what}")));
            command.arg("--all-positions").arg("--hidden").arg(&hidden);
            finish(command.arg("--logits").arg(&logits)).success();
            for (path, tensor, reference) in [
                (hidden, "hidden", "final_norm"),
                (logits, "logits", "logits"),
            ] {
                let expected = golden.floats(&format!("{name}.{reference}"));
                let difference = max_diff(Tensors::read(&path).floats(tensor), expected);
                assert!(difference <= MAX_DIFF, "{name} {tensor}: {difference:e}");
            }
        }
    }
}

#[test]
fn the_last_position_alone_is_the_default() {
    let (dir, bundle) = bundle();
    let (golden, prompts) = golden();
    let prompt = &prompts[1];
    let expected = golden.floats(&format!("{}.logits", prompt.name));
    let last = &expected[expected.len() / prompt.ids.len() * (prompt.ids.len() - 1)..];
    let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b]));
    for (index, mut command) in programs(&bundle, &prompt.ids).into_iter().enumerate() {
        let path = dir.path().join(format!("last-{index}"));
        command.args(["--top", "1", "--logits"]).arg(&path);
        let answer = finish(&mut command).success().json();
        let difference = max_diff(Tensors::read(&path).floats("logits"), last);
        assert!(difference <= MAX_DIFF, "{difference:e}");
        let top = &answer["positions"][0]["top"][0]["id"];
        assert_eq!(top.as_u64(), best.map(|best| best as u64));
    }
}

/// ln softmax of a row.
fn log_probability(row: &[f32], id: u32) -> f64 {
    let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
    f64::from(row[id as usize]) - sum.ln()
}

#[test]
fn probabilities_of_a_continuation_are_the_log_softmax_of_the_reference() {
    let (_dir, bundle) = bundle();
    let (golden, prompts) = golden();
    let prompt = &prompts[1];
    let (start, continuation) = prompt.ids.split_at(20);
    let logits = golden.floats(&format!("{}.logits", prompt.name));
    let vocab = logits.len() / prompt.ids.len();
    let rows: Vec<&[f32]> = logits.chunks_exact(vocab).collect();
    // Token i is predicted by position i - 1.
    let expected: Vec<f64> = (start.len()..prompt.ids.len())
        .map(|at| log_probability(rows[at - 1], prompt.ids[at]))
        .collect();
    for mut command in programs(&bundle, start) {
        command.arg(format!("--logprob-ids={}", id_list(continuation)));
        let answer = finish(&mut command).success().json();
        let scored = &answer["continuation"];
        let tokens = scored["tokens"].as_array().unwrap();
        assert_eq!(tokens.len(), continuation.len());
        for ((token, id), expected) in tokens.iter().zip(continuation).zip(&expected) {
            assert_eq!(token["id"].as_u64(), Some(u64::from(*id)));
            let difference = (token["logprob"].as_f64().unwrap() - expected).abs();
            assert!(difference <= 1e-3, "token {id}: {difference:e}");
        }
        let total = scored["total_logprob"].as_f64().unwrap();
        let difference = (total - expected.iter().sum::<f64>()).abs();
        assert!(difference <= 1e-3 * expected.len() as f64, "{difference:e}");
    }
}
