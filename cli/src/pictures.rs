//! Words that pictures have in common.

use std::path::Path;

use estream_schemas::plan::{Schedule, StreamConfig};

use crate::tables::grouped;

/// A bundle's name; where it is, is no business of who sees the picture.
pub(crate) fn name_of(bundle: &Path) -> String {
    let name = bundle.file_name().unwrap_or(bundle.as_os_str());
    name.to_string_lossy().into_owned()
}

/// `early, G = 8, Q = 2, B = 3`.
pub(crate) fn config(config: &StreamConfig) -> String {
    let StreamConfig {
        schedule,
        group,
        depth,
        banks,
        ..
    } = config;
    match schedule {
        Schedule::Resident => schedule.name().to_owned(),
        _ => format!("{}, G = {group}, Q = {depth}, B = {banks}", schedule.name()),
    }
}

/// `1.5 GiB` or `800 MB`; a number of bytes, if two decimals are not all of it.
pub(crate) fn size(bytes: u64) -> String {
    let units = [
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
        (1_000_000_000, "GB"),
        (1_000_000, "MB"),
    ];
    let hundred = 100 * u128::from(bytes);
    let fits = |(each, _): &(u128, &str)| {
        let is_short = (100 * each..1_000_000 * each).contains(&hundred);
        is_short && hundred.is_multiple_of(*each)
    };
    match units.into_iter().find(fits) {
        None => format!("{} bytes", grouped(bytes)),
        Some((each, unit)) => {
            let hundredths = hundred / each;
            let number = format!("{}.{:02}", hundredths / 100, hundredths % 100);
            let number = number.trim_end_matches('0').trim_end_matches('.');
            format!("{number} {unit}")
        }
    }
}

/// `12.3 ms`.
pub(crate) fn millis(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_where_nothing_is_lost() {
        for (bytes, text) in [
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            (5 << 28, "1.25 GiB"),
            (1 << 40, "1024 GiB"),
            (39_129_040, "39,129,040 bytes"),
            (800_000_000, "800 MB"),
            (1_250_000_000, "1.25 GB"),
            (100 << 20, "100 MiB"),
            (1536, "1.5 KiB"),
            (7, "7 bytes"),
            (u64::MAX, "18,446,744,073,709,551,615 bytes"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
