//! Times between points that are known.

/// The time at `x` of `points`, (x, nanoseconds) with x above 0, ascending, and none twice.
///
/// It is linear between two points and, after the last, on the line of the last two; before
/// the first it is that of the first. After a single point it grows as `x` does. 0 without
/// points. Rounded down; at least 0, and beyond 64 bits the largest number.
pub(super) fn at(points: &[(u64, u64)], x: u64) -> u64 {
    let next = points.partition_point(|point| point.0 < x);
    let (low, high) = match (next, points) {
        (_, []) => return 0,
        (0, [first, ..]) => return first.1,
        (1, [only]) => ((0, 0), *only),
        (next, _) => {
            let next = next.min(points.len() - 1);
            (points[next - 1], points[next])
        }
    };
    let span = i128::from(high.0) - i128::from(low.0);
    let rise = i128::from(high.1) - i128::from(low.1);
    let along = i128::from(x) - i128::from(low.0);
    // |rise| and along are below 2^64, and one of the two products may need 128 bits.
    let climb = match rise.checked_mul(along) {
        Some(product) => product.div_euclid(span.max(1)),
        None => return if rise < 0 { 0 } else { u64::MAX },
    };
    let time = i128::from(low.1) + climb;
    u64::try_from(time.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::at;

    #[test]
    fn times_lie_on_lines_between_points() {
        let points = [(10, 100), (20, 300), (40, 400)];
        for (x, ns) in [
            (0, 100),
            (10, 100),
            (15, 200),
            (20, 300),
            (30, 350),
            (40, 400),
            (60, 500),
        ] {
            assert_eq!(at(&points, x), ns, "at {x}");
        }
        assert_eq!(at(&[], 3), 0);
        assert_eq!(at(&[(10, 100)], 5), 100);
        assert_eq!(at(&[(10, 100)], 25), 250);
    }

    #[test]
    fn a_line_that_leaves_the_numbers_ends_at_their_ends() {
        let max = u64::MAX;
        assert_eq!(at(&[(0, 0), (1, max)], max), max);
        assert_eq!(at(&[(0, max), (1, 0)], max), 0);
        assert_eq!(at(&[(0, 9), (1, 5)], 10), 0);
        assert_eq!(at(&[(1, max)], max), max);
    }
}
