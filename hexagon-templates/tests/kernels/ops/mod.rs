//! Operators that are not experts: what each computes is the contract, bit for bit, and near what
//! the runtime's own kernels compute.

mod add;
mod attention;
mod conv;
mod desk;
mod embed;
mod hostile;
mod linear;
mod mla;
mod norm;
mod reference;
mod rope;
mod router;
mod stored;
mod waits;

use std::fmt::Debug;

use estream_hexagon::toolchain::{CC, Machine};
use estream_runtime::backend::cpu::{Cpu, Simd};

use crate::tools;

/// What an operator leaves behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Results {
    numbers: Vec<f32>,
    /// Whatever must be the same everywhere.
    ids: Vec<u32>,
}

impl From<Vec<f32>> for Results {
    fn from(numbers: Vec<f32>) -> Results {
        let ids = Vec::new();
        Results { numbers, ids }
    }
}

/// One operator with its operands.
trait Case: Debug {
    /// What the kernels make of it.
    fn run(&self, machine: Machine) -> Results;
    /// What docs/hexagon-numerics.md says they make of it.
    fn contract(&self) -> Results;
    /// What the runtime's kernels make of it, in binary32.
    fn cpu(&self) -> Results;
}

fn cpu() -> Cpu {
    Cpu::new(1, Simd::detect()).expect("a thread of its own is none")
}

/// The first number in which two results differ.
fn difference(got: &Results, expected: &Results) -> Option<String> {
    assert_eq!(got.numbers.len(), expected.numbers.len());
    if got.ids != expected.ids {
        return Some(format!("{:?} is not {:?}", got.ids, expected.ids));
    }
    let pairs = got.numbers.iter().zip(&expected.numbers);
    let mut wrong = pairs
        .enumerate()
        .filter(|(_, (a, b))| a.to_bits() != b.to_bits());
    let (i, (a, b)) = wrong.next()?;
    let more = wrong.count();
    Some(format!("number {i} is {a} and not {b}, and {more} more"))
}

/// Largest distance of two results, by the largest number there is.
fn distance(got: &Results, exact: &Results) -> f32 {
    assert_eq!(got.numbers.len(), exact.numbers.len());
    assert_eq!(got.ids, exact.ids);
    let largest = |numbers: &mut dyn Iterator<Item = f32>| numbers.fold(0.0, f32::max);
    let size = largest(&mut exact.numbers.iter().map(|x| x.abs()));
    let pairs = got.numbers.iter().zip(&exact.numbers);
    let apart = largest(&mut pairs.map(|(a, b)| (a - b).abs()));
    if apart == 0.0 { 0.0 } else { apart / size }
}

/// Every case on every machine there is is the contract; and its distance from the runtime's
/// kernels is at most `most`.
fn hold(what: &str, cases: &[&dyn Case], most: f32) {
    let mut machines = tools::machines(what);
    machines.extend(late(0));
    let mut farthest = 0.0f32;
    for case in cases {
        let contract = case.contract();
        for machine in &machines {
            let wrong = difference(&case.run(*machine), &contract);
            assert_eq!(wrong, None, "{machine:?} {case:?}");
        }
        farthest = farthest.max(distance(&contract, &case.cpu()));
    }
    tell(what, farthest);
    assert!(farthest <= most, "{what}: {farthest} from the cpu backend");
}

/// A host that does everything as late as it may, with one wait left out.
fn late(skip_wait: u32) -> Option<Machine> {
    let machine = Machine::Late { skip_wait };
    tools::have(&[CC], "lateness").then_some(machine)
}

#[expect(
    clippy::print_stderr,
    reason = "a figure for who asks with --nocapture"
)]
fn tell(what: &str, farthest: f32) {
    eprintln!("{what}: at most {farthest:.1e} of the largest number away from the cpu backend");
}
