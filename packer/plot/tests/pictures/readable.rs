//! People can read what is drawn.

use roxmltree::Node;

use crate::examples::all;
use crate::read::{number, of_class, parse, title, words};

/// Where words are, as far as that can be known without a font.
#[derive(Clone, Copy, Debug)]
struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Area {
    /// A letter is 0.6 of its height wide, on average and in wide fonts.
    fn of(text: Node<'_, '_>) -> Area {
        let size = number(text, "font-size");
        let wide = 0.6 * size * words(text).0.chars().count() as f64;
        let (x, y) = (number(text, "x"), number(text, "y"));
        let before = match text.attribute("text-anchor") {
            None => 0.0,
            Some("middle") => wide / 2.0,
            Some(_) => wide,
        };
        match text.attribute("transform") {
            None => Area {
                left: x - before,
                right: x - before + wide,
                top: y - 0.75 * size,
                bottom: y + 0.2 * size,
            },
            // From below to above.
            Some(_) => Area {
                left: x - 0.75 * size,
                right: x + 0.2 * size,
                top: y + before - wide,
                bottom: y + before,
            },
        }
    }

    fn meets(&self, other: &Area) -> bool {
        let beside = self.right <= other.left || other.right <= self.left;
        let above = self.bottom <= other.top || other.bottom <= self.top;
        !(beside || above)
    }
}

#[test]
fn no_words_overlap_and_none_leave_the_page() {
    for (name, svg) in all() {
        let document = parse(&svg);
        let root = document.root_element();
        let (width, height) = (number(root, "width"), number(root, "height"));
        let texts = document
            .descendants()
            .filter(|node| node.has_tag_name("text"));
        let areas: Vec<(String, Area)> =
            texts.map(|text| (words(text).0, Area::of(text))).collect();
        assert!(areas.len() > 4, "{name}: {areas:?}");
        for (at, (text, area)) in areas.iter().enumerate() {
            let is_inside =
                area.left >= 0.0 && area.top >= 0.0 && area.right <= width && area.bottom <= height;
            assert!(
                is_inside,
                "{name}: {text:?} at {area:?} of {width} × {height}"
            );
            for (other, place) in &areas[..at] {
                let meet = area.meets(place);
                assert!(
                    !meet,
                    "{name}: {text:?} at {area:?}, {other:?} at {place:?}"
                );
            }
        }
    }
}

#[test]
fn the_canary_of_overlapping_words_is_seen() {
    let svg = r#"<svg xmlns="http://www.w3.org/2000/svg">
        <text x="10" y="10" font-size="10">one</text><text x="20" y="12" font-size="10">two</text></svg>"#;
    let document = parse(svg);
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text"));
    let areas: Vec<Area> = texts.map(Area::of).collect();
    assert!(areas[0].meets(&areas[1]));
}

#[test]
fn every_series_and_class_is_in_the_legend() {
    for (name, svg) in all() {
        let document = parse(&svg);
        let root = document.root_element();
        let legend = of_class(root, "legend");
        let texts = legend.iter().filter(|node| node.has_tag_name("text"));
        let told: Vec<String> = texts.map(|text| words(*text).0).collect();
        let series = of_class(root, "series");
        let named = series.into_iter().chain(of_class(root, "bars"));
        let mut count = 0;
        for group in named {
            let wanted = title(group);
            assert!(told.iter().any(|told| told == wanted), "{name}: {wanted}");
            count += 1;
        }
        assert!(
            count > 0 || name.ends_with("map") || name == "one cell",
            "{name}"
        );
    }
}

#[test]
fn axes_have_their_units() {
    let axes = |wanted: &str| -> Vec<String> {
        let (_, svg) = all().into_iter().find(|(name, _)| *name == wanted).unwrap();
        let document = parse(&svg);
        let labels = of_class(document.root_element(), "axis").into_iter();
        labels.map(|label| words(label).0).collect()
    };
    assert_eq!(axes("one"), ["memory (GiB)", "time to first token (s)"]);
    assert_eq!(axes("time"), ["time (ms)"]);
    assert_eq!(axes("map"), ["expert", "layer", "tokens (%)"]);
}

#[test]
fn the_same_data_is_the_same_picture() {
    for ((name, one), (_, other)) in all().into_iter().zip(all()) {
        assert!(one == other, "{name}");
    }
}

#[test]
fn coordinates_have_two_decimals_at_most() {
    for (name, svg) in all() {
        let digits = |c: char| !(c.is_ascii_digit() || c == '.');
        for word in svg.split(digits) {
            let decimals = word.split_once('.').map_or(0, |(_, part)| part.len());
            assert!(decimals <= 2, "{name}: {word}");
        }
    }
}
