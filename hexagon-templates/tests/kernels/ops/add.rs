use estream_hexagon::abi::{Add, Kind, Op};
use estream_hexagon::toolchain::Machine;

use super::desk::Desk;
use super::{Case, Results, cpu, hold};
use crate::random::Random;

#[derive(Debug)]
struct Sum {
    tokens: u32,
    width: usize,
    scale: f32,
}

impl Sum {
    fn operands(&self) -> (Vec<f32>, Vec<f32>) {
        let mut random = Random::new(self.width as u64);
        let count = self.tokens as usize * self.width;
        (random.reals(count), random.reals(count))
    }
}

impl Case for Sum {
    fn run(&self, machine: Machine) -> Results {
        let (x, y) = self.operands();
        let mut desk = Desk::default();
        let op = Add {
            op: Op::of::<Add>(Kind::Add),
            tokens: self.tokens,
            scale: self.scale.to_bits(),
            x: desk.rows(&x, self.width),
            out: desk.changing(&y, self.width),
        };
        let done = desk.run(machine, 65_536, &op).expect("it runs");
        done.rows(&op.out, self.tokens).into()
    }

    fn contract(&self) -> Results {
        let (x, y) = self.operands();
        let sums = y.iter().zip(&x).map(|(y, x)| y + self.scale * x);
        sums.collect::<Vec<_>>().into()
    }

    fn cpu(&self) -> Results {
        let (x, mut y) = self.operands();
        cpu().add_scaled(&x, self.scale, &mut y);
        y.into()
    }
}

#[test]
fn sums_are_the_contract() {
    let sum = |tokens, width, scale| Sum {
        tokens,
        width,
        scale,
    };
    hold(
        "add",
        &[&sum(1, 1, 1.0), &sum(5, 70, 0.22), &sum(3, 128, -1.5)],
        0.0,
    );
}
