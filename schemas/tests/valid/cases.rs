//! One change to a valid manifest, and what is said about it.

use estream_schemas::valid::{Bundle, InvalidManifest};
use serde_json::Value;

use crate::sample::sample;

pub(crate) fn parse(manifest: &Value) -> Result<Bundle, InvalidManifest> {
    Bundle::parse(&serde_json::to_vec(manifest).unwrap())
}

/// Each case sets what its pointer leads to; `/-` at its end appends to a list, and a
/// null removes an element. Every message must hold every one of the pieces.
pub(crate) fn check(cases: &[(&str, Value, &[&str])]) {
    for (pointer, value, pieces) in cases {
        let mut manifest = sample();
        change(&mut manifest, pointer, value.clone());
        let message = match parse(&manifest) {
            Ok(_) => panic!("{pointer} = {value} is accepted"),
            Err(error) => error.to_string(),
        };
        for piece in *pieces {
            assert!(message.contains(piece), "{pointer} = {value}: {message}");
        }
    }
}

pub(crate) fn change(manifest: &mut Value, pointer: &str, value: Value) {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    match manifest.pointer_mut(parent).unwrap() {
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) if value.is_null() => drop(list.remove(last.parse().unwrap())),
        Value::Array(list) => list[last.parse::<usize>().unwrap()] = value,
        Value::Object(fields) => drop(fields.insert(last.to_owned(), value)),
        other => panic!("{parent} is {other}"),
    }
}
