//! One experts operator with everything it works on: made up, run, and computed by the contract.

use estream_hexagon::abi::{
    Bank, Buffer, Entry, Experts, Kind, LayoutCode, Op, Plan, Projection, Ref, Reply, Route, Rows,
};
use estream_hexagon::message::Message;
use estream_hexagon::toolchain::Machine;
use estream_hexagon::wire::Wire;
use estream_schemas::dtype::DType;
use estream_schemas::layout::{Form, Layout};

use crate::contract::{Record, operands};
use crate::plan::{Cut, Shape, plan};
use crate::process::{Serve, reals};
use crate::random::Random;

/// Buffers of a case: lists and activations, then one a bank.
const LISTS: u32 = 0;

/// What a case is made from.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) shape: Shape,
    pub(crate) cut: Cut,
    pub(crate) tokens: u32,
    pub(crate) experts: u32,
    /// Records of an expert.
    pub(crate) shards: u32,
    pub(crate) bank_count: u32,
    /// (expert, token), in this order.
    pub(crate) routes: Vec<(u32, u32)>,
    /// Experts that are resident, in the order in which they are added.
    pub(crate) resident: Vec<u32>,
    pub(crate) seed: u64,
}

/// A recipe carried out.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) op: Experts,
    lists: Vec<u8>,
    banks: Vec<Vec<u8>>,
    /// Records by entry.
    records: Vec<Record>,
    entries: Vec<Entry>,
    routes: Vec<Route>,
    x: Vec<f32>,
    y: Vec<f32>,
}

pub(crate) fn layout(name: &str) -> Layout {
    name.parse().expect("a layout")
}

/// The bytes of one matrix: any codes, scales as weights have them, and rows of padding whose
/// scales are zero.
pub(crate) fn matrix(layout: Layout, rows: u32, cols: u32, random: &mut Random) -> Vec<u8> {
    let tile_bytes = layout.tile_bytes().unwrap() as usize;
    let tiles = rows.div_ceil(32) * cols.div_ceil(32);
    let mut bytes = Vec::with_capacity(tiles as usize * tile_bytes);
    for tile in 0..tiles {
        let codes = match (layout.form(), layout.dtype()) {
            (Form::Nibbles(_), _) => 512,
            (_, DType::Q8_0) => 1024,
            _ => 0,
        };
        bytes.extend(random.bytes(codes));
        let behind = tile_bytes - codes;
        match layout.dtype() {
            DType::MXFP4 => bytes.extend((0..behind).map(|_| match random.below(16) {
                0 => random.below(255) as u8 % 139,
                _ => 112 + random.below(10) as u8,
            })),
            DType::BF16 => bytes.extend((0..behind / 2).flat_map(|_| {
                let bits = (random.real() * 0.05).to_bits();
                ((bits >> 16) as u16).to_le_bytes()
            })),
            DType::F32 => {
                bytes.extend((0..behind / 4).flat_map(|_| (random.real() * 0.05).to_le_bytes()));
            }
            _ => bytes.extend((0..behind / 2).flat_map(|_| random.scale().to_le_bytes())),
        }
        let last = tile / cols.div_ceil(32) + 1 == rows.div_ceil(32);
        if last && codes > 0 {
            let start = bytes.len() - behind + (rows as usize - 1) % 32 * (behind / 32);
            bytes[start + behind / 32..].fill(0);
        }
    }
    bytes
}

fn projection(layout: Layout, rows: u32, cols: u32, stride: u32) -> Projection {
    Projection {
        layout: LayoutCode::of(layout).expect("tiles").code(),
        rows,
        cols,
        stride,
    }
}

fn at(buffer: u32, offset: usize) -> Ref {
    Ref {
        buffer,
        offset: u32::try_from(offset).expect("buffers of tests are small"),
    }
}

/// Appends to a buffer at a multiple of a vector, and says where.
fn append(buffer: &mut Vec<u8>, bytes: &[u8]) -> usize {
    buffer.resize(buffer.len().next_multiple_of(128), 0xee);
    buffer.extend_from_slice(bytes);
    buffer.len() - bytes.len()
}

fn wire<T: Wire>(items: &[T]) -> Vec<u8> {
    items.iter().flat_map(Wire::to_bytes).collect()
}

/// Rows at a stride of one vector more than they take, spoilt between.
fn spread(values: &[f32], width: usize) -> (Vec<u8>, u32) {
    let stride = 4 * width.next_multiple_of(32) + 128;
    let mut bytes = Vec::new();
    for row in values.chunks_exact(width) {
        let end = bytes.len() + stride;
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        bytes.resize(end - 128, 0);
        bytes.resize(end, 0xee);
    }
    (bytes, stride as u32)
}

impl Recipe {
    /// Carries it out.
    pub(crate) fn make(&self) -> Case {
        let Recipe { shape, cut, .. } = self;
        let mut random = Random::new(self.seed);
        let (hidden, ff) = (shape.hidden, shape.ff);
        let entry_count = self.resident.len() as u32 * self.shards;
        let bank_slots = entry_count.div_ceil(self.bank_count).max(1);
        let mut slots: Vec<u32> = (0..self.bank_count * bank_slots).collect();
        random.shuffle(&mut slots);
        let experts = self.resident.iter();
        let records = experts.flat_map(|expert| vec![*expert; self.shards as usize]);
        let entries: Vec<_> = records
            .zip(slots)
            .map(|(expert, slot)| Entry { expert, slot })
            .collect();

        // A bank is three planes, one a projection; a slot of each has room to spare.
        let shapes = [
            (shape.gate, ff, hidden),
            (shape.up, ff, hidden),
            (shape.down, hidden, ff),
        ];
        let sizes = shapes
            .map(|(layout, rows, cols)| layout.bytes(rows.into(), cols.into()).unwrap() as usize);
        let strides = sizes.map(|bytes| bytes.next_multiple_of(128) + 384);
        let plane = |which: usize| -> usize {
            strides[..which].iter().sum::<usize>() * bank_slots as usize + 128
        };
        let mut banks = vec![vec![0xee; plane(3)]; self.bank_count as usize];
        let mut known = Vec::new();
        for entry in &entries {
            let (bank, place) = (entry.slot / bank_slots, entry.slot % bank_slots);
            let mut decoded = Vec::new();
            for (which, (layout, rows, cols)) in shapes.into_iter().enumerate() {
                let bytes = matrix(layout, rows, cols, &mut random);
                decoded.push(operands(layout, &bytes, rows as usize, cols as usize));
                let start = plane(which) + place as usize * strides[which];
                banks[bank as usize][start..start + bytes.len()].copy_from_slice(&bytes);
            }
            let [gate, up, down] = <[_; 3]>::try_from(decoded).expect("three matrices");
            known.push(Record { gate, up, down });
        }

        let width = hidden as usize;
        let x = random.reals(self.tokens as usize * width);
        let y = random.reals(self.tokens as usize * width);
        let routes = self.routes.iter().map(|(expert, token)| Route {
            expert: *expert,
            token: *token,
            weight: random.real().to_bits(),
        });
        let routes: Vec<_> = routes.collect();
        let mut lists = Vec::new();
        let (x_bytes, stride) = spread(&x, width);
        let x_at = append(&mut lists, &x_bytes);
        let y_at = append(&mut lists, &spread(&y, width).0);
        let routes_at = append(&mut lists, &wire(&routes));
        let entries_at = append(&mut lists, &wire(&entries));
        let bank_refs = (0..self.bank_count).map(|bank| Bank {
            gate: at(1 + bank, plane(0)),
            up: at(1 + bank, plane(1)),
            down: at(1 + bank, plane(2)),
        });
        let banks_at = append(&mut lists, &wire(&bank_refs.collect::<Vec<_>>()));

        let rows = |offset| Rows {
            at: at(LISTS, offset),
            stride,
            width: hidden,
        };
        let [gate, up, down] = [0, 1, 2].map(|which: usize| {
            let (layout, rows, cols) = shapes[which];
            projection(layout, rows, cols, strides[which] as u32)
        });
        let op = Experts {
            op: Op::of::<Experts>(Kind::Experts),
            tokens: self.tokens,
            experts: self.experts,
            route_count: routes.len() as u32,
            entry_count: entries.len() as u32,
            bank_count: self.bank_count,
            bank_slots,
            routes: at(LISTS, routes_at),
            entries: at(LISTS, entries_at),
            banks: at(LISTS, banks_at),
            x: rows(x_at),
            y: rows(y_at),
            gate,
            up,
            down,
            plan: plan(shape, cut, &mut random),
        };
        Case {
            op,
            lists,
            banks,
            records: known,
            entries,
            routes,
            x,
            y,
        }
    }

    pub(crate) fn check(&self, machine: Machine) {
        let case = self.make();
        let got = case.run(machine, case.op.plan).expect("the operator runs");
        case.compare(&got, &format!("{machine:?} {self:?}"));
    }
}

impl Case {
    /// A process with the buffers of this case.
    pub(crate) fn serve(&self, machine: Machine, vtcm_bytes: u32) -> Serve {
        let mut serve = Serve::start(machine, vtcm_bytes);
        serve.share(&self.lists);
        self.banks.iter().for_each(|bank| serve.share(bank));
        serve
    }

    pub(crate) fn message(op: &Experts, buffers: &[Buffer]) -> Vec<u8> {
        let mut message = Message::new(buffers);
        message.push(op);
        message.bytes(7).expect("one operator fits a batch")
    }

    /// The rows of y after the operator, laid out by `plan`; or what was wrong.
    pub(crate) fn run(&self, machine: Machine, plan: Plan) -> Result<Vec<f32>, Reply> {
        let mut serve = self.serve(machine, plan.vtcm_bytes);
        let op = Experts { plan, ..self.op };
        let reply = serve.run(&Case::message(&op, &serve.buffers()));
        if reply.status != 0 {
            return Err(reply);
        }
        assert_eq!(reply.sequence, 7);
        let y = self.y(&serve);
        assert_eq!(serve.process.finish(), Some(0), "the process ends well");
        Ok(y)
    }

    /// The rows of y as they are now; what lies between rows must be as it was.
    pub(crate) fn y(&self, serve: &Serve) -> Vec<f32> {
        let Rows { at, stride, width } = self.op.y;
        let row_bytes = 4 * width as usize;
        let row = |t: u32| {
            let bytes = serve.read(0, at.offset + t * stride, stride as usize);
            assert!(
                bytes[stride as usize - 128..]
                    .iter()
                    .all(|byte| *byte == 0xee)
            );
            reals(&bytes[..row_bytes])
        };
        (0..self.op.tokens).flat_map(row).collect()
    }

    /// What the contract says y is.
    pub(crate) fn expected(&self) -> Vec<f32> {
        let width = self.op.y.width as usize;
        let mut y = self.y.clone();
        for (entry, record) in self.entries.iter().zip(&self.records) {
            for route in self.routes.iter().filter(|r| r.expert == entry.expert) {
                let row = route.token as usize * width..(route.token as usize + 1) * width;
                let weight = f32::from_bits(route.weight);
                record.add(&self.x[row.clone()], weight, &mut y[row]);
            }
        }
        y
    }

    pub(crate) fn compare(&self, got: &[f32], what: &str) {
        let expected = self.expected();
        assert_eq!(got.len(), expected.len());
        let differ = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
        let pairs = got.iter().zip(&expected);
        let wrong = pairs.clone().filter(differ).count();
        if let Some((i, (a, b))) = pairs.enumerate().find(|(_, pair)| differ(pair)) {
            let of = got.len();
            panic!("{wrong} of {of} differ, first {i}: {a} is not {b}: {what}");
        }
        let resident = |r: &Route| self.entries.iter().any(|e| e.expert == r.expert);
        let adds = self.routes.iter().any(resident);
        assert!(
            !adds || expected.iter().zip(&self.y).any(|(a, b)| a != b),
            "something is added"
        );
    }
}
