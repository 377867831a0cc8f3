//! The max-plus recurrence, paper equation 5, over all layers of a request.

use estream_schemas::plan::{Schedule, StreamConfig};

/// Times of a layer with experts, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// T^ne: what is computed before routes are known, from the end of the layer before.
    pub other_ns: u64,
    /// Groups that are read, in storage order.
    pub groups: Vec<Group>,
}

/// Times of a group, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// L: reading it with Q reads under way.
    pub read_ns: u64,
    /// X: executing its routes.
    pub run_ns: u64,
}

/// What the recurrence says of a request, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    /// T_io: some read is outstanding.
    pub io_ns: u64,
    /// T_exec: something is computed.
    pub exec_ns: u64,
    /// The end of the last execution.
    pub total_ns: u64,
}

impl Predicted {
    /// 1 − max(T_io, T_exec) / T_total.
    pub fn bubble(&self) -> f64 {
        match self.total_ns {
            0 => 0.0,
            total => 1.0 - self.io_ns.max(self.exec_ns) as f64 / total as f64,
        }
    }
}

/// Equation 5, where k runs over all groups of the request:
///
/// ```text
/// a_k = max(d_{k−Q}, f_{k−B}, e_k)    d_k = a_k + L_k
/// s_k = max(d_k, n_l, f_{k−1})        f_k = s_k + X_k
/// ```
///
/// d and f are 0 for k ≤ 0, n_l = f_last(l−1) + T^ne_l, and e_k is the moment from which the
/// schedule allows the read: the end of the layer before (`early`, `compact`), n_l (`prefetch`), max(n_l, f_{k−1}) (`on-demand`), or
/// any (`ahead`). With `resident` there are no reads. Sums end at the largest number.
pub fn predict(layers: &[Layer], config: &StreamConfig) -> Predicted {
    let mut reads: Vec<(u64, u64)> = Vec::new();
    let mut ends: Vec<u64> = Vec::new();
    let mut done: u64 = 0;
    let mut exec_ns = 0;
    for layer in layers {
        let before = done;
        let routed = before.saturating_add(layer.other_ns);
        exec_ns = layer.other_ns.saturating_add(exec_ns);
        done = routed;
        for group in &layer.groups {
            let k = ends.len();
            let earlier = |list: &[u64], back: usize| k.checked_sub(back).map_or(0, |k| list[k]);
            let allowed = match config.schedule {
                Schedule::OnDemand => done,
                Schedule::Prefetch => routed,
                Schedule::Early | Schedule::Compact => before,
                Schedule::Ahead | Schedule::Resident => 0,
            };
            let landed = k.checked_sub(config.depth).map_or(0, |k| reads[k].1);
            let start = landed.max(earlier(&ends, config.banks)).max(allowed);
            let read_ns = match config.schedule {
                Schedule::Resident => 0,
                _ => group.read_ns,
            };
            let end = start.saturating_add(read_ns);
            reads.push((start, end));
            done = done.max(end).saturating_add(group.run_ns);
            exec_ns = group.run_ns.saturating_add(exec_ns);
            ends.push(done);
        }
    }
    Predicted {
        io_ns: union_ns(reads),
        exec_ns,
        total_ns: done,
    }
}

/// Length of the union of intervals.
fn union_ns(mut spans: Vec<(u64, u64)>) -> u64 {
    spans.sort_unstable();
    let (mut length, mut covered) = (0, 0);
    for (start, end) in spans {
        length += end.saturating_sub(start.max(covered));
        covered = covered.max(end);
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(schedule: Schedule, depth: usize, banks: usize) -> StreamConfig {
        StreamConfig::new(schedule, 1, depth, banks, 1000)
    }

    fn layer(other_ns: u64, groups: &[(u64, u64)]) -> Layer {
        let group = |&(read_ns, run_ns): &(u64, u64)| Group { read_ns, run_ns };
        Layer {
            other_ns,
            groups: groups.iter().map(group).collect(),
        }
    }

    /// Two layers of two groups; every number below was worked out by hand.
    #[test]
    fn schedules_end_when_a_drawing_says_they_do() {
        let layers = [layer(10, &[(6, 4), (6, 4)]), layer(10, &[(6, 4), (6, 4)])];
        for (schedule, depth, banks, total_ns, io_ns) in [
            // 10 + 6 + 4 + 6 + 4 = 30, twice.
            (Schedule::OnDemand, 1, 1, 60, 24),
            // One at a time from 10: landed 16, 22; run 16–20, 22–26. Then the same from 26.
            (Schedule::Prefetch, 1, 2, 52, 24),
            // Both at once from 10: run 16–20, 20–24.
            (Schedule::Prefetch, 2, 2, 48, 12),
            // From 0: landed 6, 12; run 10–14, 14–18. Then the same from 18.
            (Schedule::Early, 1, 2, 36, 24),
            // One bank: the second read waits for the first run, 14–20, run 20–24.
            (Schedule::Early, 1, 1, 48, 24),
            // Banks 2: reads 0–6, 6–12, then 14–20 and 20–26 ahead; all have landed when the
            // second layer's routes are known at 28.
            (Schedule::Ahead, 1, 2, 36, 24),
            (Schedule::Resident, 1, 1, 36, 0),
        ] {
            let predicted = predict(&layers, &config(schedule, depth, banks));
            let expected = Predicted {
                io_ns,
                exec_ns: 36,
                total_ns,
            };
            assert_eq!(predicted, expected, "{schedule:?}, {depth}, {banks}");
        }
    }

    #[test]
    fn more_banks_more_depth_and_an_earlier_start_never_cost_time() {
        let mut state = 9u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let layers: Vec<Layer> = (0..3)
                .map(|_| {
                    let groups: Vec<_> = (0..next(6)).map(|_| (next(50), next(50))).collect();
                    layer(next(60), &groups)
                })
                .collect();
            let total =
                |schedule, depth, banks| predict(&layers, &config(schedule, depth, banks)).total_ns;
            let order = [
                Schedule::OnDemand,
                Schedule::Prefetch,
                Schedule::Early,
                Schedule::Ahead,
                Schedule::Resident,
            ];
            for pair in order.windows(2) {
                assert!(total(pair[0], 2, 3) >= total(pair[1], 2, 3), "{pair:?}");
            }
            for schedule in order {
                assert!(total(schedule, 2, 2) >= total(schedule, 2, 3));
                assert!(total(schedule, 1, 3) >= total(schedule, 2, 3));
            }
        }
    }

    #[test]
    fn a_bubble_is_what_the_slower_side_does_not_fill() {
        let layers = [layer(0, &[(19, 10)])];
        let predicted = predict(&layers, &config(Schedule::OnDemand, 1, 1));
        assert!((predicted.bubble() - (1.0 - 19.0 / 29.0)).abs() < 1e-12);
        assert_eq!(Predicted::default().bubble(), 0.0);
    }
}
