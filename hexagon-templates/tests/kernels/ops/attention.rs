use estream_hexagon::abi::{Attention, Kind, Op, Status};
use estream_hexagon::room::Needs;
use estream_hexagon::toolchain::Machine;
use estream_runtime::backend::cpu::AttentionForm;

use super::desk::Desk;
use super::reference::{attend, halves, rounded};
use super::{Case, Results, cpu, hold};
use crate::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct Attending {
    pub(crate) form: AttentionForm,
    pub(crate) tokens: usize,
    pub(crate) vtcm_bytes: u32,
    /// Of the numbers in q: large ones make some keys stand out.
    pub(crate) size: f32,
}

struct Operands {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Attending {
    fn operands(&self) -> Operands {
        let form = &self.form;
        let positions = form.position + self.tokens;
        let mut random = Random::new(positions as u64);
        let q = random.reals(self.tokens * form.heads * form.key_dim);
        Operands {
            q: q.iter().map(|q| q * self.size).collect(),
            k: random.reals(positions * form.kv_heads * form.key_dim),
            v: random.reals(positions * form.kv_heads * form.value_dim),
        }
    }

    pub(crate) fn lay(&self) -> (Desk, Attention) {
        let Operands { q, k, v } = self.operands();
        let form = &self.form;
        let mut desk = Desk::default();
        let op = Attention {
            op: Op::of::<Attention>(Kind::Attention),
            tokens: self.tokens as u32,
            position: form.position as u32,
            heads: form.heads as u32,
            kv_heads: form.kv_heads as u32,
            key_dim: form.key_dim as u32,
            value_dim: form.value_dim as u32,
            scale: form.scale.to_bits(),
            zero: 0,
            q: desk.rows(&q, form.heads * form.key_dim),
            k: desk.rows(&k, form.kv_heads * form.key_dim),
            v: desk.rows(&v, form.kv_heads * form.value_dim),
            out: desk.results(self.tokens as u32, form.heads * form.value_dim),
        };
        (desk, op)
    }

    fn least_vtcm(&self) -> u32 {
        u32::try_from(self.lay().1.room().vtcm_bytes).unwrap()
    }
}

impl Case for Attending {
    fn run(&self, machine: Machine) -> Results {
        let (desk, op) = self.lay();
        let done = desk.run(machine, self.vtcm_bytes, &op).expect("it runs");
        done.rows(&op.out, op.tokens).into()
    }

    fn contract(&self) -> Results {
        let Operands { q, k, v } = self.operands();
        let form = &self.form;
        let keys: Vec<_> = k.chunks_exact(form.key_dim).map(halves).collect();
        let values = rounded(&v, form.value_dim);
        let mut out = Vec::new();
        for (i, query) in q.chunks_exact(form.key_dim).enumerate() {
            let (token, head) = (i / form.heads, i % form.heads);
            let kv_head = head / (form.heads / form.kv_heads);
            let of_head = |rows: usize| (0..rows).map(|j| j * form.kv_heads + kv_head);
            let seen = form.position + token + 1;
            let keys: Vec<_> = of_head(seen).map(|row| keys[row].clone()).collect();
            let values: Vec<_> = of_head(seen).map(|row| values[row].clone()).collect();
            out.extend(attend(query, form.scale, &keys, &values));
        }
        out.into()
    }

    fn cpu(&self) -> Results {
        let Operands { q, k, v } = self.operands();
        let mut out = vec![0.0; self.tokens * self.form.heads * self.form.value_dim];
        cpu().attention(&self.form, &q, &k, &v, &mut out);
        out.into()
    }
}

pub(crate) fn attending(
    tokens: usize,
    position: usize,
    (heads, kv_heads): (usize, usize),
    (key_dim, value_dim): (usize, usize),
) -> Attending {
    Attending {
        form: AttentionForm {
            heads,
            kv_heads,
            key_dim,
            value_dim,
            scale: (key_dim as f32).sqrt().recip(),
            position,
        },
        tokens,
        vtcm_bytes: 1 << 20,
        size: 3.0,
    }
}

#[test]
fn attention_is_the_contract_for_every_ratio_of_heads_and_from_any_position() {
    hold(
        "attention",
        &[
            &attending(1, 0, (1, 1), (1, 1)),
            &attending(5, 0, (4, 4), (32, 32)),
            &attending(33, 0, (4, 1), (16, 16)),
            &attending(1, 70, (6, 2), (24, 40)),
            &attending(9, 31, (2, 2), (64, 96)),
            &attending(7, 100, (8, 4), (5, 33)),
        ],
        2e-3,
    );
}

/// A score is rounded to FP16, and a power tells rounding of large scores better than of small ones.
#[test]
fn attention_to_keys_that_stand_out_is_the_contract() {
    let decided = Attending {
        size: 60.0,
        ..attending(20, 0, (2, 1), (32, 32))
    };
    hold("attention, large scores", &[&decided], 1e-2);
}

#[test]
fn attention_in_little_vtcm_is_the_same() {
    let mut cases = Vec::new();
    for more in [0, 3] {
        let mut case = attending(40, 33, (4, 2), (64, 64));
        case.vtcm_bytes = case.least_vtcm() + 2048 * more;
        cases.push(case);
    }
    let cases: Vec<_> = cases.iter().map(|case| case as &dyn Case).collect();
    hold("attention in little VTCM", &cases, 2e-3);
}

#[test]
fn attention_that_does_not_fit_vtcm_is_refused() {
    let case = attending(40, 33, (4, 2), (64, 64));
    let (desk, op) = case.lay();
    let refused = desk.run(Machine::Host, case.least_vtcm() - 1, &op);
    assert_eq!(refused.unwrap_err().status, Status::NoMemory.code());
}

#[test]
fn a_prompt_cut_in_two_attends_as_the_whole() {
    let whole = attending(50, 0, (2, 1), (32, 32));
    let (mut desk, op) = whole.lay();
    let all = desk.run(Machine::Host, 1 << 20, &op).unwrap();
    let cut = 19;
    let rest = Attention {
        tokens: op.tokens - cut,
        position: cut,
        q: past(op.q, cut),
        out: desk.results(op.tokens - cut, op.out.width as usize),
        ..op
    };
    let tail = desk.run(Machine::Host, 1 << 20, &rest).unwrap();
    let all = all.rows(&op.out, op.tokens);
    let tail = tail.rows(&rest.out, rest.tokens);
    assert_eq!(tail, all[cut as usize * op.out.width as usize..]);
}

/// The same rows from a later one on.
fn past(rows: estream_hexagon::abi::Rows, first: u32) -> estream_hexagon::abi::Rows {
    let mut rows = rows;
    rows.at.offset += first * rows.stride;
    rows
}
