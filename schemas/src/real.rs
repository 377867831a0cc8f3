//! Real numbers in files that must be canonical.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// A finite f32 that is a *string* in JSON: the shortest decimal that reads back
/// as the same f32 (`"0.00001"`, `"10000"`).
///
/// Canonical files hold no JSON floats, because writers and readers disagree
/// about their spelling.
#[derive(Clone, Copy, Debug)]
pub struct Real(f32);

/// The text or value is not a finite real number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a finite real number")]
pub struct NotReal(pub String);

impl Real {
    /// Zero.
    pub const ZERO: Real = Real(0.0);
    /// One.
    pub const ONE: Real = Real(1.0);

    /// `value`, if it is finite; a negative zero becomes zero.
    pub fn new(value: f32) -> Result<Real, NotReal> {
        Real::finite(value).ok_or_else(|| NotReal(value.to_string()))
    }

    fn finite(value: f32) -> Option<Real> {
        value.is_finite().then_some(Real(value + 0.0))
    }

    /// The value.
    pub fn get(self) -> f32 {
        self.0
    }
}

impl PartialEq for Real {
    fn eq(&self, other: &Real) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

impl Hash for Real {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Real {
    type Err = NotReal;

    fn from_str(text: &str) -> Result<Real, NotReal> {
        let value = text.parse().ok().and_then(Real::finite);
        value.ok_or_else(|| NotReal(text.to_owned()))
    }
}

crate::text::serde_as_text!(
    Real,
    "Real",
    "A finite f32 as its shortest decimal, as `0.00001`",
    "^-?[0-9]+([.][0-9]+)?$"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_leads_back_to_the_same_bits(bits in any::<u32>()) {
            if let Ok(real) = Real::new(f32::from_bits(bits)) {
                prop_assert_eq!(real.to_string().parse(), Ok(real));
            }
        }
    }

    #[test]
    fn infinities_and_nan_are_refused() {
        for text in ["inf", "NaN", "1e39", "", "x"] {
            assert!(text.parse::<Real>().is_err(), "{text}");
        }
        assert_eq!(Real::new(-0.0).unwrap().to_string(), "0");
    }
}
