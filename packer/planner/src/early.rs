//! The paper's schedule, by its recurrence.
//!
//! [`predict`](crate::predict) is equation 5 for groups that all have routes. Here a slice may have
//! none, as with short prompts: then it is read only if its turn comes before the routes are known, and
//! its bank is free once it is there and they are known. Where k counts the slices that are read,
//!
//! ```text
//! a_k = max(a_{k−1}, d_{k−Q}, f_{k−B}, e)    d_k = a_k + L_k
//! s_k = max(d_k, n, f')                      f_k = s_k + X_k         with routes
//!                                            f_k = max(d_k, n)       without, if a_k < n
//! ```
//!
//! e is the start of the layer, n = e + T^ne the moment from which its routes are known, and f' the end of the
//! last execution. With routes for all it is equation 5.

use crate::evaluate::{Outcome, Prediction, Tally};
use crate::problem::{LayerSize, Problem};
use crate::times::Request;

/// The slices of a request for one G and Q.
#[derive(Debug)]
pub(crate) struct Slices {
    other_ns: u64,
    head_ns: u64,
    slices: Vec<Slice>,
    /// Where the slices of each step end.
    ends: Vec<usize>,
    /// What is left from each step on, at least: no bank is waited for, and nothing is read in vain.
    pub(crate) least_ns: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    /// L.
    read_ns: u64,
    /// X.
    run_ns: u64,
    is_routed: bool,
}

/// What one evaluation of a request leaves to the next, with another B.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// d, so that memory is allocated once.
    landed: Vec<u64>,
    /// f.
    free: Vec<u64>,
    settled: Vec<Settled>,
}

/// A step that begins and ends with no read under way, and in which no read waits for a bank, is the same
/// with more banks: each read begins when it did, and what it would wait for is over by then.
#[derive(Clone, Copy, Debug)]
struct Settled {
    /// From so many banks on.
    banks: usize,
    /// How long it takes.
    total_ns: u64,
}

impl Settled {
    const NEVER: Settled = Settled {
        banks: usize::MAX,
        total_ns: 0,
    };
}

impl Scratch {
    /// With room for so many reads, and 0 for those before the first.
    fn open(&mut self, depth: usize, banks: usize, of: &Slices) {
        self.settled.resize(of.ends.len(), Settled::NEVER);
        for (list, before) in [(&mut self.landed, depth), (&mut self.free, banks)] {
            let wanted = before + of.slices.len();
            list.resize(wanted.max(list.len()), 0);
            list[..before].fill(0);
        }
    }
}

impl Slices {
    pub(crate) fn new(problem: &Problem, request: &Request, group: usize, depth: usize) -> Slices {
        let layers = &problem.question().layers;
        let mut slices = Vec::new();
        let mut ends = Vec::with_capacity(request.steps.len());
        // Times of the layer before serve for one of the same size.
        let mut last: Option<(LayerSize, u64, u64)> = None;
        for (at, step) in request.steps.iter().enumerate() {
            let layer = layers[request.layer(at)];
            let records = step.records();
            let (_, whole_ns, rest_ns) = match last {
                Some(known @ (size, ..)) if size == layer => known,
                _ => (
                    layer,
                    problem.read_ns(layer, group.min(records), depth),
                    problem.read_ns(layer, records % group, depth),
                ),
            };
            last = Some((layer, whole_ns, rest_ns));
            for first in (0..records).step_by(group) {
                let end = records.min(first + group);
                let is_whole = end - first == group || records < group;
                slices.push(Slice {
                    read_ns: if is_whole { whole_ns } else { rest_ns },
                    run_ns: step.run(first, end) + request.dispatch_ns,
                    is_routed: step.routed(first, end) > 0,
                });
            }
            ends.push(slices.len());
        }
        let mut all = Slices {
            other_ns: request.other_ns,
            head_ns: request.head_ns,
            slices,
            ends,
            least_ns: Vec::new(),
        };
        all.least_ns = all.least(depth);
        all
    }

    /// The slices of a step.
    fn step(&self, step: usize) -> &[Slice] {
        let first = if step == 0 { 0 } else { self.ends[step - 1] };
        &self.slices[first..self.ends[step]]
    }

    fn least(&self, depth: usize) -> Vec<u64> {
        let mut least = vec![self.head_ns];
        let mut landed = Vec::new();
        for step in (0..self.ends.len()).rev() {
            landed.clear();
            let mut done = self.other_ns;
            for slice in self.step(step).iter().filter(|slice| slice.is_routed) {
                let k = landed.len();
                let start = k.checked_sub(depth).map_or(0, |back| landed[back]);
                landed.push(start + slice.read_ns);
                done = done.max(start + slice.read_ns) + slice.run_ns;
            }
            least.push(least[least.len() - 1] + done);
        }
        least.reverse();
        least
    }

    /// The end of the request, if it is before `bound`.
    pub(crate) fn walk(
        &self,
        depth: usize,
        banks: usize,
        bound: u64,
        scratch: &mut Scratch,
        mut on_read: impl FnMut(u64, u64, usize),
    ) -> Outcome {
        // d and f are 0 before the first read: d_{k−Q} is at k of `landed`, f_{k−B} at k of `free`. What
        // an earlier evaluation left behind that is not looked at.
        scratch.open(depth, banks, self);
        let Scratch {
            landed,
            free,
            settled,
        } = scratch;
        let mut outcome = Outcome::default();
        let (mut k, mut issued, mut done, mut reading) = (0, 0, 0, 0);
        let mut first = 0;
        let steps = self.ends.iter().zip(&self.least_ns).zip(settled);
        for ((step_end, least_ns), settled) in steps {
            if done + least_ns >= bound {
                return outcome;
            }
            let begin = done;
            let is_clean = reading <= begin;
            let slices = first..*step_end;
            first = *step_end;
            if is_clean && banks >= settled.banks {
                done = begin + settled.total_ns;
                continue;
            }
            let known = begin + self.other_ns;
            issued = begin.max(issued);
            done = known;
            let mut held = false;
            for (at, slice) in slices.clone().zip(&self.slices[slices]) {
                let ready = landed[k].max(issued);
                let start = ready.max(free[k]);
                held |= start > ready;
                if !slice.is_routed && start >= known {
                    continue;
                }
                let end = start + slice.read_ns;
                let freed = match slice.is_routed {
                    true => {
                        done = done.max(end) + slice.run_ns;
                        done
                    }
                    false => {
                        outcome.wasted = true;
                        end.max(known)
                    }
                };
                reading = reading.max(end);
                landed[k + depth] = end;
                free[k + banks] = freed;
                issued = start;
                k += 1;
                on_read(start, end, at);
            }
            outcome.held |= held;
            if is_clean && !held && reading <= done {
                *settled = Settled {
                    banks: banks.min(settled.banks),
                    total_ns: done - begin,
                };
            }
        }
        let total_ns = done + self.head_ns;
        outcome.total_ns = (total_ns < bound).then_some(total_ns);
        outcome
    }

    /// All that is predicted.
    pub(crate) fn prediction(
        &self,
        problem: &Problem,
        request: &Request,
        (group, depth, banks): (usize, usize, usize),
    ) -> Prediction {
        let mut tally = Tally::default();
        let outcome = self.walk(
            depth,
            banks,
            u64::MAX,
            &mut Scratch::default(),
            |start, end, at| {
                let step = self.ends.partition_point(|end| *end <= at);
                let first = (at + self.step(step).len() - self.ends[step]) * group;
                let records = request.steps[step].records().min(first + group) - first;
                let layer = problem.question().layers[request.layer(step)];
                tally.read(start, end, records, layer.record_bytes);
            },
        );
        let executed = self.slices.iter().filter(|slice| slice.is_routed);
        let run_ns: u64 = executed.map(|slice| slice.run_ns).sum();
        let exec_ns = self.other_ns * self.ends.len() as u64 + run_ns + self.head_ns;
        tally.finish(request, exec_ns, outcome.total_ns.unwrap_or(u64::MAX))
    }
}
