//! Checkpoints as people publish them, from their files to logits.

use std::fs;
use std::path::Path;

use estream_tests::{
    Checkpoint, Tensor, Tensors, Trace, compile, estream, finish, fixture, manifest, model, prompts,
};
use safetensors::Dtype;
use serde_json::json;

fn floats(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor {
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        bytes: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// What an FP8 element stands for: sign, four bits of exponent about 7, three of mantissa.
fn value(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7) / 8.0);
    let magnitude = match exponent {
        0 => mantissa * 2.0_f32.powi(-6),
        _ => (1.0 + mantissa) * 2.0_f32.powi(exponent - 7),
    };
    if byte > 0x7f { -magnitude } else { magnitude }
}

/// The fixture with every matrix of every expert in FP8, with a scale for each block of
/// 48 × 40 elements; and with what these stand for in f32.
fn fp8_and_what_it_stands_for() -> (Checkpoint, Checkpoint) {
    const BLOCK: [usize; 2] = [48, 40];
    let mut fp8 = Checkpoint::read(&fixture("olmoe"));
    fp8.config["quantization_config"] = json!({
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": BLOCK
    });
    let mut plain = Checkpoint::read(&fixture("olmoe"));
    let names: Vec<String> = plain.tensors.keys().cloned().collect();
    for (first, name) in names.iter().enumerate() {
        if !name.contains(".experts.") {
            continue;
        }
        let shape = plain.tensors[name].shape.clone();
        let [rows, cols] = shape[..] else {
            panic!("{name} is no matrix");
        };
        let grid = [rows.div_ceil(BLOCK[0]), cols.div_ceil(BLOCK[1])];
        let scales: Vec<f32> = (0..grid[0] * grid[1])
            .map(|at| 0.01 + at as f32 / 700.0)
            .collect();
        // Exponents up to 8, so that weights stay small.
        let bytes: Vec<u8> = (0..rows * cols)
            .map(|at| ((first + 11 * at) % 65) as u8 | if at % 3 == 0 { 0x80 } else { 0 })
            .collect();
        let product = bytes.iter().enumerate().map(|(at, byte)| {
            let (row, col) = (at / cols / BLOCK[0], at % cols / BLOCK[1]);
            value(*byte) * scales[row * grid[1] + col]
        });
        let product: Vec<f32> = product.collect();
        plain.tensors.insert(name.clone(), floats(&product, &shape));
        let elements = Tensor {
            dtype: Dtype::F8_E4M3,
            shape,
            bytes,
        };
        fp8.tensors.insert(name.clone(), elements);
        let scales = floats(&scales, &grid);
        fp8.tensors.insert(format!("{name}_scale_inv"), scales);
    }
    (fp8, plain)
}

#[test]
fn c10_an_fp8_checkpoint_gives_the_bundle_of_what_it_stands_for() {
    let dir = tempfile::tempdir().unwrap();
    let [fp8_source, plain_source, fp8, plain] =
        ["fp8", "plain", "fp8.estream", "plain.estream"].map(|name| dir.path().join(name));
    let (of_fp8, of_plain) = fp8_and_what_it_stands_for();
    of_fp8.write_sharded(&fp8_source, 3);
    of_plain.write(&plain_source);
    compile(&fp8_source, &fp8, &["--strict"]);
    compile(&plain_source, &plain, &["--strict"]);
    for file in ["experts-00001.bin", "resident.bin"] {
        let read = |bundle: &Path| fs::read(bundle.join(file)).unwrap();
        assert!(read(&fp8) == read(&plain), "{file}");
    }
    let manifest = manifest(&fp8);
    assert_eq!(manifest["recipe"]["name"], "q4_0");
    let ledger = manifest["ledger"].as_array().unwrap();
    let scales = ledger
        .iter()
        .filter(|entry| entry["fate"]["scales_of"].is_string());
    assert_eq!(scales.count(), 3 * 16 * 3);
    finish(estream().arg("verify").arg(&fp8)).success();
    let mut model = model(&fp8);
    let logits = Trace::of(&mut model, &[1, 2, 3]).logits;
    assert!(!logits.is_empty() && logits.iter().all(|x| x.is_finite()));
}

/// `checkpoint` without expert `expert` of layer 1: those after it move up.
fn pruned(mut checkpoint: Checkpoint, expert: usize) -> Checkpoint {
    let name = |expert: usize, projection: &str| {
        format!("model.layers.1.mlp.experts.{expert}.{projection}_proj.weight")
    };
    for projection in ["gate", "up", "down"] {
        checkpoint
            .tensors
            .remove(&name(expert, projection))
            .unwrap();
        for later in expert + 1..16 {
            let tensor = checkpoint.tensors.remove(&name(later, projection)).unwrap();
            checkpoint
                .tensors
                .insert(name(later - 1, projection), tensor);
        }
    }
    let router = "model.layers.1.mlp.gate.weight";
    let router = checkpoint.tensors.get_mut(router).unwrap();
    let row_bytes = router.bytes.len() / 16;
    router
        .bytes
        .drain(row_bytes * expert..row_bytes * (expert + 1));
    router.shape[0] = 15;
    checkpoint
}

#[test]
fn c21_a_pruned_model_computes_what_the_whole_one_does_where_nothing_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let [whole_source, pruned_source, whole, pruned_bundle] =
        ["whole", "pruned", "whole.estream", "pruned.estream"].map(|name| dir.path().join(name));
    let mut source = Checkpoint::read(&fixture("olmoe"));
    // Where chosen weights are renormalised, an expert that is not chosen changes nothing.
    source.config["norm_topk_prob"] = json!(true);
    source.write(&whole_source);
    compile(&whole_source, &whole, &["--recipe", "keep"]);
    let golden = Tensors::read(&fixture("olmoe/golden.safetensors"));
    let prompt = prompts(&golden)
        .into_iter()
        .find(|prompt| prompt.name == "t5");
    let ids = prompt.unwrap().ids;
    let expected = Trace::of(&mut model(&whole), &ids);
    let chosen = expected.layers[1].routes.as_ref().unwrap();
    let chosen: Vec<usize> = chosen
        .experts
        .iter()
        .map(|expert| *expert as usize)
        .collect();
    let spare = (0..16).find(|expert| !chosen.contains(expert)).unwrap();

    pruned(source, spare).write(&pruned_source);
    compile(&pruned_source, &pruned_bundle, &["--recipe", "keep"]);
    let layers = &manifest(&pruned_bundle)["experts"]["layers"];
    let counts = layers.as_array().unwrap().iter();
    let counts: Vec<usize> = counts
        .map(|layer| layer["order"].as_array().unwrap().len())
        .collect();
    assert_eq!(counts, [16, 15, 16]);
    finish(estream().arg("verify").arg(&pruned_bundle)).success();
    let found = Trace::of(&mut model(&pruned_bundle), &ids);
    let routes = found.layers[1].routes.as_ref().unwrap();
    let moved: Vec<usize> = chosen
        .iter()
        .map(|expert| expert - usize::from(*expert > spare))
        .collect();
    let routed: Vec<usize> = routes
        .experts
        .iter()
        .map(|expert| *expert as usize)
        .collect();
    assert_eq!(routed, moved);
    for (found, expected) in found.logits.iter().zip(&expected.logits) {
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }

    // What the configuration says is not true of layer 1, and that is told.
    let mut strict = estream();
    strict.arg("compile").arg(&pruned_source).arg("-o");
    let refused = finish(strict.arg(dir.path().join("strict")).arg("--strict"));
    assert_eq!(refused.code, 4);
    let says = "config key \"num_experts\" is 16, but router has 15 rows in layer 1";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);
}
