//! What is drawn is what was given, read back from the picture.

use estream_plot::{
    Bars, Chart, HeatMap, HeatRow, Lane, Line, Mark, Point, Series, Span, Timeline, Track, chart,
    heat_map, spans,
};
use roxmltree::Node;

use crate::examples::{frontier, usage};
use crate::read::{number, of_class, parse, title};

fn series<'a>(root: Node<'a, 'a>, name: &str) -> Node<'a, 'a> {
    let mut all = of_class(root, "series").into_iter();
    all.find(|group| title(*group) == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

fn marks<'a>(series: Node<'a, 'a>) -> Vec<Node<'a, 'a>> {
    let groups = of_class(series, "marks");
    let groups = groups.iter().flat_map(|group| group.children());
    groups.filter(|child| child.is_element()).collect()
}

#[test]
fn every_point_has_a_mark_where_its_numbers_say() {
    let data = frontier("OLMoE", 200, 5);
    let svg = chart(&data);
    let document = parse(&svg);
    let root = document.root_element();
    let drawn = marks(series(root, "configurations"));
    let given = &data.series[0].points;
    assert_eq!(drawn.len(), given.len());
    // Pixels are a linear function of the data: the outermost points say which.
    for (of, at) in [("cx", 0), ("cy", 1)] {
        let value = |point: &Point| [point.x, point.y][at];
        let (low, high) = (0..given.len()).fold((0, 0), |(low, high), index| {
            let less = value(&given[index]) < value(&given[low]);
            let more = value(&given[index]) > value(&given[high]);
            (
                if less { index } else { low },
                if more { index } else { high },
            )
        });
        let (from, to) = (number(drawn[low], of), number(drawn[high], of));
        let (least, most) = (value(&given[low]), value(&given[high]));
        assert!((to - from).abs() > 100.0);
        assert_eq!(to > from, at == 0, "time goes up");
        for (mark, point) in drawn.iter().zip(given) {
            let expected = from + (value(point) - least) / (most - least) * (to - from);
            let found = number(*mark, of);
            assert!((found - expected).abs() < 0.03, "{found}, {expected}");
            assert_eq!(title(*mark), point.title);
        }
    }
    assert_eq!(marks(series(root, "the fastest")).len(), 1);
    // A limit goes from edge to edge, through its point.
    let limit = of_class(series(root, "limit"), "line")[0];
    let path = limit.attribute("d").unwrap();
    let from_to: Vec<&str> = path[1..].split([' ', 'V']).collect();
    let [x, from, to] = from_to[..] else {
        panic!("{path}")
    };
    let at = marks(series(root, "chosen"))[1].attribute("d").unwrap()[1..]
        .split(' ')
        .next();
    assert_eq!(Some(x), at);
    let length = |text: &str| text.parse::<f64>().unwrap();
    assert_eq!(length(from) - length(to), 360.0);
    assert_eq!(
        marks(series(root, "chosen")).len(),
        data.series[3].points.len()
    );
}

#[test]
fn a_point_that_cannot_be_shown_interrupts_its_line_and_is_counted() {
    let points = [1.0, 2.0, f64::NAN, 4.0, f64::INFINITY, 6.0, 7.0];
    let points = points.iter().zip(1..);
    let data = Chart {
        title: "gaps".to_owned(),
        series: vec![Series {
            name: "one".to_owned(),
            line: Line::Straight,
            mark: Mark::Circle,
            points: points.map(|(y, x)| Point::new(f64::from(x), *y)).collect(),
            ..Series::default()
        }],
        ..Chart::default()
    };
    let svg = chart(&data);
    let document = parse(&svg);
    let one = series(document.root_element(), "one");
    assert_eq!(marks(one).len(), 5);
    let line = of_class(one, "line")[0].attribute("d").unwrap();
    assert_eq!(
        (line.matches('M').count(), line.matches('L').count()),
        (3, 2)
    );
    assert!(svg.contains("gaps (2 points cannot be shown)"));
}

#[test]
fn series_of_one_name_look_alike_in_every_panel() {
    let charts = [frontier("a", 9, 1), frontier("b", 9, 2)];
    let svg = estream_plot::panels("", &charts);
    let document = parse(&svg);
    let groups = of_class(document.root_element(), "series");
    let colour = |name: &str| -> Vec<&str> {
        let of = groups.iter().filter(|group| title(**group) == name);
        of.filter_map(|group| marks(*group)[0].attribute("fill"))
            .collect()
    };
    for name in ["configurations", "chosen"] {
        let colours = colour(name);
        assert_eq!(colours.len(), 2, "{name}");
        assert_eq!(colours[0], colours[1], "{name}");
    }
    assert_ne!(colour("configurations")[0], colour("chosen")[0]);
    let names = of_class(document.root_element(), "legend");
    let names = names.iter().filter(|node| node.has_tag_name("text"));
    assert_eq!(names.count(), 5, "each name once");
}

#[test]
fn spans_are_as_long_as_they_take() {
    let lane = |name: &str, class: &str, spans: &[(u64, u64)]| Lane {
        name: name.to_owned(),
        bars: vec![Bars {
            class: class.to_owned(),
            spans: spans
                .iter()
                .map(|(start_ns, end_ns)| Span {
                    start_ns: *start_ns,
                    end_ns: *end_ns,
                })
                .collect(),
        }],
    };
    let timeline = Timeline {
        title: String::new(),
        tracks: vec![Track {
            name: "early".to_owned(),
            caption: "bubble 9 %".to_owned(),
            lanes: vec![
                lane("read", "read", &[(0, 250), (250, 500), (500, 500), (9, 3)]),
                lane("execute", "experts", &[(750, 1000)]),
            ],
        }],
    };
    let svg = spans(&timeline);
    let document = parse(&svg);
    let bars = of_class(document.root_element(), "bars");
    let rects = |group: Node<'_, '_>| -> Vec<(f64, f64)> {
        let path = group.children().find(|child| child.has_tag_name("path"));
        let path = path.unwrap().attribute("d").unwrap();
        let from = path.split('M').skip(1);
        from.map(|rect| {
            let start = rect.split(' ').next().unwrap().parse().unwrap();
            let end = rect.split('H').nth(1).unwrap();
            let end: f64 = end.split('v').next().unwrap().parse().unwrap();
            (start, end)
        })
        .collect()
    };
    let (reads, runs) = (rects(bars[0]), rects(bars[1]));
    // What is empty is not drawn.
    assert_eq!((reads.len(), runs.len()), (2, 1));
    let quarter = reads[0].1 - reads[0].0;
    assert!(quarter > 100.0);
    for (start, end) in reads.iter().chain(&runs) {
        assert!((end - start - quarter).abs() < 0.03);
    }
    assert!((runs[0].0 - reads[1].1 - quarter).abs() < 0.03);
}

/// The colour of every cell.
fn cells(svg: &str) -> Vec<(usize, usize, String)> {
    let document = parse(svg);
    let group = of_class(document.root_element(), "cells")[0];
    let mut cells = Vec::new();
    for path in group.children().filter(|child| child.is_element()) {
        let fill = path.attribute("fill").unwrap();
        for run in path.attribute("d").unwrap().split('M').skip(1) {
            let (place, rest) = run.split_once('h').unwrap();
            let (x, y) = place.split_once(' ').unwrap();
            let wide: usize = rest.split('v').next().unwrap().parse().unwrap();
            let (x, y): (usize, usize) = (x.parse().unwrap(), y.parse().unwrap());
            cells.extend((x..x + wide).map(|x| (x, y, fill.to_owned())));
        }
    }
    cells.sort();
    cells
}

#[test]
fn every_number_of_a_map_has_a_cell_and_what_is_missing_is_blank() {
    let map = usage(7, 30);
    let given = map.rows.iter().enumerate().flat_map(|(y, row)| {
        let known = row.values.iter().enumerate();
        known.filter_map(move |(x, value)| value.map(|_| (x, y)))
    });
    let mut given: Vec<(usize, usize)> = given.collect();
    given.sort_unstable();
    let drawn = cells(&heat_map(&map));
    let drawn: Vec<(usize, usize)> = drawn.into_iter().map(|(x, y, _)| (x, y)).collect();
    assert_eq!(drawn, given);
    assert!(given.len() < 7 * 30);
}

#[test]
fn colours_follow_the_numbers() {
    let values = [0.0, 1.0, 1.0, 99.0, 100.0, f64::NAN, -1.0, f64::INFINITY];
    let map = HeatMap {
        rows: vec![HeatRow {
            name: String::new(),
            values: values.iter().copied().map(Some).chain([None]).collect(),
        }],
        ..HeatMap::default()
    };
    let drawn = cells(&heat_map(&map));
    let colours: Vec<&str> = drawn.iter().map(|(_, _, fill)| &**fill).collect();
    // Of a hundred, one is nearer to none than to a step.
    assert_eq!(colours.len(), 5, "{drawn:?}");
    assert_eq!(colours[..3], ["#fcf4cc"; 3]);
    assert_eq!(colours[3..], ["#12225c"; 2]);
}
