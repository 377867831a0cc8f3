//! No infinity and no NaN leaves the compiler, whatever the weight becomes.

use estream_compiler::compile::{CompileError, Compiled, Options};
use estream_schemas::dtype::DType;
use estream_schemas::exit::Exit;
use estream_schemas::manifest::Projection;

use crate::toy::{FF, HIDDEN, Model, Tensor, Text, assert_says, count_from, toy};

/// The toy with a norm before the head.
fn normed() -> Text {
    toy()
        .and(
            "[[tensor]]\nrole = \"norm\"\nper = \"model\"\nshape = [\"hidden\"]\nhf = [\"norm\"]\n\
             gguf = [\"norm.weight\"]\n",
        )
        .with(
            "epilogue = [",
            "epilogue = [{ op = \"rms_norm\", input = \"h\", out = \"x\", weight = \"norm\", eps = 1e-5 }, ",
        )
}

/// A checkpoint of [`normed`] in which element `index` of `tensor` is `value`.
fn with(tensor: &str, index: usize, value: f32) -> Model {
    let mut model = Model::toy(1, 2);
    model.put("norm", Tensor::f32(&[HIDDEN], &count_from(0, HIDDEN)));
    let changed = model.tensors.get_mut(tensor).unwrap();
    changed.bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
    model
}

/// Writes every weight of `model` as `dtype`, or what a vector can be, to nowhere.
fn compiled(model: &Model, dtype: &str) -> Result<(), CompileError> {
    let plain = if dtype == "q4_0" { "f32" } else { dtype };
    let text = format!(
        "name = \"test\"\nabout = \"\"\n[[rule]]\nrole = \"norm\"\ntype = \"{plain}\"\n\
         [[rule]]\nrole = \"*\"\ntype = \"{dtype}\"\n"
    );
    let options = Options {
        recipe: dtype.to_owned(),
        recipe_text: (dtype != "keep").then_some(text),
        requantize: true,
        ..Options::default()
    };
    let written = model.write();
    let compiled = Compiled::plan(&written.checkpoint, &normed().family(), &options)?;
    let mut nowhere = |_: &[u8]| Ok(());
    for index in 0..compiled.resident.len() {
        compiled.write_resident(index, &mut nowhere)?;
    }
    for expert in 0..2 {
        for projection in [Projection::Gate, Projection::Up, Projection::Down] {
            compiled.write_region(0, expert, 0, projection, &mut nowhere)?;
        }
    }
    Ok(())
}

#[test]
fn c29_a_weight_that_is_not_finite_is_refused_in_every_type() {
    for dtype in ["keep", "q4_0", "f16", "bf16", "f32"] {
        compiled(&with("norm", 0, 1.0), dtype).unwrap();
        for tensor in ["norm", "0.router", "0.1.w2", "0.mix", "embed"] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let error = compiled(&with(tensor, 37, bad), dtype).expect_err(dtype);
                assert!(matches!(error, CompileError::Value { .. }), "{error}");
                assert_eq!(error.exit(), Exit::Invalid);
                assert_says(
                    &error.to_string(),
                    &[&format!("{tensor:?}, "), "infinite or not a number"],
                );
            }
        }
    }
}

/// Where the error says the bad value is.
fn position(model: &Model, dtype: &str) -> Vec<u64> {
    match compiled(model, dtype).unwrap_err() {
        CompileError::Value { position, .. } => position,
        other => panic!("{other}"),
    }
}

#[test]
fn the_position_is_that_of_the_element_whatever_the_weight_becomes() {
    let hidden = usize::try_from(HIDDEN).unwrap();
    for dtype in ["keep", "q4_0", "f16"] {
        let matrix = with("0.mix", 40 * hidden + 33, f32::NAN);
        assert_eq!(position(&matrix, dtype), [40, 33], "{dtype}");
        let error = compiled(&matrix, dtype).unwrap_err().to_string();
        assert_says(
            &error,
            &["\"0.mix\", row 40, column 33: a value is infinite"],
        );
        let vector = with("norm", 37, f32::NAN);
        assert_eq!(position(&vector, dtype), [37], "{dtype}");

        let mut stacked = Model::gguf_toy();
        stacked.put("norm.weight", Tensor::zeros(DType::F32, &[HIDDEN]));
        let up = stacked.tensors.get_mut("blk.0.ffn_up_exps.weight").unwrap();
        let at = (usize::try_from(FF).unwrap() + 3) * hidden + 5;
        up.bytes[4 * at..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert_eq!(position(&stacked, dtype), [1, 3, 5], "{dtype}");
    }
}

#[test]
fn a_scale_that_is_not_finite_is_where_its_block_starts() {
    let mut model = Model::gguf_toy();
    model.put("norm.weight", Tensor::zeros(DType::F32, &[HIDDEN]));
    let mut mix = Tensor::zeros(DType::Q8_0, &[HIDDEN, HIDDEN]);
    let block = 7 * 2 + 1;
    mix.bytes[34 * block..][..2].copy_from_slice(&0x7e00_u16.to_le_bytes());
    model.put("blk.0.mix.weight", mix);
    for dtype in ["keep", "f16"] {
        assert_eq!(position(&model, dtype), [7, 32], "{dtype}");
    }
}
