use estream_hexagon::abi::{Kind, Linear, Op, Ref, Status};
use estream_hexagon::room::Needs;
use estream_hexagon::toolchain::Machine;

use super::desk::Desk;
use super::reference::halves;
use super::stored::{LAYOUTS, Matrix};
use super::{Case, Results, cpu, hold};
use crate::contract::products;
use crate::random::Random;

#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) tokens: u32,
    pub(crate) weight: Matrix,
    pub(crate) scale: f32,
    pub(crate) bias: bool,
    pub(crate) vtcm_bytes: u32,
}

impl Product {
    fn operands(&self) -> (Vec<f32>, Option<Vec<f32>>) {
        let mut random = Random::new(u64::from(self.tokens));
        let x = random.reals(self.tokens as usize * self.weight.cols);
        let bias = self.bias.then(|| random.reals(self.weight.rows));
        (x, bias)
    }

    pub(crate) fn lay(&self) -> (Desk, Linear) {
        let (x, bias) = self.operands();
        let mut desk = Desk::default();
        let op = Linear {
            op: Op::of::<Linear>(Kind::Linear),
            tokens: self.tokens,
            scale: self.scale.to_bits(),
            x: desk.rows(&x, self.weight.cols),
            out: desk.results(self.tokens, self.weight.rows),
            weight: desk.weight(&self.weight),
            bias: bias.map_or(Ref::ABSENT, |bias| desk.list(&bias)),
        };
        (desk, op)
    }
}

impl Product {
    fn least_vtcm(&self) -> u32 {
        u32::try_from(self.lay().1.room().vtcm_bytes).unwrap()
    }
}

impl Case for Product {
    fn run(&self, machine: Machine) -> Results {
        let (desk, op) = self.lay();
        let done = desk.run(machine, self.vtcm_bytes, &op).expect("it runs");
        done.rows(&op.out, op.tokens).into()
    }

    fn contract(&self) -> Results {
        let (x, bias) = self.operands();
        let operands = self.weight.operands();
        let bias = bias.unwrap_or_default();
        let mut out = Vec::new();
        for row in x.chunks_exact(self.weight.cols) {
            let products = products(&halves(row), &operands);
            out.extend(products.iter().enumerate().map(|(n, product)| {
                let y = product.to_f32() * self.scale;
                bias.get(n).map_or(y, |bias| y + bias)
            }));
        }
        out.into()
    }

    fn cpu(&self) -> Results {
        let (x, bias) = self.operands();
        let mut out = vec![0.0; self.tokens as usize * self.weight.rows];
        let mut cpu = cpu();
        cpu.linear(&x, &self.weight.matrix(), &mut out);
        cpu.scale(&mut out, self.scale);
        if let Some(bias) = bias {
            cpu.add_bias(&mut out, &bias);
        }
        out.into()
    }
}

#[test]
fn products_with_every_layout_are_the_contract() {
    let mut random = Random::new(5);
    let mut cases = Vec::new();
    for layout in LAYOUTS {
        for tokens in [1, 2 + random.below(40)] {
            let (rows, cols) = match layout {
                "q6_k.rows" => (40, 256),
                _ => (1 + random.below(100) as usize, 32 * (1 + random.below(4))),
            };
            cases.push(Product {
                tokens,
                weight: Matrix::random(layout, rows, cols as usize, &mut random),
                scale: [1.0, 0.125, 3.3][random.below(3) as usize],
                bias: random.below(2) == 1,
                vtcm_bytes: 1 << 20,
            });
        }
    }
    let cases: Vec<_> = cases.iter().map(|case| case as &dyn Case).collect();
    hold("linear", &cases, 2e-3);
}

#[test]
fn rows_are_cut_into_chunks_without_a_trace_and_need_not_be_whole_tiles() {
    let mut random = Random::new(6);
    let mut cases = Vec::new();
    for (layout, tokens, rows, cols) in [
        ("q4_0.t32.direct", 65, 64, 64),
        ("f32.t32", 33, 1, 40),
        ("f32.rows", 70, 33, 31),
        ("bf16.rows", 3, 2, 1),
        ("q8_0.t32", 100, 37, 96),
    ] {
        let weight = Matrix::random(layout, rows, cols, &mut random);
        let mut product = Product {
            tokens,
            weight,
            scale: 1.0,
            bias: tokens % 2 == 1,
            vtcm_bytes: 0,
        };
        product.vtcm_bytes = product.least_vtcm();
        cases.push(product);
    }
    let cases: Vec<_> = cases.iter().map(|case| case as &dyn Case).collect();
    hold("linear in chunks", &cases, 2e-3);
}

#[test]
fn vtcm_of_the_least_size_is_enough_and_less_is_refused() {
    for layout in LAYOUTS {
        let cols = 1024;
        let product = Product {
            tokens: 1,
            weight: Matrix::random(layout, 2, cols, &mut Random::new(1)),
            scale: 1.0,
            bias: false,
            vtcm_bytes: 0,
        };
        let (desk, op) = product.lay();
        let least = product.least_vtcm();
        assert!(desk.run(Machine::Host, least, &op).is_ok(), "{layout}");
        let refused = desk.run(Machine::Host, least - 1, &op).unwrap_err();
        assert_eq!(refused.status, Status::NoMemory.code(), "{layout}");
    }
}
