//! Ways of quantising that are not read: each is told by its name, once, before all else.

use estream_schemas::dtype::DType;
use serde_json::{Value, json};

use crate::toy::{HIDDEN, Model, Tensor, Text, assert_says, toy};

fn scaled() -> Text {
    toy().with("[hf]\n", "[hf]\nscales = [\"_scale_inv\", \"_scale\"]\n")
}

/// What is said of a toy whose configuration states `config`, and which has these tensors.
fn said(config: Value, tensors: &[(&str, DType, &[u64])]) -> String {
    let mut model = Model::toy(2, 2);
    // A quantised matrix is not there under its own name.
    model.take("0.mix");
    model.set("quantization_config", config);
    for (name, dtype, shape) in tensors {
        model.put(name, Tensor::zeros(*dtype, shape));
    }
    let problems = model.write().problems(&scaled());
    assert_says(&problems, &["one thing is wrong"]);
    problems
}

#[test]
fn c11_c16_every_other_way_is_told_by_its_tensors_whatever_the_configuration_says() {
    let cases: &[(&str, &str, DType)] = &[
        ("GPTQ", "0.mix.g_idx", DType::I32),
        ("GPTQ or AWQ", "0.mix.qweight", DType::I32),
        (
            "compressed-tensors, packed",
            "0.mix.weight_packed",
            DType::I32,
        ),
        (
            "compressed-tensors NVFP4",
            "0.mix.weight_global_scale",
            DType::F32,
        ),
        ("ModelOpt NVFP4", "0.mix.weight_scale_2", DType::F32),
        ("bitsandbytes, 8 bits", "0.mix.SCB", DType::F32),
        ("bitsandbytes, 4 bits", "0.mix.weight.absmax", DType::U8),
        ("bitsandbytes, 4 bits", "0.mix.weight.quant_map", DType::F32),
        ("MXFP4", "0.gate_up_proj_blocks", DType::U8),
        ("MLX", "0.mix.weight", DType::U32),
        ("torchao", "0.mix._weight_qdata", DType::I8),
        ("8-bit integers", "0.mix.weight", DType::I8),
        ("FP8 of five exponent bits", "0.mix", DType::F8_E5M2),
    ];
    for (name, tensor, dtype) in cases {
        for config in [Value::Null, json!({ "quant_method": "fp8" })] {
            let silent = config.is_null();
            let said = said(config, &[(tensor, *dtype, &[4, 4]), ("rest", *dtype, &[4])]);
            let evidence = format!("({name}: {tensor:?} is {dtype} [4, 4]");
            let config = match silent {
                true => "config.json does not say so",
                false => "config key \"quantization_config\" says quant_method \"fp8\"",
            };
            let advice = "compile the checkpoint it was made from";
            assert_says(&said, &[&evidence, config, "which is not read", advice]);
        }
    }
}

#[test]
fn c11_a_method_or_format_that_is_not_read_is_refused_by_the_configuration_alone() {
    let float = json!({ "weights": { "num_bits": 8, "type": "float" } });
    let int = json!({ "weights": { "num_bits": 8, "type": "int" } });
    for (config, says) in [
        (
            json!({ "quant_method": "gptq", "bits": 4 }),
            "says quant_method \"gptq\", bits 4, which is not read",
        ),
        (
            json!({ "quant_method": "torchao" }),
            "says quant_method \"torchao\"",
        ),
        (
            json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" }),
            "quant_algo \"NVFP4\"",
        ),
        (
            json!({ "quant_method": "compressed-tensors", "format": "pack-quantized" }),
            "format \"pack-quantized\"",
        ),
        (
            json!({ "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": { "a": int } }),
            "float-quantized with weights {\"num_bits\":8,\"type\":\"int\"}",
        ),
        (
            json!({ "quant_method": "compressed-tensors", "format": "float-quantized" }),
            "without one form of weights",
        ),
        (
            json!({ "quant_method": "fp8", "fmt": "e5m2" }),
            "fmt \"e5m2\"",
        ),
        (
            json!({ "quant_method": "fp8", "weight_block_size": [128] }),
            "has blocks of [128]",
        ),
        (
            json!({ "quant_method": "fp8", "weight_block_size": [0, 128] }),
            "has blocks of [0,128]",
        ),
        (json!({}), "says neither method nor format"),
        (json!("yes"), "says neither method nor format"),
        (json!({ "quant_method": "fp8" }), "but no tensor is f8_e4m3"),
        (
            json!({ "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": { "a": float } }),
            "but no tensor is f8_e4m3",
        ),
    ] {
        let said = said(config, &[]);
        assert_says(&said, &["config key \"quantization_config\"", says]);
    }
}

#[test]
fn c10_fp8_without_a_configuration_or_a_rule_for_scales_is_one_problem() {
    let mut model = Model::toy(2, 2);
    let elements = Tensor::zeros(DType::F8_E4M3, &[HIDDEN, HIDDEN]);
    model.put("0.mix", elements.clone());
    model.put("1.mix", elements);
    assert_says(
        &model.write().problems(&scaled()),
        &[
            "one thing",
            "\"0.mix\" is f8_e4m3, and config.json has no quantization_config",
        ],
    );
    model.set("quantization_config", json!({ "quant_method": "fp8" }));
    assert_says(
        &model.write().problems(&toy()),
        &["one thing", "does not say where their scales are"],
    );
}

#[test]
fn c15_stated_and_stored_bits_are_both_told() {
    let gptq = json!({ "quant_method": "gptq", "bits": 8, "group_size": 32 });
    let said_of = |config: &Value, tensors| said(config.clone(), tensors);
    // 64 inputs in 8 words of 32 bits.
    let packed: &[(&str, DType, &[u64])] = &[
        ("0.mix.qweight", DType::I32, &[8, 64]),
        ("0.mix.scales", DType::F16, &[2, 64]),
    ];
    assert_says(
        &said_of(&gptq, packed),
        &["bits 8, but 4 are stored), which is not read"],
    );
    let awq: &[(&str, DType, &[u64])] = &[
        ("0.mix.qweight", DType::I32, &[64, 8]),
        ("0.mix.scales", DType::F16, &[2, 64]),
    ];
    assert_says(&said_of(&gptq, awq), &["bits 8, but 4 are stored"]);
    let four = json!({ "quant_method": "gptq", "bits": 4, "group_size": 32 });
    assert!(!said_of(&four, packed).contains("but"));
    // A group size that would overflow, or none, tells nothing.
    let huge = json!({ "bits": 8, "group_size": u64::MAX });
    assert!(!said_of(&huge, packed).contains("but"));
}

#[test]
fn a_long_list_of_problems_is_cut_and_counted() {
    let mut model = Model::toy(1, 1);
    for at in 0..100 {
        model.put(&format!("other{at}"), Tensor::zeros(DType::F32, &[1]));
    }
    let problems = model.write().problems(&toy());
    assert_says(&problems, &["100 things are wrong", "… and 60 more"]);
    assert_eq!(problems.lines().count(), 1 + 40 + 1);
}
