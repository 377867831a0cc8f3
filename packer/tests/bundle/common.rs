//! A small bundle with every kind of content, and weights that can be told apart.

use std::ops::ControlFlow;
use std::path::Path;

use estream_compiler::ingest::{Carried, CarriedContent};
use estream_packer::{
    BundleSpec, LayerSpec, LicenseSpec, PackError, Payload, Sink, SourceSpec, Stopped, TensorSpec,
    WriteOptions, Written, write,
};
use estream_runtime::reader::Projection;
use estream_schemas::dtype::DType;
use estream_schemas::manifest::{Fate, LedgerEntry, Model, RecipeUsed, SourceFile, SourceFormat};
use estream_schemas::program::{
    Op, Program, RegisterSpec, Renormalise, RouterForm, ScoreWhen, Scoring,
};
use estream_schemas::real::Real;

pub(crate) const VOCAB: u64 = 48;
pub(crate) const HIDDEN: u64 = 64;
pub(crate) const FF: u64 = 96;

/// Two expert layers (4 experts whole, 3 experts in 3 shards) and a dense layer between.
pub(crate) fn spec() -> BundleSpec {
    let tensor = |name: &str, layout: &str, shape: &[u64]| TensorSpec {
        name: name.into(),
        layout: layout.parse().unwrap(),
        shape: shape.to_vec(),
    };
    BundleSpec {
        model: Model {
            family: "tiny".into(),
            parameters: 12345,
        },
        program: program(),
        resident: vec![
            tensor("embed", "q4_0.t32.direct", &[VOCAB, HIDDEN]),
            tensor("norm", "f32.rows", &[HIDDEN]),
            tensor("layers.0.router", "f32.t32", &[4, HIDDEN]),
            tensor("layers.2.router", "f32.t32", &[3, HIDDEN]),
            tensor("lm_head", "q8_0.rows", &[VOCAB, HIDDEN]),
        ],
        layers: vec![
            layer(0, 4, 1, &[2, 0, 3, 1], "q4_0.t32.direct"),
            layer(2, 3, 3, &[1, 2, 0], "mxfp4.t32.direct"),
        ],
        recipe: RecipeUsed {
            name: "auto".into(),
            rules: vec!["experts → q4_0".into()],
            requantize: false,
            pad_k: false,
        },
        descriptor: "family = \"tiny\"\n".into(),
        ledger: ledger(),
        source: SourceSpec {
            format: SourceFormat::Gguf,
            files: vec![SourceFile {
                name: "tiny.gguf".into(),
                bytes: 99,
            }],
            metadata: Some(carried("source-metadata.gguf", b"GGUF")),
        },
        tokenizer: vec![carried("tokenizer.json", b"{}"), carried("merges.txt", b"")],
        license: LicenseSpec {
            declared: Some("apache-2.0".into()),
            files: vec![carried("LICENSE", b"be good\n")],
        },
        max_part_bytes: None,
    }
}

/// Each weight is what one tensor became, but for experts of one layer that are a tensor each.
fn ledger() -> Vec<LedgerEntry> {
    let resident = [
        "embed",
        "norm",
        "layers.0.router",
        "layers.2.router",
        "lm_head",
    ];
    let stacks = [
        "0.expert_gate",
        "0.expert_up",
        "2.expert_gate",
        "2.expert_up",
        "0.expert_down",
    ];
    let single = (0..3).map(|expert| format!("layers.2.expert_down.{expert}"));
    let entry = |name: String| LedgerEntry {
        tensor: format!("source.{name}"),
        dtype: DType::BF16,
        shape: vec![VOCAB, HIDDEN],
        fate: Fate::Became(vec![name]),
    };
    let stacks = stacks.map(|name| format!("layers.{name}"));
    let names = resident
        .map(String::from)
        .into_iter()
        .chain(stacks)
        .chain(single);
    names.map(entry).collect()
}

pub(crate) fn carried(name: &str, content: &[u8]) -> Carried {
    Carried {
        name: name.into(),
        content: CarriedContent::Bytes(content.to_vec()),
    }
}

pub(crate) fn layer(
    layer: u64,
    experts: u64,
    shards: u64,
    order: &[u64],
    layout: &str,
) -> LayerSpec {
    LayerSpec {
        layer,
        experts,
        shards,
        order: order.to_vec(),
        hidden: HIDDEN,
        ff: FF,
        gate: layout.parse().unwrap(),
        up: layout.parse().unwrap(),
        down: "q8_0.t32".parse().unwrap(),
    }
}

fn program() -> Program {
    let register = |name: &str, width| RegisterSpec {
        name: name.into(),
        width,
    };
    let moe = |index: u64, top_k| {
        vec![
            Op::RmsNorm {
                input: "x".into(),
                out: "y".into(),
                weight: "norm".into(),
                eps: Real::new(1e-5).unwrap(),
            },
            Op::Router {
                input: "y".into(),
                weight: format!("layers.{index}.router"),
                selection_bias: None,
                form: RouterForm {
                    scoring: Scoring::Softmax,
                    score: ScoreWhen::BeforeTopK,
                    top_k,
                    renormalise: Renormalise::Sum,
                    scale: Real::ONE,
                },
            },
            Op::Experts {
                input: "y".into(),
                out: "x".into(),
            },
        ]
    };
    Program {
        vocab: VOCAB,
        context: 128,
        registers: vec![register("x", HIDDEN), register("y", HIDDEN)],
        prologue: vec![Op::Embed {
            out: "x".into(),
            weight: "embed".into(),
            scale: Real::ONE,
        }],
        layers: vec![moe(0, 2), Vec::new(), moe(2, 1)],
        epilogue: vec![Op::LmHead {
            input: "x".into(),
            weight: "lm_head".into(),
            scale: Real::ONE,
        }],
    }
}

/// Bytes that depend on what they are for, so that no two tensors are alike.
pub(crate) fn bytes(tag: &str, size: u64) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(size).unwrap()];
    blake3::Hasher::new()
        .update(tag.as_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

pub(crate) fn resident_bytes(index: usize, size: u64) -> Vec<u8> {
    bytes(&format!("resident {index}"), size)
}

pub(crate) fn region_bytes(
    layer: usize,
    expert: u64,
    shard: u64,
    projection: Projection,
    size: u64,
) -> Vec<u8> {
    bytes(&format!("{layer} {expert} {shard} {projection:?}"), size)
}

/// Pushes [`resident_bytes`] and [`region_bytes`] in pieces of an odd size.
pub(crate) struct Synthetic;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SyntheticError {
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error("the payload is broken")]
    Broken,
}

impl Payload for Synthetic {
    type Error = SyntheticError;

    fn resident(&self, index: usize, sink: &mut Sink<'_, '_>) -> Result<(), SyntheticError> {
        push(&resident_bytes(index, sink.left()), sink)
    }

    fn region(
        &self,
        layer: usize,
        expert: u64,
        shard: u64,
        projection: Projection,
        sink: &mut Sink<'_, '_>,
    ) -> Result<(), SyntheticError> {
        push(
            &region_bytes(layer, expert, shard, projection, sink.left()),
            sink,
        )
    }
}

fn push(bytes: &[u8], sink: &mut Sink<'_, '_>) -> Result<(), SyntheticError> {
    for piece in bytes.chunks(777) {
        sink.push(piece)?;
    }
    Ok(())
}

/// Writes [`spec`] to `out` and expects it to work.
pub(crate) fn written(out: &Path) -> Written {
    let options = WriteOptions {
        verify: true,
        ..WriteOptions::default()
    };
    written_with(out, &options).unwrap()
}

pub(crate) fn written_with(
    out: &Path,
    options: &WriteOptions,
) -> Result<Written, PackError<SyntheticError>> {
    write(&spec(), &Synthetic, out, options, &mut |_, _| {
        ControlFlow::Continue(())
    })
}

/// Names in a directory, ascending.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = dir
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}
