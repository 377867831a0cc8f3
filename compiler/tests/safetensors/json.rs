//! `config.json` and the index as JSON texts.

use estream_compiler::ingest::{IngestError, MAX_CONFIG_BYTES};
use estream_schemas::exit::Exit;

use super::{Dir, says};

const FILE: &str = "model.safetensors";

fn with_config(config: impl AsRef<[u8]>) -> Dir {
    Dir::empty()
        .shard(FILE, &[("a", 1)])
        .with("config.json", config)
}

fn with_index(index: &str) -> Dir {
    with_config("{}").with("model.safetensors.index.json", index)
}

#[test]
fn values_keep_their_kind_and_dots_enter_objects() {
    let checkpoint =
        with_config(r#"{"a":{"b":[1,-2,0.5,null,true,"x"]},"n":18446744073709551615,"e":{}}"#)
            .open()
            .expect("opens");
    let config = &checkpoint.config;
    let expected = serde_json::json!([1, -2, 0.5, null, true, "x"]);
    assert_eq!(config.get("a.b"), Some(&expected));
    assert_eq!(config.get("n"), Some(&u64::MAX.into()));
    assert_eq!(config.get("e.x"), None);
}

#[test]
fn c87_a_key_that_appears_twice_is_refused_at_any_depth() {
    for config in [
        r#"{"k":1,"k":1}"#,
        r#"{"a":[{"b":{"k":1,"x":2,"k":3}}]}"#,
        r#"{"a":{"k":1,"\u006b":1}}"#,
    ] {
        match with_config(config).refused(Exit::Invalid) {
            IngestError::DuplicateKey { key, path } => {
                assert_eq!(key, "k");
                assert!(path.ends_with("config.json"));
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn c87_an_index_is_as_strict() {
    for index in [
        r#"{"weight_map":{"k":"model.safetensors","k":"model.safetensors"}}"#,
        r#"{"k":1,"k":2,"weight_map":{"a":"model.safetensors"}}"#,
        r#"{"metadata":{"k":1,"k":1},"weight_map":{"a":"model.safetensors"}}"#,
        r#"{"weight_map":{"a":"model.safetensors"},"weight_map":{"b":"model.safetensors"}}"#,
    ] {
        let error = with_index(index).refused(Exit::Invalid);
        assert!(
            matches!(error, IngestError::DuplicateKey { .. }),
            "{index}: {error}"
        );
    }
}

#[test]
fn an_index_without_tensors_is_refused() {
    for index in [
        "{}",
        r#"{"weight_map":{}}"#,
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{"a":1}}"#,
        "[]",
    ] {
        let error = with_index(index).refused(Exit::Invalid);
        assert!(
            matches!(error, IngestError::Json { .. }),
            "{index}: {error}"
        );
    }
}

#[test]
fn what_is_not_one_object_is_refused_with_its_place() {
    for config in [
        "[]",
        "1",
        "{",
        "{}x",
        "{\"a\":01}",
        "{\"a\":NaN}",
        "{\"a\":1e999}",
        "{\"a\":\"\\ud800\"}",
    ] {
        let error = with_config(config).refused(Exit::Invalid);
        assert!(
            matches!(error, IngestError::Json { .. }),
            "{config}: {error}"
        );
        says(&error, &["config.json", "line 1, column"]);
    }
    let error = with_config("").refused(Exit::Invalid);
    says(&error, &["config.json", "an empty file"]);
}

#[test]
fn nesting_is_bounded() {
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    let error = with_config(deep).refused(Exit::Invalid);
    says(&error, &["recursion limit"]);
}

#[test]
fn c86_a_string_or_a_file_beyond_its_limit_is_refused() {
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat((1 << 20) + 1));
    says(
        &with_config(long).refused(Exit::Invalid),
        &["a string is longer"],
    );
    let escapes = format!(r#"{{"a":"{}"}}"#, "\\\"".repeat(1 << 20));
    says(
        &with_config(escapes).refused(Exit::Invalid),
        &["a string is longer"],
    );
    let blank = format!("{{}}{}", " ".repeat(MAX_CONFIG_BYTES as usize));
    let error = with_config(blank).refused(Exit::Invalid);
    assert!(matches!(error, IngestError::TooLarge { .. }), "{error}");
}

#[test]
fn many_short_strings_are_not_one_long_string() {
    let strings = vec![r#""\"x\\""#; 200_000].join(",");
    with_config(format!(r#"{{"a":[{strings}]}}"#))
        .open()
        .expect("opens");
}
