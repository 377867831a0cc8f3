//! Whether operators can run one after another: each has its place, and what it reads was written.

use std::collections::BTreeSet;

use estream_schemas::limits::MAX_LAYER_OPS;

use super::OpForm;

/// Where operators stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before the first layer.
    Prologue,
    /// In a layer.
    Layer,
    /// After the last layer.
    Epilogue,
}

impl Place {
    /// How often operators may be here that may not be anywhere and any number of times.
    fn most(self) -> &'static [(&'static str, usize)] {
        match self {
            Place::Prologue => &[("embed", 1), ("lm_head", 0), ("router", 0)],
            Place::Layer => &[("embed", 0), ("lm_head", 0), ("router", 1), ("experts", 1)],
            Place::Epilogue => &[("embed", 0), ("lm_head", 1), ("router", 0)],
        }
    }
}

/// What is wrong with the number and the order of the operators in one place, or in a part of it.
pub(crate) fn misplaced(place: Place, ops: &[OpForm]) -> Vec<String> {
    let mut wrong = Vec::new();
    if ops.len() > MAX_LAYER_OPS {
        let count = ops.len();
        wrong.push(format!(
            "has {count} operators, and {MAX_LAYER_OPS} is the most"
        ));
    }
    for (name, most) in place.most() {
        let count = ops.iter().filter(|op| op.name() == *name).count();
        if count > *most {
            wrong.push(match most {
                0 => format!("operator {name} has no place here"),
                _ => format!("operator {name} is there {count} times, and once is the most"),
            });
        }
    }
    if place == Place::Prologue && !matches!(ops.first(), Some(OpForm::Embed { .. })) {
        wrong.push("operator embed is not the first".to_owned());
    }
    if place == Place::Epilogue && !matches!(ops.last(), Some(OpForm::LmHead { .. })) {
        wrong.push("operator lm_head is not the last".to_owned());
    }
    wrong
}

/// What is wrong with the routing of one whole layer.
pub(crate) fn misrouted(ops: &[OpForm]) -> Option<&'static str> {
    let place = |name: &str| ops.iter().position(|op| op.name() == name);
    match (place("router"), place("experts")) {
        (Some(router), Some(experts)) if router < experts => None,
        (None, None) => None,
        (Some(_), None) => Some("operator router is there without experts"),
        _ => Some("operator experts is there without a router before it"),
    }
}

/// Which registers `ops` read that are not among those `written` before them. What they
/// write is added, and so is what was found: each is told once.
pub(crate) fn unwritten<'a>(ops: &'a [OpForm], written: &mut BTreeSet<&'a str>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, op) in ops.iter().enumerate() {
        for register in op.reads() {
            if written.insert(register) {
                let name = op.name();
                wrong.push(format!(
                    "operator {index} ({name}) reads register {register:?}, which nothing has written"
                ));
            }
        }
        written.extend(op.writes());
    }
    wrong
}
