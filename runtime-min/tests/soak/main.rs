//! A thousand requests of random plans, with faults and cancellations at random moments: each ends,
//! with the bits of resident experts or with the fault that was put in, and leaves nothing behind.
//!
//! The only test of its binary: it counts the threads and the memory of the process. Every choice of
//! a request follows from its seed, which a failure prints.
#![cfg(feature = "run")]

#[path = "../run/dense.rs"]
mod dense;
#[expect(dead_code, reason = "shared with other tests")]
#[path = "../run/disk.rs"]
mod disk;
#[path = "../run/rows.rs"]
mod rows;
#[path = "../run/toy.rs"]
mod toy;

mod counting;
mod random;
mod watchdog;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use estream_runtime::reader::{BundleReader, ReadError, Verify};
use estream_runtime::{
    Cancel, LoadOptions, Model, Observer, Place, Positions, Request, RunError, Streaming,
};
use estream_schemas::plan::{PlanRow, Schedule, StreamConfig};

use self::disk::{Answer, EINVAL, EIO, EOPNOTSUPP, Scripted};
use self::random::Random;
use self::rows::{Rows, load};
use self::toy::{Packing, Toy, VOCAB};

const PLANS: u64 = 100;
/// Requests of one loaded model.
const REQUESTS: u64 = 10;
/// A request takes milliseconds.
const HANG: Duration = Duration::from_secs(30);
/// What threads that have just ended, and the harness, may still hold. A request that kept one slot or
/// one of its vectors of logits would be found.
const SLACK_BYTES: usize = 32 << 10;

const SCHEDULES: [Schedule; 5] = [
    Schedule::OnDemand,
    Schedule::Prefetch,
    Schedule::Early,
    Schedule::Compact,
    Schedule::Ahead,
];

/// A bundle, prompts, and what comes out of them.
struct Sound {
    dir: tempfile::TempDir,
    /// Ids, and the bits of the results.
    prompts: Vec<(Vec<u32>, Vec<u32>)>,
}

impl Sound {
    fn new(packing: &Packing) -> Sound {
        let dir = Toy::new().bundle(packing);
        let mut random = Random::new(0);
        let mut model = load(dir.path(), 1);
        let prompts = [1, 2, 7, 16, 33].map(|tokens| {
            let ids: Vec<u32> = (0..tokens).map(|_| random.below(VOCAB) as u32).collect();
            let bits = Rows::of(&mut model, &ids, Positions::All).bits();
            (ids, bits)
        });
        Sound {
            dir,
            prompts: prompts.into(),
        }
    }
}

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Whether there are so many threads. The system forgets one a moment after others have gone on.
fn are_left(expected: usize) -> bool {
    let start = Instant::now();
    while threads() != expected {
        if start.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Cancels before the n-th operator.
struct Cancels {
    cancel: Arc<Cancel>,
    left: usize,
}

impl Observer for Cancels {
    fn after_op(&mut self, _: Place, _: usize, _: &str, _: &[f32]) {
        if self.left == 0 {
            self.cancel.cancel();
        }
        self.left = self.left.wrapping_sub(1);
    }
}

/// A fault, and the number of the read that meets it.
type Fault = Option<(usize, Answer)>;

fn fault(random: &mut Random, verify: Verify) -> Fault {
    let answer = match random.below(16) {
        0 | 1 => Answer::Failed(EIO),
        2 | 3 => Answer::End,
        4 | 5 if verify == Verify::Always => Answer::Flipped,
        6 => Answer::Panic,
        7 => Answer::Interrupted,
        8 => Answer::Refused(EINVAL),
        9 | 10 => Answer::Early(1 + random.below(20_000)),
        _ => return None,
    };
    Some((random.below(8), answer))
}

/// Whether a request may end like this.
fn may_end(error: &RunError, fault: Fault, cancelled: bool) -> bool {
    let answer = fault.map(|(_, answer)| answer);
    match error {
        RunError::Cancelled => cancelled,
        RunError::Internal(_) => answer == Some(Answer::Panic),
        RunError::Read(ReadError::Failed { .. }) => matches!(
            answer,
            // Where reads are not direct, a refusal is an error.
            Some(Answer::Failed(_) | Answer::Refused(_))
        ),
        RunError::Read(ReadError::Truncated { .. }) => answer == Some(Answer::End),
        RunError::Read(ReadError::Integrity { .. }) => answer == Some(Answer::Flipped),
        _ => false,
    }
}

/// Any way of streaming.
fn stream(random: &mut Random) -> StreamConfig {
    let banks = 1 + random.below(4);
    StreamConfig {
        schedule: SCHEDULES[random.below(SCHEDULES.len())],
        group: 1 + random.below(5),
        depth: 1 + random.below(banks),
        banks,
        early_records: random.below(10),
    }
}

/// Models with a random plan each, and how often a request ended how.
struct Soak {
    bundles: [Sound; 2],
    /// Of the process without a model.
    threads: usize,
    ends: BTreeMap<String, usize>,
}

impl Soak {
    fn plan(&mut self, seed: u64) {
        let mut random = Random::new(!seed);
        let sound = &self.bundles[random.below(2)];
        let row = PlanRow {
            max_tokens: 1,
            stream: stream(&mut random),
            hot: Some(stream(&mut random)),
            chunk: None,
        };
        let verify = [Verify::Always, Verify::FirstUse, Verify::Never][random.below(3)];
        let refuses = (random.below(4) == 0).then_some(EOPNOTSUPP);
        let disk = Arc::new(Scripted::new(refuses, |_, _| Answer::Right));
        let streaming = Streaming::new(vec![row]).unwrap();
        let options = LoadOptions {
            threads: NonZeroUsize::new(1 + random.below(3)),
            streaming: Some(streaming.through(Arc::clone(&disk) as _)),
            verify,
            ..LoadOptions::default()
        };
        let reader = BundleReader::open(sound.dir.path()).unwrap();
        let mut model = Model::load(&reader, &options).unwrap();
        let workers = self.threads + model.backend().1 - 1;
        for request in 0..REQUESTS {
            let seed = seed * REQUESTS + request;
            watchdog::begins(seed);
            let random = &mut Random::new(seed);
            let fault = fault(random, verify);
            let (name, right) = end(&mut model, sound, &disk, fault, random);
            assert!(right, "seed {seed}, {row:?}, {fault:?}: {name}");
            assert!(are_left(workers), "seed {seed}: {} threads", threads());
            *self.ends.entry(name).or_default() += 1;
        }
    }
}

/// Runs one request: how it ended, and whether it may end so.
fn end(
    model: &mut Model,
    sound: &Sound,
    disk: &Scripted,
    fault: Fault,
    random: &mut Random,
) -> (String, bool) {
    let (ids, bits) = &sound.prompts[random.below(sound.prompts.len())];
    // Cancelled by a read, which may then take a while, or between operators.
    let by_read = (random.below(6) == 0).then(|| random.below(12));
    let by_op = (random.below(6) == 0).then(|| random.below(30));
    let slow = Duration::from_micros(100 * random.below(30) as u64);
    let cancel = model.canceller();
    cancel.reset();
    disk.tell(move |read, _| {
        if Some(read) == by_read {
            cancel.cancel();
            std::thread::sleep(slow);
        }
        match fault {
            Some((at, answer)) if at == read => answer,
            _ => Answer::Right,
        }
    });
    let mut cancels = Cancels {
        cancel: model.canceller(),
        left: by_op.unwrap_or(usize::MAX),
    };
    let request = Request {
        positions: Positions::All,
        hidden: true,
        chunk: NonZeroUsize::new(random.below(12)),
        kept_bytes: 0,
        hot: random.below(2) == 0,
    };
    let mut rows = Rows::default();
    let result = model.prefill_observed(ids, &request, &mut rows, &mut cancels);
    disk.tell(|_, _| Answer::Right);
    match result {
        Ok(_) => ("right".to_owned(), rows.bits() == *bits),
        Err(error) => {
            let cancelled = by_read.or(by_op).is_some();
            let name = match &error {
                RunError::Cancelled => "cancelled",
                RunError::Internal(_) => "panicked",
                RunError::Read(ReadError::Failed { .. }) => "failed",
                RunError::Read(ReadError::Truncated { .. }) => "truncated",
                RunError::Read(ReadError::Integrity { .. }) => "flipped",
                other => return (other.to_string(), false),
            };
            (name.to_owned(), may_end(&error, fault, cancelled))
        }
    }
}

#[test]
fn a_thousand_requests_end_right_and_leave_nothing_behind() {
    // Loaders panic on purpose, and need not say so.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        if !thread.name().is_some_and(|name| name.starts_with("loader")) {
            hook(panic);
        }
    }));
    watchdog::start(HANG);
    let cut = Packing {
        shards: 2,
        order: vec![2, 0, 3, 1],
        tiles: true,
    };
    let mut soak = Soak {
        bundles: [Packing::default(), cut].map(|packing| Sound::new(&packing)),
        threads: threads(),
        ends: BTreeMap::new(),
    };
    // What is allocated once is there after the first plans.
    (0..10).for_each(|seed| soak.plan(seed));
    let before = counting::live_bytes();
    (10..PLANS).for_each(|seed| soak.plan(seed));
    watchdog::ends();
    let after = counting::live_bytes();
    assert!(
        after <= before + SLACK_BYTES,
        "{after} bytes are live, {before} were"
    );
    // Neither everything succeeds, nor everything fails.
    for (end, least) in [
        ("right", 300),
        ("cancelled", 100),
        ("failed", 30),
        ("truncated", 30),
        ("flipped", 10),
        ("panicked", 15),
    ] {
        let count = soak.ends.get(end).copied().unwrap_or(0);
        assert!(count >= least, "{end}: {:?}", soak.ends);
    }
    assert_eq!(soak.ends.values().sum::<usize>() as u64, PLANS * REQUESTS);
}
