//! Which name has which look, below a picture.

use crate::chart::Look;
use crate::svg::Svg;
use crate::text::{Anchor, NORMAL, Words, width};

/// Pixels from line to line, of what stands before a name, and between entries.
const LINE: f64 = 20.0;
const SAMPLE: f64 = 26.0;
const GAP: f64 = 18.0;

/// How a name looks in the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sample {
    /// A line, a mark, or both.
    Look(Look),
    /// A colour that fills something.
    Block(&'static str),
}

/// Names with their looks, in the order in which they were met.
#[derive(Debug, Default)]
pub(crate) struct Legend {
    entries: Vec<(String, Sample)>,
}

impl Legend {
    pub(crate) fn get(&self, name: &str) -> Option<&Sample> {
        let mut entries = self.entries.iter();
        entries
            .find(|(known, _)| known == name)
            .map(|(_, sample)| sample)
    }

    pub(crate) fn add(&mut self, name: &str, sample: Sample) {
        self.entries.push((name.to_owned(), sample));
    }

    pub(crate) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.entries.iter().map(|(_, sample)| sample)
    }

    /// Pixels it takes if it is so wide.
    pub(crate) fn height(&self, room: f64) -> f64 {
        let lines = self.places(room).last().map_or(0, |(line, _)| line + 1);
        lines as f64 * LINE
    }

    /// Of each entry the line, and where it begins in it.
    fn places(&self, room: f64) -> Vec<(usize, f64)> {
        let (mut line, mut x) = (0, 0.0);
        let place = |(name, _): &(String, Sample)| {
            let wide = SAMPLE + width(name, NORMAL).min(room - SAMPLE);
            if x > 0.0 && x + wide > room {
                line += 1;
                x = 0.0;
            }
            let place = (line, x);
            x += wide + GAP;
            place
        };
        self.entries.iter().filter(has_name).map(place).collect()
    }

    /// Draws it with its upper left corner there.
    pub(crate) fn draw(&self, svg: &mut Svg, (left, top): (f64, f64), room: f64) {
        let places = self.places(room);
        let entries = self.entries.iter().filter(has_name).zip(places);
        svg.group("legend", "");
        for ((name, sample), (line, x)) in entries {
            let (x, y) = (left + x, top + LINE * (line as f64 + 0.5));
            match sample {
                Sample::Look(look) => look.sample(svg, x, y, SAMPLE - 6.0),
                Sample::Block(colour) => {
                    let block = svg.start("rect").at("x", x).at("y", y - 5.0);
                    let block = block.at("width", SAMPLE - 8.0).at("height", 10.0);
                    block.set("fill", colour).empty();
                }
            }
            let words = Words {
                class: "legend",
                x: x + SAMPLE,
                y: y + 0.35 * NORMAL,
                size: NORMAL,
                anchor: Anchor::Start,
                room: room - SAMPLE,
            };
            words.write(svg, name);
        }
        svg.end("g");
    }
}

/// What has no name is not explained.
fn has_name((name, _): &&(String, Sample)) -> bool {
    !name.is_empty()
}
