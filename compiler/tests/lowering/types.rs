//! Types that a recipe may ask for, and which of them a plan refuses.

use estream_compiler::compile::{Compiled, Options};
use estream_compiler::quant::{OnOverflow, QuantError, can_decode, can_encode, decode, encode};
use estream_schemas::dtype::DType;

use crate::toy::{FF, HIDDEN, Model, Tensor, assert_says, toy};

fn planned(model: &Model, recipe: &str, pad_k: bool) -> Result<(), String> {
    let written = model.write();
    let options = Options {
        recipe: "test.toml".to_owned(),
        recipe_text: Some(format!("name = \"test\"\nabout = \"\"\n{recipe}")),
        requantize: true,
        pad_k,
        ..Options::default()
    };
    Compiled::plan(&written.checkpoint, &toy().family(), &options)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

const KEEP: &str = "[[rule]]\nrole = \"*\"\ntype = \"keep\"\n";

fn experts_as(dtype: &str) -> String {
    format!("[[rule]]\nrole = \"expert_*\"\ntype = \"{dtype}\"\n{KEEP}")
}

#[test]
fn what_can_be_encoded_and_decoded_is_what_is() {
    for dtype in DType::all() {
        let len = usize::try_from(dtype.block_len()).unwrap();
        let mut block = vec![0; usize::try_from(dtype.block_bytes()).unwrap()];
        let mut values = vec![0.0; len];
        let encoded = encode(dtype, &values, &mut block, OnOverflow::Error);
        let unsupported = matches!(encoded, Err(QuantError::Unsupported { .. }));
        assert_eq!(can_encode(dtype), !unsupported, "{dtype}");
        let decoded = decode(dtype, &block, &mut values);
        let unsupported = matches!(decoded, Err(QuantError::Unsupported { .. }));
        assert_eq!(can_decode(dtype), !unsupported, "{dtype}");
    }
}

#[test]
fn a_type_that_cannot_be_made_is_refused_before_any_work() {
    for dtype in ["mxfp4", "iq4_nl", "q4_k"] {
        let why = planned(&Model::toy(1, 2), &experts_as(dtype), false).unwrap_err();
        assert_says(
            &why,
            &[
                "layers.0.expert_gate (from \"0.0.w1\")",
                &format!("the recipe wants {dtype}"),
                "f32, f16, bf16, q4_0, q4_1, q8_0, q6_k",
            ],
        );
    }
    planned(&Model::toy(1, 2), &experts_as("q4_1"), false).unwrap();
}

#[test]
fn a_type_that_cannot_be_read_is_not_quantised_again() {
    let mut model = Model::gguf_toy();
    for name in ["gate", "up"] {
        let tensor = Tensor::zeros(DType::Q5_0, &[2, FF, HIDDEN]);
        model.put(&format!("blk.0.ffn_{name}_exps.weight"), tensor);
    }
    let why = planned(&model, &experts_as("q4_0"), false).unwrap_err();
    assert_says(
        &why,
        &[
            "\"blk.0.ffn_up_exps.weight\"",
            "it is q5_0, which cannot be read to be made q4_0",
        ],
    );
}

#[test]
fn padding_is_refused_where_added_zeros_would_not_be_zero() {
    let mut model = Model::toy(1, 1);
    model.set("ff", 48.into());
    for (name, shape) in [
        ("w1", [48, HIDDEN]),
        ("w2", [HIDDEN, 48]),
        ("w3", [48, HIDDEN]),
    ] {
        model.put(&format!("0.0.{name}"), Tensor::zeros(DType::F32, &shape));
    }
    let why = planned(&model, &experts_as("q4_1"), true).unwrap_err();
    assert_says(
        &why,
        &[
            "one thing",
            "layers.0.expert_down",
            "48 mod 32 = 16",
            "would not be exactly 0",
        ],
    );
    for dtype in ["q4_0", "q8_0", "f16", "keep"] {
        planned(&model, &experts_as(dtype), true).unwrap();
    }
}
