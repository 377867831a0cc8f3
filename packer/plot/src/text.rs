//! Words in a picture: how wide they are, and what is left of them where room is short.

use std::borrow::Cow;

use crate::svg::Svg;

/// Heights of letters in pixels.
pub(crate) const SMALL: f64 = 11.0;
pub(crate) const NORMAL: f64 = 12.0;
pub(crate) const LARGE: f64 = 15.0;

/// Which end of the words is where they are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Where words are, and how they look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) class: &'static str,
    pub(crate) x: f64,
    /// Of the line they stand on.
    pub(crate) y: f64,
    pub(crate) size: f64,
    pub(crate) anchor: Anchor,
    /// The most pixels they may take.
    pub(crate) room: f64,
}

impl Words {
    /// Writes `text`, or its beginning if there is no room for more.
    pub(crate) fn write(&self, svg: &mut Svg, text: &str) {
        self.draw(svg, text, None);
    }

    /// The same, from below to above.
    pub(crate) fn write_up(&self, svg: &mut Svg, text: &str) {
        let (x, y) = (crate::svg::number(self.x), crate::svg::number(self.y));
        self.draw(svg, text, Some(format!("rotate(-90 {x} {y})")));
    }

    fn draw(&self, svg: &mut Svg, text: &str, transform: Option<String>) {
        let shown = shortened(text, self.size, self.room);
        if shown.is_empty() {
            return;
        }
        let mut tag = svg.start("text").set("class", self.class);
        tag = tag.at("x", self.x).at("y", self.y);
        tag = tag.at("font-size", self.size);
        if let Some(transform) = transform {
            tag = tag.set("transform", &transform);
        }
        match self.anchor {
            Anchor::Start => {}
            Anchor::Middle => tag = tag.set("text-anchor", "middle"),
            Anchor::End => tag = tag.set("text-anchor", "end"),
        }
        let title = match shown {
            Cow::Borrowed(_) => "",
            Cow::Owned(_) => text,
        };
        tag.titled(title, &shown);
    }
}

/// Pixels that `text` takes at most in a usual font.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

/// `text`, or as much of its beginning as `room` pixels hold, and an ellipsis.
pub(crate) fn shortened(text: &str, size: f64, room: f64) -> Cow<'_, str> {
    if width(text, size) <= room {
        return Cow::Borrowed(text);
    }
    let mut left = room / size - advance('…');
    let fits = |c: &char| {
        left -= advance(*c);
        left >= 0.0
    };
    let mut short: String = text.chars().take_while(fits).collect();
    short.push('…');
    Cow::Owned(short)
}

/// Width of a letter for its height: that of wide fonts, such as DejaVu Sans.
fn advance(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' => 0.4,
        'f' | 'r' | 't' | '/' | '\\' | '-' | '(' | ')' | '[' | ']' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 1.0,
        'A'..='Z' => 0.79,
        'a'..='z' | '0'..='9' => 0.64,
        ' '..='~' => 0.84,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_room_is_whole_and_what_has_not_ends_in_an_ellipsis() {
        assert!(matches!(
            shortened("early", 12.0, 100.0),
            Cow::Borrowed("early")
        ));
        let long = "x".repeat(1000);
        let short = shortened(&long, 12.0, 100.0);
        assert!(short.ends_with('…') && width(&short, 12.0) <= 100.0);
        assert!(width(&format!("x{short}"), 12.0) > 100.0);
        assert_eq!(shortened(&long, 12.0, 0.0), "…");
    }
}
