//! Rows of numbers as colours.

use serde::{Deserialize, Serialize};

use crate::colour::{self, SHADES, shade};
use crate::scale::{Range, Tick, label};
use crate::svg::{Svg, number};
use crate::text::{Anchor, LARGE, NORMAL, SMALL, Words, width};

/// Rows of numbers, one below the other. Where a number is missing, below zero or none (not a number, infinite), the
/// picture is blank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeatMap {
    /// Above it.
    pub title: String,
    /// What columns are: they are counted from 0.
    pub columns: String,
    /// What rows are.
    pub rows_label: String,
    /// What the numbers are, with their unit.
    pub values_label: String,
    /// The rows, from above.
    pub rows: Vec<HeatRow>,
}

/// A row of numbers, which may be shorter than others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeatRow {
    /// Left of it.
    pub name: String,
    /// By column.
    pub values: Vec<Option<f64>>,
}

/// Pixels around everything.
const EDGE: f64 = 12.0;
/// What the map takes, if cells are not larger than [`CELL`] then.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const CELL: f64 = 28.0;
/// Of the label on the left; of the ticks and the label below.
const SIDE: f64 = 22.0;
const BELOW: f64 = 44.0;
/// To the bar of colours, its width and its least height.
const TO_BAR: f64 = 24.0;
const BAR: f64 = 14.0;
const BAR_HEIGHT: f64 = 160.0;
/// What a title may widen the page to.
const TITLE: f64 = 480.0;
/// The most that the name of a row takes.
const NAME: f64 = 120.0;

/// Draws a heat map, the darker the more, from zero to the largest of the numbers.
pub fn heat_map(map: &HeatMap) -> String {
    let columns = map.rows.iter().map(|row| row.values.len()).max();
    let columns = columns.unwrap_or(0);
    let values = map.rows.iter().flat_map(|row| &row.values).flatten();
    let most = values.copied().filter(|value| is_shown(*value));
    let range = Range::up_to(most.fold(0.0, f64::max));
    let bar_ticks = range.ticks(5);
    let names = map.rows.iter().map(|row| width(&row.name, SMALL).min(NAME));
    let left = EDGE + SIDE + names.fold(0.0, f64::max) + 8.0;
    let top = match map.title.as_str() {
        "" => EDGE,
        _ => EDGE + LARGE + 12.0,
    };
    let grid = Grid {
        left,
        top,
        cell: (size(WIDTH, columns), size(HEIGHT, map.rows.len())),
        columns,
        rows: map.rows.len(),
    };
    let right = left + grid.width();
    let labels = bar_ticks.iter().map(|tick| width(&tick.label, SMALL));
    let after_bar = 8.0 + labels.fold(0.0, f64::max) + SIDE;
    let title = width(&map.title, LARGE).min(TITLE) + 2.0 * EDGE;
    let full = (right + TO_BAR + BAR + after_bar + EDGE).max(title);
    let below = grid.height().max(BAR_HEIGHT);
    let height = (grid.height() + BELOW).max(below + SMALL);
    let mut svg = Svg::new(full, top + height + EDGE, &map.title);
    let title = Words {
        class: "title",
        x: EDGE,
        y: EDGE + LARGE,
        size: LARGE,
        anchor: Anchor::Start,
        room: full - 2.0 * EDGE,
    };
    title.write(&mut svg, &map.title);
    grid.draw_cells(&mut svg, map, &range);
    grid.draw_axes(&mut svg, map);
    let bar = Bar {
        left: right + TO_BAR,
        top,
        height: below,
        ticks: &bar_ticks,
    };
    bar.draw(
        &mut svg,
        &map.values_label,
        right + TO_BAR + BAR + after_bar,
    );
    svg.finish()
}

/// Whether there is a colour for it.
fn is_shown(value: f64) -> bool {
    (0.0..=1e300).contains(&value)
}

/// Pixels of one of `count` that have `room`, as they can be written.
fn size(room: f64, count: usize) -> f64 {
    let size = (room / count.max(1) as f64).min(CELL);
    ((100.0 * size).round() / 100.0).max(0.01)
}

/// Where cells are.
struct Grid {
    left: f64,
    top: f64,
    cell: (f64, f64),
    columns: usize,
    rows: usize,
}

impl Grid {
    fn width(&self) -> f64 {
        (self.columns as f64 * self.cell.0).max(self.cell.0)
    }

    fn height(&self) -> f64 {
        (self.rows as f64 * self.cell.1).max(self.cell.1)
    }

    /// A path for each shade, in which a cell is a unit.
    fn draw_cells(&self, svg: &mut Svg, map: &HeatMap, range: &Range) {
        let mut paths = vec![String::new(); SHADES];
        for (y, row) in map.rows.iter().enumerate() {
            let shades: Vec<Option<usize>> = row
                .values
                .iter()
                .map(|value| value.filter(|value| is_shown(*value)))
                .map(|value| value.map(|value| shade_of(range.place(value))))
                .collect();
            let mut x = 0;
            for run in shades.chunk_by(|a, b| a == b) {
                if let Some(shade) = run[0] {
                    let wide = run.len();
                    paths[shade] += &format!("M{x} {y}h{wide}v1h-{wide}z");
                }
                x += run.len();
            }
        }
        let (left, top) = (number(self.left), number(self.top));
        let (wide, high) = (number(self.cell.0), number(self.cell.1));
        let group = svg.start("g").set("class", "cells");
        group
            .set(
                "transform",
                &format!("translate({left} {top}) scale({wide} {high})"),
            )
            .set("shape-rendering", "crispEdges")
            .open();
        for (index, path) in paths.iter().enumerate() {
            if !path.is_empty() {
                let cells = svg.start("path").set("fill", &shade(index));
                cells.set("d", path).empty();
            }
        }
        svg.end("g");
    }

    fn draw_axes(&self, svg: &mut Svg, map: &HeatMap) {
        let (right, bottom) = (self.left + self.width(), self.top + self.height());
        let border = svg.start("rect").at("x", self.left).at("y", self.top);
        let border = border.at("width", self.width()).at("height", self.height());
        border
            .set("fill", "none")
            .set("stroke", colour::FRAME)
            .empty();
        let words = Words {
            class: "tick",
            x: (self.left + right) / 2.0,
            y: bottom + 16.0,
            size: SMALL,
            anchor: Anchor::Middle,
            room: f64::INFINITY,
        };
        for column in shown_of(self.columns, self.cell.0, 40.0) {
            let x = self.left + (column as f64 + 0.5) * self.cell.0;
            Words { x, ..words }.write(svg, &label(column as f64, 0));
        }
        let mut names = Vec::new();
        for row in shown_of(self.rows, self.cell.1, SMALL + 3.0) {
            let middle = self.top + (row as f64 + 0.5) * self.cell.1;
            let beside = Words {
                x: self.left - 6.0,
                y: middle + 0.35 * SMALL,
                anchor: Anchor::End,
                room: NAME,
                ..words
            };
            let name = &map.rows[row].name;
            beside.write(svg, name);
            names.push(width(name, SMALL).min(NAME));
        }
        if self.columns == 0 {
            let empty = Words {
                class: "empty",
                x: right + 6.0,
                y: self.top + NORMAL,
                anchor: Anchor::Start,
                ..words
            };
            empty.write(svg, "no data");
        }
        let below = Words {
            class: "axis",
            y: bottom + 34.0,
            size: NORMAL,
            room: self.width(),
            ..words
        };
        match width(&map.columns, NORMAL) <= below.room {
            true => below.write(svg, &map.columns),
            // Of few columns; the bar of colours is to the right of them.
            false => Words {
                x: self.left,
                anchor: Anchor::Start,
                room: self.width() + TO_BAR + BAR,
                ..below
            }
            .write(svg, &map.columns),
        }
        let names = names.into_iter().fold(0.0, f64::max);
        let wide = width(&map.rows_label, NORMAL).min(2.0 * CELL);
        let up = Words {
            x: self.left - names - 14.0,
            // It may be longer than few rows are high, and then begins where they do.
            y: self.top + self.height().max(wide) / 2.0,
            room: self.height().max(2.0 * CELL),
            ..below
        };
        up.write_up(svg, &map.rows_label);
    }
}

/// The shade of a value at this place of the range.
fn shade_of(place: f64) -> usize {
    let steps = (SHADES - 1) as f64;
    let limits = (1..SHADES).filter(|index| place >= (*index as f64 - 0.5) / steps);
    limits.count()
}

/// Which of `count` have a label, if each is `size` pixels large and a label takes `each`.
fn shown_of(count: usize, size: f64, each: f64) -> impl Iterator<Item = usize> {
    let every = [
        1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512,
    ];
    let fits = |every: &usize| *every as f64 * size >= each;
    let every = every.into_iter().find(fits);
    let every = every.unwrap_or_else(|| count.div_ceil(16).max(1));
    (0..count).step_by(every)
}

/// Which colour is which number.
struct Bar<'a> {
    left: f64,
    top: f64,
    height: f64,
    ticks: &'a [Tick],
}

impl Bar<'_> {
    fn draw(&self, svg: &mut Svg, label: &str, right: f64) {
        svg.group("scale", "");
        let step = self.height / SHADES as f64;
        for index in 0..SHADES {
            let from_top = (SHADES - 1 - index) as f64 * step;
            let part = svg.start("rect").at("x", self.left);
            let part = part.at("y", self.top + from_top);
            // A little more than the step, so that nothing shines through.
            let part = part.at("width", BAR).at("height", step + 0.5);
            part.set("fill", &shade(index)).empty();
        }
        for tick in self.ticks {
            let y = self.top + (1.0 - tick.place) * self.height;
            let (from, to) = (self.left + BAR, self.left + BAR + 4.0);
            svg.line((from, y), (to, y), colour::FRAME);
            let words = Words {
                class: "tick",
                x: to + 4.0,
                y: y + 0.35 * SMALL,
                size: SMALL,
                anchor: Anchor::Start,
                room: f64::INFINITY,
            };
            words.write(svg, &tick.label);
        }
        let words = Words {
            class: "axis",
            x: right,
            y: self.top + self.height / 2.0,
            size: NORMAL,
            anchor: Anchor::Middle,
            room: self.height,
        };
        words.write_up(svg, label);
        svg.end("g");
    }
}
