//! Descriptors that lie: each is refused for what is wrong with it before anything is written, and
//! what is not refused stays within its buffer.

use std::fmt::Debug;

use estream_hexagon::abi::{
    Add, Attention, Embed, Kind, Linear, Mla, Op, Ref, RmsNorm, Rope, Router, Rows, ShortConv,
    Status, Weight,
};
use estream_hexagon::message::MAP_ALIGN;
use estream_hexagon::toolchain::Machine;
use estream_hexagon::wire::Described;

use super::desk::{Desk, message, status};
use super::stored::Matrix;
use crate::hostile::odd_value;
use crate::process::Serve;
use crate::random::Random;
use crate::tools;

const TOKENS: u32 = 3;
const VTCM_BYTES: u32 = 1 << 17;

/// One of each operator, all on the same small operands.
struct Operators {
    desk: Desk,
    embed: Embed,
    linear: Linear,
    rms_norm: RmsNorm,
    rope: Rope,
    attention: Attention,
    mla: Mla,
    short_conv: ShortConv,
    router: Router,
    add: Add,
}

fn operators() -> Operators {
    let mut random = Random::new(3);
    let mut desk = Desk::default();
    let mut rows = |desk: &mut Desk, tokens: usize, width: usize| {
        desk.rows(&random.reals(tokens * width), width)
    };
    let tokens = TOKENS as usize;
    let x = rows(&mut desk, tokens, 48);
    let latent = rows(&mut desk, tokens + 2, 32);
    let k_pe = rows(&mut desk, tokens + 2, 8);
    let keys = rows(&mut desk, tokens + 2, 16);
    let table = rows(&mut desk, tokens, 8);
    let conv = rows(&mut desk, tokens, 3 * 48);
    let state = desk.changing(&[0.5; 2 * 48], 48);
    let list = desk.list(&[0.25; 4 * 48]);
    let words = desk.words(&[0, 5, 39]);
    let out = desk.changing(&[0.0; 3 * 48], 48);
    let logits = desk.changing(&[0.0; 3 * 6], 6);
    let routes = desk.result_bytes(3 * 2 * 12);
    let mut weight = |layout, rows, cols| {
        let matrix = Matrix::random(layout, rows, cols, &mut random);
        desk.weight(&matrix)
    };
    let narrow = |rows: Rows, width| Rows { width, ..rows };
    Operators {
        embed: Embed {
            op: Op::of::<Embed>(Kind::Embed),
            tokens: TOKENS,
            scale: 1f32.to_bits(),
            ids: words,
            out,
            table: weight("q4_0.t32.direct", 40, 48),
        },
        linear: Linear {
            op: Op::of::<Linear>(Kind::Linear),
            tokens: TOKENS,
            scale: 1f32.to_bits(),
            x,
            out,
            weight: weight("q8_0.t32", 48, 48),
            bias: list,
        },
        rms_norm: RmsNorm {
            op: Op::of::<RmsNorm>(Kind::RmsNorm),
            tokens: TOKENS,
            eps: 1e-5f32.to_bits(),
            x,
            out,
            weight: list,
            weight_len: 24,
            zero: 0,
        },
        rope: Rope {
            op: Op::of::<Rope>(Kind::Rope),
            tokens: TOKENS,
            heads: 4,
            dims: 8,
            adjacent: 0,
            x: out,
            table,
        },
        attention: Attention {
            op: Op::of::<Attention>(Kind::Attention),
            tokens: TOKENS,
            position: 2,
            heads: 6,
            kv_heads: 2,
            key_dim: 8,
            value_dim: 8,
            scale: 0.3f32.to_bits(),
            zero: 0,
            q: x,
            k: keys,
            v: keys,
            out,
        },
        mla: Mla {
            op: Op::of::<Mla>(Kind::Mla),
            tokens: TOKENS,
            position: 2,
            heads: 2,
            key_dim: 24,
            value_dim: 24,
            scale: 0.3f32.to_bits(),
            q: x,
            latent,
            k_pe,
            out,
            kv_b: weight("f16.rows", 2 * (16 + 24), 32),
        },
        short_conv: ShortConv {
            op: Op::of::<ShortConv>(Kind::ShortConv),
            tokens: TOKENS,
            taps: 3,
            x: conv,
            out,
            state,
            weight: list,
        },
        router: Router {
            op: Op::of::<Router>(Kind::Router),
            tokens: TOKENS,
            top_k: 2,
            sigmoid: 0,
            after_top_k: 1,
            renormalise: 1,
            epsilon: 0f32.to_bits(),
            scale: 1f32.to_bits(),
            zero: 0,
            x: narrow(x, 40),
            weight: weight("f32.t32", 6, 40),
            selection_bias: list,
            routes,
            logits,
        },
        add: Add {
            op: Op::of::<Add>(Kind::Add),
            tokens: TOKENS,
            scale: 1f32.to_bits(),
            x,
            out,
        },
        desk,
    }
}

/// A process that is sent one operator after another.
struct Tried {
    serve: Serve,
    before: Vec<u8>,
}

impl Tried {
    fn on(machine: Machine, desk: &Desk) -> Tried {
        Tried {
            serve: desk.serve(machine, VTCM_BYTES),
            before: desk.memory(),
        }
    }

    fn send<T: Described>(&mut self, op: &T) -> Status {
        let message = message(&self.serve, op);
        status(&self.serve.run(&message))
    }

    /// `op`, as it is after `change`, is refused so, and has written nothing.
    fn refused<T: Described + Copy + Debug>(
        &mut self,
        op: &T,
        expected: Status,
        change: impl Fn(&mut T),
    ) {
        let mut wrong = *op;
        change(&mut wrong);
        assert_eq!(self.send(&wrong), expected, "{wrong:?}");
        let after = self.serve.read(0, 0, self.before.len());
        assert!(after == self.before, "{wrong:?} wrote something");
    }

    /// What can be wrong with any rows of an operator.
    fn rows<T: Described + Copy + Debug>(
        &mut self,
        op: &T,
        rows: impl Fn(&mut T) -> &mut Rows + Copy,
    ) {
        let mut refused = |expected, change: &dyn Fn(&mut Rows)| {
            self.refused(op, expected, |op| change(rows(op)));
        };
        refused(Status::BadShape, &|rows| rows.width = 0);
        refused(Status::BadShape, &|rows| rows.width += 1);
        refused(Status::BadShape, &|rows| rows.width = u32::MAX);
        refused(Status::BadShape, &|rows| rows.stride = 0);
        refused(Status::BadAlign, &|rows| rows.stride += 4);
        refused(Status::BadAlign, &|rows| rows.at.offset += 64);
        refused(Status::BadRange, &|rows| rows.at = Ref::ABSENT);
        refused(Status::BadRange, &|rows| rows.at.buffer = 1);
        refused(Status::BadRange, &|rows| rows.at.offset = 0xffff_ff80);
        refused(Status::BadRange, &|rows| rows.stride = 0x4000_0000);
    }

    fn weight<T: Described + Copy + Debug>(
        &mut self,
        op: &T,
        weight: impl Fn(&mut T) -> &mut Weight,
    ) {
        let mut refused = |expected, change: &dyn Fn(&mut Weight)| {
            self.refused(op, expected, |op| change(weight(op)));
        };
        refused(Status::BadLayout, &|weight| weight.layout = 0);
        refused(Status::BadLayout, &|weight| weight.layout = 17);
        // Its rows have blocks of 256 elements.
        refused(Status::BadShape, &|weight| weight.layout = 16);
        refused(Status::BadShape, &|weight| weight.rows = 0);
        refused(Status::BadShape, &|weight| weight.cols = 0);
        refused(Status::BadShape, &|weight| weight.cols = 1 << 21);
        refused(Status::BadMessage, &|weight| weight.zero = 1);
        refused(Status::BadAlign, &|weight| weight.at.offset += 64);
        refused(Status::BadRange, &|weight| weight.at.offset = 0xffff_ff80);
        refused(Status::BadRange, &|weight| weight.at.buffer = 7);
    }

    /// A list that must be there.
    fn list<T: Described + Copy + Debug>(&mut self, op: &T, list: impl Fn(&mut T) -> &mut Ref) {
        let end = self.before.len() as u32 - MAP_ALIGN as u32;
        let mut refused = |expected, change: &dyn Fn(&mut Ref)| {
            self.refused(op, expected, |op| change(list(op)));
        };
        refused(Status::BadAlign, &|list| list.offset += 4);
        refused(Status::BadRange, &|list| list.offset = end);
        refused(Status::BadRange, &|list| list.buffer = 1);
    }
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_written() {
    for machine in tools::machines("hostile operators of other kinds") {
        let all = operators();
        let mut tried = Tried::on(machine, &all.desk);

        let op = all.embed;
        tried.rows(&op, |op| &mut op.out);
        tried.weight(&op, |op| &mut op.table);
        tried.list(&op, |op| &mut op.ids);
        tried.refused(&op, Status::BadRange, |op| op.ids = Ref::ABSENT);
        tried.refused(&op, Status::BadShape, |op| op.tokens = u32::MAX);
        tried.refused(&op, Status::BadMessage, |op| op.op.bytes -= 8);

        let op = all.linear;
        tried.rows(&op, |op| &mut op.x);
        tried.rows(&op, |op| &mut op.out);
        tried.weight(&op, |op| &mut op.weight);
        tried.list(&op, |op| &mut op.bias);
        tried.refused(&op, Status::BadShape, |op| op.tokens = 0);
        tried.refused(&op, Status::BadRange, |op| op.tokens = 60_000);
        tried.refused(&op, Status::BadShape, |op| op.weight.rows -= 1);

        let op = all.rms_norm;
        tried.rows(&op, |op| &mut op.x);
        tried.rows(&op, |op| &mut op.out);
        tried.list(&op, |op| &mut op.weight);
        tried.refused(&op, Status::BadRange, |op| op.weight = Ref::ABSENT);
        tried.refused(&op, Status::BadShape, |op| op.weight_len = 0);
        tried.refused(&op, Status::BadShape, |op| op.weight_len = 32);
        tried.refused(&op, Status::BadMessage, |op| op.zero = 1);

        let op = all.rope;
        tried.rows(&op, |op| &mut op.x);
        tried.rows(&op, |op| &mut op.table);
        tried.refused(&op, Status::BadShape, |op| op.heads = 0);
        tried.refused(&op, Status::BadShape, |op| op.heads = 5);
        tried.refused(&op, Status::BadShape, |op| op.heads = 8);
        tried.refused(&op, Status::BadShape, |op| {
            (op.dims, op.table.width) = (0, 1);
        });
        tried.refused(&op, Status::BadShape, |op| {
            (op.dims, op.table.width) = (7, 7);
        });
        tried.refused(&op, Status::BadMessage, |op| op.adjacent = 2);

        let op = all.attention;
        tried.rows(&op, |op| &mut op.q);
        tried.rows(&op, |op| &mut op.k);
        tried.rows(&op, |op| &mut op.v);
        tried.rows(&op, |op| &mut op.out);
        tried.refused(&op, Status::BadShape, |op| op.heads = 0);
        tried.refused(&op, Status::BadShape, |op| op.kv_heads = 0);
        tried.refused(&op, Status::BadShape, |op| op.key_dim = 0);
        tried.refused(&op, Status::BadShape, |op| op.key_dim = 0x8000_0008);
        tried.refused(&op, Status::BadShape, |op| op.value_dim = 4);
        // Twelve heads of four would be as wide, and four do not share six's keys.
        tried.refused(&op, Status::BadShape, |op| {
            (op.kv_heads, op.k.width, op.v.width) = (4, 32, 32);
        });
        tried.refused(&op, Status::BadShape, |op| op.position = u32::MAX);
        tried.refused(&op, Status::BadShape, |op| op.position = 65_534);
        tried.refused(&op, Status::BadRange, |op| op.position = 60_000);
        tried.refused(&op, Status::BadMessage, |op| op.zero = 1);

        let op = all.mla;
        tried.rows(&op, |op| &mut op.q);
        tried.rows(&op, |op| &mut op.latent);
        tried.rows(&op, |op| &mut op.k_pe);
        tried.rows(&op, |op| &mut op.out);
        tried.weight(&op, |op| &mut op.kv_b);
        tried.refused(&op, Status::BadShape, |op| op.heads = 0);
        tried.refused(&op, Status::BadShape, |op| op.key_dim = 7);
        tried.refused(&op, Status::BadShape, |op| op.value_dim = 0);
        tried.refused(&op, Status::BadShape, |op| op.kv_b.rows -= 1);
        tried.refused(&op, Status::BadShape, |op| op.position = u32::MAX);

        let op = all.short_conv;
        tried.rows(&op, |op| &mut op.x);
        tried.rows(&op, |op| &mut op.out);
        tried.rows(&op, |op| &mut op.state);
        tried.list(&op, |op| &mut op.weight);
        tried.refused(&op, Status::BadShape, |op| op.taps = 0);
        tried.refused(&op, Status::BadShape, |op| op.taps = 65);
        tried.refused(&op, Status::BadRange, |op| op.weight = Ref::ABSENT);

        let op = all.router;
        tried.rows(&op, |op| &mut op.x);
        tried.rows(&op, |op| &mut op.logits);
        tried.weight(&op, |op| &mut op.weight);
        tried.list(&op, |op| &mut op.selection_bias);
        tried.list(&op, |op| &mut op.routes);
        tried.refused(&op, Status::BadRange, |op| op.routes = Ref::ABSENT);
        tried.refused(&op, Status::BadShape, |op| op.top_k = 0);
        tried.refused(&op, Status::BadShape, |op| op.top_k = 7);
        tried.refused(&op, Status::BadShape, |op| op.tokens = u32::MAX);
        tried.refused(&op, Status::BadMessage, |op| op.sigmoid = 2);
        tried.refused(&op, Status::BadMessage, |op| op.after_top_k = 2);
        tried.refused(&op, Status::BadMessage, |op| op.renormalise = 2);
        tried.refused(&op, Status::BadMessage, |op| op.zero = 1);

        let op = all.add;
        tried.rows(&op, |op| &mut op.x);
        tried.rows(&op, |op| &mut op.out);
        tried.refused(&op, Status::BadShape, |op| op.tokens = 65_537);

        // As they were made, all of them run.
        assert_eq!(tried.send(&all.embed), Status::Ok);
        assert_eq!(tried.send(&all.linear), Status::Ok);
        assert_eq!(tried.send(&all.rms_norm), Status::Ok);
        assert_eq!(tried.send(&all.rope), Status::Ok);
        assert_eq!(tried.send(&all.attention), Status::Ok);
        assert_eq!(tried.send(&all.mla), Status::Ok);
        assert_eq!(tried.send(&all.short_conv), Status::Ok);
        assert_eq!(tried.send(&all.router), Status::Ok);
        assert_eq!(tried.send(&all.add), Status::Ok);
    }
}

/// Many operators that are nearly `op`, on a build that checks every access. Those that run write
/// within the buffer, those that are refused nowhere.
fn nearly<T: Described>(op: &T, tried: &mut Tried, random: &mut Random) {
    let (mut ran, mut refused) = (0, 0);
    let end = tried.before.len() - MAP_ALIGN as usize;
    for _ in 0..400 {
        let mut bytes = op.to_bytes();
        for _ in 0..1 + random.below(3) {
            // The head says what it is.
            let word = 8 + 4 * random.below((T::BYTES as u32 - 8) / 4) as usize;
            let old = u32::from_le_bytes(*bytes[word..].first_chunk().unwrap());
            let new = odd_value(old, random);
            bytes[word..word + 4].copy_from_slice(&new.to_le_bytes());
        }
        let wrong = T::take(&mut bytes.as_slice()).expect("as many bytes as before");
        let status = tried.send(&wrong);
        let after = tried.serve.read(0, 0, tried.before.len());
        assert!(after[end..] == tried.before[end..], "{bytes:?}");
        match status {
            Status::Ok | Status::NotFinite => {
                ran += 1;
                tried.serve.write(0, 0, &tried.before);
            }
            _ => {
                refused += 1;
                assert!(after == tried.before, "{bytes:?}");
            }
        }
    }
    let name = T::C_NAME;
    assert!(ran > 20 && refused > 20, "{name}: {ran} ran, {refused} not");
}

#[test]
fn operators_that_are_nearly_right_touch_nothing_that_is_not_theirs() {
    let all = operators();
    let mut tried = Tried::on(Machine::Sanitized, &all.desk);
    let mut random = Random::new(60);
    nearly(&all.embed, &mut tried, &mut random);
    nearly(&all.linear, &mut tried, &mut random);
    nearly(&all.rms_norm, &mut tried, &mut random);
    nearly(&all.rope, &mut tried, &mut random);
    nearly(&all.attention, &mut tried, &mut random);
    nearly(&all.mla, &mut tried, &mut random);
    nearly(&all.short_conv, &mut tried, &mut random);
    nearly(&all.router, &mut tried, &mut random);
    nearly(&all.add, &mut tried, &mut random);
}
