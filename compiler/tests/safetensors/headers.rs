//! What a weight file's header may say.

use estream_compiler::ingest::safetensors::{MAX_DIMS, MAX_HEADER_BYTES};
use estream_compiler::ingest::{IngestError, TensorFault};
use estream_schemas::dtype::DType;
use estream_schemas::exit::Exit;

use super::write::{entry, file};
use super::{Dir, names, says};

const FILE: &str = "model.safetensors";

#[track_caller]
fn refused(header: &str, data_bytes: usize) -> IngestError {
    Dir::new()
        .with(FILE, file(header, &vec![0; data_bytes]))
        .refused(Exit::Invalid)
}

/// Expects that tensor "a" is refused for `fault`.
#[track_caller]
fn refused_tensor(header: &str, data_bytes: usize, expected: &TensorFault) {
    match refused(header, data_bytes) {
        IngestError::Tensor { tensor, fault, .. } => {
            assert_eq!((tensor.as_str(), &fault), ("a", expected));
        }
        error => panic!("{error}"),
    }
}

#[test]
fn every_element_type_of_the_format_opens() {
    let types = [
        ("BOOL", DType::Bool, 1),
        ("U8", DType::U8, 1),
        ("I8", DType::I8, 1),
        ("F8_E4M3", DType::F8_E4M3, 1),
        ("F8_E5M2", DType::F8_E5M2, 1),
        ("I16", DType::I16, 2),
        ("U16", DType::U16, 2),
        ("F16", DType::F16, 2),
        ("BF16", DType::BF16, 2),
        ("I32", DType::I32, 4),
        ("U32", DType::U32, 4),
        ("F32", DType::F32, 4),
        ("F64", DType::F64, 8),
        ("I64", DType::I64, 8),
        ("U64", DType::U64, 8),
    ];
    for (name, dtype, bytes) in types {
        let header = entry("a", name, "[3]", &format!("[0,{}]", 3 * bytes));
        let dir = Dir::new().with(FILE, file(&header, &vec![0; 3 * bytes]));
        let checkpoint = dir.open().expect(name);
        let tensor = checkpoint.tensor("a").expect("the tensor");
        assert_eq!((tensor.dtype, tensor.bytes), (dtype, 3 * bytes as u64));
    }
}

#[test]
fn an_element_type_without_a_reader_is_named_with_its_tensor() {
    for name in ["F4", "F8_E8M0", "C64", "f32", ""] {
        let header = entry("a", name, "[2]", "[0,2]");
        refused_tensor(&header, 2, &TensorFault::UnknownDType(name.to_owned()));
    }
}

#[test]
fn a_scalar_has_one_element() {
    let dir = Dir::new().with(FILE, file(&entry("a", "F32", "[]", "[0,4]"), &[0; 4]));
    let checkpoint = dir.open().expect("opens");
    assert_eq!(checkpoint.tensors[0].bytes, 4);
}

#[test]
fn tensors_come_in_name_order_with_offsets_in_the_file() {
    let dir = Dir::new().shard(FILE, &[("b", 7), ("a", 8)]);
    let checkpoint = dir.open().expect("opens");
    assert_eq!(names(&checkpoint), ["a", "b"]);
    let mut byte = [0];
    for (name, value) in [("a", 8), ("b", 7)] {
        let tensor = checkpoint.tensor(name).expect("the tensor");
        checkpoint.read(tensor, 0, &mut byte).expect("reads");
        assert_eq!(byte, [value]);
    }
}

#[test]
fn c43_a_truncated_file_is_named_with_both_sizes() {
    let header = entry("a", "U8", "[200]", "[0,200]");
    let whole = file(&header, &[0; 200]);
    let in_header = 8 + header.len();
    for (kept, expected) in [
        (whole.len() - 100, whole.len()),
        (in_header, whole.len()),
        (in_header - 5, in_header),
        (9, in_header),
        (7, 10),
        (0, 10),
    ] {
        let dir = Dir::new().with(FILE, &whole[..kept]);
        let error = dir.refused(Exit::Invalid);
        assert!(matches!(error, IngestError::Truncated { .. }), "{error:?}");
        says(
            &error,
            &[
                FILE,
                &format!("expected {expected} bytes, have {kept}"),
                "likely a partial download",
            ],
        );
    }
}

#[test]
fn c44_bytes_after_the_last_tensor_are_refused() {
    let error = refused(&entry("a", "U8", "[2]", "[0,2]"), 3);
    assert!(matches!(error, IngestError::TrailingBytes { .. }));
    says(&error, &["expected 63 bytes, have 64"]);
}

#[test]
fn c44_a_first_tensor_that_does_not_start_the_data_is_refused() {
    let fault = TensorFault::Gap {
        begin: 1,
        expected: 0,
    };
    refused_tensor(&entry("a", "U8", "[2]", "[1,3]"), 3, &fault);
}

fn two(a: &str, b: &str) -> String {
    let entry =
        |name, range| format!(r#""{name}":{{"dtype":"U8","shape":[4],"data_offsets":{range}}}"#);
    format!("{{{},{}}}", entry("b", b), entry("a", a))
}

#[test]
fn tensors_that_overlap_are_refused() {
    let fault = TensorFault::Overlap {
        begin: 3,
        other: "b".to_owned(),
        other_end: 4,
    };
    refused_tensor(&two("[3,7]", "[0,4]"), 7, &fault);
    assert!(matches!(
        refused(&two("[0,4]", "[0,4]"), 4),
        IngestError::Tensor { .. }
    ));
}

#[test]
fn bytes_between_two_tensors_are_refused() {
    let fault = TensorFault::Gap {
        begin: 5,
        expected: 4,
    };
    refused_tensor(&two("[5,9]", "[0,4]"), 9, &fault);
}

#[test]
fn a_range_that_disagrees_with_type_and_shape_is_refused() {
    for (range, begin, end) in [("[0,7]", 0, 7), ("[0,9]", 0, 9), ("[8,0]", 8, 0)] {
        let fault = TensorFault::RangeMismatch {
            dtype: DType::F32,
            shape: vec![2],
            shape_bytes: 8,
            begin,
            end,
        };
        refused_tensor(&entry("a", "F32", "[2]", range), 8, &fault);
    }
}

#[test]
fn rez0_a_shape_whose_product_wraps_is_refused() {
    // 4194305 × 4194305 × 211106198978564 is 4 modulo 2^64.
    let shape = vec![4_194_305, 4_194_305, 211_106_198_978_564];
    assert_eq!(shape.iter().copied().fold(1, u64::wrapping_mul), 4);
    let header = entry("a", "F32", "[4194305,4194305,211106198978564]", "[0,16]");
    refused_tensor(&header, 16, &TensorFault::SizeOverflow(shape));
}

#[test]
fn a_range_at_the_end_of_the_number_line_is_refused() {
    let header = entry(
        "a",
        "U8",
        "[18446744073709551615]",
        "[0,18446744073709551615]",
    );
    let error = refused(&header, 8);
    assert!(matches!(error, IngestError::Truncated { .. }), "{error:?}");
    let header = entry(
        "a",
        "U8",
        "[1]",
        "[18446744073709551614,18446744073709551615]",
    );
    assert!(matches!(refused(&header, 8), IngestError::Tensor { .. }));
}

#[test]
fn f002_a_tensor_without_elements_is_refused_wherever_it_lies() {
    for range in ["[0,0]", "[2,2]", "[4,4]"] {
        let header = format!(
            r#"{{"b":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},"a":{{"dtype":"U8","shape":[2,0],"data_offsets":{range}}}}}"#
        );
        refused_tensor(&header, 4, &TensorFault::NoElements(vec![2, 0]));
    }
}

#[test]
fn more_dimensions_than_any_weight_has_are_refused() {
    let shape = |dims: usize| format!("[{}]", vec!["1"; dims].join(","));
    refused_tensor(
        &entry("a", "U8", &shape(MAX_DIMS + 1), "[0,1]"),
        1,
        &TensorFault::TooManyDims(MAX_DIMS),
    );
    let most = file(&entry("a", "U8", &shape(MAX_DIMS), "[0,1]"), &[0]);
    Dir::new().with(FILE, most).open().expect("opens");
}

#[test]
fn c45_a_header_of_a_hundred_thousand_tensors_opens() {
    let tensors: Vec<String> = (0..100_000)
        .map(|i| format!("model.layers.{i}.weight"))
        .collect();
    let tensors: Vec<(&str, u8)> = tensors.iter().map(|name| (name.as_str(), 1)).collect();
    let dir = Dir::new().shard(FILE, &tensors);
    assert_eq!(dir.open().expect("opens").tensors.len(), tensors.len());
}

#[test]
fn c45_a_header_beyond_the_limit_is_refused_by_its_length() {
    let mut bytes = file("{", &[]);
    bytes[..8].copy_from_slice(&(MAX_HEADER_BYTES + 1).to_le_bytes());
    let error = Dir::new().with(FILE, bytes).refused(Exit::Invalid);
    assert!(matches!(error, IngestError::TooLarge { .. }));
    says(&error, &["25165825 bytes", "the limit is 25165824"]);
}

#[test]
fn c87_a_tensor_that_appears_twice_is_refused_however_it_is_spelt() {
    for second in ["a", "\\u0061"] {
        let header = format!(
            r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},"{second}":{{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}}}"#
        );
        match refused(&header, 2) {
            IngestError::DuplicateKey { key, .. } => assert_eq!(key, "a"),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn c87_a_field_that_appears_twice_is_refused() {
    let fields = [
        r#""dtype":"U8""#,
        r#""shape":[1]"#,
        r#""data_offsets":[0,1]"#,
    ];
    for twice in fields {
        let header = format!(r#"{{"a":{{{},{twice}}}}}"#, fields.join(","));
        let error = refused(&header, 1);
        assert!(matches!(error, IngestError::DuplicateKey { .. }), "{error}");
    }
}

#[test]
fn c87_metadata_keys_that_appear_twice_are_refused() {
    for metadata in [
        r#""__metadata__":{"x":"1","y":"2","x":"1"}"#,
        r#""__metadata__":{},"__metadata__":{}"#,
    ] {
        let header =
            format!(r#"{{{metadata},"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let error = refused(&header, 1);
        assert!(matches!(error, IngestError::DuplicateKey { .. }), "{error}");
    }
}

#[test]
fn metadata_is_an_object_of_strings() {
    let header = |metadata: &str| {
        format!(
            r#"{{"__metadata__":{metadata},"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#
        )
    };
    let good = file(&header(r#"{"format":"pt"}"#), &[0]);
    Dir::new().with(FILE, good).open().expect("opens");
    for metadata in [
        r#"{"format":1}"#,
        r#"{"a":{"b":"c"}}"#,
        "[]",
        "null",
        r#""pt""#,
    ] {
        let error = refused(&header(metadata), 1);
        assert!(matches!(error, IngestError::Json { .. }), "{error}");
    }
}

#[test]
fn an_entry_has_three_fields_and_no_other() {
    for (header, field) in [
        (r#"{"a":{"shape":[1],"data_offsets":[0,1]}}"#, "dtype"),
        (r#"{"a":{"dtype":"U8","data_offsets":[0,1]}}"#, "shape"),
        (r#"{"a":{"dtype":"U8","shape":[1]}}"#, "data_offsets"),
    ] {
        refused_tensor(header, 1, &TensorFault::MissingField(field));
    }
    for header in [
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"payload":"x"}}"#,
        r#"{"a":["U8",[1],[0,1]]}"#,
        r#"{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]}}"#,
        r#"{"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}}"#,
        r#"{"a":null}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}{}"#,
    ] {
        let error = refused(header, 1);
        assert!(
            matches!(error, IngestError::Json { .. }),
            "{header}: {error:?}"
        );
    }
}

#[test]
fn a_header_is_padded_with_spaces_alone() {
    let header = entry("a", "U8", "[1]", "[0,1]");
    let padded = file(&format!("{header}     "), &[0]);
    Dir::new().with(FILE, padded).open().expect("opens");
    for padding in ["\n", "  \t ", "\r\n  "] {
        let error = refused(&format!("{header}{padding}"), 1);
        assert!(
            matches!(error, IngestError::HeaderPadding { .. }),
            "{error}"
        );
    }
    for padding in ["\0\0", "x", " {}"] {
        let error = refused(&format!("{header}{padding}"), 1);
        assert!(matches!(error, IngestError::Json { .. }), "{error}");
    }
}

#[test]
fn a_header_begins_with_its_object() {
    let error = refused(&format!(" {}", entry("a", "U8", "[1]", "[0,1]")), 1);
    assert!(matches!(error, IngestError::WrongKind { .. }), "{error}");
}

#[test]
fn a_header_that_is_not_utf_8_is_refused() {
    let mut bytes = file(&entry("a", "U8", "[1]", "[0,1]"), &[0]);
    assert_eq!(bytes[10], b'a');
    bytes[10] = 0xff;
    let error = Dir::new().with(FILE, bytes).refused(Exit::Invalid);
    assert!(matches!(error, IngestError::Json { .. }), "{error}");
}

#[test]
fn names_are_escaped_in_messages() {
    // `refused` fails on any control character in a message.
    for header in [
        entry("\\u001b[31mred\\u0007", "F4", "[1]", "[0,1]"),
        entry("a", "\\u001b[31m", "[1]", "[0,1]"),
        r#"{"a":{"\u001b[31m":1}}"#.to_owned(),
        r#"{"a":"\u001b[31m"}"#.to_owned(),
    ] {
        let error = refused(&header, 1);
        says(&error, &["\\u{1b}[31m"]);
    }
}

#[test]
fn a_name_that_no_bundle_could_hold_is_refused() {
    let error = refused(&entry(&"n".repeat(257), "U8", "[1]", "[0,1]"), 1);
    says(&error, &["a name of 257 bytes", "the limit is 256"]);
    assert!(error.to_string().len() < 400);
    let longest = file(&entry(&"n".repeat(256), "U8", "[1]", "[0,1]"), &[0]);
    Dir::new().with(FILE, longest).open().expect("opens");
}

#[test]
fn a_file_without_tensors_is_no_checkpoint() {
    let error = refused("{}", 0);
    assert!(matches!(error, IngestError::NoWeights { .. }), "{error}");
}
