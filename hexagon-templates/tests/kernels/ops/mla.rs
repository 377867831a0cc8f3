use estream_hexagon::abi::{Kind, Mla, Op, Status};
use estream_hexagon::room::Needs;
use estream_hexagon::toolchain::Machine;
use estream_runtime::backend::cpu::AttentionForm;

use super::desk::Desk;
use super::reference::{attend, half, halves};
use super::stored::Matrix;
use super::{Case, Results, cpu, hold};
use crate::contract::products;
use crate::process::SCRATCH_BYTES;
use crate::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct Latent {
    pub(crate) tokens: usize,
    pub(crate) position: usize,
    pub(crate) heads: usize,
    pub(crate) nope: usize,
    pub(crate) rope: usize,
    pub(crate) value_dim: usize,
    pub(crate) rank: usize,
    pub(crate) layout: &'static str,
}

struct Operands {
    q: Vec<f32>,
    latent: Vec<f32>,
    k_pe: Vec<f32>,
    kv_b: Matrix,
}

const SCALE: f32 = 0.3;

impl Latent {
    fn operands(&self) -> Operands {
        let mut random = Random::new(self.rank as u64);
        let positions = self.position + self.tokens;
        let rows = self.heads * (self.nope + self.value_dim);
        Operands {
            q: random.reals(self.tokens * self.heads * (self.nope + self.rope)),
            latent: random.reals(positions * self.rank),
            k_pe: random.reals(positions * self.rope),
            kv_b: Matrix::random(self.layout, rows, self.rank, &mut random),
        }
    }

    pub(crate) fn lay(&self) -> (Desk, Mla) {
        let Operands {
            q,
            latent,
            k_pe,
            kv_b,
        } = self.operands();
        let key_dim = self.nope + self.rope;
        let mut desk = Desk::default();
        let op = Mla {
            op: Op::of::<Mla>(Kind::Mla),
            tokens: self.tokens as u32,
            position: self.position as u32,
            heads: self.heads as u32,
            key_dim: key_dim as u32,
            value_dim: self.value_dim as u32,
            scale: SCALE.to_bits(),
            q: desk.rows(&q, self.heads * key_dim),
            latent: desk.rows(&latent, self.rank),
            k_pe: desk.rows(&k_pe, self.rope),
            out: desk.results(self.tokens as u32, self.heads * self.value_dim),
            kv_b: desk.weight(&kv_b),
        };
        (desk, op)
    }
}

impl Case for Latent {
    fn run(&self, machine: Machine) -> Results {
        let (desk, op) = self.lay();
        let done = desk.run(machine, 1 << 20, &op).expect("it runs");
        done.rows(&op.out, op.tokens).into()
    }

    fn contract(&self) -> Results {
        let Operands {
            q,
            latent,
            k_pe,
            kv_b,
        } = self.operands();
        let operands = kv_b.operands();
        // A row a position: all heads' keys and values.
        let expanded: Vec<_> = latent
            .chunks_exact(self.rank)
            .map(|row| products(&halves(row), &operands))
            .collect();
        let key_dim = self.nope + self.rope;
        let mut out = Vec::new();
        for (i, query) in q.chunks_exact(key_dim).enumerate() {
            let (token, head) = (i / self.heads, i % self.heads);
            let seen = self.position + token + 1;
            let first = head * (self.nope + self.value_dim);
            let key = |j: usize| {
                let rotated = &k_pe[j * self.rope..][..self.rope];
                let mut key = expanded[j][first..first + self.nope].to_vec();
                key.extend(rotated.iter().map(|x| half(*x)));
                key
            };
            let value = |j: usize| {
                let value = &expanded[j][first + self.nope..][..self.value_dim];
                value.iter().map(|x| x.to_f32()).collect()
            };
            let keys: Vec<_> = (0..seen).map(key).collect();
            let values: Vec<_> = (0..seen).map(value).collect();
            out.extend(attend(query, SCALE, &keys, &values));
        }
        out.into()
    }

    fn cpu(&self) -> Results {
        let Operands {
            q,
            latent,
            k_pe,
            kv_b,
        } = self.operands();
        let form = AttentionForm {
            heads: self.heads,
            kv_heads: self.heads,
            key_dim: self.nope + self.rope,
            value_dim: self.value_dim,
            scale: SCALE,
            position: self.position,
        };
        let mut out = vec![0.0; self.tokens * self.heads * self.value_dim];
        cpu().mla(&form, &q, &latent, &k_pe, &kv_b.matrix(), &mut out);
        out.into()
    }
}

pub(crate) fn latent(tokens: usize, position: usize, layout: &'static str) -> Latent {
    Latent {
        tokens,
        position,
        heads: 2,
        nope: 32,
        rope: 16,
        value_dim: 32,
        rank: 64,
        layout,
    }
}

#[test]
fn latent_attention_is_the_contract() {
    // Heads whose rows begin and end within a strip.
    let odd = Latent {
        heads: 3,
        nope: 20,
        rope: 7,
        value_dim: 13,
        rank: 32,
        ..latent(9, 0, "f16.t32")
    };
    let straddling = Latent {
        heads: 4,
        nope: 40,
        value_dim: 50,
        ..odd
    };
    hold(
        "mla",
        &[
            &latent(1, 0, "q4_0.t32.direct"),
            &latent(5, 30, "f32.rows"),
            &latent(35, 0, "q8_0.t32"),
            &odd,
            &straddling,
        ],
        3e-3,
    );
}

#[test]
fn private_memory_of_the_least_size_is_enough_and_less_is_refused() {
    let mut latent = Latent {
        heads: 1,
        rank: 32,
        ..latent(1, 2729, "f16.t32")
    };
    let (desk, op) = latent.lay();
    assert_eq!(op.room().private_bytes, u64::from(SCRATCH_BYTES));
    assert!(desk.run(Machine::Host, 1 << 20, &op).is_ok());
    latent.position += 1;
    let (desk, op) = latent.lay();
    assert!(op.room().private_bytes > u64::from(SCRATCH_BYTES));
    let refused = desk.run(Machine::Host, 1 << 20, &op).unwrap_err();
    assert_eq!(refused.status, Status::NoMemory.code());
}
