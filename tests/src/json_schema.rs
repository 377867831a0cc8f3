//! Published files against their committed JSON Schemas.

use std::path::Path;

use serde_json::Value;

/// Asserts that `document` satisfies `schemas/json/NAME.schema.json`; names every
/// place where it does not.
///
/// # Panics
///
/// If it does not, or if there is no such schema.
pub fn assert_valid(name: &str, document: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../schemas/json")
        .join(format!("{name}.schema.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let schema: Value = serde_json::from_str(&text).expect("a schema is JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema is valid");
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        errors.is_empty(),
        "not a valid {name}:\n{}",
        errors.join("\n")
    );
}
