//! Whatever the data is, there is a picture.

use estream_plot::{
    Axis, Bars, Chart, HeatMap, HeatRow, Lane, Line, Mark, Point, Scale, Series, Span, Timeline,
    Track, Unit, chart, heat_map, panels, spans,
};

use crate::examples::Dice;
use crate::read::{of_class, parse, title, words};

const NAMES: [&str; 6] = [
    "",
    "</text><script>alert(1)</script>",
    "a & b \"c\" 'd' <!-- ]]> &lt;",
    "\0\u{1}\u{7f}\u{9b}\u{fffe}\u{ffff}\n\t\r",
    "\u{202e}ltr \u{301}\u{1f600}\u{4e2d}",
    "${x} {{y}} <?xml?>",
];

/// Numbers that are none, or nearly.
const NUMBERS: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::MAX,
    f64::MIN,
    f64::MIN_POSITIVE,
    5e-324,
    1e300,
    -1e300,
    1e15,
];

fn checked(svg: &str) {
    parse(svg);
    for wrong in ["NaN", "inf", "\"-0\""] {
        assert!(!svg.contains(wrong), "{wrong} in {svg}");
    }
}

fn drawn(points: &[(f64, f64)], scales: (Scale, Scale), ticks: &[f64], name: &str) -> String {
    let axis = |scale| Axis {
        label: name.to_owned(),
        unit: Unit::Named(name.to_owned()),
        scale,
        ticks: ticks.to_vec(),
    };
    let points = points.iter().map(|(x, y)| Point {
        title: name.to_owned(),
        ..Point::new(*x, *y)
    });
    let points: Vec<Point> = points.collect();
    let series = [Mark::Circle, Mark::Cross, Mark::Star, Mark::Square];
    let series = series.map(|mark| Series {
        name: name.to_owned(),
        line: Line::Steps,
        mark,
        radius: points.first().map(|point| point.x),
        points: points.clone(),
        ..Series::default()
    });
    chart(&Chart {
        title: name.to_owned(),
        x: axis(scales.0),
        y: axis(scales.1),
        series: series.to_vec(),
    })
}

#[test]
fn there_is_a_picture_of_nothing() {
    for svg in [
        chart(&Chart::default()),
        panels("", &[]),
        panels("title", &[Chart::default(), Chart::default()]),
        spans(&Timeline::default()),
        spans(&Timeline {
            title: String::new(),
            tracks: vec![Track::default()],
        }),
        heat_map(&HeatMap::default()),
        heat_map(&HeatMap {
            rows: vec![HeatRow::default(); 3],
            ..HeatMap::default()
        }),
    ] {
        checked(&svg);
    }
    assert!(chart(&Chart::default()).contains("no data"));
    assert!(heat_map(&HeatMap::default()).contains("no data"));
}

#[test]
fn there_is_a_picture_of_numbers_that_are_none_or_nearly() {
    use Scale::{Linear, Log};
    for scales in [(Linear, Linear), (Log, Linear), (Linear, Log), (Log, Log)] {
        for x in NUMBERS {
            for y in NUMBERS {
                checked(&drawn(&[(x, y)], scales, &[], "one"));
                checked(&drawn(
                    &[(x, y), (y, x), (1.0, 2.0)],
                    scales,
                    &[x, y],
                    "three",
                ));
            }
        }
        let all: Vec<(f64, f64)> = NUMBERS.iter().map(|x| (*x, -x)).collect();
        checked(&drawn(&all, scales, &NUMBERS, "all"));
    }
    for value in NUMBERS {
        checked(&heat_map(&HeatMap {
            rows: vec![HeatRow {
                name: "row".to_owned(),
                values: vec![Some(value), None, Some(1.0)],
            }],
            ..HeatMap::default()
        }));
    }
}

#[test]
fn all_equal_values_are_in_the_middle_and_have_ticks() {
    let svg = drawn(&[(3.0, 5.0); 4], (Scale::Linear, Scale::Log), &[], "equal");
    let document = parse(&svg);
    let root = document.root_element();
    let ticks = of_class(root, "tick").len();
    assert!(ticks >= 4, "{ticks} ticks");
}

#[test]
fn a_name_is_text_and_nothing_else() {
    for name in NAMES {
        let svg = drawn(&[(1.0, 2.0)], (Scale::Linear, Scale::Linear), &[], name);
        checked(&svg);
        let span = Span {
            start_ns: 1,
            end_ns: u64::MAX,
        };
        let timeline = spans(&Timeline {
            title: name.to_owned(),
            tracks: vec![Track {
                name: name.to_owned(),
                caption: name.to_owned(),
                lanes: vec![Lane {
                    name: name.to_owned(),
                    bars: vec![Bars {
                        class: name.to_owned(),
                        spans: vec![span],
                    }],
                }],
            }],
        });
        checked(&timeline);
        let map = heat_map(&HeatMap {
            title: name.to_owned(),
            columns: name.to_owned(),
            rows_label: name.to_owned(),
            values_label: name.to_owned(),
            rows: vec![HeatRow {
                name: name.to_owned(),
                values: vec![Some(1.0)],
            }],
        });
        checked(&map);
        for svg in [&svg, &timeline, &map] {
            let document = parse(svg);
            let known = [
                "svg", "g", "title", "text", "rect", "line", "path", "circle",
            ];
            for node in document.descendants().filter(|node| node.is_element()) {
                let tag = node.tag_name().name();
                assert!(known.contains(&tag), "{tag}");
            }
        }
    }
    // What XML allows is there as it was given.
    let name = NAMES[2];
    let svg = drawn(&[(1.0, 2.0)], (Scale::Linear, Scale::Linear), &[], name);
    let document = parse(&svg);
    let series = of_class(document.root_element(), "series");
    assert!(series.iter().all(|series| title(*series) == name));
}

#[test]
fn a_long_name_is_shortened_and_whole_on_hovering() {
    let name = "early ".repeat(1000);
    let svg = drawn(&[(1.0, 2.0)], (Scale::Linear, Scale::Linear), &[], &name);
    let document = parse(&svg);
    let root = document.root_element();
    let legend = of_class(root, "legend").into_iter();
    let legend: Vec<_> = legend.filter(|node| node.has_tag_name("text")).collect();
    assert_eq!(legend.len(), 1);
    let (shown, whole) = words(legend[0]);
    assert!(shown.ends_with('…') && shown.chars().count() < 200);
    assert_eq!(whole, name);
}

#[test]
fn a_hundred_thousand_points_are_a_hundred_thousand_marks() {
    let mut dice = Dice(1);
    let points: Vec<Point> = (0..100_000)
        .map(|_| Point::new(dice.share(), dice.share()))
        .collect();
    let svg = chart(&Chart {
        series: vec![Series {
            line: Line::Straight,
            mark: Mark::Circle,
            points,
            ..Series::default()
        }],
        ..Chart::default()
    });
    assert_eq!(svg.matches("<circle").count(), 100_000);
    assert!(svg.len() < 10 << 20, "{} bytes", svg.len());
    parse(&svg);
    let span = |at: u64| Span {
        start_ns: 10 * at,
        end_ns: 10 * at + 7,
    };
    let bars = Bars {
        class: "read".to_owned(),
        spans: (0..100_000).map(span).collect(),
    };
    let svg = spans(&Timeline {
        title: String::new(),
        tracks: vec![Track {
            lanes: vec![Lane {
                name: String::new(),
                bars: vec![bars],
            }],
            ..Track::default()
        }],
    });
    parse(&svg);
    assert_eq!(svg.matches('M').count(), 100_000);
}
