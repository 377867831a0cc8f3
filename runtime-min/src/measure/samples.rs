//! What the timelines of requests say of how long things take.

use estream_schemas::manifest::Experts;

use crate::request::Outcome;
use crate::stream::Doing;

/// Times of one thing, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn add(&mut self, ns: u64) {
        self.0.insert(self.0.partition_point(|time| *time < ns), ns);
    }

    /// The lower of the two in the middle, if there are two; 0 of nothing.
    pub(crate) fn median(&self) -> u64 {
        let middle = self.0.len().saturating_sub(1) / 2;
        self.0.get(middle).copied().unwrap_or(0)
    }
}

/// What a step took, so far.
#[derive(Clone, Copy, Default)]
struct Step {
    /// Since when its routes are known.
    routed_ns: u64,
    /// The end of its last execution.
    end_ns: u64,
    /// Its executions and waits.
    known_ns: u64,
    /// Groups that ran, and the last of them.
    groups: u64,
    group: Option<usize>,
}

/// The requests of every length.
pub(super) struct Samples {
    /// By layer: the first of its records, and whether they are of the largest size.
    firsts: Vec<(usize, bool)>,
    /// By length and record: its rows, and its executions.
    records: Vec<Vec<(u64, Times)>>,
    /// What a group takes besides its executions.
    pub(super) dispatch: Times,
    /// From the end of a read to the use of its records.
    pub(super) publish: Times,
    pub(super) head: Times,
    /// Whole requests of the longest prompt.
    pub(super) longest: Times,
}

impl Samples {
    /// Of `lengths` lengths, ascending.
    pub(super) fn new(experts: &Experts, lengths: usize) -> Samples {
        let mut count = 0;
        let mut firsts = Vec::new();
        for layer in &experts.layers {
            firsts.push((count, layer.record_bytes == experts.slot_bytes));
            // A reader has as many digests in memory.
            count += layer.digests.len();
        }
        Samples {
            firsts,
            records: vec![vec![(0, Times::default()); count]; lengths],
            dispatch: Times::default(),
            publish: Times::default(),
            head: Times::default(),
            longest: Times::default(),
        }
    }

    /// Adds a request of one chunk, of the length `at`, that routed `rows`; returns what a layer took besides its
    /// experts, on average.
    pub(super) fn add(
        &mut self,
        at: usize,
        group: usize,
        outcome: &Outcome,
        rows: &[Vec<u64>],
    ) -> u64 {
        let mut steps = vec![Step::default(); self.firsts.len()];
        let mut other_ns = 0;
        for event in &outcome.events {
            let Some(step) = steps.get_mut(event.step) else {
                continue;
            };
            let ns = event.end_ns - event.start_ns;
            match event.doing {
                Doing::Layer => {
                    step.routed_ns = event.end_ns;
                    other_ns += ns;
                }
                Doing::Experts => {
                    step.end_ns = event.end_ns;
                    step.known_ns += ns;
                    let of = Some(event.first / group);
                    step.groups += u64::from(step.group != of);
                    step.group = of;
                    let (first, is_largest) = self.firsts[event.step];
                    let count = rows.get(event.step).and_then(|rows| rows.get(event.first));
                    let record = self.records[at].get_mut(first + event.first);
                    if let (true, Some(count), Some(record)) = (is_largest, count, record) {
                        record.0 = *count;
                        record.1.add(ns);
                    }
                }
                Doing::Wait => step.known_ns += ns,
                Doing::Verify => self.publish.add(ns),
                Doing::Head => self.head.add(ns),
                Doing::Read | Doing::Slot => {}
            }
        }
        for step in steps.iter().filter(|step| step.groups > 0) {
            let spent_ns = step.end_ns.saturating_sub(step.routed_ns);
            let besides_ns = spent_ns.saturating_sub(step.known_ns);
            self.dispatch.add(besides_ns / step.groups);
        }
        if at + 1 == self.records.len() {
            let total_ns = u64::try_from(outcome.elapsed.as_nanos());
            self.longest.add(total_ns.unwrap_or(u64::MAX));
        }
        other_ns / (steps.len() as u64).max(1)
    }

    /// Of every record that ran, rows and the median time.
    pub(super) fn executions(&self) -> impl Iterator<Item = (u64, u64)> {
        let records = self.records.iter().flatten();
        let records = records.filter(|(rows, _)| *rows > 0);
        records.map(|(rows, times)| (*rows, times.median()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_a_time_that_there_was() {
        let mut times = Times::default();
        assert_eq!(times.median(), 0);
        for (ns, median) in [(9, 9), (1, 1), (5, 5), (7, 5), (6, 6)] {
            times.add(ns);
            assert_eq!(times.median(), median, "with {ns}");
        }
    }
}
