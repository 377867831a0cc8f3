//! Nothing in a message or in shared memory is believed: whatever is wrong is refused, by name, before
//! anything is written; and what is not refused is right.

use estream_hexagon::abi::{Experts, Plan, Ref, Status};
use estream_hexagon::message::{MAX_HANDLES, Map};
use estream_hexagon::toolchain::Machine;
use estream_hexagon::wire::{Described, Wire};

use crate::expert::{route, shape, small};
use crate::parts::{Case, Recipe};
use crate::process::Serve;
use crate::random::Random;
use crate::tools;

fn recipe() -> Recipe {
    Recipe {
        routes: route(9, 3, 2, &mut Random::new(50)),
        bank_count: 2,
        ..small(9, 3)
    }
}

fn status(code: u32) -> Status {
    Status::from_code(code).expect("a status that abi.h has")
}

/// What comes of the case's operator after `change`.
fn after(case: &Case, serve: &mut Serve, change: impl Fn(&mut Experts)) -> Status {
    let mut op = case.op;
    change(&mut op);
    status(serve.run(&Case::message(&op, &serve.buffers())).status)
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_written() {
    for machine in tools::machines("hostile operators") {
        let case = recipe().make();
        let mut serve = case.serve(machine, case.op.plan.vtcm_bytes);
        let before = case.y(&serve);
        let mut refused = |expected: Status, change: &dyn Fn(&mut Experts)| {
            assert_eq!(after(&case, &mut serve, change), expected);
        };
        refused(Status::BadKind, &|op| op.op.kind = 77);
        refused(Status::BadMessage, &|op| op.op.zero = 1);
        refused(Status::BadMessage, &|op| op.op.bytes -= 8);
        refused(Status::BadMessage, &|op| op.op.bytes = 0xfff8);
        refused(Status::BadMessage, &|op| op.op.bytes = 0);
        refused(Status::BadMessage, &|op| op.plan.zero = 1);
        refused(Status::BadLayout, &|op| op.gate.layout = 99);
        refused(Status::BadLayout, &|op| op.down.layout = 13);
        refused(Status::BadShape, &|op| op.tokens = 0);
        refused(Status::BadShape, &|op| op.tokens = u32::MAX);
        refused(Status::BadShape, &|op| op.gate.rows += 32);
        refused(Status::BadShape, &|op| op.down.rows += 32);
        refused(Status::BadShape, &|op| op.up.cols = 0);
        refused(Status::BadShape, &|op| op.y.width -= 1);
        refused(Status::BadShape, &|op| op.experts = 0);
        refused(Status::BadShape, &|op| op.entry_count = u32::MAX);
        refused(Status::BadShape, &|op| op.route_count = u32::MAX);
        refused(Status::BadShape, &|op| op.bank_count = 65);
        refused(Status::BadShape, &|op| op.bank_slots = 0);
        refused(Status::BadShape, &|op| op.x.stride = 0);
        refused(Status::BadAlign, &|op| op.x.stride += 4);
        refused(Status::BadAlign, &|op| op.y.at.offset += 64);
        refused(Status::BadAlign, &|op| op.gate.stride += 64);
        refused(Status::BadAlign, &|op| op.routes.offset += 4);
        refused(Status::BadRange, &|op| op.tokens = 60_000);
        refused(Status::BadRange, &|op| op.x.at = Ref::ABSENT);
        refused(Status::BadRange, &|op| op.entries.buffer = 3);
        refused(Status::BadRange, &|op| op.y.at.offset = 0xffff_ff80);
        refused(Status::BadRange, &|op| op.route_count = 1_000_000);
        refused(Status::BadRange, &|op| op.gate.stride = 0xffff_ff80);
        refused(Status::BadRange, &|op| op.down.stride = 1 << 16);
        refused(Status::BadRoute, &|op| op.experts -= 1);
        refused(Status::BadRoute, &|op| op.tokens -= 1);
        refused(Status::BadRoute, &|op| op.bank_slots = 1);
        refused(Status::BadPlan, &|op| op.plan.rows = 0);
        refused(Status::BadPlan, &|op| op.plan.rows += 1);
        refused(Status::BadPlan, &|op| op.plan.rows = 0x8000_0000);
        refused(Status::BadPlan, &|op| op.plan.gate_up_strips = 0);
        refused(Status::BadPlan, &|op| op.plan.down_strips = u32::MAX);
        refused(Status::BadPlan, &|op| op.plan.vtcm_bytes += 1);
        refused(Status::BadPlan, &|op| op.plan.z = op.plan.h);
        refused(Status::BadPlan, &|op| op.plan.o[3] = op.plan.o[2]);
        refused(Status::BadPlan, &|op| op.plan.h = op.plan.vtcm_bytes);
        refused(Status::BadPlan, &|op| op.plan.c[0] = 0xffff_ff80);
        refused(Status::BadPlan, &|op| op.plan.d[1] += 128);
        let same = |_: &mut Experts| ();
        assert!(case.y(&serve) == before, "refused operators write nothing");
        assert_eq!(after(&case, &mut serve, same), Status::Ok);
        case.compare(&case.y(&serve), "after every refusal");
    }
}

#[test]
fn lists_in_shared_memory_are_checked() {
    for machine in tools::machines("hostile lists") {
        let case = recipe().make();
        let mut serve = case.serve(machine, case.op.plan.vtcm_bytes);
        let before = case.y(&serve);
        let Experts {
            routes,
            entries,
            banks,
            ..
        } = case.op;
        for (list, offset, value, expected) in [
            (routes, 0, 3, Status::BadRoute),
            (routes, 12 * 5, u32::MAX, Status::BadRoute),
            (routes, 12 * 17 + 4, 9, Status::BadRoute),
            (entries, 0, 3, Status::BadRoute),
            // The first expert again, and not as a neighbour.
            (entries, 16, 0, Status::BadRoute),
            (entries, 4, 4, Status::BadRoute),
            (banks, 0, 3, Status::BadRange),
            (banks, 4, 64, Status::BadAlign),
            (banks, 20, 0xffff_0000, Status::BadRange),
        ] {
            let at = list.offset + offset;
            let good = serve.read(0, at, 4);
            serve.write(0, at, &value.to_le_bytes());
            let buffers = serve.buffers();
            let reply = serve.run(&Case::message(&case.op, &buffers));
            assert_eq!(status(reply.status), expected, "{offset} of {list:?}");
            assert_eq!(reply.op, 0);
            serve.write(0, at, &good);
        }
        assert!(case.y(&serve) == before);
    }
}

#[test]
fn messages_that_are_none_end_the_process() {
    for machine in tools::machines("hostile messages") {
        let case = recipe().make();
        let buffers = case.serve(machine, 1 << 16).buffers();
        let good = Case::message(&case.op, &buffers);
        for (word, value) in [(0, 0), (2, 31), (2, 65_544), (2, u32::MAX), (2, 36)] {
            let mut serve = case.serve(machine, 1 << 16);
            let mut bytes = good.clone();
            bytes[4 * word..4 * word + 4].copy_from_slice(&u32::to_le_bytes(value));
            serve.process.send(&bytes);
            assert_eq!(serve.process.finish(), Some(4), "word {word} is {value:#x}");
        }
        for (word, value) in [
            (1, 2),
            (4, 17),
            (4, u32::MAX),
            (5, 257),
            (5, 2),
            (6, 1),
            (7, 1),
        ] {
            let mut serve = case.serve(machine, 1 << 16);
            let mut bytes = good.clone();
            bytes[4 * word..4 * word + 4].copy_from_slice(&u32::to_le_bytes(value));
            // The first of two operators may run, so it must be one that is refused.
            let reply = serve.run(&bytes);
            assert_ne!(
                status(reply.status),
                Status::Ok,
                "word {word} is {value:#x}"
            );
        }
    }
}

#[test]
fn buffers_must_be_mapped_and_as_long_as_said() {
    for machine in tools::machines("hostile buffers") {
        let case = recipe().make();
        let mut serve = case.serve(machine, case.op.plan.vtcm_bytes);
        let buffers = serve.buffers();
        for (handle, more) in [(40, 0), (MAX_HANDLES, 0), (u32::MAX, 0), (0, 1)] {
            let mut wrong = buffers.clone();
            wrong[0].handle = handle;
            wrong[0].bytes += more;
            let reply = serve.run(&Case::message(&case.op, &wrong));
            assert_eq!(status(reply.status), Status::BadBuffer, "{handle} {more}");
        }
        let mut shorter = buffers.clone();
        shorter[1].bytes = 128;
        let reply = serve.run(&Case::message(&case.op, &shorter));
        assert_eq!(status(reply.status), Status::BadRange);

        // Files that are not there, are no whole pages, or have a handle already.
        let odd = tempfile::NamedTempFile::new().unwrap();
        odd.as_file().set_len(65_537).unwrap();
        let odd = odd.path().as_os_str().as_encoded_bytes().to_vec();
        for (handle, path) in [
            (9, &b"/nowhere"[..]),
            (9, &odd),
            (0, &odd),
            (64, &odd),
            (9, b""),
        ] {
            let reply = serve.run(&Map::file(1, handle, path).unwrap());
            assert_eq!(status(reply.status), Status::BadBuffer, "handle {handle}");
        }
        assert_eq!(status(serve.run(&Map::forget(2, 1)).status), Status::Ok);
        assert_eq!(
            status(serve.run(&Map::forget(2, 1)).status),
            Status::BadBuffer
        );
        let reply = serve.run(&Case::message(&case.op, &buffers));
        assert_eq!(status(reply.status), Status::BadBuffer, "forgotten");
    }
}

/// A number that is likely to be wrong in an interesting way.
pub(crate) fn odd_value(old: u32, random: &mut Random) -> u32 {
    match random.below(12) {
        0 => 0,
        1 => u32::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << random.below(32),
        5 => old.wrapping_mul(2),
        6 => old.wrapping_add(128 << random.below(8)),
        7 => old.wrapping_sub(128 << random.below(8)),
        8 => random.bits(),
        9 => random.below(4),
        10 => 128 * random.below(64),
        _ => 32 * random.below(8),
    }
}

/// Operators that are nearly right, on a build that checks every access: whatever is changed in an
/// operator or a list is refused or runs, and never touches what is not its own.
#[test]
fn operators_that_are_nearly_right_touch_nothing_that_is_not_theirs() {
    // Small, since every access is checked.
    let small = Recipe {
        shape: shape(32, 64, ["q4_0.t32.direct", "q4_0.t32.pair", "q8_0.t32"]),
        routes: vec![(0, 0), (1, 1), (1, 0)],
        bank_count: 2,
        ..small(2, 2)
    };
    let case = small.make();
    let mut serve = case.serve(Machine::Sanitized, case.op.plan.vtcm_bytes);
    let buffers = serve.buffers();
    let mut random = Random::new(51);
    let (mut ran, mut refused) = (0, 0);
    let lists = [case.op.routes, case.op.entries, case.op.banks];
    for _ in 0..2000 {
        let mut bytes = case.op.to_bytes();
        let mut changed = Vec::new();
        for _ in 0..1 + random.below(2) {
            if random.below(3) == 0 {
                let list = lists[random.below(3) as usize];
                let at = list.offset + 4 * random.below(4);
                let old = serve.read(0, at, 4);
                let word = u32::from_le_bytes(*old.first_chunk().unwrap());
                serve.write(0, at, &odd_value(word, &mut random).to_le_bytes());
                changed.push((at, old));
            } else {
                let word = 4 * random.below(Experts::BYTES as u32 / 4) as usize;
                let old = u32::from_le_bytes(*bytes[word..].first_chunk().unwrap());
                let new = odd_value(old, &mut random);
                bytes[word..word + 4].copy_from_slice(&new.to_le_bytes());
            }
        }
        let op = Experts::take(&mut bytes.as_slice()).unwrap();
        let reply = serve.run(&Case::message(&op, &buffers));
        match status(reply.status) {
            Status::Ok => ran += 1,
            _ => refused += 1,
        }
        for (at, old) in changed.iter().rev() {
            serve.write(0, *at, old);
        }
    }
    assert!(
        ran > 100 && refused > 100,
        "{ran} ran, {refused} were refused"
    );
}

/// A plan that is not refused does not change a result.
#[test]
fn plans_that_are_accepted_work() {
    let case = recipe().make();
    let expected = case.expected();
    let plan_words = Plan::fields().len() + 5;
    assert_eq!(4 * plan_words, Plan::BYTES, "c, d and o are arrays");
    let mut random = Random::new(52);
    let (mut ran, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut bytes = case.op.plan.to_bytes();
        let word = 4 * random.below(plan_words as u32) as usize;
        let old = u32::from_le_bytes(*bytes[word..].first_chunk().unwrap());
        let new = odd_value(old, &mut random);
        bytes[word..word + 4].copy_from_slice(&new.to_le_bytes());
        let plan = Plan::take(&mut bytes.as_slice()).unwrap();
        let bounded = Plan {
            vtcm_bytes: plan.vtcm_bytes.min(4 * case.op.plan.vtcm_bytes).max(1),
            ..plan
        };
        match case.run(Machine::Late { skip_wait: 0 }, bounded) {
            Ok(y) => {
                assert!(y == expected, "{plan:?}");
                ran += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        ran > 20 && refused > 20,
        "{ran} ran, {refused} were refused"
    );
}
