use estream_hexagon::abi::{Kind, Op, Ref, Rows, ShortConv};
use estream_hexagon::toolchain::Machine;

use super::desk::Desk;
use super::{Case, Results, cpu, hold};
use crate::random::Random;

#[derive(Debug)]
struct Convolution {
    tokens: u32,
    width: usize,
    taps: usize,
}

struct Operands {
    x: Vec<f32>,
    weight: Vec<f32>,
    state: Vec<f32>,
}

impl Convolution {
    fn operands(&self) -> Operands {
        let mut random = Random::new(self.taps as u64);
        Operands {
            x: random.reals(self.tokens as usize * 3 * self.width),
            weight: random.reals(self.width * self.taps),
            state: random.reals(self.width * (self.taps - 1)),
        }
    }
}

impl Case for Convolution {
    fn run(&self, machine: Machine) -> Results {
        let Operands { x, weight, state } = self.operands();
        let mut desk = Desk::default();
        let none = Rows {
            at: Ref::ABSENT,
            ..Rows::default()
        };
        let op = ShortConv {
            op: Op::of::<ShortConv>(Kind::ShortConv),
            tokens: self.tokens,
            taps: self.taps as u32,
            x: desk.rows(&x, 3 * self.width),
            out: desk.results(self.tokens, self.width),
            state: match self.taps {
                1 => none,
                _ => desk.changing(&state, self.width),
            },
            weight: desk.list(&weight),
        };
        let done = desk.run(machine, 65_536, &op).expect("it runs");
        let mut numbers = done.rows(&op.out, self.tokens);
        if self.taps > 1 {
            numbers.extend(done.rows(&op.state, op.taps - 1));
        }
        numbers.into()
    }

    fn contract(&self) -> Results {
        let Operands { x, weight, state } = self.operands();
        let (width, taps) = (self.width, self.taps);
        // B ⊙ X of all rows, those before the first included.
        let mut gated = state;
        for row in x.chunks_exact(3 * width) {
            gated.extend((0..width).map(|c| row[c] * row[2 * width + c]));
        }
        let mut out = Vec::new();
        for (t, row) in x.chunks_exact(3 * width).enumerate() {
            out.extend((0..width).map(|c| {
                let terms = (0..taps).map(|k| weight[c * taps + k] * gated[(t + k) * width + c]);
                terms.fold(0.0, |sum, term| sum + term) * row[width + c]
            }));
        }
        out.extend(&gated[self.tokens as usize * width..]);
        out.into()
    }

    fn cpu(&self) -> Results {
        let Operands {
            x,
            weight,
            mut state,
        } = self.operands();
        let mut out = vec![0.0; self.tokens as usize * self.width];
        cpu().short_conv(&x, &weight, &mut state, &mut out);
        out.extend(state);
        out.into()
    }
}

#[test]
fn convolutions_are_the_contract_and_keep_the_rows_before_the_next() {
    let convolution = |tokens, width, taps| Convolution {
        tokens,
        width,
        taps,
    };
    hold(
        "short_conv",
        &[
            &convolution(1, 32, 3),
            &convolution(2, 40, 4),
            &convolution(9, 96, 3),
            &convolution(3, 5, 1),
            // Fewer rows than the state has: some of it moves up.
            &convolution(2, 33, 6),
        ],
        0.0,
    );
}
