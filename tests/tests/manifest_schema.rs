//! The manifest's JSON Schema accepts what estream writes and refuses what it refuses.

use estream_schemas::digest::Digest;
use estream_schemas::dtype::DType;
use estream_schemas::layout::Layout;
use estream_schemas::manifest::{
    ALIGN, CarriedFile, Descriptor, ExpertLayer, Experts, FORMAT, Fate, KERNEL_ABI, LedgerEntry,
    License, Manifest, Model, Part, RecipeUsed, Region, Resident, ResidentTensor, Source,
    SourceFile, SourceFormat, VERSION, part_file,
};
use estream_schemas::program::{
    NormWidth, Op, Program, RegisterSpec, Renormalise, RopePairing, RouterForm, ScoreWhen, Scoring,
};
use estream_schemas::real::Real;
use estream_tests::assert_valid;
use serde_json::{Value, json};

fn real(value: f32) -> Real {
    Real::new(value).unwrap()
}

fn layout(name: &str) -> Layout {
    name.parse().unwrap()
}

/// One of every operator, with every optional part.
fn program() -> Program {
    let x = || "x".to_owned();
    let weight = || "layers.0.weight".to_owned();
    Program {
        vocab: 64,
        context: 128,
        registers: vec![RegisterSpec {
            name: x(),
            width: 32,
        }],
        prologue: vec![Op::Embed {
            out: x(),
            weight: weight(),
            scale: Real::ONE,
        }],
        layers: vec![vec![
            Op::RmsNorm {
                input: x(),
                out: x(),
                weight: weight(),
                eps: real(1e-5),
            },
            Op::Linear {
                input: x(),
                out: x(),
                weight: weight(),
                bias: Some(weight()),
            },
            Op::QkNorm {
                register: x(),
                weight: weight(),
                eps: real(1e-30),
                heads: 1,
                over: NormWidth::Full,
            },
            Op::Rope {
                register: x(),
                heads: 1,
                dims: 32,
                theta: real(1e4),
                pairing: RopePairing::Half,
                yarn: None,
            },
            Op::Attention {
                q: x(),
                k: x(),
                v: x(),
                out: x(),
                heads: 1,
                kv_heads: 1,
                scale: real(0.25),
            },
            Op::Router {
                input: x(),
                weight: weight(),
                selection_bias: None,
                form: RouterForm {
                    scoring: Scoring::Softmax,
                    score: ScoreWhen::BeforeTopK,
                    top_k: 1,
                    renormalise: Renormalise::SumPlus(real(1e-6)),
                    scale: real(-1.0),
                },
            },
            Op::Experts {
                input: x(),
                out: x(),
            },
            Op::Add {
                input: x(),
                out: x(),
                scale: Real::ONE,
            },
        ]],
        epilogue: vec![Op::LmHead {
            input: x(),
            weight: weight(),
            scale: Real::ONE,
        }],
    }
}

fn experts(digest: Digest) -> Experts {
    let region = |index: u64| Region {
        layout: layout("q4_0.t32.direct"),
        rows: 32,
        cols: 32,
        offset: index * ALIGN,
        bytes: 576,
    };
    Experts {
        slot_bytes: 3 * ALIGN,
        parts: vec![Part {
            file: part_file(0),
            bytes: 6 * ALIGN,
        }],
        layers: vec![ExpertLayer {
            layer: 0,
            part: 0,
            offset: 0,
            record_bytes: 3 * ALIGN,
            experts: 2,
            shards: 1,
            order: vec![1, 0],
            gate: region(0),
            up: region(1),
            down: region(2),
            digests: vec![digest; 2],
        }],
    }
}

fn manifest() -> Value {
    let digest = Digest([0xa5; 32]);
    let carried = |file: &str| CarriedFile {
        file: file.to_owned(),
        bytes: 1,
        digest,
    };
    let entry = |tensor: &str, fate: Fate| LedgerEntry {
        tensor: tensor.to_owned(),
        dtype: DType::BF16,
        shape: vec![64, 32],
        fate,
    };
    let became = |names: &[&str]| Fate::Became(names.iter().map(|&name| name.into()).collect());
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        version: VERSION,
        kernel_abi: KERNEL_ABI,
        model: Model {
            family: "olmoe".to_owned(),
            parameters: 1 << 33,
        },
        program: program(),
        resident: Resident {
            bytes: ALIGN,
            tensors: vec![ResidentTensor {
                name: "embed".to_owned(),
                layout: layout("f32.rows"),
                shape: vec![64, 32],
                offset: 0,
                bytes: 8192,
                digest,
            }],
        },
        experts: experts(digest),
        recipe: RecipeUsed {
            name: "auto".to_owned(),
            rules: vec!["* -> q4_0".to_owned()],
            requantize: false,
            pad_k: false,
        },
        descriptor: Descriptor {
            digest,
            text: "name = \"olmoe\"\n".to_owned(),
        },
        ledger: vec![
            entry("embed_tokens.weight", became(&["embed"])),
            entry(
                "experts.gate_up",
                became(&["layers.0.expert_gate", "layers.0.expert_up"]),
            ),
            entry("experts.0.down", became(&["layers.0.expert_down.0"])),
            entry("experts.1.down", became(&["layers.0.expert_down.1"])),
            entry(
                "lm_head.weight",
                Fate::AliasOf("embed_tokens.weight".to_owned()),
            ),
            entry(
                "embed_tokens.weight_scale",
                Fate::ScalesOf("embed_tokens.weight".to_owned()),
            ),
            entry("mask", Fate::Dropped("a mask".to_owned())),
        ],
        source: Source {
            format: SourceFormat::Gguf,
            files: vec![SourceFile {
                name: "model.gguf".to_owned(),
                bytes: 1 << 40,
            }],
            metadata: Some(carried("source-metadata.gguf")),
        },
        tokenizer: vec![carried("tokenizer/tokenizer.json")],
        license: License {
            declared: None,
            files: vec![carried("LICENSE")],
        },
    };
    serde_json::to_value(manifest).unwrap()
}

#[test]
fn a_manifest_with_every_operator_is_valid() {
    assert_valid("manifest", &manifest());
}

/// The schema and the parser refuse the manifest once `value` stands at `pointer`.
#[track_caller]
fn both_refuse(pointer: &str, value: Value) {
    let mut document = manifest();
    *document.pointer_mut(pointer).unwrap() = value;
    assert!(
        serde_json::from_value::<Manifest>(document.clone()).is_err(),
        "the parser accepts {pointer}"
    );
    schema_refuses(&document, pointer);
}

#[track_caller]
fn schema_refuses(document: &Value, what: &str) {
    let verdict = std::panic::catch_unwind(|| assert_valid("manifest", document));
    assert!(verdict.is_err(), "the schema accepts {what}");
}

#[test]
fn a_wrong_value_is_refused() {
    both_refuse("/resident/tensors/0/digest", json!("A5"));
    both_refuse("/resident/tensors/0/layout", json!("q4_0"));
    both_refuse("/program/layers/0/0/rms_norm/eps", json!(0.00001));
    both_refuse("/program/layers/0/0", json!({ "layer_norm": {} }));
    both_refuse("/experts/layers/0/order/0", json!(-1));
    both_refuse("/source/format", json!("pickle"));
    both_refuse("/ledger/0/fate", json!({ "lost": "x" }));
}

#[test]
fn an_unknown_field_is_refused_at_every_depth() {
    for pointer in [
        "",
        "/program",
        "/program/layers/0/0",
        "/program/layers/0/0/rms_norm",
        "/program/layers/0/5/router/form",
        "/experts/layers/0/gate",
        "/license",
    ] {
        let mut document = manifest();
        let object = document.pointer_mut(pointer).unwrap();
        object
            .as_object_mut()
            .unwrap()
            .insert("extra".to_owned(), json!(1));
        assert!(serde_json::from_value::<Manifest>(document.clone()).is_err());
        schema_refuses(&document, pointer);
    }
}

#[test]
fn the_schema_knows_one_format_and_one_version() {
    for (pointer, value) in [
        ("/format", json!("zip")),
        ("/version", json!(2)),
        ("/kernel_abi", json!(2)),
    ] {
        let mut document = manifest();
        *document.pointer_mut(pointer).unwrap() = value;
        schema_refuses(&document, pointer);
    }
}
