use estream_hexagon::abi::{Kind, Op, Rope};
use estream_hexagon::toolchain::Machine;
use estream_runtime::backend::cpu::{RopeForm, RopeTable};
use estream_runtime::math::{exp64, ln64, sin_cos};
use estream_schemas::program::RopePairing;

use super::desk::Desk;
use super::{Case, Results, cpu, hold};
use crate::random::Random;

#[derive(Debug)]
struct Rotation {
    tokens: u32,
    position: usize,
    heads: usize,
    head_dim: usize,
    dims: usize,
    adjacent: bool,
}

const THETA: f32 = 10_000.0;

impl Rotation {
    fn x(&self) -> Vec<f32> {
        let width = self.heads * self.head_dim;
        Random::new(self.dims as u64).reals(self.tokens as usize * width)
    }

    /// A row a token: cosines, then sines.
    fn table(&self) -> Vec<f32> {
        let angle = |t: usize, i: usize| {
            let exponent = (2 * i) as f32 / self.dims as f32;
            let power = exp64(f64::from(exponent) * ln64(f64::from(THETA))) as f32;
            f64::from((self.position + t) as f32 * (1.0 / power))
        };
        let row = |t: usize| {
            let cosine = move |i| sin_cos(angle(t, i)).1 as f32;
            let sine = move |i| sin_cos(angle(t, i)).0 as f32;
            let half = self.dims / 2;
            (0..half).map(cosine).chain((0..half).map(sine))
        };
        (0..self.tokens as usize).flat_map(row).collect()
    }
}

impl Case for Rotation {
    fn run(&self, machine: Machine) -> Results {
        let mut desk = Desk::default();
        let op = Rope {
            op: Op::of::<Rope>(Kind::Rope),
            tokens: self.tokens,
            heads: self.heads as u32,
            dims: self.dims as u32,
            adjacent: u32::from(self.adjacent),
            x: desk.changing(&self.x(), self.heads * self.head_dim),
            table: desk.rows(&self.table(), self.dims),
        };
        let done = desk.run(machine, 65_536, &op).expect("it runs");
        done.rows(&op.x, self.tokens).into()
    }

    fn contract(&self) -> Results {
        let mut x = self.x();
        let table = self.table();
        let half = self.dims / 2;
        for (i, head) in x.chunks_exact_mut(self.head_dim).enumerate() {
            let (cosines, sines) = table[i / self.heads * self.dims..].split_at(half);
            let rotated = &mut head[self.head_dim - self.dims..];
            for j in 0..half {
                let (a, b) = match self.adjacent {
                    true => (2 * j, 2 * j + 1),
                    false => (j, j + half),
                };
                let (x, y) = (rotated[a], rotated[b]);
                rotated[a] = x * cosines[j] - y * sines[j];
                rotated[b] = y * cosines[j] + x * sines[j];
            }
        }
        x.into()
    }

    fn cpu(&self) -> Results {
        let form = RopeForm {
            theta: THETA,
            dims: self.dims,
            yarn: None,
        };
        let table = RopeTable::new(&form, self.position, self.tokens as usize);
        let pairing = match self.adjacent {
            true => RopePairing::Adjacent,
            false => RopePairing::Half,
        };
        let mut x = self.x();
        cpu().rope(&mut x, self.heads, pairing, &table);
        x.into()
    }
}

#[test]
fn rotations_are_the_contract() {
    let mut cases = Vec::new();
    for adjacent in [false, true] {
        for (tokens, position, heads, head_dim, dims) in [
            (1, 0, 1, 2, 2),
            (5, 0, 4, 16, 16),
            (3, 900, 2, 128, 128),
            // Part of a head alone.
            (4, 17, 3, 24, 10),
            (2, 3, 2, 96, 64),
        ] {
            cases.push(Rotation {
                tokens,
                position,
                heads,
                head_dim,
                dims,
                adjacent,
            });
        }
    }
    let cases: Vec<_> = cases.iter().map(|case| case as &dyn Case).collect();
    hold("rope", &cases, 0.0);
}
