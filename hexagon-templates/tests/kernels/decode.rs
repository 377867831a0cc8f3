//! Stored tiles become the operands that docs/hexagon-numerics.md says, in the matrix unit's order.

use std::path::Path;

use estream_hexagon::abi::LayoutCode;
use estream_hexagon::toolchain::{Machine, Program, build};
use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout, NibbleOrder, element_index};
use half::f16;

use crate::contract::operand;
use crate::plan::stride;
use crate::process::{Function, Probe, halves};
use crate::random::Random;
use crate::tools;

const ORDERS: [NibbleOrder; 2] = [NibbleOrder::Direct, NibbleOrder::Pair];

fn tiled() -> Vec<Layout> {
    let nibbles = [DType::Q4_0, DType::Q4_1, DType::IQ4_NL, DType::MXFP4];
    let nibbles = nibbles
        .iter()
        .flat_map(|dtype| ORDERS.map(|order| Layout::new(*dtype, Form::Nibbles(order))));
    let whole = [DType::Q8_0, DType::F16, DType::BF16, DType::F32];
    let whole = whole.map(|dtype| Layout::new(dtype, Form::Tiles));
    nibbles
        .chain(whole)
        .map(|layout| layout.expect("tiles"))
        .collect()
}

fn any_finite(random: &mut Random) -> f16 {
    loop {
        let half = f16::from_bits(random.bits() as u16);
        if half.is_finite() {
            return half;
        }
    }
}

/// A tile with any codes, and any scales that are finite.
fn tile(layout: Layout, random: &mut Random) -> Vec<u8> {
    let bytes = layout.tile_bytes().unwrap() as usize;
    let mut tile = random.bytes(bytes);
    let codes = match (layout.form(), layout.dtype()) {
        (Form::Nibbles(_), _) => 512,
        (_, DType::Q8_0) => 1024,
        _ => 0,
    };
    match layout.dtype() {
        DType::MXFP4 => tile[512..]
            .iter_mut()
            .for_each(|e| *e = random.below(255) as u8),
        DType::BF16 | DType::F32 => {
            let width = bytes / 1024;
            for element in tile.chunks_exact_mut(width) {
                let real = random.real() * 2f32.powi(random.below(44).cast_signed() - 30);
                element.copy_from_slice(&real.to_le_bytes()[4 - width..]);
            }
        }
        _ => {
            for scale in tile[codes..].chunks_exact_mut(2) {
                scale.copy_from_slice(&any_finite(random).to_le_bytes());
            }
        }
    }
    tile
}

/// Whether `probe` decodes some tiles of `layout` as the contract has it.
fn right(probe: &mut Probe, layout: Layout, count: usize, random: &mut Random) -> bool {
    let tiles: Vec<_> = (0..count).map(|_| tile(layout, random)).collect();
    let mut input = Vec::new();
    for tile in &tiles {
        let end = input.len() + stride(layout) as usize;
        input.extend_from_slice(tile);
        input.resize(end, 0xee);
    }
    let code = LayoutCode::of(layout).expect("tiles").code();
    let got = halves(&probe.call(Function::Decode, code, &input, 2048 * count));
    tiles.iter().zip(got.chunks(1024)).all(|(tile, got)| {
        (0..1024).all(|i| {
            let (n, k) = (i / 32, i % 32);
            let expected = operand(layout, tile, n, k);
            expected.is_infinite() || got[element_index(n, k)] == expected.to_bits()
        })
    })
}

#[test]
fn every_layout_becomes_the_operands_of_the_contract() {
    for machine in tools::machines("decoding") {
        let mut probe = Probe::start(machine);
        let count = if machine == Machine::Host { 60 } else { 6 };
        for layout in tiled() {
            assert!(
                right(&mut probe, layout, count, &mut Random::new(30)),
                "{layout} on {machine:?}"
            );
        }
    }
}

/// Copies the C, with one text replaced by another.
fn sources_with(from: &str, to: &str, dir: &Path) {
    for part in ["", "emulated", "host", "device"] {
        std::fs::create_dir_all(dir.join(part)).unwrap();
        for entry in std::fs::read_dir(tools::sources().join(part)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                let text = text.replace(from, to);
                std::fs::write(dir.join(part).join(entry.file_name()), text).unwrap();
            }
        }
    }
}

/// The tables are really looked into: one wrong entry in each is seen, in both orders.
#[test]
fn a_wrong_entry_in_a_table_changes_results() {
    for (dtype, from, to) in [
        (DType::Q4_0, "0xc800, 0xc700", "0xc800, 0xc600"),
        (DType::Q4_1, "0x4b00, 0x4b80", "0x4b00, 0x4b00"),
        (DType::IQ4_NL, "0x5590, 0x5710", "0x5590, 0x5711"),
        (DType::MXFP4, "0x0000, 0xa800", "0x0001, 0xa800"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        sources_with(from, to, dir.path());
        let program = dir.path().join("probe");
        build(dir.path(), Program::Probe, Machine::Host, &program).unwrap();
        for order in ORDERS {
            let layout = Layout::new(dtype, Form::Nibbles(order)).unwrap();
            let mut probe = Probe::at(&program, Machine::Host);
            assert!(
                !right(&mut probe, layout, 4, &mut Random::new(31)),
                "{layout}"
            );
        }
    }
}
