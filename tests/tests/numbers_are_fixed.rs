//! One bundle, one result: the bits of the logits depend on no thread, no instruction
//! set and no program; cutting experts into shards moves them by rounding alone.

use std::fs;
use std::path::Path;

use estream_runtime::backend::CpuBackend;
use estream_runtime::backend::cpu::{Simd, SimdPath};
use estream_tests::{
    Prompt, Tensors, Trace, compile, estream, estream_run, finish, fixture, id_list, max_diff,
    model, model_on, prompts, xtask,
};

fn prompt(name: &str) -> Prompt {
    let golden = Tensors::read(&fixture("olmoe/golden.safetensors"));
    let mut all = prompts(&golden).into_iter();
    all.find(|prompt| prompt.name == name).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn logits_are_the_same_bits_on_any_threads_and_instruction_sets() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = prompt("t33");
    for source in ["bf16", "q4_0", "q8_0"] {
        let bundle = dir.path().join(source);
        let gguf = fixture(&format!("gguf/olmoe-{source}.gguf"));
        compile(&gguf, &bundle, &["--recipe", "keep"]);
        let expected = bits(&Trace::of(&mut model(&bundle), &prompt.ids).logits);
        let mut ran = 0;
        for simd in SimdPath::ALL.into_iter().filter_map(Simd::new) {
            for threads in 1..=3 {
                let backend = CpuBackend::new(threads, simd).unwrap();
                let got = Trace::of(&mut model_on(&bundle, backend), &prompt.ids);
                assert!(
                    bits(&got.logits) == expected,
                    "{source} on {threads} threads, {:?}",
                    simd.path()
                );
                ran += 1;
            }
        }
        assert!(ran >= 3);
    }
}

#[test]
fn both_programs_write_the_same_file_of_logits_whatever_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.estream");
    compile(&fixture("olmoe"), &bundle, &[]);
    let ids = id_list(&prompt("t33").ids);
    let mut files = Vec::new();
    for threads in ["1", "2", "3"] {
        for (name, mut command) in [("estream", estream()), ("estream-run", estream_run())] {
            if name == "estream" {
                command.arg("run");
            }
            let out = dir.path().join(format!("{name}-{threads}"));
            command
                .arg(&bundle)
                .args(["--ids", &ids, "--all-positions"]);
            command.args(["--threads", threads, "--logits"]).arg(&out);
            finish(&mut command).success();
            files.push(fs::read(out).unwrap());
        }
    }
    assert!(files[0].len() > 33 * 544 * 4);
    assert!(files.iter().all(|file| *file == files[0]));
}

/// Logits and choices of one bundle of `source` cut into `shards`.
fn sharded(source: &Path, shards: u64, ids: &[u32]) -> Trace {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("s.estream");
    compile(source, &bundle, &["--shards", &shards.to_string()]);
    Trace::of(&mut model(&bundle), ids)
}

fn shards_change_nothing_but_rounding(source: &Path, shards: &[u64], ids: &[u32]) {
    let whole = sharded(source, 1, ids);
    for count in shards {
        let cut = sharded(source, *count, ids);
        let difference = max_diff(&whole.logits, &cut.logits);
        assert!(difference <= 1e-4, "{count} shards: {difference:e}");
        for (a, b) in whole.layers.iter().zip(&cut.layers) {
            let [a, b] = [a, b].map(|layer| layer.routes.as_ref().unwrap());
            assert_eq!(a.experts, b.experts, "{count} shards");
        }
    }
}

#[test]
fn shards_of_the_fixture_change_no_choice_and_no_logit() {
    shards_change_nothing_but_rounding(&fixture("olmoe"), &[2], &prompt("t33").ids);
}

#[test]
fn every_legal_number_of_shards_changes_no_choice_and_no_logit() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("wide");
    let flags = ["synth", "--shape", "olmoe-tiny", "--ff", "192", "-o"];
    finish(xtask().args(flags).arg(&source)).success();
    let ids: Vec<u32> = (0..24).map(|i| (i * 37 + 5) % 250).collect();
    shards_change_nothing_but_rounding(&source, &[2, 3, 6], &ids);
}

#[test]
fn shards_that_cut_through_a_tile_are_refused_with_the_arithmetic() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("s.estream");
    for shards in ["3", "4"] {
        let mut command = estream();
        command.arg("compile").arg(fixture("olmoe"));
        command.args(["--shards", shards, "-o"]).arg(&out);
        let refused = finish(&mut command);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let why = format!("an expert of ff 64 cannot be cut into {shards} shards");
        assert!(refused.stderr.contains(&why), "{}", refused.stderr);
        assert!(
            refused.stderr.contains("shards must divide 2"),
            "{}",
            refused.stderr
        );
        assert!(!out.exists());
    }
}
