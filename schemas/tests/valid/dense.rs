//! Operators of layers without routed experts.

use serde_json::{Value, json};

use crate::cases::{change, parse};
use crate::sample::{digest, sample};

/// The sample with a layer of the other operators: two heads of 24 + 8, values of 16, a latent
/// row of 32, a convolution of 3 taps, a network of 96.
fn dense() -> Value {
    let mut manifest = sample();
    let program = manifest.pointer_mut("/program").unwrap();
    let registers = program["registers"].as_array_mut().unwrap();
    let widths = [("mq", 64), ("c", 32), ("pe", 8), ("a", 32), ("bcx", 192)];
    for (name, width) in widths {
        registers.push(json!({ "name": name, "width": width }));
    }
    for (name, _) in widths {
        let weight = format!("to_{name}");
        let op = json!({ "linear": { "input": "x", "out": name, "weight": weight } });
        program["prologue"].as_array_mut().unwrap().push(op);
    }
    program["layers"][2] = json!([
        { "rope": {
            "register": "pe", "heads": 1, "dims": 8, "theta": "10000", "pairing": "adjacent",
            "yarn": {
                "factor": "40", "original_context": 4096, "beta_fast": "32", "beta_slow": "1",
                "magnitude": "1",
            },
        } },
        { "mla": {
            "q": "mq", "latent": "c", "k_pe": "pe", "out": "a", "heads": 2,
            "weights": { "joined": "kv_b" }, "scale": "0.1",
        } },
        { "mla": {
            "q": "mq", "latent": "c", "k_pe": "pe", "out": "a", "heads": 2,
            "weights": { "split": { "k": "k_b", "v": "v_b" } }, "scale": "0.1",
        } },
        { "short_conv": { "input": "bcx", "out": "y", "weight": "conv" } },
        { "mlp": {
            "input": "y", "out": "x", "gate": "gate", "up": "gate", "down": "down",
            "token_gate": "norm",
        } },
    ]);
    for (name, rows, cols) in [
        ("to_mq", 64, 64),
        ("to_c", 32, 64),
        ("to_pe", 8, 64),
        ("to_a", 32, 64),
        ("to_bcx", 192, 64),
        ("kv_b", 80, 32),
        ("k_b", 64, 24),
        ("v_b", 32, 32),
        ("conv", 64, 3),
        ("gate", 96, 64),
        ("down", 64, 96),
    ] {
        let at = manifest["resident"]["bytes"].as_u64().unwrap();
        let bytes = 4 * rows * cols;
        let tensors = manifest["resident"]["tensors"].as_array_mut().unwrap();
        tensors.push(json!({
            "name": name, "layout": "f32.rows", "shape": [rows, cols], "offset": at,
            "bytes": bytes, "digest": digest(),
        }));
        manifest["resident"]["bytes"] = json!(at + u64::next_multiple_of(bytes, 16384));
        let ledger = manifest["ledger"].as_array_mut().unwrap();
        ledger.push(json!({
            "tensor": format!("t.{name}"), "type": "f32", "shape": [1], "fate": { "became": [name] },
        }));
    }
    manifest
}

#[test]
fn a_layer_of_every_other_operator_is_valid() {
    parse(&dense()).unwrap();
}

#[test]
fn each_operand_is_checked() {
    let cases: &[(&str, Value, &[&str])] = &[
        (
            "0/rope/yarn/factor",
            json!("0"),
            &["operator 0, yarn", "not above 0"],
        ),
        (
            "0/rope/yarn/beta_fast",
            json!("-1"),
            &["operator 0, yarn", "not above 0"],
        ),
        (
            "0/rope/yarn/beta_slow",
            json!("0"),
            &["operator 0, yarn", "not above 0"],
        ),
        (
            "0/rope/yarn/original_context",
            json!(0),
            &["yarn", "original_context is 0"],
        ),
        (
            "1/mla/q",
            json!("nope"),
            &["operator 1", "\"nope\"", "not stated"],
        ),
        ("1/mla/heads", json!(0), &["operator 1", "0 heads"]),
        ("1/mla/heads", json!(3), &["operator 1", "3 heads"]),
        (
            "1/mla/heads",
            json!(8),
            &["operator 1, mla", "a head of 8 has no room for 8"],
        ),
        (
            "1/mla/k_pe",
            json!("mq"),
            &["operator 1, mla", "no room for 64"],
        ),
        (
            "1/mla/latent",
            json!("mq"),
            &["\"kv_b\"", "[80, 32], not [80, 64]"],
        ),
        (
            "1/mla/weights",
            json!({ "joined": "k_b" }),
            &["\"k_b\"", "[64, 24], not [80, 32]"],
        ),
        (
            "2/mla/weights/split/k",
            json!("v_b"),
            &["\"v_b\"", "[32, 32], not [64, 24]"],
        ),
        (
            "2/mla/weights/split/v",
            json!("k_b"),
            &["\"k_b\"", "[64, 24], not [32, 32]"],
        ),
        (
            "3/short_conv/input",
            json!("x"),
            &["short_conv", "64 wide, not 3 × 64"],
        ),
        (
            "3/short_conv/weight",
            json!("norm"),
            &["\"norm\"", "[64], not [64, 64]"],
        ),
        (
            "3/short_conv/weight",
            json!("nope"),
            &["\"nope\"", "not stated"],
        ),
        (
            "3/short_conv/weight",
            json!("kv_b"),
            &["\"kv_b\"", "[80, 32], not [64, 32]"],
        ),
        ("4/mlp/out", json!("y"), &["mlp", "in place"]),
        ("4/mlp/out", json!("q"), &[]),
        ("4/mlp/out", json!("k"), &["width"]),
        (
            "4/mlp/gate",
            json!("down"),
            &["\"down\"", "[64, 96], not [64, 64]"],
        ),
        (
            "4/mlp/up",
            json!("kv_b"),
            &["\"kv_b\"", "[80, 32], not [96, 64]"],
        ),
        (
            "4/mlp/down",
            json!("gate"),
            &["\"gate\"", "[96, 64], not [64, 96]"],
        ),
        (
            "4/mlp/token_gate",
            json!("conv"),
            &["\"conv\"", "[64, 3], not [64]"],
        ),
    ];
    for (operand, value, pieces) in cases {
        let mut manifest = dense();
        change(
            &mut manifest,
            &format!("/program/layers/2/{operand}"),
            value.clone(),
        );
        match (parse(&manifest), pieces.is_empty()) {
            (Ok(_), true) => {}
            (Ok(_), false) => panic!("{operand} = {value} is accepted"),
            (Err(error), _) => {
                let message = error.to_string();
                assert!(!pieces.is_empty(), "{operand} = {value}: {message}");
                for piece in *pieces {
                    assert!(message.contains(piece), "{operand} = {value}: {message}");
                }
            }
        }
    }
}
