//! A small model with known weights, as a bundle and as a plain reference.

use std::collections::BTreeMap;
use std::path::Path;

use estream_schemas::canonical;
use estream_schemas::digest::Digest;
use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, element_index};
use estream_schemas::manifest::{
    ALIGN, Descriptor, ExpertLayer, Experts, FORMAT, Fate, KERNEL_ABI, LedgerEntry, License,
    MANIFEST_FILE, Manifest, Model, Part, RESIDENT_FILE, RecipeUsed, Region, Resident,
    ResidentTensor, Source, SourceFormat, VERSION, part_file,
};
use estream_schemas::program::{
    NormWidth, Op, Program, RegisterSpec, Renormalise, RopePairing, RouterForm, ScoreWhen, Scoring,
};
use estream_schemas::real::Real;

use crate::dense;

pub(crate) const VOCAB: usize = 40;
pub(crate) const HIDDEN: usize = 64;
pub(crate) const FF: usize = 64;
pub(crate) const EXPERTS: usize = 4;
pub(crate) const TOP_K: usize = 2;
/// Layers with experts, which come first.
pub(crate) const LAYERS: usize = 2;
/// Layers without, and whether they have a convolution.
const DENSE_LAYERS: [(usize, bool); 2] = [(2, false), (3, true)];
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = HIDDEN / HEADS;
const KV: usize = KV_HEADS * HEAD_DIM;

/// A matrix in plain row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: Vec<f32>,
}

/// Gate, up and down of one expert.
#[derive(Clone, Debug)]
pub(crate) struct PlainExpert {
    pub(crate) gate: Plain,
    pub(crate) up: Plain,
    pub(crate) down: Plain,
}

/// A model before it is packed.
#[derive(Clone, Debug)]
pub(crate) struct Toy {
    pub(crate) program: Program,
    /// By name; vectors have one row.
    pub(crate) tensors: BTreeMap<String, Plain>,
    /// `[layer][expert]`.
    pub(crate) experts: Vec<Vec<PlainExpert>>,
}

/// How a model is packed.
#[derive(Clone, Debug)]
pub(crate) struct Packing {
    pub(crate) shards: usize,
    pub(crate) order: Vec<u64>,
    /// `f32.t32` for matrices, or `f32.rows`.
    pub(crate) tiles: bool,
}

impl Default for Packing {
    fn default() -> Packing {
        Packing {
            shards: 1,
            order: (0..EXPERTS as u64).collect(),
            tiles: true,
        }
    }
}

/// Numbers in -1..1 from a fixed sequence.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    fn matrix(&mut self, rows: usize, cols: usize, scale: f32) -> Plain {
        let data = (0..rows * cols).map(|_| self.next() * scale).collect();
        Plain { rows, cols, data }
    }
}

pub(crate) fn real(value: f32) -> Real {
    Real::new(value).unwrap()
}

impl Toy {
    /// Layers that differ in every form the operators have.
    pub(crate) fn new() -> Toy {
        let mut noise = Noise(7);
        let mut tensors = BTreeMap::new();
        let mut add = |name: String, rows, cols, scale| {
            tensors.insert(name, noise.matrix(rows, cols, scale));
        };
        add("embed".into(), VOCAB, HIDDEN, 1.0);
        add("norm".into(), 1, HIDDEN, 1.0);
        add("head".into(), VOCAB, HIDDEN, 0.5);
        for layer in 0..LAYERS {
            let name = |role: &str| format!("layers.{layer}.{role}");
            let (q_norm, k_norm) = [(HIDDEN, KV), (HEAD_DIM, HEAD_DIM)][layer];
            for (role, rows, cols, scale) in [
                ("attn_norm", 1, HIDDEN, 1.0),
                ("attn_q", HIDDEN, HIDDEN, 0.3),
                ("attn_q_bias", 1, HIDDEN, 0.3),
                ("attn_k", KV, HIDDEN, 0.3),
                ("attn_v", KV, HIDDEN, 0.3),
                ("attn_q_norm", 1, q_norm, 2.0),
                ("attn_k_norm", 1, k_norm, 2.0),
                ("attn_o", HIDDEN, HIDDEN, 0.3),
                ("ffn_norm", 1, HIDDEN, 1.0),
                ("router", EXPERTS, HIDDEN, 0.5),
                ("router_bias", 1, EXPERTS, 0.5),
            ] {
                add(name(role), rows, cols, scale);
            }
        }
        for (layer, convolution) in DENSE_LAYERS {
            for (role, rows, cols, scale) in dense::tensors(convolution) {
                add(format!("layers.{layer}.{role}"), rows, cols, scale);
            }
        }
        let experts = (0..LAYERS)
            .map(|_| {
                (0..EXPERTS)
                    .map(|_| PlainExpert {
                        gate: noise.matrix(FF, HIDDEN, 0.4),
                        up: noise.matrix(FF, HIDDEN, 0.4),
                        down: noise.matrix(HIDDEN, FF, 0.4),
                    })
                    .collect()
            })
            .collect();
        Toy {
            program: program(),
            tensors,
            experts,
        }
    }

    /// Writes the model as a bundle in the empty directory `dir`.
    pub(crate) fn pack(&self, dir: &Path, packing: &Packing) {
        let (resident, resident_bytes) = self.resident(packing);
        let (experts, expert_bytes) = self.expert_part(packing);
        let empty = Digest(*blake3::hash(b"").as_bytes());
        let ledger = ledger(&resident, &experts);
        let manifest = Manifest {
            format: FORMAT.into(),
            version: VERSION,
            kernel_abi: KERNEL_ABI,
            model: Model {
                family: "toy".into(),
                parameters: 0,
            },
            program: self.program.clone(),
            resident,
            experts,
            recipe: RecipeUsed {
                name: "keep".into(),
                rules: Vec::new(),
                requantize: false,
                pad_k: false,
            },
            descriptor: Descriptor {
                digest: empty,
                text: String::new(),
            },
            ledger,
            source: Source {
                format: SourceFormat::Safetensors,
                files: Vec::new(),
                metadata: None,
            },
            tokenizer: Vec::new(),
            license: License {
                declared: None,
                files: Vec::new(),
            },
        };
        std::fs::write(dir.join(RESIDENT_FILE), resident_bytes).unwrap();
        std::fs::write(dir.join(part_file(0)), expert_bytes).unwrap();
        let text = canonical::to_vec(&manifest).unwrap();
        std::fs::write(dir.join(MANIFEST_FILE), text).unwrap();
    }

    /// [`Toy::pack`] into a directory of its own.
    pub(crate) fn bundle(&self, packing: &Packing) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        self.pack(dir.path(), packing);
        dir
    }

    fn resident(&self, packing: &Packing) -> (Resident, Vec<u8>) {
        let mut file = Vec::new();
        let tensors = self.tensors.iter().map(|(name, plain)| {
            let vector = plain.rows == 1;
            let layout = layout(packing.tiles && !vector);
            let bytes = encoded(plain, layout);
            let tensor = ResidentTensor {
                name: name.clone(),
                layout,
                shape: match vector {
                    true => vec![plain.cols as u64],
                    false => vec![plain.rows as u64, plain.cols as u64],
                },
                offset: file.len() as u64,
                bytes: bytes.len() as u64,
                digest: digest(&bytes),
            };
            append(&mut file, &bytes);
            tensor
        });
        let tensors = tensors.collect();
        let resident = Resident {
            bytes: file.len() as u64,
            tensors,
        };
        (resident, file)
    }

    fn expert_part(&self, packing: &Packing) -> (Experts, Vec<u8>) {
        let mut file = Vec::new();
        let mut layers = Vec::new();
        let layout = layout(packing.tiles);
        let ff = FF / packing.shards;
        for (index, experts) in self.experts.iter().enumerate() {
            let offset = file.len() as u64;
            let mut digests = Vec::new();
            let mut regions = Vec::new();
            for expert in &packing.order {
                let expert = &experts[usize::try_from(*expert).unwrap()];
                for shard in 0..packing.shards {
                    let slice = shard * ff..(shard + 1) * ff;
                    let mut record = Vec::new();
                    regions.clear();
                    for plain in [
                        expert.gate.rows_of(slice.clone()),
                        expert.up.rows_of(slice.clone()),
                        expert.down.cols_of(slice.clone()),
                    ] {
                        let bytes = encoded(&plain, layout);
                        regions.push(Region {
                            layout,
                            rows: plain.rows as u64,
                            cols: plain.cols as u64,
                            offset: record.len() as u64,
                            bytes: bytes.len() as u64,
                        });
                        append(&mut record, &bytes);
                    }
                    digests.push(digest(&record));
                    file.extend(record);
                }
            }
            let [gate, up, down] = regions.try_into().unwrap();
            layers.push(ExpertLayer {
                layer: index as u64,
                part: 0,
                offset,
                record_bytes: (file.len() as u64 - offset) / digests.len() as u64,
                experts: EXPERTS as u64,
                shards: packing.shards as u64,
                order: packing.order.clone(),
                gate,
                up,
                down,
                digests,
            });
        }
        let experts = Experts {
            slot_bytes: layers[0].record_bytes,
            parts: vec![Part {
                file: part_file(0),
                bytes: file.len() as u64,
            }],
            layers,
        };
        (experts, file)
    }
}

impl Plain {
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    fn rows_of(&self, rows: std::ops::Range<usize>) -> Plain {
        Plain {
            rows: rows.len(),
            cols: self.cols,
            data: self.data[rows.start * self.cols..rows.end * self.cols].to_vec(),
        }
    }

    fn cols_of(&self, cols: std::ops::Range<usize>) -> Plain {
        let rows = (0..self.rows).map(|row| &self.row(row)[cols.clone()]);
        Plain {
            rows: self.rows,
            cols: cols.len(),
            data: rows.flatten().copied().collect(),
        }
    }
}

fn layout(tiles: bool) -> Layout {
    match tiles {
        true => Layout::new(DType::F32, Form::Tiles).unwrap(),
        false => Layout::rows(DType::F32),
    }
}

fn encoded(plain: &Plain, layout: Layout) -> Vec<u8> {
    let mut out = vec![0.0; plain.data.len()];
    if layout.is_tiled() {
        let strips = plain.cols.div_ceil(32);
        out = vec![0.0; plain.rows.div_ceil(32) * strips * 1024];
        for n in 0..plain.rows {
            for (k, &x) in plain.row(n).iter().enumerate() {
                let tile = n / 32 * strips + k / 32;
                out[tile * 1024 + element_index(n % 32, k % 32)] = x;
            }
        }
    } else {
        out.copy_from_slice(&plain.data);
    }
    out.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn append(file: &mut Vec<u8>, bytes: &[u8]) {
    file.extend(bytes);
    let align = usize::try_from(ALIGN).unwrap();
    file.resize(file.len().next_multiple_of(align), 0);
}

/// Of a source with a tensor for each resident tensor and for each projection of a layer.
fn ledger(resident: &Resident, experts: &Experts) -> Vec<LedgerEntry> {
    let tensors = resident.tensors.iter().map(|tensor| tensor.name.clone());
    let projections = experts.layers.iter().flat_map(|layer| {
        let name = |role| format!("layers.{}.expert_{role}", layer.layer);
        ["gate", "up", "down"].map(name)
    });
    let entry = |name: String| LedgerEntry {
        tensor: name.clone(),
        dtype: DType::F32,
        shape: vec![1],
        fate: Fate::Became(vec![name]),
    };
    tensors.chain(projections).map(entry).collect()
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

fn program() -> Program {
    let registers = [
        ("h", HIDDEN),
        ("x", HIDDEN),
        ("q", HIDDEN),
        ("k", KV),
        ("v", KV),
        ("a", HIDDEN),
        ("o", HIDDEN),
    ];
    let registers = registers.map(|(name, width)| RegisterSpec {
        name: name.into(),
        width: width as u64,
    });
    Program {
        vocab: VOCAB as u64,
        context: 64,
        registers: registers.into_iter().chain(dense::registers()).collect(),
        prologue: vec![Op::Embed {
            out: "h".into(),
            weight: "embed".into(),
            scale: real(1.5),
        }],
        layers: (0..LAYERS)
            .map(layer)
            .chain(DENSE_LAYERS.map(|(layer, convolution)| dense::layer(layer, convolution)))
            .collect(),
        epilogue: vec![
            norm("h", "x", "norm"),
            Op::LmHead {
                input: "x".into(),
                weight: "head".into(),
                scale: real(0.75),
            },
        ],
    }
}

pub(crate) fn norm(input: &str, out: &str, weight: &str) -> Op {
    Op::RmsNorm {
        input: input.into(),
        out: out.into(),
        weight: weight.into(),
        eps: real(1e-5),
    }
}

fn layer(layer: usize) -> Vec<Op> {
    let name = |role: &str| format!("layers.{layer}.{role}");
    let first = layer == 0;
    let linear = |input: &str, out: &str, role: &str, bias: Option<&str>| Op::Linear {
        input: input.into(),
        out: out.into(),
        weight: name(role),
        bias: bias.map(name),
    };
    let qk_norm = |register: &str, role: &str, heads: usize| Op::QkNorm {
        register: register.into(),
        weight: name(role),
        eps: real(1e-6),
        heads: heads as u64,
        over: match first {
            true => NormWidth::Full,
            false => NormWidth::Head,
        },
    };
    let rope = |register: &str, heads: usize| Op::Rope {
        register: register.into(),
        heads: heads as u64,
        dims: match first {
            true => HEAD_DIM as u64,
            false => HEAD_DIM as u64 / 2,
        },
        theta: real(10_000.0),
        pairing: match first {
            true => RopePairing::Half,
            false => RopePairing::Adjacent,
        },
        yarn: None,
    };
    let form = match first {
        true => RouterForm {
            scoring: Scoring::Softmax,
            score: ScoreWhen::BeforeTopK,
            top_k: TOP_K as u64,
            renormalise: Renormalise::None,
            scale: Real::ONE,
        },
        false => RouterForm {
            scoring: Scoring::Sigmoid,
            score: ScoreWhen::BeforeTopK,
            top_k: TOP_K as u64,
            renormalise: Renormalise::Sum,
            scale: real(2.5),
        },
    };
    vec![
        norm("h", "x", &name("attn_norm")),
        linear("x", "q", "attn_q", Some("attn_q_bias")),
        linear("x", "k", "attn_k", None),
        linear("x", "v", "attn_v", None),
        qk_norm("q", "attn_q_norm", HEADS),
        qk_norm("k", "attn_k_norm", KV_HEADS),
        rope("q", HEADS),
        rope("k", KV_HEADS),
        Op::Attention {
            q: "q".into(),
            k: "k".into(),
            v: "v".into(),
            out: "a".into(),
            heads: HEADS as u64,
            kv_heads: KV_HEADS as u64,
            scale: real(0.25),
        },
        linear("a", "o", "attn_o", None),
        Op::Add {
            input: "o".into(),
            out: "h".into(),
            scale: real(0.5),
        },
        norm("h", "x", &name("ffn_norm")),
        Op::Router {
            input: "x".into(),
            weight: name("router"),
            selection_bias: (!first).then(|| name("router_bias")),
            form,
        },
        Op::Experts {
            input: "x".into(),
            out: "h".into(),
        },
    ]
}
