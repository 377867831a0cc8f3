//! What goes on when: spans of time in lanes.

use serde::{Deserialize, Serialize};

use crate::axis::{Unit, with_unit};
use crate::colour;
use crate::legend::{Legend, Sample};
use crate::scale::{Range, Tick};
use crate::svg::{Svg, number};
use crate::text::{Anchor, LARGE, NORMAL, SMALL, Words, width};

/// Several courses of events, one below the other on one axis of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeline {
    /// Above it.
    pub title: String,
    /// The courses.
    pub tracks: Vec<Track>,
}

/// A course of events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Track {
    /// What it is of.
    pub name: String,
    /// What there is to say of it, beside its name.
    pub caption: String,
    /// What goes on at the same time.
    pub lanes: Vec<Lane>,
}

/// What goes on one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lane {
    /// Left of it.
    pub name: String,
    /// By class, the first below the others where they overlap.
    pub bars: Vec<Bars>,
}

/// Spans of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bars {
    /// What goes on: its name in the legend, and so its colour.
    pub class: String,
    /// When.
    pub spans: Vec<Span>,
}

/// From when to when, in nanoseconds since the beginning. One that ends before it starts is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The start.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
}

/// Pixels around everything.
const EDGE: f64 = 12.0;
/// What time takes.
const WIDTH: f64 = 820.0;
/// Of a track's heading, of a lane and what is filled of it, and between tracks.
const HEADING: f64 = 22.0;
const LANE: f64 = 20.0;
const BAR: f64 = 16.0;
const BETWEEN: f64 = 12.0;
/// Of the ticks and the label below.
const BELOW: f64 = 44.0;
/// The most that the name of a lane takes.
const NAME: f64 = 160.0;

/// How wide bars are on average that have room for a line between neighbours.
const APART: f64 = 3.0;

/// Draws a timeline.
pub fn spans(timeline: &Timeline) -> String {
    let names = timeline.tracks.iter().flat_map(|track| &track.lanes);
    let widths = names.map(|lane| width(&lane.name, SMALL).min(NAME));
    let left = EDGE + widths.fold(0.0, f64::max) + 8.0;
    let end_ns = timeline.bars().flat_map(|bars| &bars.spans);
    let end_ns = end_ns.map(|span| span.end_ns).max().unwrap_or(0) as f64;
    let (per_unit, unit) = Unit::Nanoseconds.shown(end_ns);
    let ticks = Range::up_to(end_ns / per_unit).ticks(10);
    let legend = timeline.legend();
    let tracks_top = match timeline.title.as_str() {
        "" => EDGE,
        _ => EDGE + LARGE + 10.0,
    };
    let heights = timeline.tracks.iter().map(Track::height);
    let bottom = tracks_top + heights.sum::<f64>();
    let full = left + WIDTH + 24.0 + EDGE;
    let room = full - 2.0 * EDGE;
    let height = bottom + BELOW + legend.height(room) + EDGE;
    let mut svg = Svg::new(full, height, &timeline.title);
    let title = Words {
        class: "title",
        x: EDGE,
        y: EDGE + LARGE,
        size: LARGE,
        anchor: Anchor::Start,
        room,
    };
    title.write(&mut svg, &timeline.title);
    let label = with_unit("time", unit);
    draw_axis(&mut svg, &ticks, &label, (left, tracks_top, bottom));
    let mut top = tracks_top;
    for track in &timeline.tracks {
        track.draw(&mut svg, (left, top), end_ns.max(1.0), &legend);
        top += track.height();
    }
    legend.draw(&mut svg, (EDGE, bottom + BELOW), room);
    svg.finish()
}

fn draw_axis(svg: &mut Svg, ticks: &[Tick], label: &str, (left, top, bottom): (f64, f64, f64)) {
    svg.line((left, bottom), (left + WIDTH, bottom), colour::FRAME);
    let below = Words {
        class: "tick",
        x: left,
        y: bottom + 16.0,
        size: SMALL,
        anchor: Anchor::Middle,
        room: f64::INFINITY,
    };
    for tick in ticks {
        let x = left + tick.place * WIDTH;
        svg.line((x, top), (x, bottom), colour::GRID);
        Words { x, ..below }.write(svg, &tick.label);
    }
    let label_at = Words {
        class: "axis",
        x: left + WIDTH / 2.0,
        y: bottom + 34.0,
        size: NORMAL,
        ..below
    };
    label_at.write(svg, label);
}

impl Timeline {
    fn bars(&self) -> impl Iterator<Item = &Bars> {
        let lanes = self.tracks.iter().flat_map(|track| &track.lanes);
        lanes.flat_map(|lane| &lane.bars)
    }

    fn legend(&self) -> Legend {
        let mut legend = Legend::default();
        for bars in self.bars() {
            if legend.get(&bars.class).is_none() {
                let colour = colour::named(legend.samples().count());
                legend.add(&bars.class, Sample::Block(colour));
            }
        }
        legend
    }
}

impl Track {
    fn height(&self) -> f64 {
        HEADING + self.lanes.len() as f64 * LANE + BETWEEN
    }

    fn draw(&self, svg: &mut Svg, (left, top): (f64, f64), end_ns: f64, legend: &Legend) {
        svg.group("track", &self.name);
        let heading = Words {
            class: "track",
            x: left,
            y: top + HEADING - 7.0,
            size: NORMAL + 1.0,
            anchor: Anchor::Start,
            room: WIDTH / 2.0,
        };
        heading.write(svg, &self.name);
        let taken = width(&self.name, heading.size).min(heading.room);
        let caption = Words {
            class: "caption",
            x: left + taken + 12.0,
            size: SMALL,
            room: WIDTH - taken - 12.0,
            ..heading
        };
        caption.write(svg, &self.caption);
        for (index, lane) in self.lanes.iter().enumerate() {
            let top = top + HEADING + index as f64 * LANE;
            lane.draw(svg, (left, top), end_ns, legend);
        }
        svg.end("g");
    }
}

impl Lane {
    fn draw(&self, svg: &mut Svg, (left, top): (f64, f64), end_ns: f64, legend: &Legend) {
        svg.group("lane", &self.name);
        let ground = svg.start("rect").at("x", left).at("y", top);
        let ground = ground.at("width", WIDTH).at("height", BAR);
        ground.set("fill", "#f3f3f3").empty();
        let name = Words {
            class: "lane",
            x: left - 6.0,
            y: top + BAR / 2.0 + 0.35 * SMALL,
            size: SMALL,
            anchor: Anchor::End,
            room: NAME,
        };
        name.write(svg, &self.name);
        for bars in &self.bars {
            let colour = match legend.get(&bars.class) {
                Some(Sample::Block(colour)) => colour,
                _ => colour::GREY,
            };
            svg.group("bars", &bars.class);
            let spans = bars.spans.iter().filter(|span| span.end_ns > span.start_ns);
            let x = |ns: u64| left + ns as f64 / end_ns * WIDTH;
            let bar = |span: &Span| {
                let (from, to) = (number(x(span.start_ns)), number(x(span.end_ns)));
                format!("M{from} {}H{to}v{BAR}H{from}Z", number(top))
            };
            let path: String = spans.clone().map(bar).collect();
            if !path.is_empty() {
                let mut tag = svg.start("path").set("d", &path).set("fill", colour);
                let wide = spans.clone().map(|span| x(span.end_ns) - x(span.start_ns));
                if wide.sum::<f64>() >= APART * spans.count() as f64 {
                    tag = tag.set("stroke", "#fff").at("stroke-width", 0.4);
                }
                tag.empty();
            }
            svg.end("g");
        }
        svg.end("g");
    }
}
