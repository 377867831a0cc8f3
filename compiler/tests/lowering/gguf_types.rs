//! Types that experts have in GGUF files, and what becomes of each.

use estream_compiler::compile::{CompileError, Compiled, Options};
use estream_compiler::quant::{OnOverflow, decode, encode};
use estream_schemas::dtype::DType;
use estream_schemas::manifest::Projection::{Down, Gate, Up};
use serde_json::json;

use crate::toy::{Model, Tensor, Written, assert_says, expert, toy, weight};

/// Long enough for a block of every type.
const SIZE: u64 = 256;

/// Blocks of `dtype` with bits that differ, all their scales small numbers.
fn blocks(dtype: DType, first: u8, shape: &[u64]) -> Tensor {
    let mut tensor = Tensor::zeros(dtype, shape);
    for (at, byte) in tensor.bytes.iter_mut().enumerate() {
        *byte = first.wrapping_add((31 * at % 251) as u8);
    }
    // Where the fp16 numbers of a block are, or its E8M0 byte.
    let (at, scale): (&[usize], &[u8]) = match dtype {
        DType::MXFP4 => (&[0], &[120]),
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => (&[0, 2], &[0x66, 0x2e]),
        DType::Q2_K => (&[80, 82], &[0x66, 0x2e]),
        DType::Q3_K => (&[108], &[0x66, 0x2e]),
        DType::Q6_K => (&[208], &[0x66, 0x2e]),
        _ => (&[0], &[0x66, 0x2e]),
    };
    let block_bytes = usize::try_from(dtype.block_bytes()).unwrap();
    for block in tensor.bytes.chunks_mut(block_bytes) {
        for at in at {
            block[*at..at + scale.len()].copy_from_slice(scale);
        }
    }
    tensor
}

/// Two layers of two experts, whose gate, up and down have these types by layer.
fn model(types: [[DType; 3]; 2]) -> Model {
    let mut model = Model::gguf_toy();
    model.tensors.clear();
    model.set("toy.block_count", json!(2));
    model.set("toy.embedding_length", json!(SIZE));
    model.set("toy.feed_forward_length", json!(SIZE));
    let plain = |shape: &[u64]| Tensor::zeros(DType::F32, shape);
    model.put("token_embd.weight", plain(&[4, SIZE]));
    model.put("output.weight", plain(&[4, SIZE]));
    for (layer, types) in types.iter().enumerate() {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        model.put(&name("mix"), blocks(DType::Q6_K, 1, &[SIZE, SIZE]));
        model.put(&name("ffn_gate_inp"), plain(&[2, SIZE]));
        for (first, (role, dtype)) in (5..).zip(["gate", "up", "down"].iter().zip(types)) {
            let tensor = blocks(*dtype, first, &[2, SIZE, SIZE]);
            model.put(&name(&format!("ffn_{role}_exps")), tensor);
        }
    }
    model
}

fn planned<'a>(
    written: &'a Written,
    recipe: &str,
    requantize: bool,
) -> Result<Compiled<'a>, CompileError> {
    let options = Options {
        recipe: recipe.to_owned(),
        requantize,
        ..Options::default()
    };
    Compiled::plan(&written.checkpoint, &toy().family(), &options)
}

/// The numbers of expert `id` of a stack of two.
fn numbers(tensor: &Tensor, id: u64) -> Vec<f32> {
    let half = tensor.bytes.len() / 2;
    let bytes = &tensor.bytes[half * usize::try_from(id).unwrap()..][..half];
    let mut values = vec![0.0; usize::try_from(SIZE * SIZE).unwrap()];
    decode(tensor.dtype, bytes, &mut values).unwrap();
    values
}

/// Every expert of `compiled` against what its tensor holds, as `expected` has it.
fn compare(model: &Model, compiled: &Compiled<'_>, expected: impl Fn(Vec<f32>) -> Vec<f32>) {
    for layer in 0..2 {
        for id in 0..2 {
            for (role, projection) in [("gate", Gate), ("up", Up), ("down", Down)] {
                let tensor = &model.tensors[&format!("blk.{layer}.ffn_{role}_exps.weight")];
                let found = expert(compiled, layer, id, projection);
                let expected = expected(numbers(tensor, id));
                assert!(found == expected, "layer {layer} expert {id} {role}");
            }
        }
    }
}

#[test]
fn blocks_of_every_type_with_tiles_are_moved() {
    for dtype in [
        DType::IQ4_NL,
        DType::MXFP4,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q8_0,
    ] {
        let model = model([[dtype; 3]; 2]);
        let written = model.write();
        let compiled = planned(&written, "auto", false).unwrap();
        assert_eq!(compiled.recipe.name, "keep");
        let layouts = compiled.experts[1].layouts.map(|layout| layout.to_string());
        assert!(
            layouts
                .iter()
                .all(|name| name.starts_with(&format!("{dtype}.t32")))
        );
        compare(&model, &compiled, |values| values);
    }
}

#[test]
fn layers_and_projections_may_have_types_of_their_own() {
    // An importance matrix makes the down projection of the first layers Q4_1.
    let model = model([
        [DType::Q4_0, DType::Q4_0, DType::Q4_1],
        [DType::Q4_0, DType::Q4_0, DType::Q4_0],
    ]);
    let written = model.write();
    let compiled = planned(&written, "auto", false).unwrap();
    let down = |layer: usize| compiled.experts[layer].layouts[2].to_string();
    assert_eq!(
        (down(0).as_str(), down(1).as_str()),
        ("q4_1.t32.direct", "q4_0.t32.direct")
    );
    compare(&model, &compiled, |values| values);
}

#[test]
fn experts_of_a_type_without_tiles_need_leave_to_lose_again() {
    for (dtype, bits) in [
        (DType::Q5_0, "5.50"),
        (DType::Q5_1, "6.00"),
        (DType::Q2_K, "2.62"),
        (DType::Q3_K, "3.44"),
        (DType::Q4_K, "4.50"),
        (DType::Q5_K, "5.50"),
        (DType::Q6_K, "6.56"),
    ] {
        let model = model([[dtype; 3]; 2]);
        let written = model.write();
        let error = planned(&written, "auto", false).unwrap_err().to_string();
        let cost = format!("--requantize makes them q4_0 from {bits} to 4.50 bits a weight");
        assert_says(
            &error,
            &[
                "6 things",
                &format!("experts cannot be {dtype}"),
                &cost,
                "8.6 % of their RMS",
            ],
        );
        let compiled = planned(&written, "auto", true).unwrap();
        assert_eq!(compiled.recipe.name, "q4_0");
        compare(&model, &compiled, |values| {
            let mut blocks = vec![0; values.len() / 32 * 18];
            encode(DType::Q4_0, &values, &mut blocks, OnOverflow::Error).unwrap();
            let mut back = vec![0.0; values.len()];
            decode(DType::Q4_0, &blocks, &mut back).unwrap();
            back
        });
    }
}

#[test]
fn leave_to_lose_again_is_not_used_where_blocks_can_be_moved() {
    let model = model([[DType::IQ4_NL; 3]; 2]);
    let written = model.write();
    assert_eq!(planned(&written, "auto", true).unwrap().recipe.name, "keep");
}

#[test]
fn a_type_that_cannot_be_read_is_refused_by_name() {
    for dtype in [DType::Q1_0, DType::IQ2_XS, DType::NVFP4] {
        let written = model([[dtype; 3]; 2]).write();
        for requantize in [false, true] {
            let error = planned(&written, "keep", requantize)
                .unwrap_err()
                .to_string();
            let says = format!(
                "experts cannot be {dtype}, which has no 32 × 32 tile; compile a checkpoint in"
            );
            assert_says(&error, &["6 things", &says]);
        }
        let error = planned(&written, "q4_0", true).unwrap_err().to_string();
        assert_says(&error, &[&format!("it is {dtype}, which cannot be read")]);
    }
}

#[test]
fn an_mxfp4_scale_that_can_be_infinite_is_refused_where_it_is() {
    let mut bad = model([[DType::MXFP4; 3]; 2]);
    let tensor = bad.tensors.get_mut("blk.0.ffn_up_exps.weight").unwrap();
    // Expert 1, row 2, the second block.
    tensor.bytes[17 * (8 * (256 + 2) + 1)] = 253;
    let written = bad.write();
    let compiled = planned(&written, "keep", false).unwrap();
    let mut nowhere = |_: &[u8]| Ok(());
    compiled.write_region(0, 0, 0, Up, &mut nowhere).unwrap();
    match compiled
        .write_region(0, 1, 0, Up, &mut nowhere)
        .unwrap_err()
    {
        CompileError::Value { position, .. } => assert_eq!(position, [1, 2, 32]),
        other => panic!("{other}"),
    }
}

#[test]
fn c33_a_head_of_another_type_is_kept_or_refused_before_any_work() {
    let mut mixed = model([[DType::Q4_0; 3]; 2]);
    for (dtype, layout) in [(DType::Q6_K, "q6_k.rows"), (DType::Q5_K, "q5_k.rows")] {
        mixed.put("output.weight", blocks(dtype, 3, &[4, SIZE]));
        let written = mixed.write();
        let compiled = planned(&written, "auto", false).unwrap();
        let mut resident = compiled.resident.iter();
        let head = resident.find(|weight| weight.name == "head");
        assert_eq!(head.unwrap().layout.to_string(), layout);
    }
    mixed.put("output.weight", blocks(DType::IQ4_XS, 3, &[4, SIZE]));
    let error = planned(&mixed.write(), "auto", false)
        .map(|_| ())
        .unwrap_err();
    assert_says(
        &error.to_string(),
        &[
            "one thing",
            "head (from \"output.weight\"): no kernel reads iq4_xs",
        ],
    );
}

#[test]
fn a_file_in_parts_gives_what_one_file_gives() {
    let model = model([[DType::IQ4_NL; 3]; 2]);
    let (whole, parts) = (model.write(), model.write_in_parts());
    assert_eq!(parts.checkpoint.files.len(), model.tensors.len());
    let (whole, parts) = (whole.keep(&toy()), parts.keep(&toy()));
    assert_eq!(whole.program, parts.program);
    assert_eq!(whole.ledger, parts.ledger);
    compare(&model, &parts, |values| values);
    let mix = "layers.1.mix";
    assert!(weight(&whole, mix) == weight(&parts, mix));
}
