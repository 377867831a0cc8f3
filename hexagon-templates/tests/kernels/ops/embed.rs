use estream_hexagon::abi::{Embed, Kind, Op, Status};
use estream_hexagon::toolchain::Machine;

use super::desk::Desk;
use super::stored::{LAYOUTS, Matrix};
use super::{Case, Results, cpu, hold};
use crate::random::Random;

#[derive(Debug)]
struct LookUp {
    table: Matrix,
    ids: Vec<u32>,
    scale: f32,
}

impl LookUp {
    fn lay(&self) -> (Desk, Embed) {
        let mut desk = Desk::default();
        let tokens = self.ids.len() as u32;
        let op = Embed {
            op: Op::of::<Embed>(Kind::Embed),
            tokens,
            scale: self.scale.to_bits(),
            ids: desk.words(&self.ids),
            out: desk.results(tokens, self.table.cols),
            table: desk.weight(&self.table),
        };
        (desk, op)
    }
}

impl Case for LookUp {
    fn run(&self, machine: Machine) -> Results {
        let (desk, op) = self.lay();
        let done = desk.run(machine, 65_536, &op).expect("it runs");
        done.rows(&op.out, op.tokens).into()
    }

    fn contract(&self) -> Results {
        let rows = self.ids.iter().map(|id| self.table.row(*id as usize));
        let numbers = rows.flatten().map(|x| x * self.scale);
        numbers.collect::<Vec<_>>().into()
    }

    fn cpu(&self) -> Results {
        let mut out = vec![0.0; self.ids.len() * self.table.cols];
        cpu().embed(&self.table.matrix(), &self.ids, self.scale, &mut out);
        out.into()
    }
}

#[test]
fn rows_of_every_layout_are_the_numbers_they_stand_for() {
    let mut random = Random::new(11);
    let mut cases = Vec::new();
    for layout in LAYOUTS {
        for (rows, cols) in [(70, 64), (33, 96), (1, 40)] {
            let cols = if layout == "q6_k.rows" { 512 } else { cols };
            let ids = (0..1 + random.below(6)).map(|_| random.below(rows));
            cases.push(LookUp {
                ids: ids.collect(),
                table: Matrix::random(layout, rows as usize, cols, &mut random),
                scale: [1.0, 12.0, 0.3][random.below(3) as usize],
            });
        }
    }
    let cases: Vec<_> = cases.iter().map(|case| case as &dyn Case).collect();
    hold("embed", &cases, 0.0);
}

#[test]
fn an_id_that_is_no_row_is_named_and_nothing_is_written() {
    let table = Matrix::random("f16.t32", 40, 32, &mut Random::new(1));
    let mut look_up = LookUp {
        table,
        ids: vec![39, 0, 40, 41],
        scale: 1.0,
    };
    for (third, result) in [(39, None), (40, Some(2)), (u32::MAX, Some(2))] {
        look_up.ids[2] = third;
        look_up.ids[3] = 3;
        let (desk, op) = look_up.lay();
        let refused = desk.run(Machine::Host, 65_536, &op).err();
        assert_eq!(refused.map(|reply| reply.detail), result);
        assert!(refused.is_none_or(|reply| reply.status == Status::BadRange.code()));
    }
}
