//! Pictures: plain data in, the text of an SVG document out.
//!
//! | function | of | draws |
//! |---|---|---|
//! | [`chart`] | [`Chart`] | y against x: lines, marks, or both |
//! | [`panels`] | several [`Chart`]s | the same side by side, with one legend |
//! | [`spans`] | [`Timeline`] | what goes on when: lanes of spans, on one axis of time |
//! | [`heat_map`] | [`HeatMap`] | rows of numbers as colours |
//!
//! ```
//! use estream_plot::{Axis, Chart, Line, Mark, Point, Series, Unit, chart};
//!
//! let svg = chart(&Chart {
//!     title: "OLMoE".to_owned(),
//!     x: Axis { label: "memory".to_owned(), unit: Unit::Bytes, ..Axis::default() },
//!     y: Axis { label: "time to first token".to_owned(), unit: Unit::Nanoseconds, ..Axis::default() },
//!     series: vec![Series {
//!         name: "early".to_owned(),
//!         line: Line::Straight,
//!         mark: Mark::Circle,
//!         points: vec![Point::new(1e9, 2e9), Point::new(2e9, 1e9)],
//!         ..Series::default()
//!     }],
//! });
//! assert!(svg.starts_with("<svg ") && svg.contains("memory (GiB)"));
//! ```
//!
//! The same data is the same text on every machine: coordinates have two decimals, logarithms are
//! software, and no font is asked. How wide a text is, is estimated from above, so that nothing overlaps
//! in a usual sans-serif font. Whatever the data is, there is a picture: numbers that an axis cannot show are counted in the
//! title, names are shortened to the room there is, with the whole name on hovering, and what XML
//! does not allow is replaced.
//!
//! Marks, lines and lanes are in groups that have a class and the name of their series as title, so that
//! a program can read a picture back.
//!
//! The crate `plotters` was considered. Its SVG has whole pixels only, in which the short spans of a timeline are lost and
//! the cells of a heat map are of unequal size; it passes control characters on, with which a document is not XML;
//! and its marks have no names.
#![forbid(unsafe_code)]

mod axis;
mod chart;
mod colour;
mod heat_map;
mod legend;
mod mark;
mod panels;
mod scale;
mod spans;
mod svg;
mod text;

pub use axis::{Axis, Unit};
pub use chart::{Chart, Line, Point, Series, Tone};
pub use heat_map::{HeatMap, HeatRow, heat_map};
pub use mark::Mark;
pub use panels::{chart, panels};
pub use scale::Scale;
pub use spans::{Bars, Lane, Span, Timeline, Track, spans};
