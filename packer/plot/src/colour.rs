//! Colours that can be told apart, by those too who see fewer.

/// What is drawn as background.
pub(crate) const GREY: &str = "#a6a6a6";
/// What stands out beside colours.
pub(crate) const BLACK: &str = "#222";
/// Frames, and the ticks on them.
pub(crate) const FRAME: &str = "#888";
/// Lines behind the data.
pub(crate) const GRID: &str = "#e4e4e4";

/// Colours that differ in lightness as well as in hue: those of Okabe and Ito, but for the yellow, which is
/// lost on white.
const NAMED: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

/// The colour of the series or class at `index`.
pub(crate) fn named(index: usize) -> &'static str {
    NAMED[index % NAMED.len()]
}

/// Shades of a heat map.
pub(crate) const SHADES: usize = 32;

/// Red, green and blue from the lightest to the darkest shade, evenly apart.
const ANCHORS: [[usize; 3]; 5] = [
    [252, 244, 204],
    [176, 216, 164],
    [78, 172, 172],
    [34, 106, 160],
    [18, 34, 92],
];

/// A shade of [`SHADES`], the darker the more.
pub(crate) fn shade(index: usize) -> String {
    let steps = SHADES - 1;
    let along = index.min(steps) * (ANCHORS.len() - 1);
    let (at, part) = match along / steps {
        last if last + 1 == ANCHORS.len() => (last - 1, steps),
        at => (at, along % steps),
    };
    let mix = |channel: usize| {
        let (from, to) = (ANCHORS[at][channel], ANCHORS[at + 1][channel]);
        (from * (steps - part) + to * part + steps / 2) / steps
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_go_from_the_lightest_to_the_darkest_and_all_differ() {
        assert_eq!(shade(0), "#fcf4cc");
        assert_eq!(shade(SHADES - 1), "#12225c");
        assert_eq!(shade(usize::MAX), shade(SHADES - 1));
        let brightness = |index: usize| {
            let shade = shade(index);
            let channel = |at: usize| u32::from_str_radix(&shade[at..at + 2], 16).unwrap();
            3 * channel(1) + 6 * channel(3) + channel(5)
        };
        for index in 1..SHADES {
            assert!(brightness(index) < brightness(index - 1), "{index}");
        }
    }
}
