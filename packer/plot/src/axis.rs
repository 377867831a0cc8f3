//! An axis: what it is of, in which unit, and where its ticks are.

use serde::{Deserialize, Serialize};

use crate::scale::{Range, Scale, Tick};

/// What an axis is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Axis {
    /// What people call it, without the unit.
    pub label: String,
    /// What its numbers count.
    pub unit: Unit,
    /// How they become places.
    pub scale: Scale,
    /// The numbers that have ticks; none for round ones.
    pub ticks: Vec<f64>,
}

/// What numbers count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// What the label says.
    #[default]
    Plain,
    /// Bytes, shown as KiB, MiB, GiB or TiB.
    Bytes,
    /// Nanoseconds, shown as µs, ms or s.
    Nanoseconds,
    /// Something else, by this name.
    Named(String),
}

impl Unit {
    /// The unit to show numbers of up to `most` in: how many of this one it is, and its name.
    pub(crate) fn shown(&self, most: f64) -> (f64, &str) {
        const KIB: f64 = 1024.0;
        let units: &[(f64, &str)] = match self {
            Unit::Plain => return (1.0, ""),
            Unit::Named(name) => return (1.0, name),
            Unit::Bytes => &[
                (KIB * KIB * KIB * KIB, "TiB"),
                (KIB * KIB * KIB, "GiB"),
                (KIB * KIB, "MiB"),
                (KIB, "KiB"),
                (1.0, "bytes"),
            ],
            Unit::Nanoseconds => &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")],
        };
        let fits = units.iter().find(|(count, _)| most >= *count);
        *fits.unwrap_or(&units[units.len() - 1])
    }
}

/// An axis with all its data known.
#[derive(Debug)]
pub(crate) struct Fitted {
    scale: Scale,
    /// How many of the data's unit make one of the unit that is shown.
    per_unit: f64,
    range: Option<Range>,
    pub(crate) label: String,
    pub(crate) ticks: Vec<Tick>,
}

impl Fitted {
    /// Fits an axis with about `most` ticks around `values`.
    pub(crate) fn new(axis: &Axis, values: impl Iterator<Item = f64> + Clone, most: usize) -> Self {
        let scale = axis.scale;
        let shown = values.filter(|value| scale.shows(*value));
        let largest = shown.clone().map(f64::abs).fold(0.0, f64::max);
        let (per_unit, unit) = axis.unit.shown(largest);
        let range = Range::around(shown.map(|value| value / per_unit), scale);
        let ticks: Vec<f64> = axis.ticks.iter().map(|tick| tick / per_unit).collect();
        Fitted {
            scale,
            per_unit,
            range,
            label: with_unit(&axis.label, unit),
            ticks: match (&range, ticks.is_empty()) {
                (None, _) => Vec::new(),
                (Some(range), true) => range.ticks(most),
                (Some(range), false) => range.ticks_at(&ticks),
            },
        }
    }

    /// Whether there was nothing to fit it around.
    pub(crate) fn is_empty(&self) -> bool {
        self.range.is_none()
    }

    /// Where `value` is, 0 to 1 from end to end, if the axis can show it.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let range = self.range.as_ref()?;
        let shown = value / self.per_unit;
        (self.scale.shows(value) && self.scale.shows(shown)).then(|| range.place(shown))
    }
}

/// `memory (GiB)`.
pub(crate) fn with_unit(label: &str, unit: &str) -> String {
    match (label, unit) {
        (label, "") => label.to_owned(),
        ("", unit) => unit.to_owned(),
        (label, unit) => format!("{label} ({unit})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_the_largest_that_is_reached() {
        let shown = |unit: Unit, most: f64| unit.shown(most).1.to_owned();
        for (most, bytes, time) in [
            (0.0, "bytes", "ns"),
            (999.0, "bytes", "ns"),
            (1024.0, "KiB", "µs"),
            (2e6, "MiB", "ms"),
            (1.5e9, "GiB", "s"),
            (1e13, "TiB", "s"),
        ] {
            assert_eq!(shown(Unit::Bytes, most), bytes, "{most}");
            assert_eq!(shown(Unit::Nanoseconds, most), time, "{most}");
        }
        assert_eq!(shown(Unit::Named("%".to_owned()), 5.0), "%");
    }

    #[test]
    fn values_are_given_in_one_unit_and_shown_in_another() {
        let axis = Axis {
            label: "memory".to_owned(),
            unit: Unit::Bytes,
            ..Axis::default()
        };
        let gib = f64::from(1 << 30);
        let fitted = Fitted::new(&axis, [0.0, 2.0 * gib, f64::NAN].into_iter(), 4);
        assert_eq!(fitted.label, "memory (GiB)");
        let labels: Vec<&str> = fitted.ticks.iter().map(|tick| &*tick.label).collect();
        assert_eq!(labels, ["0", "1", "2"]);
        assert_eq!(fitted.place(gib), Some(fitted.ticks[1].place));
        assert_eq!(fitted.place(f64::NAN), None);
    }
}
