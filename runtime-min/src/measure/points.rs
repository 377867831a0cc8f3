//! From many executions to a few points of a profile.

use estream_schemas::profile::RecordTime;

/// Executions that a point has behind it, if there are so many.
const FEW: u64 = 4;

/// Executions of about the same rows.
#[derive(Clone, Copy, Default)]
struct Bin {
    count: u64,
    rows: u64,
    ns: u64,
}

impl Bin {
    fn add(&mut self, other: Bin) {
        self.count += other.count;
        self.rows += other.rows;
        self.ns = self.ns.saturating_add(other.ns);
    }

    fn mean(&self) -> RecordTime {
        RecordTime {
            rows: self.rows / self.count.max(1),
            ns: self.ns / self.count.max(1),
        }
    }
}

/// The mean of `executions`, rows (at least 1) and nanoseconds each, between two powers of two. So that
/// times lie on a line that can be followed, those of a bin join the bin below where they are few, or
/// where more rows took no longer.
pub(super) fn of(executions: impl Iterator<Item = (u64, u64)>) -> Vec<RecordTime> {
    let mut bins = [Bin::default(); 64];
    for (rows, ns) in executions {
        if let Some(power) = rows.checked_ilog2() {
            bins[power as usize].add(Bin { count: 1, rows, ns });
        }
    }
    let mut joined: Vec<Bin> = Vec::new();
    for mut bin in bins.into_iter().filter(|bin| bin.count > 0) {
        while let Some(below) = joined.last() {
            let rises = below.mean().ns < bin.mean().ns && below.mean().rows < bin.mean().rows;
            if bin.count.min(below.count) >= FEW && rises {
                break;
            }
            bin.add(*below);
            joined.pop();
        }
        joined.push(bin);
    }
    joined.iter().map(Bin::mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(executions: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let points = of(executions.iter().copied());
        points.iter().map(|point| (point.rows, point.ns)).collect()
    }

    #[test]
    fn points_are_means_between_powers_of_two() {
        let mut executions = Vec::new();
        for rows in 1..=15 {
            executions.extend([(rows, 100 + 10 * rows); 4]);
        }
        // 1; 2 and 3; 4 to 7; 8 to 15.
        assert_eq!(
            points(&executions),
            [(1, 110), (2, 125), (5, 155), (11, 215)]
        );
    }

    #[test]
    fn times_that_do_not_rise_and_few_of_them_join_those_below() {
        let slow = [(1, 50); 4];
        let quick = [(2, 40); 4];
        let last = [(4, 90); 4];
        let all = [&slow[..], &quick, &last].concat();
        assert_eq!(points(&all), [(1, 45), (4, 90)]);
        assert_eq!(
            points(&[&all[..], &[(8, 900)]].concat()),
            [(1, 45), (4, 252)]
        );
        assert_eq!(points(&[(3, 7)]), [(3, 7)]);
        assert_eq!(points(&[(3, 7), (64, 9)]), [(33, 8)]);
        assert_eq!(points(&[]), []);
    }
}
