//! A manifest that is valid and has something of everything.

use serde_json::{Value, json};

/// Eight resident tensors, two expert layers in two parts, every operator.
pub(crate) fn sample() -> Value {
    let tensor = |index: u64, name: &str, layout: &str, shape: &[u64], bytes: u64| {
        json!({
            "name": name, "layout": layout, "shape": shape, "offset": index * 16384,
            "bytes": bytes, "digest": digest(),
        })
    };
    json!({
        "format": "estream-bundle",
        "version": 1,
        "kernel_abi": 1,
        "model": { "family": "tiny", "parameters": 1 },
        "program": program(),
        "resident": {
            "bytes": 8 * 16384,
            "tensors": [
                tensor(0, "embed", "f16.t32", &[40, 64], 8192),
                tensor(1, "norm", "f32.rows", &[64], 256),
                tensor(2, "wq", "f32.rows", &[64, 64], 16384),
                tensor(3, "wk", "f32.rows", &[32, 64], 8192),
                tensor(4, "head_norm", "f32.rows", &[16], 64),
                tensor(5, "router", "f32.rows", &[4, 64], 1024),
                tensor(6, "bias", "f32.rows", &[64], 256),
                tensor(7, "selection_bias", "f32.rows", &[4], 16),
            ],
        },
        "experts": {
            "slot_bytes": 49152,
            "parts": [
                { "file": "experts-00001.bin", "bytes": 4 * 49152 },
                { "file": "experts-00002.bin", "bytes": 8 * 49152 },
            ],
            "layers": [layer(0, 0, 1), layer(1, 1, 2)],
        },
        "recipe": { "name": "auto", "rules": [], "requantize": false, "pad_k": false },
        "descriptor": { "digest": digest(), "text": "" },
        "ledger": ledger(),
        "source": {
            "format": "gguf",
            "files": [{ "name": "tiny.gguf", "bytes": 1 }],
            "metadata": carried("source-metadata.gguf"),
        },
        "tokenizer": [carried("tokenizer/tokenizer.json")],
        "license": { "declared": null, "files": [carried("LICENSE")] },
    })
}

/// Tensors of one weight, of one expert, of all experts, of two weights; an alias, a scalar.
fn ledger() -> Value {
    let entry = |tensor: &str, shape: &[u64], fate: Value| json!({ "tensor": tensor, "type": "f32", "shape": shape, "fate": fate });
    let mut ledger = vec![
        entry("a", &[40, 64], json!({ "became": ["embed"] })),
        entry("b", &[40, 64], json!({ "alias_of": "a" })),
        entry("c", &[], json!({ "dropped": "unused" })),
        entry("d", &[96, 64], json!({ "became": ["wq", "wk"] })),
        entry(
            "e",
            &[4, 32, 64],
            json!({ "became": ["layers.0.expert_gate"] }),
        ),
    ];
    let mut one = |name: String| {
        ledger.push(entry(
            &format!("t.{name}"),
            &[1],
            json!({ "became": [name] }),
        ));
    };
    for name in ["norm", "head_norm", "router", "bias", "selection_bias"] {
        one(name.into());
    }
    for role in [
        "0.expert_up",
        "0.expert_down",
        "1.expert_gate",
        "1.expert_up",
    ] {
        one(format!("layers.{role}"));
    }
    for expert in 0..4 {
        one(format!("layers.1.expert_down.{expert}"));
    }
    ledger.into()
}

pub(crate) fn digest() -> String {
    "0".repeat(64)
}

pub(crate) fn carried(file: &str) -> Value {
    json!({ "file": file, "bytes": 1, "digest": digest() })
}

/// Four experts of ff 32 a shard.
fn layer(layer: u64, part: u64, shards: usize) -> Value {
    let region = |index: u64, rows: u64, cols: u64| {
        json!({
            "layout": "q4_0.t32.direct", "rows": rows, "cols": cols, "offset": index * 16384,
            "bytes": 1152,
        })
    };
    json!({
        "layer": layer, "part": part, "offset": 0, "record_bytes": 49152, "experts": 4,
        "shards": shards, "order": [2, 0, 3, 1],
        "gate": region(0, 32, 64), "up": region(1, 32, 64), "down": region(2, 64, 32),
        "digests": vec![digest(); 4 * shards],
    })
}

fn program() -> Value {
    let register = |name: &str, width: u64| json!({ "name": name, "width": width });
    let moe = json!([
        { "rms_norm": { "input": "x", "out": "y", "weight": "norm", "eps": "0.00001" } },
        { "linear": { "input": "y", "out": "q", "weight": "wq", "bias": "bias" } },
        { "linear": { "input": "y", "out": "k", "weight": "wk" } },
        { "linear": { "input": "y", "out": "v", "weight": "wk" } },
        { "qk_norm": {
            "register": "q", "weight": "head_norm", "eps": "0", "heads": 4, "over": "head",
        } },
        { "rope": {
            "register": "q", "heads": 4, "dims": 16, "theta": "10000", "pairing": "half",
        } },
        { "attention": {
            "q": "q", "k": "k", "v": "v", "out": "y", "heads": 4, "kv_heads": 2, "scale": "0.25",
        } },
        { "add": { "input": "y", "out": "x", "scale": "1" } },
        { "router": {
            "input": "x", "weight": "router", "selection_bias": "selection_bias",
            "form": {
                "scoring": "softmax", "score": "before_top_k", "top_k": 2,
                "renormalise": { "sum_plus": "0.00001" }, "scale": "1",
            },
        } },
        { "experts": { "input": "y", "out": "x" } },
    ]);
    json!({
        "vocab": 40,
        "context": 128,
        "registers": [
            register("x", 64), register("y", 64), register("q", 64), register("k", 32),
            register("v", 32), register("spare", 64),
        ],
        "prologue": [{ "embed": { "out": "x", "weight": "embed", "scale": "1" } }],
        "layers": [moe, moe, []],
        "epilogue": [{ "lm_head": { "input": "x", "weight": "embed", "scale": "1" } }],
    })
}
