//! What is in an SVG file, as far as the programs say it there.

use std::fs;
use std::path::Path;

use roxmltree::{Document, Node};

/// What was drawn.
#[derive(Debug, Default)]
pub struct Picture {
    /// The heading.
    pub title: String,
    /// Charts.
    pub panels: Vec<Panel>,
    /// Courses of events: name, caption, and of each lane its name and its spans by class.
    pub tracks: Vec<(String, String, Vec<PictureLane>)>,
    /// Shades of a heat map, by row and column, the lightest 0; none where it is blank.
    pub cells: Vec<Vec<Option<usize>>>,
    /// Names in the legend.
    pub legend: Vec<String>,
}

/// A lane: its name, and the class and number of the spans in it.
pub type PictureLane = (String, Vec<(String, usize)>);

/// A chart.
#[derive(Debug, Default)]
pub struct Panel {
    /// Its heading.
    pub title: String,
    /// Names of the axes, the lower one first.
    pub axes: Vec<String>,
    /// Name and marks of each series.
    pub series: Vec<(String, Vec<PictureMark>)>,
}

/// A mark in a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureMark {
    /// What it says on hovering.
    pub title: String,
    /// Pixels from the left: of its middle.
    pub x: f64,
    /// Pixels from above: of its middle, or its upper corner if it is no disc.
    pub y: f64,
}

impl Panel {
    /// The marks of a series.
    ///
    /// # Panics
    ///
    /// If there is none of that name.
    #[track_caller]
    pub fn marks(&self, name: &str) -> &[PictureMark] {
        let mut series = self.series.iter();
        match series.find(|(known, _)| known == name) {
            Some((_, marks)) => marks,
            None => {
                let names: Vec<&String> = self.series.iter().map(|(name, _)| name).collect();
                panic!("no {name:?} among {names:?}")
            }
        }
    }
}

impl Picture {
    /// Reads a file.
    ///
    /// # Panics
    ///
    /// If it is not such a file.
    #[track_caller]
    pub fn read(path: &Path) -> Picture {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let document = Document::parse(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let root = document.root_element();
        Picture {
            title: texts(root, "title").pop().unwrap_or_default(),
            panels: groups(root, "panel").map(panel).collect(),
            tracks: groups(root, "track").map(track).collect(),
            cells: groups(root, "cells").flat_map(cells).collect(),
            legend: texts(root, "legend"),
        }
    }
}

fn groups<'a>(within: Node<'a, 'a>, class: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    let all = within.descendants().filter(|node| node.has_tag_name("g"));
    all.filter(move |node| node.attribute("class") == Some(class))
}

/// What stands in the texts of this class.
fn texts(within: Node<'_, '_>, class: &str) -> Vec<String> {
    let all = within.descendants();
    all.filter(|node| node.has_tag_name("text") && node.attribute("class") == Some(class))
        .map(|node| {
            let parts = node.children().filter(|child| child.is_text());
            parts.filter_map(|part| part.text()).collect()
        })
        .collect()
}

fn title(node: Node<'_, '_>) -> String {
    let mut children = node.children();
    let title = children.find(|child| child.has_tag_name("title"));
    let title = title.and_then(|title| title.text());
    title.unwrap_or_default().to_owned()
}

fn panel(group: Node<'_, '_>) -> Panel {
    Panel {
        title: texts(group, "panel-title").pop().unwrap_or_default(),
        axes: texts(group, "axis"),
        series: groups(group, "series")
            .map(|series| {
                let marks = groups(series, "marks").flat_map(|marks| marks.children());
                let marks = marks.filter(|child| child.is_element());
                (title(series), marks.map(mark).collect())
            })
            .collect(),
    }
}

fn mark(node: Node<'_, '_>) -> PictureMark {
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text:?}"));
    let (x, y) = match (node.attribute("cx"), node.attribute("cy")) {
        (Some(x), Some(y)) => (number(x), number(y)),
        // A path begins with M and its upper corner.
        _ => {
            let path = node.attribute("d").expect("a path has a d");
            let end = path[1..].find(|c: char| c.is_ascii_alphabetic());
            let first = &path[1..=end.unwrap_or(path.len() - 1)];
            let (x, y) = first.split_once(' ').expect("two numbers");
            (number(x), number(y))
        }
    };
    PictureMark {
        title: title(node),
        x,
        y,
    }
}

fn track(group: Node<'_, '_>) -> (String, String, Vec<PictureLane>) {
    let lanes = groups(group, "lane").map(|lane| {
        let bars = groups(lane, "bars").map(|bars| {
            let paths = bars.children().filter_map(|child| child.attribute("d"));
            (title(bars), paths.map(|d| d.matches('M').count()).sum())
        });
        (title(lane), bars.collect())
    });
    let caption = texts(group, "caption").pop().unwrap_or_default();
    (title(group), caption, lanes.collect())
}

fn cells(group: Node<'_, '_>) -> Vec<Vec<Option<usize>>> {
    let mut rows: Vec<Vec<Option<usize>>> = Vec::new();
    let paths = group.children().filter(|child| child.is_element());
    // Paths are from the lightest to the darkest; shades that are nowhere have none.
    for (shade, path) in paths.enumerate() {
        let path = path.attribute("d").expect("a path has a d");
        for run in path.split('M').skip(1) {
            let number = |text: &str| -> usize { text.parse().expect("a number") };
            let (place, rest) = run.split_once('h').expect("a run");
            let (x, y) = place.split_once(' ').expect("a place");
            let wide = rest.split('v').next().map_or(0, number);
            let (x, y) = (number(x), number(y));
            rows.resize_with(rows.len().max(y + 1), Vec::new);
            let row = &mut rows[y];
            row.resize(row.len().max(x + wide), None);
            row[x..x + wide].fill(Some(shade));
        }
    }
    rows
}
