//! The text of a document: elements, attributes, numbers, and text that cannot leave its place.

/// A document that is being written.
#[derive(Debug)]
pub(crate) struct Svg {
    text: String,
}

impl Svg {
    /// A white page of this size, whose name is read out where it cannot be seen.
    pub(crate) fn new(width: f64, height: f64, name: &str) -> Svg {
        let mut svg = Svg {
            text: String::new(),
        };
        let page = svg.start("svg").set("xmlns", "http://www.w3.org/2000/svg");
        page.at("width", width)
            .at("height", height)
            .set(
                "viewBox",
                &format!("0 0 {} {}", number(width), number(height)),
            )
            .set("font-family", "Helvetica, Arial, sans-serif")
            .set("fill", "#222")
            .set("role", "img")
            .set("aria-label", name)
            .open();
        let paper = svg.start("rect").at("width", width).at("height", height);
        paper.set("fill", "#fff").empty();
        svg
    }

    /// Begins an element.
    pub(crate) fn start(&mut self, name: &'static str) -> Tag<'_> {
        self.text += "<";
        self.text += name;
        Tag { svg: self, name }
    }

    /// Ends the element that was opened.
    pub(crate) fn end(&mut self, name: &'static str) {
        self.text += &format!("</{name}>\n");
    }

    /// Begins a group, which has a title if it is not empty.
    pub(crate) fn group(&mut self, class: &str, title: &str) {
        self.start("g").set("class", class).open();
        if !title.is_empty() {
            self.start("title").text(title);
        }
    }

    pub(crate) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        let line = self.start("line").at("x1", x1).at("y1", y1);
        let line = line.at("x2", x2).at("y2", y2);
        line.set("stroke", colour).empty();
    }

    pub(crate) fn finish(mut self) -> String {
        self.end("svg");
        self.text
    }
}

/// An element that has begun and may get attributes.
#[derive(Debug)]
#[must_use]
pub(crate) struct Tag<'a> {
    svg: &'a mut Svg,
    name: &'static str,
}

impl Tag<'_> {
    pub(crate) fn at(self, name: &str, value: f64) -> Self {
        self.set(name, &number(value))
    }

    pub(crate) fn set(self, name: &str, value: &str) -> Self {
        let attribute = format!(" {name}=\"{}\"", escaped(value));
        self.svg.text += &attribute;
        self
    }

    /// Nothing is in it.
    pub(crate) fn empty(self) {
        self.svg.text += "/>\n";
    }

    /// What comes next is in it, until its end.
    pub(crate) fn open(self) {
        self.svg.text += ">\n";
    }

    /// A text is in it.
    pub(crate) fn text(self, text: &str) {
        let rest = format!(">{}</{}>\n", escaped(text), self.name);
        self.svg.text += &rest;
    }

    /// A text is in it, and another one shows on hovering, unless it is empty.
    pub(crate) fn titled(self, title: &str, text: &str) {
        match (title, text) {
            ("", "") => self.empty(),
            ("", text) => self.text(text),
            (title, text) => {
                let (title, text) = (escaped(title), escaped(text));
                let rest = format!("><title>{title}</title>{text}</{}>\n", self.name);
                self.svg.text += &rest;
            }
        }
    }
}

/// A coordinate, to a hundredth.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// `text` as it may stand between tags and in an attribute. What XML has no place for is replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\t' | '\n' | '\r' => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push(char::REPLACEMENT_CHARACTER),
            c if c.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_two_decimals_at_most() {
        for (value, text) in [
            (0.0, "0"),
            (-0.001, "0"),
            (1.005, "1"),
            (12.5, "12.5"),
            (100.0, "100"),
            (-3.126, "-3.13"),
            (f64::NAN, "0"),
            (f64::INFINITY, "0"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
        assert_eq!(escaped("\0\u{1b}\n\u{ffff}é"), "\u{fffd}\u{fffd} \u{fffd}é");
    }
}
