//! How long the parts of a request take.

use estream_schemas::profile::Service;

use crate::problem::{LayerSize, Problem, Workload};

/// A request whose computing times add up to less than 64 bits hold, however it is grouped and read.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) weight: u64,
    /// T^ne of a step.
    pub(crate) other_ns: u64,
    /// After the last step.
    pub(crate) head_ns: u64,
    /// What a submission takes besides.
    pub(crate) dispatch_ns: u64,
    pub(crate) steps: Vec<Step>,
    /// Layers of a pass.
    layers: usize,
}

/// The executions of a step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Of each record that has routes, and 0 of the others, added up: that of the first r is at r.
    run_ns: Vec<u64>,
    /// Records with routes among the first r.
    routed: Vec<usize>,
}

impl Request {
    /// None if the times add up to more than 64 bits hold.
    pub(crate) fn new(
        workload: &Workload,
        service: &Service,
        layers: usize,
        worst_read_ns: u64,
    ) -> Option<Request> {
        let mut request = Request {
            weight: workload.weight,
            other_ns: service.other_ns(workload.tokens),
            head_ns: service.head_ns,
            dispatch_ns: service.dispatch_ns,
            steps: Vec::with_capacity(workload.routes.len()),
            layers,
        };
        let mut known = Known::default();
        // Executions one after another, each after a read and a submission of its own.
        let mut sum_ns = request.head_ns;
        let each_ns = request.dispatch_ns.checked_add(worst_read_ns)?;
        for rows in &workload.routes {
            let (mut run_ns, mut routed) = (0u64, 0);
            let mut step = Step {
                run_ns: Vec::with_capacity(rows.len() + 1),
                routed: Vec::with_capacity(rows.len() + 1),
            };
            step.run_ns.push(0);
            step.routed.push(0);
            for rows in rows {
                run_ns = run_ns.checked_add(known.record_ns(service, *rows))?;
                routed += usize::from(*rows > 0);
                step.run_ns.push(run_ns);
                step.routed.push(routed);
            }
            let around_ns = each_ns.checked_mul(rows.len() as u64)?;
            sum_ns = sum_ns
                .checked_add(request.other_ns)?
                .checked_add(run_ns)?
                .checked_add(around_ns)?;
            request.steps.push(step);
        }
        Some(request)
    }

    /// The layer of a step.
    pub(crate) fn layer(&self, step: usize) -> usize {
        step % self.layers
    }

    /// What is computed, where `groups` of a step's records are submitted together.
    pub(crate) fn exec_ns(&self, submissions: impl Fn(&Step) -> usize) -> u64 {
        let steps = self.steps.iter();
        let steps = steps.map(|step| self.step_ns(step, submissions(step)));
        steps.sum::<u64>() + self.head_ns
    }

    /// What a step computes, in so many submissions.
    pub(crate) fn step_ns(&self, step: &Step, submissions: usize) -> u64 {
        self.other_ns + step.run(0, step.records()) + submissions as u64 * self.dispatch_ns
    }

    /// A lower bound of what is left from each step on, whatever is read when: all that is computed, `group`
    /// records at a time.
    pub(crate) fn least_ns(&self, group: usize) -> Vec<u64> {
        let mut least = vec![self.head_ns];
        for step in self.steps.iter().rev() {
            let submissions = step.routed(0, step.records()).div_ceil(group);
            least.push(least[least.len() - 1] + self.step_ns(step, submissions));
        }
        least.reverse();
        least
    }
}

impl Step {
    pub(crate) fn records(&self) -> usize {
        self.routed.len() - 1
    }

    pub(crate) fn is_routed(&self, record: usize) -> bool {
        self.routed(record, record + 1) > 0
    }

    /// How many of the records from `first` to before `end` have routes.
    pub(crate) fn routed(&self, first: usize, end: usize) -> usize {
        self.routed[end] - self.routed[first]
    }

    /// The time in which these run.
    pub(crate) fn run(&self, first: usize, end: usize) -> u64 {
        self.run_ns[end] - self.run_ns[first]
    }
}

/// L by layer and number of records, for one G and Q.
#[derive(Debug)]
pub(crate) struct ReadTimes {
    /// Which list a layer has.
    lists: Vec<usize>,
    /// The time of n records at n − 1.
    times: Vec<Vec<u64>>,
}

impl ReadTimes {
    pub(crate) fn new(problem: &Problem, group: usize, depth: usize) -> ReadTimes {
        let layers = &problem.question().layers;
        let mut sizes: Vec<u64> = layers.iter().map(|layer| layer.record_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let most = group.min(problem.most_records);
        let list = |record_bytes: &u64| {
            let layer = LayerSize {
                records: most,
                record_bytes: *record_bytes,
            };
            (1..=most)
                .map(|records| problem.read_ns(layer, records, depth))
                .collect()
        };
        let place = |layer: &LayerSize| sizes.partition_point(|size| *size < layer.record_bytes);
        ReadTimes {
            lists: layers.iter().map(place).collect(),
            times: sizes.iter().map(list).collect(),
        }
    }

    pub(crate) fn read_ns(&self, layer: usize, records: usize) -> u64 {
        self.times[self.lists[layer]][records - 1]
    }
}

/// Execution times by rows, each looked up once.
#[derive(Default)]
struct Known(Vec<Option<u64>>);

impl Known {
    fn record_ns(&mut self, service: &Service, rows: u64) -> u64 {
        const MAX_KNOWN: u64 = 1 << 14;
        if rows >= MAX_KNOWN {
            return service.record_ns(rows);
        }
        let at = usize::try_from(rows).unwrap_or(0);
        if at >= self.0.len() {
            self.0.resize(at + 1, None);
        }
        *self.0[at].get_or_insert_with(|| service.record_ns(rows))
    }
}
