//! What is in a picture.

use roxmltree::{Document, Node};

/// A document; panics if it is not well-formed.
#[track_caller]
pub(crate) fn parse(svg: &str) -> Document<'_> {
    Document::parse(svg).unwrap_or_else(|error| panic!("{error} in {svg}"))
}

/// Elements of this class, wherever they are.
pub(crate) fn of_class<'a>(within: Node<'a, 'a>, class: &'a str) -> Vec<Node<'a, 'a>> {
    let all = within.descendants();
    all.filter(|node| node.attribute("class") == Some(class))
        .collect()
}

/// The title that a group or a mark has, or the text of a text.
pub(crate) fn title<'a>(node: Node<'a, 'a>) -> &'a str {
    let mut children = node.children();
    let title = children.find(|child| child.has_tag_name("title"));
    title.and_then(|title| title.text()).unwrap_or("")
}

/// Words in a picture: what is shown, and what shows on hovering if that is more.
pub(crate) fn words<'a>(text: Node<'a, 'a>) -> (String, &'a str) {
    let parts = text.children().filter(|child| child.is_text());
    let shown = parts.filter_map(|part| part.text()).collect();
    (shown, title(text))
}

pub(crate) fn number(node: Node<'_, '_>, name: &str) -> f64 {
    let text = node.attribute(name).unwrap_or_else(|| panic!("no {name}"));
    text.parse().unwrap_or_else(|_| panic!("{name} is {text}"))
}
