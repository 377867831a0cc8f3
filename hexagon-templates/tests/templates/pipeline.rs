//! A template beside the pipeline of the paper's Algorithm 1: what a step writes is nothing that a later one
//! still needs.

use estream_hexagon::{Buffer, Template};
use proptest::prelude::*;

use crate::cases::{shape, vtcm};

/// What is in some bytes, from the step that begins to write it to the one that reads it last.
#[derive(Clone, Debug)]
struct Content {
    what: String,
    from: u64,
    to: u64,
    first: u64,
    last: u64,
}

/// Everything that VTCM holds while an invocation runs.
///
/// Steps count from 2: step j multiplies job j − 2, fetches j and decodes j − 1. Jobs of gate and up take turns;
/// SwiGLU works on a pair two steps after its second job.
fn contents(template: &Template) -> Vec<Content> {
    let mut all = Vec::new();
    let shape = template.shape();
    let mut put = |what: String, buffer: Buffer, first: u64, last: u64| {
        let mut regions = template.regions().iter();
        let region = regions.find(|region| region.buffer == buffer).unwrap();
        all.push(Content {
            what,
            from: region.offset,
            to: region.offset + region.bytes,
            first,
            last,
        });
    };
    let jobs = |strips: u64, step: u64| strips.div_ceil(step);
    let pairs = jobs(shape.ff().div_ceil(32), template.gate_up_strips()).min(6);
    let of = |job: u64, buffers: u64| usize::try_from(job % buffers).unwrap();
    for job in 0..2 * pairs {
        put(format!("stored {job}"), Buffer::C(of(job, 2)), job, job + 1);
        put(
            format!("decoded {job}"),
            Buffer::D(of(job, 2)),
            job + 1,
            job + 2,
        );
        // The pair's second job is odd.
        let activated = (job | 1) + 2 + 2;
        put(
            format!("product {job}"),
            Buffer::O(of(job, 4)),
            job + 2,
            activated,
        );
    }
    // The last pair's SwiGLU; down can be multiplied only after it, and fetched and decoded before.
    let activated = 2 * pairs - 1 + 4;
    put("z".to_owned(), Buffer::Z, 0, 2 * pairs + 1);
    let down = jobs(shape.hidden().div_ceil(32), template.down_strips()).min(6);
    for job in 0..down {
        let multiplied = activated + 1 + job;
        // As soon as the buffer is free.
        let fetched = match job {
            0 | 1 => 2 * pairs + job,
            _ => multiplied - 2,
        };
        let decoded = match job {
            0 | 1 => fetched + 1,
            _ => multiplied - 1,
        };
        put(
            format!("stored down {job}"),
            Buffer::C(of(job, 2)),
            fetched,
            decoded,
        );
        put(
            format!("decoded down {job}"),
            Buffer::D(of(job, 2)),
            decoded,
            multiplied,
        );
        put(
            format!("product down {job}"),
            Buffer::O(of(job, 2)),
            multiplied,
            multiplied + 1,
        );
    }
    let end = activated + down + 1;
    put("h".to_owned(), Buffer::H, 5, end);
    put("scales".to_owned(), Buffer::Scales, 0, end);
    all
}

/// Two contents that want the same bytes at the same step.
fn clash(contents: &[Content]) -> Option<[&str; 2]> {
    let meet = |one: &Content, other: &Content| {
        let (bytes, other_bytes) = (one.from..one.to, other.from..other.to);
        let apart = bytes.end <= other_bytes.start || other_bytes.end <= bytes.start;
        !apart && one.first <= other.last && other.first <= one.last
    };
    let ones = contents.iter().enumerate();
    let mut clashes = ones.filter_map(|(at, one)| {
        let other = contents[..at].iter().find(|other| meet(one, other))?;
        Some([one.what.as_str(), &other.what])
    });
    clashes.next()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn nothing_is_overwritten_while_it_is_needed(shape in shape(), vtcm in vtcm()) {
        let Ok(template) = Template::new(&shape, vtcm) else { return Ok(()) };
        let contents = contents(&template);
        prop_assert_eq!(clash(&contents), None);
    }
}

#[test]
fn a_buffer_fewer_of_any_kind_would_be_too_few() {
    let q4_0 = "q4_0.t32.direct".parse().unwrap();
    let shape = estream_hexagon::ExpertShape::new(2048, 1024, 1, [q4_0; 3]).unwrap();
    let template = Template::new(&shape, 8 << 20).unwrap();
    let sound = contents(&template);
    assert_eq!(clash(&sound), None);
    let pairs = [
        (Buffer::C(0), Buffer::C(1)),
        (Buffer::D(0), Buffer::D(1)),
        (Buffer::O(0), Buffer::O(2)),
        (Buffer::O(1), Buffer::O(3)),
        (Buffer::Z, Buffer::H),
    ];
    for (one, other) in pairs {
        let [one, other] = [one, other].map(|buffer| template.offset(buffer));
        let mut broken = sound.clone();
        for content in broken.iter_mut().filter(|content| content.from == other) {
            content.to = content.to - content.from + one;
            content.from = one;
        }
        assert!(clash(&broken).is_some(), "{one} and {other}");
    }
}
