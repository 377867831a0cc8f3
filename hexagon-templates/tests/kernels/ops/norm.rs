use estream_hexagon::abi::{Kind, Op, RmsNorm};
use estream_hexagon::toolchain::Machine;

use super::desk::Desk;
use super::reference::sum_in_32;
use super::{Case, Results, cpu, hold};
use crate::random::Random;

#[derive(Debug)]
struct Norm {
    tokens: u32,
    /// Elements of one mean, and how many of those a row has.
    len: usize,
    heads: usize,
    in_place: bool,
    size: f32,
}

const EPS: f32 = 1e-5;

impl Norm {
    fn operands(&self) -> (Vec<f32>, Vec<f32>) {
        let mut random = Random::new(self.len as u64);
        let x = random.reals(self.tokens as usize * self.heads * self.len);
        let x = x.iter().map(|x| x * self.size).collect();
        (x, random.reals(self.len))
    }
}

impl Case for Norm {
    fn run(&self, machine: Machine) -> Results {
        let (x, weight) = self.operands();
        let width = self.heads * self.len;
        let mut desk = Desk::default();
        let (x, out) = if self.in_place {
            let x = desk.changing(&x, width);
            (x, x)
        } else {
            (desk.rows(&x, width), desk.results(self.tokens, width))
        };
        let op = RmsNorm {
            op: Op::of::<RmsNorm>(Kind::RmsNorm),
            tokens: self.tokens,
            eps: EPS.to_bits(),
            x,
            out,
            weight: desk.list(&weight),
            weight_len: self.len as u32,
            zero: 0,
        };
        let done = desk.run(machine, 65_536, &op).expect("it runs");
        done.rows(&op.out, self.tokens).into()
    }

    fn contract(&self) -> Results {
        let (x, weight) = self.operands();
        let mut out = Vec::new();
        for x in x.chunks_exact(self.len) {
            let mean = sum_in_32(x.iter().map(|x| x * x)) / self.len as f32;
            let factor = 1.0 / (mean + EPS).sqrt();
            out.extend(x.iter().zip(&weight).map(|(x, w)| x * factor * w));
        }
        out.into()
    }

    fn cpu(&self) -> Results {
        let (x, weight) = self.operands();
        let mut out = vec![0.0; x.len()];
        cpu().rms_norm(&x, &weight, EPS, &mut out);
        out.into()
    }
}

fn norm(tokens: u32, len: usize, heads: usize, in_place: bool) -> Norm {
    Norm {
        tokens,
        len,
        heads,
        in_place,
        size: 1.0,
    }
}

#[test]
fn norms_of_rows_and_of_heads_are_the_contract() {
    let tiny = Norm {
        size: 1e-20,
        ..norm(2, 64, 1, false)
    };
    hold(
        "rms_norm",
        &[
            &norm(1, 1, 1, false),
            &norm(3, 128, 1, false),
            &norm(2, 70, 1, true),
            // Heads that begin within a vector.
            &norm(2, 16, 4, true),
            &norm(3, 40, 3, false),
            &norm(2, 64, 2, true),
            &tiny,
        ],
        1e-6,
    );
}

#[test]
fn a_row_whose_squares_overflow_is_no_row_of_zeros() {
    let huge = Norm {
        size: 1e30,
        ..norm(1, 64, 1, false)
    };
    for machine in crate::tools::machines("squares that overflow") {
        let got = huge.run(machine).numbers;
        assert!(got.iter().all(|x| x.is_nan()), "{got:?}");
    }
}
