//! From values to places on an axis, and the values that have ticks.

use serde::{Deserialize, Serialize};

/// How values become places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// In proportion.
    #[default]
    Linear,
    /// By their logarithm; only what is above zero has one.
    Log,
}

/// The largest number that can be shown: sums and differences of two are still finite. On a logarithmic scale
/// the least is its inverse.
const MOST: f64 = 1e300;

/// Room beyond the outermost values, as a share of what is between them.
const MARGIN: f64 = 0.05;

impl Scale {
    /// Whether `value` has a place.
    pub(crate) fn shows(self, value: f64) -> bool {
        match self {
            Scale::Linear => value.abs() <= MOST,
            Scale::Log => (1.0 / MOST..=MOST).contains(&value),
        }
    }

    fn of(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            // The platform's may differ in the last bit.
            Scale::Log => libm::log10(value),
        }
    }
}

/// The part of a scale that an axis has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    scale: Scale,
    low: f64,
    high: f64,
    /// The same on the scale.
    from: f64,
    to: f64,
}

/// A value with a mark and a label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// From 0 to 1.
    pub(crate) place: f64,
    pub(crate) label: String,
}

impl Range {
    /// A range with room for all of `values`, which the scale shows; `None` of none.
    pub(crate) fn around(values: impl Iterator<Item = f64>, scale: Scale) -> Option<Range> {
        let ends = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), ends);
        if low > high {
            return None;
        }
        let is_one = high - low <= 1e-9 * low.abs().max(high.abs());
        let (low, high) = match scale {
            Scale::Linear if is_one && high == 0.0 => (0.0, 1.0),
            Scale::Linear if is_one => ((2.0 * low).min(0.0), (2.0 * high).max(0.0)),
            Scale::Linear => {
                let margin = MARGIN * (high - low);
                // Where it costs little, an axis begins with zero.
                match (0.0..0.4 * high).contains(&low) {
                    true => (0.0, high + margin),
                    false => (low - margin, high + margin),
                }
            }
            Scale::Log if is_one => (low / 2.0, 2.0 * high),
            Scale::Log => {
                let factor = libm::pow(high / low, MARGIN).clamp(1.0, 1e3);
                (low / factor, high * factor)
            }
        };
        Some(Range::new(low, high, scale))
    }

    /// From zero to `high`, in proportion.
    pub(crate) fn up_to(high: f64) -> Range {
        let high = if high > 0.0 { high.min(MOST) } else { 1.0 };
        Range::new(0.0, high, Scale::Linear)
    }

    fn new(low: f64, high: f64, scale: Scale) -> Range {
        Range {
            scale,
            low,
            high,
            from: scale.of(low),
            to: scale.of(high),
        }
    }

    /// Where a value is that the scale shows: 0 to 1 from end to end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        (self.scale.of(value) - self.from) / (self.to - self.from)
    }

    /// Ticks at round values, about `most` of them.
    pub(crate) fn ticks(&self, most: usize) -> Vec<Tick> {
        let decades = self.to - self.from;
        match self.scale {
            Scale::Log if decades > 0.7 => self.log_ticks(most),
            _ => self.linear_ticks(most),
        }
    }

    /// Ticks at those of `values` that are in the range.
    pub(crate) fn ticks_at(&self, values: &[f64]) -> Vec<Tick> {
        let within = |value: &&f64| (self.low..=self.high).contains(*value);
        let values = values.iter().filter(within);
        // As many decimals as the value has, if they are few.
        let is_whole = |value: f64, decimals: &usize| {
            let text = format!("{value:.0$}", *decimals);
            text.parse() == Ok(value)
        };
        let tick = |value: &f64| {
            let decimals = (0..3).find(|decimals| is_whole(*value, decimals));
            self.tick(*value, decimals.unwrap_or(3))
        };
        values.map(tick).collect()
    }

    fn tick(&self, value: f64, decimals: usize) -> Tick {
        Tick {
            place: self.place(value),
            label: label(value, decimals),
        }
    }

    fn linear_ticks(&self, most: usize) -> Vec<Tick> {
        let (step, decimals) = step((self.high - self.low) / most.max(1) as f64);
        let first = (self.low / step).ceil();
        let values = (0..=2 * most).map(|index| (first + index as f64) * step);
        // A float's error must not cost the last one.
        let end = self.high + 1e-6 * step;
        let values = values.take_while(|value| *value <= end);
        values.map(|value| self.tick(value, decimals)).collect()
    }

    fn log_ticks(&self, most: usize) -> Vec<Tick> {
        let decades = self.to - self.from;
        let multiples: &[f64] = match decades <= 2.5 {
            true => &[1.0, 2.0, 5.0],
            false => &[1.0],
        };
        let (first, last) = (exponent(self.low), exponent(self.high));
        let every = (decades / most.max(1) as f64).ceil().max(1.0);
        let chosen = (first..=last).filter(|exponent| f64::from(*exponent) % every == 0.0);
        let chosen = chosen.flat_map(|exponent| {
            let values = multiples.iter().map(move |multiple| {
                let decimals = usize::try_from(-exponent).unwrap_or(0);
                (multiple * power_of_ten(exponent), decimals)
            });
            values.filter(|(value, _)| (self.low..=self.high).contains(value))
        });
        chosen
            .map(|(value, decimals)| self.tick(value, decimals))
            .collect()
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `least`, and its decimals.
fn step(least: f64) -> (f64, usize) {
    let exponent = exponent(least);
    let power = power_of_ten(exponent);
    let multiple = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|multiple| multiple * power >= least);
    match multiple {
        Some(multiple) => (multiple * power, usize::try_from(-exponent).unwrap_or(0)),
        None => (
            power_of_ten(exponent + 1),
            usize::try_from(-exponent - 1).unwrap_or(0),
        ),
    }
}

/// ⌊log10⌋ of a number above zero, from its digits.
fn exponent(value: f64) -> i32 {
    let text = format!("{value:e}");
    let exponent = text.split_once('e').and_then(|(_, e)| e.parse().ok());
    exponent.unwrap_or(0)
}

/// The float that is nearest; a product of tens may be another.
fn power_of_ten(exponent: i32) -> f64 {
    format!("1e{exponent}").parse().unwrap_or(1.0)
}

/// A number for people: thousands apart, and large and small ones as powers.
pub(crate) fn label(value: f64, decimals: usize) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e7).contains(&size) {
        let text = format!("{value:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        return format!("{digits}e{power}");
    }
    let text = format!("{size:.decimals$}");
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::new();
    // What is rounded to nothing has no sign.
    if value < 0.0 && text.contains(|c: char| matches!(c, '1'..='9')) {
        out.push('-');
    }
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if !part.is_empty() {
        out.push('.');
        out += part;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64, scale: Scale) -> Vec<String> {
        let range = Range::new(low, high, scale);
        let ticks = range.ticks(5).into_iter();
        ticks.map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_at_round_values() {
        use Scale::{Linear, Log};
        let cases: [(f64, f64, Scale, &[&str]); 9] = [
            (0.0, 10.0, Linear, &["0", "2", "4", "6", "8", "10"]),
            (0.0, 0.3, Linear, &["0.0", "0.1", "0.2", "0.3"]),
            (-3.0, 2.0, Linear, &["-3", "-2", "-1", "0", "1", "2"]),
            (900.0, 2600.0, Linear, &["1,000", "1,500", "2,000", "2,500"]),
            (0.0, 4e8, Linear, &["0", "1e8", "2e8", "3e8", "4e8"]),
            (1.0, 1000.0, Log, &["1", "10", "100", "1,000"]),
            (1.0, 20.0, Log, &["1", "2", "5", "10", "20"]),
            (0.02, 0.5, Log, &["0.02", "0.05", "0.1", "0.2", "0.5"]),
            (10.0, 13.0, Log, &["10", "11", "12", "13"]),
        ];
        for (low, high, scale, expected) in cases {
            assert_eq!(labels(low, high, scale), expected, "{low} to {high}");
        }
    }

    #[test]
    fn ticks_that_are_asked_for_are_labelled_as_they_are() {
        let range = Range::new(1.0, 5000.0, Scale::Log);
        let ticks = range.ticks_at(&[0.5, 1.25, 16.0, 4096.0, 1000.0 / 3.0, 9999.0, f64::NAN]);
        let labels: Vec<&str> = ticks.iter().map(|tick| &*tick.label).collect();
        assert_eq!(labels, ["1.25", "16", "4,096", "333.333"]);
    }

    #[test]
    fn every_value_has_a_place_within_the_range() {
        let many: [&[f64]; 9] = [
            &[1.0],
            &[0.0],
            &[-5.0, -5.0],
            &[1e300, -1e300],
            &[1e-320, 2e-320],
            &[5e-324],
            &[1e15, 1e15 + 1.0],
            &[3.0, 1000.0],
            &[1e-300, 1e300],
        ];
        for values in many {
            for scale in [Scale::Linear, Scale::Log] {
                if !values.iter().all(|value| scale.shows(*value)) {
                    continue;
                }
                let range = Range::around(values.iter().copied(), scale).unwrap();
                for value in values {
                    let place = range.place(*value);
                    assert!((0.0..=1.0).contains(&place), "{values:?}: {place}");
                }
                for most in [0, 1, 5, 20] {
                    let ticks = range.ticks(most);
                    assert!(ticks.len() <= 3 * most + 2, "{values:?}: {ticks:?}");
                    for tick in ticks {
                        assert!((-0.01..=1.01).contains(&tick.place), "{values:?}");
                    }
                }
            }
        }
        assert!(Range::around(std::iter::empty(), Scale::Linear).is_none());
    }

    #[test]
    fn what_has_no_place_is_told() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e301] {
            assert!(!Scale::Linear.shows(value) && !Scale::Log.shows(value));
        }
        assert!(!Scale::Log.shows(0.0) && !Scale::Log.shows(-1.0));
        assert!(Scale::Linear.shows(-1.0));
    }
}
