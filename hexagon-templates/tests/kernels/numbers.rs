//! Single numbers and vectors are what docs/hexagon-numerics.md says, on every machine.

use estream_hexagon::toolchain::Machine;
use half::f16;

use crate::contract;
use crate::process::{Function, Probe, halves, reals};
use crate::random::Random;
use crate::tools;

/// Vectors that `Function::Instructions` writes.
const INSTRUCTION_LINES: usize = 362;

fn finite() -> impl Iterator<Item = u16> {
    (0..=u16::MAX).filter(|bits| f16::from_bits(*bits).is_finite())
}

fn bits(reals: &[f32]) -> Vec<u32> {
    reals.iter().map(|x| x.to_bits()).collect()
}

/// Positive numbers of every exponent, subnormal ones included.
fn positive(count: usize, random: &mut Random) -> Vec<f32> {
    let mut all = Vec::new();
    while all.len() < count {
        let x = f32::from_bits(random.bits() >> 1);
        if x.is_finite() {
            all.push(x);
        }
    }
    all.extend([
        0.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        1.0,
        2.0,
        4.0,
    ]);
    all.resize(all.len().next_multiple_of(32), 1.0);
    all
}

#[test]
fn every_vector_instruction_does_the_same_on_the_host() {
    let machines = tools::machines("vector instructions");
    let mut probes: Vec<_> = machines.into_iter().map(Probe::start).collect();
    let mut random = Random::new(20);
    for case in 0..60 {
        let mut input = random.bytes(256);
        match case {
            0 => input.fill(0),
            1 => input.fill(0xff),
            2 => input.fill(0x80),
            // Small counts and numbers with few bits.
            3..30 => input.iter_mut().for_each(|byte| *byte >>= case % 8),
            _ => {}
        }
        let mut results = probes.iter_mut().map(|probe| {
            let bytes = INSTRUCTION_LINES * 128;
            probe.call(Function::Instructions, 0, &input, bytes)
        });
        let first = results.next().unwrap();
        for other in results {
            let differ = first
                .chunks(128)
                .zip(other.chunks(128))
                .position(|(a, b)| a != b);
            assert_eq!(differ, None, "result of the list in probe.c, case {case}");
        }
    }
}

#[test]
fn every_half_widens_to_the_number_it_is() {
    for machine in tools::machines("FP16 to binary32") {
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let wide = reals(&Probe::start(machine).call(Function::HfToSf, 0, &all, 2 * all.len()));
        for (bits, got) in (0..=u16::MAX).zip(wide) {
            let half = f16::from_bits(bits);
            if half.is_nan() {
                assert!(got.is_nan());
            } else {
                assert_eq!(got.to_bits(), half.to_f32().to_bits(), "{bits:#06x}");
            }
        }
    }
}

/// The hash that `c/probe.c` makes of rounding so many neighbours.
fn hash_of_halves(first: u32, count: u32) -> u64 {
    (first..=first + (count - 1)).fold(0xcbf2_9ce4_8422_2325, |hash: u64, bits| {
        let half = f16::from_f32(f32::from_bits(bits));
        // Payloads are not specified; these kernels keep none.
        let bits = if half.is_nan() {
            half.to_bits() & 0x8000 | 0x7e00
        } else {
            half.to_bits()
        };
        (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn check_rounding(probe: &mut Probe, first: u32, count: u32) {
    let got = probe.call(Function::HfOfSfHash, count, &first.to_le_bytes(), 8);
    let expected = hash_of_halves(first, count).to_le_bytes();
    assert_eq!(got, expected, "{first:#x} and the {count} from there");
}

#[test]
fn numbers_round_to_the_nearest_half_where_it_is_difficult() {
    for machine in tools::machines("binary32 to FP16") {
        let mut probe = Probe::start(machine);
        let exponents = if machine == Machine::Host {
            0..512
        } else {
            100..146
        };
        for exponent in exponents {
            for part in [0, 0x3f_f800, 0x7f_f000] {
                check_rounding(&mut probe, (exponent << 23) + part, 0x1000);
            }
        }
    }
}

#[test]
#[ignore = "takes a minute; scripts/hexagon runs it"]
fn every_number_rounds_to_the_nearest_half() {
    let mut probe = Probe::start(Machine::Host);
    for block in 0..256 {
        check_rounding(&mut probe, block << 24, 1 << 24);
    }
}

/// All finite halves with some others: a vector of 64 and 64 times the other.
fn check_pairs(function: Function, f: impl Fn(f16, f16) -> f16) {
    for machine in tools::machines("arithmetic on FP16") {
        let mut random = Random::new(21);
        let specials = [
            0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0x7bff, 0xfbff,
        ];
        let others = if machine == Machine::Host { 120 } else { 4 };
        let more = (0..others).map(|_| random.bits() as u16);
        let finite: Vec<u16> = finite().collect();
        for b in specials
            .into_iter()
            .chain(more)
            .filter(|b| f16::from_bits(*b).is_finite())
        {
            let mut probe = Probe::start(machine);
            let vectors = finite.chunks_exact(64);
            let input: Vec<u16> = vectors.flat_map(|a| [a, &[b; 64]].concat()).collect();
            let got = probe.halves(function, &input, 2);
            for (a, got) in finite.iter().zip(got) {
                let expected = f(f16::from_bits(*a), f16::from_bits(b));
                assert_eq!(
                    got,
                    expected.to_bits(),
                    "{a:#06x} with {b:#06x} on {machine:?}"
                );
            }
        }
    }
}

#[test]
fn products_of_halves_are_rounded_once() {
    check_pairs(Function::HfMul, |a, b| {
        f16::from_f32(a.to_f32() * b.to_f32())
    });
}

/// The sum in binary32 is rounded too, but 24 bits are enough for that not to matter.
#[test]
fn sums_of_halves_are_rounded_once() {
    check_pairs(Function::HfAdd, |a, b| {
        f16::from_f32(a.to_f32() + b.to_f32())
    });
}

#[test]
fn small_integers_are_exact_halves() {
    for machine in tools::machines("integers to FP16") {
        let integers: Vec<i16> = (-2048..2048).collect();
        let input: Vec<u16> = integers.iter().map(|i| i.cast_unsigned()).collect();
        let got = Probe::start(machine).halves(Function::HfFromInt, &input, 1);
        for (i, got) in integers.into_iter().zip(got) {
            assert_eq!(got, f16::from_f32(f32::from(i)).to_bits(), "{i}");
        }
    }
}

#[test]
fn square_roots_are_rounded_once() {
    for machine in tools::machines("square roots") {
        let count = if machine == Machine::Host {
            400_000
        } else {
            2_000
        };
        let x = positive(count, &mut Random::new(22));
        let got = Probe::start(machine).reals(Function::Sqrt, &x);
        let expected: Vec<f32> = x.iter().map(|x| x.sqrt()).collect();
        assert_eq!(bits(&got), bits(&expected));
    }
}

#[test]
fn exponentials_are_near_and_the_same_bits_everywhere() {
    let mut worst = 0.0f64;
    for machine in tools::machines("exponentials") {
        let count = if machine == Machine::Host {
            1 << 18
        } else {
            1 << 12
        };
        let mut x: Vec<f32> = (0..count)
            .map(|i| i as f32 / count as f32 * 176.0 - 88.0)
            .collect();
        x.extend([0.0, -0.0, -1e30, 1e30, 1e-30, -87.0, 87.0].map(|x: f32| x));
        x.resize(x.len().next_multiple_of(32), 0.5);
        let expected: Vec<f32> = x.iter().map(|x| contract::exp(*x)).collect();
        let mut probe = Probe::start(machine);
        for function in [Function::Exp, Function::VecExp] {
            assert_eq!(
                bits(&probe.reals(function, &x)),
                bits(&expected),
                "{function:?}"
            );
        }
        for (x, got) in x.iter().zip(&expected).filter(|(x, _)| x.abs() <= 87.0) {
            let exact = f64::from(*x).exp();
            worst = worst.max(((f64::from(*got) - exact) / exact).abs());
        }
    }
    assert!(worst < 2.5e-7, "{worst:e}");
}

#[test]
fn reciprocals_and_silu_are_near_and_the_same_bits_everywhere() {
    let (mut reciprocal, mut silu) = (0.0f64, 0.0f64);
    for machine in tools::machines("reciprocals and silu") {
        let count = if machine == Machine::Host {
            1 << 17
        } else {
            1 << 12
        };
        let mut random = Random::new(23);
        let above = |x: &f32| *x >= 1.0 && *x < 2f32.powi(126);
        let mut x: Vec<f32> = positive(count, &mut random)
            .into_iter()
            .filter(above)
            .collect();
        x.truncate(x.len() / 32 * 32);
        let mut probe = Probe::start(machine);
        let got = probe.reals(Function::VecReciprocal, &x);
        let expected: Vec<f32> = x.iter().map(|x| contract::reciprocal(*x)).collect();
        assert_eq!(bits(&got), bits(&expected));
        for (x, got) in x.iter().zip(got) {
            reciprocal = reciprocal.max((f64::from(got) * f64::from(*x) - 1.0).abs());
        }

        let g: Vec<f32> = (0..count).map(|_| 40.0 * random.real()).collect();
        let got = probe.reals(Function::VecSilu, &g);
        let expected: Vec<f32> = g.iter().map(|g| contract::silu(*g)).collect();
        assert_eq!(bits(&got), bits(&expected));
        for (g, got) in g.iter().zip(got) {
            let exact = f64::from(*g) / (1.0 + (-f64::from(*g)).exp());
            silu = silu.max(((f64::from(got) - exact) / exact).abs());
        }
    }
    assert!(reciprocal < 2e-7, "{reciprocal:e}");
    assert!(silu < 5e-7, "{silu:e}");
}

#[test]
fn silu_of_every_half_is_finite() {
    let mut probe = Probe::start(Machine::Host);
    let all: Vec<f32> = finite().map(|bits| f16::from_bits(bits).to_f32()).collect();
    for (g, got) in all.iter().zip(probe.reals(Function::VecSilu, &all)) {
        assert!(
            got.is_finite() && got <= g.max(0.0) + 1e-3 * g.abs() && got > -0.3,
            "{g}: {got}"
        );
    }
}

#[test]
fn pairs_of_rows_become_vectors_and_rows_again() {
    for machine in tools::machines("rows and vectors") {
        let mut probe = Probe::start(machine);
        let numbers = Random::new(24).reals(64 * 20);
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let narrow = probe.call(Function::Narrow, 0, &bytes, bytes.len() / 2);
        for (rows, line) in numbers.chunks(64).zip(halves(&narrow).chunks(64)) {
            for (lane, half) in line.iter().enumerate() {
                let x = rows[lane % 2 * 32 + lane / 2];
                assert_eq!(*half, f16::from_f32(x).to_bits());
            }
        }
        let wide = reals(&probe.call(Function::Widen, 0, &narrow, bytes.len()));
        for (x, wide) in numbers.iter().zip(wide) {
            assert_eq!(wide, f16::from_f32(*x).to_f32());
        }
    }
}

/// Halves of a class that a sum finds difficult.
fn halves_of_class(class: u32, count: usize, random: &mut Random) -> Vec<u16> {
    let mut one = || match class {
        0 => f16::from_f32(random.real()).to_bits(),
        // Subnormal.
        1 => random.bits() as u16 & 0x83ff,
        // Any exponent, none infinite.
        2 => (random.bits() as u16 & 0x83ff) | (random.below(30) as u16) << 10,
        // Sums that cancel.
        3 => f16::from_f32([1.0, -1.0, 1024.0, -1024.0][random.below(4) as usize]).to_bits(),
        // Mostly nothing.
        4 => [0, 0, 0, 0x8000, random.bits() as u16 & 0xbbff][random.below(5) as usize],
        // The greatest there are.
        _ => 0x7bff ^ (random.bits() as u16 & 0x800f),
    };
    (0..count).map(|_| one()).collect()
}

#[test]
fn products_of_tiles_are_the_contract() {
    for machine in tools::machines("products of tiles") {
        let mut probe = Probe::start(machine);
        let mut random = Random::new(25);
        for (case, rows) in [1, 2, 5, 31, 32, 33, 64].into_iter().enumerate() {
            for class in 0..6 {
                let (k_tiles, strips) = (1 + case % 2, 1 + case % 3);
                let row_tiles = (rows as usize).div_ceil(32);
                let other = random.below(6);
                let a = halves_of_class(class, row_tiles * k_tiles * 1024, &mut random);
                let w = halves_of_class(other, strips * k_tiles * 1024, &mut random);
                let input: Vec<u8> = a.iter().chain(&w).flat_map(|x| x.to_le_bytes()).collect();
                let parameter = rows | (k_tiles as u32) << 12 | (strips as u32) << 20;
                let bytes = strips * row_tiles * 2048;
                let got = halves(&probe.call(Function::Multiply, parameter, &input, bytes));

                let width = 32 * k_tiles;
                let weight = |n: usize, k: usize| {
                    let tile = n / 32 * k_tiles + k / 32;
                    f16::from_bits(w[tile * 1024 + (k % 32 / 2) * 64 + 2 * (n % 32) + k % 2])
                };
                let columns: Vec<Vec<f32>> = (0..width)
                    .map(|k| (0..32 * strips).map(|n| weight(n, k).to_f32()).collect())
                    .collect();
                for m in 0..rows as usize {
                    let place = |k: usize| (m % 32 / 2) * 64 + 2 * (k % 32) + m % 2;
                    let at = |k: usize| a[(m / 32 * k_tiles + k / 32) * 1024 + place(k)];
                    let x: Vec<f16> = (0..width).map(|k| f16::from_bits(at(k))).collect();
                    for (n, expected) in contract::products(&x, &columns).iter().enumerate() {
                        let tile = n / 32 * row_tiles + m / 32;
                        let got = got[tile * 1024 + place(n)];
                        assert_eq!(
                            got,
                            expected.to_bits(),
                            "row {m}, column {n}, classes {class} and {other}, {machine:?}"
                        );
                    }
                }
            }
        }
    }
}
