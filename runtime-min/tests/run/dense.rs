//! Layers of the small model without routed experts, which have the other operators.

use estream_schemas::program::{MlaWeights, Op, RegisterSpec, RopePairing, Yarn};

use crate::toy::{FF, HIDDEN, norm, real};

const HEADS: usize = 2;
const NOPE: usize = 24;
const ROPE: usize = 8;
const VALUE: usize = 16;
const RANK: usize = 32;
const TAPS: usize = 3;

/// The registers that only these layers use.
pub(crate) fn registers() -> impl Iterator<Item = RegisterSpec> {
    let registers = [
        ("mla_q", HEADS * (NOPE + ROPE)),
        ("latent", RANK),
        ("k_pe", ROPE),
        ("mla_a", HEADS * VALUE),
        ("bcx", 3 * HIDDEN),
        ("c", HIDDEN),
    ];
    registers.into_iter().map(|(name, width)| RegisterSpec {
        name: name.into(),
        width: width as u64,
    })
}

/// Role, rows, columns and size of the weights of layers with a convolution, or without.
pub(crate) fn tensors(convolution: bool) -> Vec<(&'static str, usize, usize, f32)> {
    let mut tensors = vec![
        ("attn_norm", 1, HIDDEN, 1.0),
        ("attn_q", HEADS * (NOPE + ROPE), HIDDEN, 0.3),
        ("attn_kv_a", RANK, HIDDEN, 0.3),
        ("attn_k_pe", ROPE, HIDDEN, 0.3),
        ("attn_kv_a_norm", 1, RANK, 1.0),
        ("attn_o", HIDDEN, HEADS * VALUE, 0.3),
        ("ffn_norm", 1, HIDDEN, 1.0),
        ("dense_gate", FF, HIDDEN, 0.4),
        ("dense_up", FF, HIDDEN, 0.4),
        ("dense_down", HIDDEN, FF, 0.4),
    ];
    tensors.extend(match convolution {
        true => vec![
            ("attn_k_b", HEADS * RANK, NOPE, 0.5),
            ("attn_v_b", HEADS * VALUE, RANK, 0.5),
            ("conv_in", 3 * HIDDEN, HIDDEN, 0.3),
            ("conv", HIDDEN, TAPS, 1.0),
            ("conv_out", HIDDEN, HIDDEN, 0.3),
            ("router_shared", 1, HIDDEN, 0.5),
        ],
        false => vec![("attn_kv_b", HEADS * (NOPE + VALUE), RANK, 0.5)],
    });
    tensors
}

/// The operators of layer `layer`.
pub(crate) fn layer(layer: usize, convolution: bool) -> Vec<Op> {
    let name = |role: &str| format!("layers.{layer}.{role}");
    let linear = |input: &str, out: &str, role: &str| Op::Linear {
        input: input.into(),
        out: out.into(),
        weight: name(role),
        bias: None,
    };
    let rope = |register: &str, heads: usize| Op::Rope {
        register: register.into(),
        heads: heads as u64,
        dims: ROPE as u64,
        theta: real(10_000.0),
        pairing: RopePairing::Adjacent,
        yarn: Some(Yarn {
            factor: real(4.0),
            original_context: 16,
            beta_fast: real(2.0),
            beta_slow: real(0.25),
            magnitude: real(1.25),
        }),
    };
    let add = |input: &str| Op::Add {
        input: input.into(),
        out: "h".into(),
        scale: real(0.5),
    };
    let mut ops = Vec::new();
    if convolution {
        ops.extend([
            norm("h", "x", &name("attn_norm")),
            linear("x", "bcx", "conv_in"),
            Op::ShortConv {
                input: "bcx".into(),
                out: "c".into(),
                weight: name("conv"),
            },
            linear("c", "o", "conv_out"),
            add("o"),
        ]);
    }
    ops.extend([
        norm("h", "x", &name("attn_norm")),
        linear("x", "mla_q", "attn_q"),
        linear("x", "latent", "attn_kv_a"),
        linear("x", "k_pe", "attn_k_pe"),
        norm("latent", "latent", &name("attn_kv_a_norm")),
        rope("mla_q", HEADS),
        rope("k_pe", 1),
        Op::Mla {
            q: "mla_q".into(),
            latent: "latent".into(),
            k_pe: "k_pe".into(),
            out: "mla_a".into(),
            heads: HEADS as u64,
            weights: match convolution {
                true => MlaWeights::Split {
                    k: name("attn_k_b"),
                    v: name("attn_v_b"),
                },
                false => MlaWeights::Joined(name("attn_kv_b")),
            },
            scale: real(0.3),
        },
        linear("mla_a", "o", "attn_o"),
        add("o"),
        norm("h", "x", &name("ffn_norm")),
        Op::Mlp {
            input: "x".into(),
            out: "h".into(),
            gate: name("dense_gate"),
            up: name("dense_up"),
            down: name("dense_down"),
            token_gate: convolution.then(|| name("router_shared")),
        },
    ]);
    ops
}
