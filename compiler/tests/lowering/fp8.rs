//! FP8 elements, and the scales that stand beside them.

use estream_compiler::compile::{CompileError, Compiled, Options};
use estream_compiler::quant::decode;
use estream_schemas::dtype::DType;
use estream_schemas::manifest::Projection::{Down, Gate, Up};
use serde_json::{Value, json};

use crate::toy::{FF, HIDDEN, Model, Tensor, Text, Written, assert_says, expert, toy, weight};

/// The toy with FP8 elements.
fn scaled() -> Text {
    toy().with("[hf]\n", "[hf]\nscales = [\"_scale_inv\", \"_scale\"]\n")
}

/// The toy with a role `wide`, `[192, 160]`, encoded so.
fn with_wide(encoding: &str) -> Text {
    let op = "ops = [{ op = \"linear\", input = \"h\", out = \"x\", weight = \"mix\" }";
    let more = ", { op = \"linear\", input = \"h\", out = \"x\", weight = \"wide\" }";
    scaled().with(op, &format!("{op}{more}")).and(&format!(
        "[[tensor]]\nrole = \"wide\"\nper = \"layer\"\nshape = [192, 160]\nhf = [{encoding}]\n"
    ))
}

/// `quantization_config` of DeepSeek-V3 and Qwen3.
fn blocks(size: u64) -> Value {
    json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [size, size]
    })
}

/// `quantization_config` as compressed-tensors has it.
fn compressed(strategy: &str) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": { "group_0": {
            "targets": ["Linear"],
            "weights": { "num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true },
        }},
    })
}

/// What an element stands for: sign, four bits of exponent about 7, three of mantissa.
fn value(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7) / 8.0);
    let magnitude = match exponent {
        0 => mantissa * 2.0_f32.powi(-6),
        _ => (1.0 + mantissa) * 2.0_f32.powi(exponent - 7),
    };
    if byte > 0x7f { -magnitude } else { magnitude }
}

/// Elements that run through all that are numbers, beginning elsewhere for another `first`.
fn elements(first: usize, shape: &[u64]) -> Tensor {
    let count = usize::try_from(shape.iter().product::<u64>()).unwrap();
    let numbers: Vec<u8> = (0..=255).filter(|byte| byte & 0x7f != 0x7f).collect();
    let bytes = (0..count).map(|at| numbers[(first + 7 * at) % numbers.len()]);
    Tensor {
        dtype: DType::F8_E4M3,
        shape: shape.to_vec(),
        bytes: bytes.collect(),
    }
}

/// Scales that differ from each other and are no powers of two.
fn scales(shape: &[u64]) -> (Tensor, Vec<f32>) {
    let count = shape.iter().product::<u64>();
    let values: Vec<f32> = (0..count).map(|at| 0.3 + at as f32 / 7.0).collect();
    (Tensor::f32(shape, &values), values)
}

/// Every element of matrices `[rows, cols]` in `tensor` times its scale of a grid of `block`s.
fn product(tensor: &Tensor, scales: &[f32], block: [usize; 2]) -> Vec<f32> {
    let [.., rows, cols] = tensor.shape[..] else {
        panic!("a matrix");
    };
    let size = |value: u64| usize::try_from(value).unwrap();
    let (rows, cols) = (size(rows), size(cols));
    let grid_cols = cols.div_ceil(block[1]);
    let grid_rows = rows.div_ceil(block[0]);
    let bytes = tensor.bytes.iter().enumerate();
    bytes
        .map(|(at, byte)| {
            let (matrix, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
            let row = matrix * grid_rows + row / block[0];
            value(*byte) * scales[row * grid_cols + col / block[1]]
        })
        .collect()
}

fn planned<'a>(
    written: &'a Written,
    text: &Text,
    recipe: &str,
) -> Result<Compiled<'a>, CompileError> {
    let rule =
        format!("name = \"test\"\nabout = \"\"\n[[rule]]\nrole = \"*\"\ntype = \"{recipe}\"\n");
    let options = Options {
        recipe: recipe.to_owned(),
        recipe_text: (recipe != "auto").then_some(rule),
        ..Options::default()
    };
    Compiled::plan(&written.checkpoint, &text.family(), &options)
}

#[test]
fn c10_blocks_of_128_with_ragged_last_ones_are_decoded() {
    let wide = elements(0, &[192, 160]);
    let (grid, values) = scales(&[2, 2]);
    let mut model = Model::toy(1, 1);
    model.set("quantization_config", blocks(128));
    model.put("0.wide.weight", wide.clone());
    model.put("0.wide.weight_scale_inv", grid);
    let text = with_wide("\"{layer}.wide.weight\"");
    let written = model.write();
    let compiled = planned(&written, &text, "f32").unwrap();
    let expected = product(&wide, &values, [128, 128]);
    assert_eq!(weight(&compiled, "layers.0.wide"), expected);
    let fate = |name: &str| {
        let entry = compiled.ledger.iter().find(|entry| entry.tensor == name);
        serde_json::to_value(&entry.unwrap().fate).unwrap()
    };
    assert_eq!(
        fate("0.wide.weight"),
        json!({ "became": ["layers.0.wide"] })
    );
    assert_eq!(
        fate("0.wide.weight_scale_inv"),
        json!({ "scales_of": "0.wide.weight" })
    );
    // The other way round in the file: columns of the tensor are rows of the role.
    let turned = elements(3, &[160, 192]);
    model.put("0.wide.weight", turned.clone());
    let text = with_wide("{ name = \"{layer}.wide.weight\", transposed = true }");
    let written = model.write();
    let compiled = planned(&written, &text, "f32").unwrap();
    let straight = product(&turned, &values, [128, 128]);
    let expected: Vec<f32> = (0..192 * 160)
        .map(|at| straight[at % 160 * 192 + at / 160])
        .collect();
    assert_eq!(weight(&compiled, "layers.0.wide"), expected);
}

#[test]
fn a_scale_may_be_that_of_a_row_or_of_the_matrix() {
    let text = with_wide("\"{layer}.wide.weight\"");
    let wide = elements(0, &[192, 160]);
    for (shape, block) in [
        (&[192, 1][..], [1, 160]),
        (&[192], [1, 160]),
        (&[1], [192, 160]),
        (&[], [192, 160]),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            let (mut grid, mut values) = scales(shape);
            if dtype == DType::BF16 {
                // The upper half of an f32, as bf16 has it.
                values = values
                    .iter()
                    .map(|x| f32::from_bits(x.to_bits() & 0xffff_0000))
                    .collect();
                grid = Tensor {
                    dtype,
                    bytes: grid.bytes.chunks(4).flat_map(|x| x[2..].to_vec()).collect(),
                    ..grid
                };
            }
            let mut model = Model::toy(1, 1);
            model.set("quantization_config", compressed("channel"));
            model.put("0.wide.weight", wide.clone());
            model.put("0.wide.weight_scale", grid);
            let written = model.write();
            let compiled = planned(&written, &text, "f32").unwrap();
            let expected = product(&wide, &values, block);
            assert_eq!(
                weight(&compiled, "layers.0.wide"),
                expected,
                "{shape:?} {dtype}"
            );
        }
    }
}

/// One layer of three stacked experts in FP8, gate and up in one tensor, blocks of 24 × 40.
fn stacked() -> (Model, Text, [Vec<f32>; 2]) {
    let mut model = Model::toy(1, 3);
    for id in 0..3 {
        for name in ["w1", "w2", "w3"] {
            model.take(&format!("0.{id}.{name}"));
        }
    }
    model.set(
        "quantization_config",
        json!({ "quant_method": "fp8", "weight_block_size": [24, 40] }),
    );
    let (gate_up, down) = (
        elements(0, &[3, 2 * FF, HIDDEN]),
        elements(9, &[3, HIDDEN, FF]),
    );
    let (gate_up_grid, gate_up_scales) = scales(&[3, 3, 2]);
    let (down_grid, down_scales) = scales(&[3, 3, 1]);
    let expected = [
        product(&gate_up, &gate_up_scales, [24, 40]),
        product(&down, &down_scales, [24, 40]),
    ];
    model.put("0.gate_up", gate_up);
    model.put("0.gate_up_scale_inv", gate_up_grid);
    model.put("0.down", down);
    model.put("0.down_scale_inv", down_grid);
    let fused = |first: &str| {
        format!(
            r#"hf = [{{ name = "{{layer}}.gate_up", stored = ["2 * ff", "hidden"], row_step = 2, first_row = {first} }}]"#
        )
    };
    let text = scaled()
        .with(r#"hf = ["{layer}.{expert}.w1"]"#, &fused("0"))
        .with(r#"hf = ["{layer}.{expert}.w3"]"#, &fused("1"))
        .with(
            r#"hf = ["{layer}.{expert}.w2"]"#,
            r#"hf = ["{layer}.down"]"#,
        );
    (model, text, expected)
}

#[test]
fn rows_of_stacked_and_interleaved_experts_keep_their_scales() {
    let (model, text, [gate_up, down]) = stacked();
    let written = model.write();
    let compiled = planned(&written, &text, "f32").unwrap();
    let (ff, hidden) = (32, 64);
    for id in 0..3_usize {
        let rows: Vec<&[f32]> = gate_up
            .chunks(hidden)
            .skip(2 * ff * id)
            .take(2 * ff)
            .collect();
        for (projection, first) in [(Gate, 0), (Up, 1)] {
            let own = rows.iter().skip(first).step_by(2);
            let expected: Vec<f32> = own.flat_map(|row| row.iter().copied()).collect();
            assert_eq!(
                expert(&compiled, 0, id as u64, projection),
                expected,
                "{id}"
            );
        }
        let expected = &down[id * ff * hidden..][..ff * hidden];
        assert_eq!(expert(&compiled, 0, id as u64, Down), expected, "{id}");
    }
}

#[test]
fn fp8_counts_as_float_and_cannot_be_kept() {
    let (model, text, _) = stacked();
    let written = model.write();
    let compiled = planned(&written, &text, "auto").unwrap();
    assert_eq!(compiled.recipe.name, "q4_0");
    assert_eq!(compiled.experts[0].layouts[0].dtype(), DType::Q4_0);
    let error = planned(&written, &text, "keep").unwrap_err().to_string();
    assert_says(
        &error,
        &[
            "3 things",
            "layers.0.expert_gate (from \"0.gate_up\"): it is f8_e4m3 with scales in another tensor",
            "choose q4_0",
        ],
    );
}

/// The toy in which the first matrix of every expert is in FP8, one scale each.
fn experts_of_their_own() -> Model {
    let mut model = Model::toy(2, 3);
    model.set("quantization_config", compressed("tensor"));
    for layer in 0..2 {
        for id in 0..3 {
            let name = format!("{layer}.{id}.w1");
            model.put(&name, elements(id, &[FF, HIDDEN]));
            model.put(&format!("{name}_scale"), scales(&[1]).0);
        }
    }
    model
}

#[test]
fn c13_a_missing_scale_is_told_with_layer_and_expert_and_never_made_up() {
    let mut model = experts_of_their_own();
    planned(&model.write(), &scaled(), "q4_0").unwrap();
    model.take("1.2.w1_scale");
    assert_says(
        &model.write().problems(&scaled()),
        &[
            "one thing is wrong",
            "missing: \"1.2.w1_scale_inv\" or \"1.2.w1_scale\", the scales of \"1.2.w1\" (\"layers.1.expert_gate.2\")",
        ],
    );
}

#[test]
fn c13_many_missing_scales_are_one_line_that_says_which() {
    let mut model = experts_of_their_own();
    for layer in 0..2 {
        for id in 0..3 {
            model.take(&format!("{layer}.{id}.w1_scale"));
        }
    }
    assert_says(
        &model.write().problems(&scaled()),
        &[
            "one thing is wrong",
            "missing: \"{layer}.{expert}.w1_scale_inv\" or",
            "× 6 (layers 0-1; experts 0-2)",
        ],
    );
}

#[test]
fn c12_scales_that_nobody_needs_are_named() {
    let mut model = experts_of_their_own();
    model.put("0.mix_scale", scales(&[1]).0);
    assert_says(
        &model.write().problems(&scaled()),
        &["one thing is wrong", "unmapped: \"0.mix_scale\" (f32 [1])"],
    );
}

#[test]
fn c29_an_element_or_a_scale_that_is_no_number_is_refused_where_it_is() {
    for (tensor, at, bytes) in [
        ("0.1.w1", 5 * 64 + 3, &[0x7f][..]),
        ("0.1.w1", 5 * 64 + 3, &[0xff]),
        ("0.1.w1_scale", 0, &f32::NAN.to_le_bytes()),
        ("0.1.w1_scale", 0, &f32::INFINITY.to_le_bytes()),
    ] {
        for recipe in ["q4_0", "f32", "f16"] {
            let mut model = experts_of_their_own();
            let changed = model.tensors.get_mut(tensor).unwrap();
            changed.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            let written = model.write();
            let compiled = planned(&written, &scaled(), recipe).unwrap();
            let mut nowhere = |_: &[u8]| Ok(());
            compiled.write_region(0, 0, 0, Gate, &mut nowhere).unwrap();
            match compiled
                .write_region(0, 1, 0, Gate, &mut nowhere)
                .unwrap_err()
            {
                CompileError::Value {
                    tensor, position, ..
                } => {
                    assert_eq!(tensor, "0.1.w1");
                    let row = if bytes.len() == 1 { [5, 3] } else { [0, 0] };
                    assert_eq!(position, row, "{bytes:?} {recipe}");
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn scales_of_another_shape_or_type_are_refused() {
    let text = with_wide("\"{layer}.wide.weight\"");
    let mut model = Model::toy(1, 1);
    model.put("0.wide.weight", elements(0, &[192, 160]));
    for (config, grid, says) in [
        (
            blocks(128),
            scales(&[1, 2]).0,
            "is [1, 2], the scales of \"0.wide.weight\" [192, 160] must be [2, 2], one for 128 × 128",
        ),
        (
            blocks(192),
            scales(&[7]).0,
            "must be [1, 1], one for 192 × 192 elements",
        ),
        (
            compressed("channel"),
            scales(&[160]).0,
            "must be [192, 1], one for 1 × 160 elements",
        ),
        (
            blocks(128),
            Tensor::zeros(DType::U8, &[2, 2]),
            "is u8: scales are f32, bf16 or f16",
        ),
    ] {
        model.set("quantization_config", config);
        model.put("0.wide.weight_scale_inv", grid);
        let problems = model.write().problems(&text);
        assert_says(
            &problems,
            &["one thing", "\"0.wide.weight_scale_inv\"", says],
        );
    }
}

#[test]
fn every_byte_of_fp8_is_the_number_it_stands_for() {
    for byte in 0..=255_u8 {
        let mut out = [0.0];
        decode(DType::F8_E4M3, &[byte], &mut out).unwrap();
        match byte & 0x7f {
            0x7f => assert!(out[0].is_nan()),
            _ => assert_eq!(out[0].to_bits(), value(byte).to_bits(), "{byte:#x}"),
        }
    }
    assert_eq!((value(0x7e), value(0x01)), (448.0, 1.0 / 512.0));
}
