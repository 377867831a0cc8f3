//! What stands for a point.

use serde::{Deserialize, Serialize};

use crate::svg::{Svg, number};

/// A shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Nothing.
    #[default]
    None,
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// A square on its tip.
    Diamond,
    /// A triangle on its side.
    Triangle,
    /// Two strokes.
    Cross,
    /// A star of five points.
    Star,
}

/// Corners of a star whose points are at a distance of 1, from the upper one on.
const STAR: [(f64, f64); 10] = [
    (0.0, -1.0),
    (0.2245, -0.309),
    (0.9511, -0.309),
    (0.3633, 0.118),
    (0.5878, 0.809),
    (0.0, 0.382),
    (-0.5878, 0.809),
    (-0.3633, 0.118),
    (-0.9511, -0.309),
    (-0.2245, -0.309),
];
const SQUARE: [(f64, f64); 4] = [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)];
const DIAMOND: [(f64, f64); 4] = [(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)];
const TRIANGLE: [(f64, f64); 3] = [(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)];

impl Mark {
    /// Pixels from its middle to its edge, where nothing else is asked for.
    pub(crate) fn radius(self) -> f64 {
        match self {
            Mark::None => 0.0,
            Mark::Circle | Mark::Square | Mark::Diamond | Mark::Triangle => 3.0,
            Mark::Cross => 6.0,
            Mark::Star => 9.0,
        }
    }

    /// Draws one, with words that show on hovering if there are some.
    pub(crate) fn draw(
        self,
        svg: &mut Svg,
        (x, y): (f64, f64),
        radius: f64,
        colour: &str,
        title: &str,
    ) {
        let corners: &[(f64, f64)] = match self {
            Mark::None => return,
            Mark::Circle => {
                let disc = svg.start("circle").at("cx", x).at("cy", y);
                disc.at("r", radius).set("fill", colour).titled(title, "");
                return;
            }
            Mark::Cross => {
                let arm = 0.75 * radius;
                let (long, back) = (number(2.0 * arm), number(-2.0 * arm));
                let (left, top) = (number(x - arm), number(y - arm));
                let path = format!("M{left} {top}l{long} {long}m{back} 0l{long} {back}");
                let cross = svg.start("path").set("d", &path);
                let cross = cross.set("stroke", colour).at("stroke-width", 2.5);
                cross.titled(title, "");
                return;
            }
            Mark::Square => &SQUARE,
            Mark::Diamond => &DIAMOND,
            Mark::Triangle => &TRIANGLE,
            Mark::Star => &STAR,
        };
        let corner = |(dx, dy): &(f64, f64)| {
            format!("{} {}", number(x + radius * dx), number(y + radius * dy))
        };
        let corners: Vec<String> = corners.iter().map(corner).collect();
        let path = format!("M{}Z", corners.join("L"));
        let shape = svg.start("path").set("d", &path).set("fill", colour);
        // Stars may stand on one another.
        let shape = match self {
            Mark::Star => shape.set("stroke", "#fff").at("stroke-width", 0.8),
            _ => shape,
        };
        shape.titled(title, "");
    }
}
