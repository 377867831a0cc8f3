//! y against x: the data of charts, and how their series look.

use serde::{Deserialize, Serialize};

use crate::axis::Axis;
use crate::colour;
use crate::legend::{Legend, Sample};
use crate::mark::Mark;
use crate::svg::{Svg, number};

/// A picture of y against x.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// The axis below.
    pub x: Axis,
    /// The axis to the left.
    pub y: Axis,
    /// What is drawn, the first below the others.
    pub series: Vec<Series>,
}

/// Points that belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Series {
    /// Its name in the legend; without one it is not there. Series of one name in several charts look like
    /// the first.
    pub name: String,
    /// Its colour.
    pub tone: Tone,
    /// What joins its points, in their order.
    pub line: Line,
    /// What stands at each.
    pub mark: Mark,
    /// Pixels from the middle of a mark to its edge, if not those of its shape.
    pub radius: Option<f64>,
    /// The points. Those that an axis cannot show, as zero on a logarithmic one, interrupt the line.
    pub points: Vec<Point>,
}

/// Where something is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// In the unit of the lower axis.
    pub x: f64,
    /// In the unit of the left axis.
    pub y: f64,
    /// What shows on hovering over its mark; nothing if it is empty.
    #[serde(default)]
    pub title: String,
}

impl Point {
    /// A point of which nothing is said.
    pub fn new(x: f64, y: f64) -> Point {
        Point {
            x,
            y,
            title: String::new(),
        }
    }
}

/// A colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tone {
    /// The next one that no series has.
    #[default]
    Next,
    /// That of a background.
    Grey,
    /// That of text.
    Black,
}

/// What joins points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// Nothing.
    #[default]
    None,
    /// The shortest way.
    Straight,
    /// To the right first: y stays what it is until the next x.
    Steps,
    /// Nothing: at each point an upright line goes through the whole chart, as for a limit.
    Upright,
}

/// How a series looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    pub(crate) colour: &'static str,
    pub(crate) line: Line,
    pub(crate) mark: Mark,
    pub(crate) radius: f64,
}

/// The looks of all series: of those of one name, that of the first.
pub(crate) fn legend(charts: &[Chart]) -> Legend {
    let mut legend = Legend::default();
    let mut coloured = 0;
    for series in charts.iter().flat_map(|chart| &chart.series) {
        if legend.get(&series.name).is_some() {
            continue;
        }
        let colour = match series.tone {
            Tone::Grey => colour::GREY,
            Tone::Black => colour::BLACK,
            Tone::Next => {
                coloured += 1;
                colour::named(coloured - 1)
            }
        };
        let radius = series.radius.filter(|radius| radius.is_finite());
        let look = Look {
            colour,
            line: series.line,
            mark: series.mark,
            radius: radius.map_or(series.mark.radius(), |radius| radius.clamp(1.0, 20.0)),
        };
        legend.add(&series.name, Sample::Look(look));
    }
    legend
}

/// The line through places of a chart from `top` to `bottom`; where one is missing, it begins again.
pub(crate) fn path(
    places: impl Iterator<Item = Option<(f64, f64)>>,
    line: Line,
    (top, bottom): (f64, f64),
) -> String {
    let mut path = String::new();
    let mut is_begun = false;
    for place in places {
        let Some((x, y)) = place else {
            is_begun = false;
            continue;
        };
        let (x, y) = (number(x), number(y));
        path += &match (line, is_begun) {
            (Line::None, _) => String::new(),
            (Line::Upright, _) => format!("M{x} {}V{}", number(bottom), number(top)),
            (_, false) => format!("M{x} {y}"),
            (Line::Steps, true) => format!("H{x}V{y}"),
            (Line::Straight, true) => format!("L{x} {y}"),
        };
        is_begun = true;
    }
    path
}

impl Look {
    pub(crate) fn stroke(&self, svg: &mut Svg, path: &str) {
        let line = svg.start("path").set("class", "line").set("d", path);
        let line = line.set("fill", "none").set("stroke", self.colour);
        let line = line.at("stroke-width", 1.8);
        match self.line {
            Line::Upright => line.set("stroke-dasharray", "4 3").empty(),
            _ => line.set("stroke-linejoin", "round").empty(),
        }
    }

    /// Draws what stands for it, so wide, around `y`.
    pub(crate) fn sample(&self, svg: &mut Svg, x: f64, y: f64, wide: f64) {
        if self.line != Line::None {
            let right = number(x + wide);
            self.stroke(svg, &format!("M{} {}H{right}", number(x), number(y)));
        }
        let radius = self.radius.min(7.0);
        self.mark
            .draw(svg, (x + wide / 2.0, y), radius, self.colour, "");
    }
}
