//! Charts side by side: where they are, their axes, and their series.

use crate::axis::Fitted;
use crate::chart::{Chart, Look, Point, Series, legend, path};
use crate::colour;
use crate::legend::{Legend, Sample};
use crate::mark::Mark;
use crate::scale::Tick;
use crate::svg::Svg;
use crate::text::{Anchor, LARGE, NORMAL, SMALL, Words, width};

/// Draws one chart.
pub fn chart(chart: &Chart) -> String {
    panels("", std::slice::from_ref(chart))
}

/// Draws charts side by side, in several rows if they are many, with one legend for all and `title` above
/// them.
pub fn panels(title: &str, charts: &[Chart]) -> String {
    let grid = Grid::of(title, charts);
    let mut svg = Svg::new(grid.width, grid.height, &grid.name(title));
    let words = Words {
        class: "title",
        x: EDGE,
        y: EDGE + LARGE,
        size: LARGE,
        anchor: Anchor::Start,
        room: grid.width - 2.0 * EDGE,
    };
    words.write(&mut svg, title);
    for (index, panel) in grid.panels.iter().enumerate() {
        panel.draw(&mut svg, grid.frame(index), &grid.legend);
    }
    let top = grid.height - EDGE - grid.legend_height;
    let room = grid.width - 2.0 * EDGE;
    grid.legend.draw(&mut svg, (EDGE, top), room);
    svg.finish()
}

/// Pixels around everything.
const EDGE: f64 = 12.0;
/// Of a panel's title, of the ticks and the label below it, and to the next one.
const ABOVE: f64 = 24.0;
const BELOW: f64 = 44.0;
const BETWEEN: f64 = 16.0;
/// Of the label of the left axis.
const SIDE: f64 = 22.0;

/// Where panels are.
struct Grid<'a> {
    panels: Vec<Panel<'a>>,
    legend: Legend,
    legend_height: f64,
    columns: usize,
    /// Of what is within a frame.
    plot: (f64, f64),
    /// Of a panel.
    cell: (f64, f64),
    /// Left of a frame.
    gutter: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// A frame in pixels.
#[derive(Clone, Copy)]
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Grid<'_> {
    fn of<'a>(title: &str, charts: &'a [Chart]) -> Grid<'a> {
        let (columns, plot, ticks) = match charts.len() {
            0 | 1 => (1, (600.0, 360.0), (7, 7)),
            2 | 4 => (2, (380.0, 250.0), (5, 5)),
            _ => (3, (270.0, 210.0), (4, 4)),
        };
        let panels = charts.iter().map(|chart| Panel::of(chart, ticks));
        let panels: Vec<Panel<'_>> = panels.collect();
        let labels = panels.iter().map(|panel| widest(&panel.y.ticks));
        let gutter = SIDE + labels.fold(0.0, f64::max) + 8.0;
        // The last label below an axis may stand half beyond it.
        let labels = panels.iter().map(|panel| widest(&panel.x.ticks));
        let right = labels.fold(0.0, f64::max) / 2.0;
        let cell = (gutter + plot.0 + right, ABOVE + plot.1 + BELOW);
        let rows = panels.len().max(1).div_ceil(columns);
        let of = |count: usize, size: f64| count as f64 * (size + BETWEEN) - BETWEEN;
        let legend = legend(charts);
        let width = of(columns, cell.0) + 2.0 * EDGE;
        let legend_height = legend.height(width - 2.0 * EDGE);
        let top = match title {
            "" => EDGE,
            _ => EDGE + LARGE + 10.0,
        };
        Grid {
            panels,
            legend,
            legend_height,
            columns,
            plot,
            cell,
            gutter,
            top,
            width,
            height: top + of(rows, cell.1) + 8.0 + legend_height + EDGE,
        }
    }

    /// What the whole picture is called.
    fn name(&self, title: &str) -> String {
        let titles = self.panels.iter().map(|panel| panel.chart.title.as_str());
        let titles = [title].into_iter().chain(titles);
        let titles: Vec<&str> = titles.filter(|title| !title.is_empty()).collect();
        titles.join(", ")
    }

    fn frame(&self, index: usize) -> Frame {
        let (column, row) = (index % self.columns, index / self.columns);
        Frame {
            left: EDGE + column as f64 * (self.cell.0 + BETWEEN) + self.gutter,
            top: self.top + row as f64 * (self.cell.1 + BETWEEN) + ABOVE,
            width: self.plot.0,
            height: self.plot.1,
        }
    }
}

/// Pixels of the widest label.
fn widest(ticks: &[Tick]) -> f64 {
    let widths = ticks.iter().map(|tick| width(&tick.label, SMALL));
    widths.fold(0.0, f64::max)
}

/// A chart whose axes are known.
struct Panel<'a> {
    chart: &'a Chart,
    x: Fitted,
    y: Fitted,
    /// Points that the axes cannot show.
    hidden: usize,
}

impl Panel<'_> {
    /// With about so many ticks below and to the left.
    fn of(chart: &Chart, ticks: (usize, usize)) -> Panel<'_> {
        let points = chart.series.iter().flat_map(|series| &series.points);
        let shown = points.clone().filter(|point| {
            let (x, y) = (chart.x.scale, chart.y.scale);
            x.shows(point.x) && y.shows(point.y)
        });
        let (x, y) = (
            shown.clone().map(|point| point.x),
            shown.map(|point| point.y),
        );
        let mut panel = Panel {
            x: Fitted::new(&chart.x, x, ticks.0),
            y: Fitted::new(&chart.y, y, ticks.1),
            hidden: 0,
            chart,
        };
        let hidden = points.filter(|point| panel.place(point).is_none());
        panel.hidden = hidden.count();
        panel
    }

    /// Where a point is, 0 to 1 from left to right and from below to above.
    fn place(&self, point: &Point) -> Option<(f64, f64)> {
        self.x.place(point.x).zip(self.y.place(point.y))
    }

    fn draw(&self, svg: &mut Svg, frame: Frame, legend: &Legend) {
        svg.group("panel", "");
        let title = match self.hidden {
            0 => self.chart.title.clone(),
            1 => format!("{} (1 point cannot be shown)", self.chart.title),
            count => format!("{} ({count} points cannot be shown)", self.chart.title),
        };
        let middle = frame.left + frame.width / 2.0;
        let words = |class, y, size| Words {
            class,
            x: middle,
            y,
            size,
            anchor: Anchor::Middle,
            room: frame.width,
        };
        words("panel-title", frame.top - 8.0, NORMAL + 1.0).write(svg, title.trim_start());
        self.draw_axes(svg, frame);
        let bottom = frame.top + frame.height;
        words("axis", bottom + 36.0, NORMAL).write(svg, &self.x.label);
        let up = Words {
            x: frame.left - widest(&self.y.ticks) - 14.0,
            room: frame.height,
            ..words("axis", frame.top + frame.height / 2.0, NORMAL)
        };
        up.write_up(svg, &self.y.label);
        for series in &self.chart.series {
            if let Some(Sample::Look(look)) = legend.get(&series.name) {
                self.draw_series(svg, frame, series, look);
            }
        }
        if self.x.is_empty() {
            words("empty", frame.top + frame.height / 2.0, NORMAL).write(svg, "no data");
        }
        svg.end("g");
    }

    fn draw_axes(&self, svg: &mut Svg, frame: Frame) {
        let Frame {
            left,
            top,
            width: wide,
            height,
        } = frame;
        let (right, bottom) = (left + wide, top + height);
        let mut taken = f64::NEG_INFINITY;
        for tick in &self.x.ticks {
            let x = left + tick.place * wide;
            svg.line((x, top), (x, bottom), colour::GRID);
            let half = width(&tick.label, SMALL) / 2.0;
            if x - half < taken + 6.0 {
                continue;
            }
            taken = x + half;
            let words = Words {
                class: "tick",
                x,
                y: bottom + 16.0,
                size: SMALL,
                anchor: Anchor::Middle,
                room: f64::INFINITY,
            };
            words.write(svg, &tick.label);
        }
        let mut taken = f64::INFINITY;
        for tick in &self.y.ticks {
            let y = bottom - tick.place * height;
            svg.line((left, y), (right, y), colour::GRID);
            if y + SMALL > taken {
                continue;
            }
            taken = y;
            let words = Words {
                class: "tick",
                x: left - 6.0,
                y: y + 0.35 * SMALL,
                size: SMALL,
                anchor: Anchor::End,
                room: f64::INFINITY,
            };
            words.write(svg, &tick.label);
        }
        let border = svg.start("rect").at("x", left).at("y", top);
        let border = border.at("width", wide).at("height", height);
        border
            .set("fill", "none")
            .set("stroke", colour::FRAME)
            .empty();
    }

    fn draw_series(&self, svg: &mut Svg, frame: Frame, series: &Series, look: &Look) {
        svg.group("series", &series.name);
        let at = |point: &Point| {
            let (x, y) = self.place(point)?;
            let (right, up) = (x * frame.width, y * frame.height);
            Some((frame.left + right, frame.top + frame.height - up))
        };
        let places = series.points.iter().map(at);
        let path = path(places, look.line, (frame.top, frame.top + frame.height));
        if !path.is_empty() {
            look.stroke(svg, &path);
        }
        if look.mark != Mark::None {
            svg.group("marks", "");
            for point in &series.points {
                if let Some(place) = at(point) {
                    let (mark, radius) = (look.mark, look.radius);
                    mark.draw(svg, place, radius, look.colour, &point.title);
                }
            }
            svg.end("g");
        }
        svg.end("g");
    }
}
