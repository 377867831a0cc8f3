//! Everything that is wrong with a checkpoint, at once, in the names of its files.

use estream_schemas::dtype::DType;

use crate::toy::{HIDDEN, Model, Tensor, Text, assert_says, toy};

#[test]
fn c09_c12_missing_wrong_and_unmapped_tensors_are_one_error() {
    let mut model = Model::toy(2, 2);
    model.take("1.mix");
    model.take("0.1.w2");
    model.put("0.router", Tensor::zeros(DType::F32, &[3, HIDDEN]));
    model.put("0.1.w3.global_scale", Tensor::zeros(DType::F32, &[1]));
    model.put("mtp.norm", Tensor::zeros(DType::BF16, &[HIDDEN]));
    let problems = model.write().problems(&toy());
    assert_says(
        &problems,
        &[
            "5 things are wrong",
            "missing: \"1.mix\" (mix)",
            "missing: \"0.1.w2\" (expert_down)",
            "wrong shape: \"0.router\" is [3, 64], router must be [2, 64]",
            "unmapped: \"0.1.w3.global_scale\" (f32 [1])",
            "unmapped: \"mtp.norm\" (bf16 [64])",
        ],
    );
}

#[test]
fn a_missing_tensor_is_named_in_all_its_spellings() {
    let text = toy().with(
        r#"hf = ["{layer}.mix"]"#,
        r#"hf = ["{layer}.mix", "{layer}.mixer"]"#,
    );
    let mut model = Model::toy(1, 1);
    let mix = model.take("0.mix");
    assert_says(
        &model.write().problems(&text),
        &["missing: \"0.mix\" or \"0.mixer\" (mix)"],
    );
    model.put("0.mixer", mix);
    model.write().lower(&text);
}

#[test]
fn a_stack_with_another_number_of_experts_is_one_problem() {
    let mut model = Model::gguf_toy();
    model.set("toy.expert_count", 3.into());
    model.put(
        "blk.0.ffn_gate_inp.weight",
        Tensor::zeros(DType::F32, &[3, HIDDEN]),
    );
    assert_says(
        &model.write().problems(&toy()),
        &[
            "3 things are wrong",
            "\"blk.0.ffn_gate_exps.weight\" is [2, 32, 64], expert_gate must be [3, 32, 64]",
        ],
    );
}

/// The toy where names may begin with `outer.` or `outer.model.`.
fn renaming() -> Text {
    toy().with(
        "[hf]\n",
        "[hf]\nrename = [{ from = \"outer.model.\", to = \"\" }, { from = \"outer.\", to = \"\" }]\n",
    )
}

#[test]
fn c01_c18_a_prefix_is_replaced_and_the_ledger_keeps_the_name() {
    let mut model = Model::toy(1, 1);
    let tensors = std::mem::take(&mut model.tensors);
    for (name, tensor) in tensors {
        let prefix = match name.as_str() {
            "head" => "outer.",
            _ => "outer.model.",
        };
        model.put(&format!("{prefix}{name}"), tensor);
    }
    let written = model.write();
    let lowered = written.lower(&renaming());
    assert_eq!(
        lowered.program,
        Model::toy(1, 1).write().lower(&toy()).program
    );
    assert!(
        lowered
            .ledger
            .iter()
            .any(|entry| entry.tensor == "outer.model.0.mix")
    );
    assert_says(&written.problems(&toy()), &["unmapped: \"outer.head\""]);

    model.put("outer.rest", Tensor::zeros(DType::F32, &[1]));
    assert_says(
        &model.write().problems(&renaming()),
        &["unmapped: \"outer.rest\""],
    );
    let dropping = renaming().and("[[drop]]\nname = \"rest\"\nreason = \"not needed\"");
    model.write().lower(&dropping);
}

#[test]
fn two_tensors_that_come_to_have_one_name_are_named() {
    let mut model = Model::toy(1, 1);
    model.put("outer.head", Tensor::zeros(DType::F32, &[4, HIDDEN]));
    assert_says(
        &model.write().problems(&renaming()),
        &["\"head\" and \"outer.head\" are both \"head\" to the descriptor"],
    );
}

#[test]
fn c09_two_tensors_too_many_are_both_named() {
    let mut model = Model::toy(2, 2);
    for layer in 0..2 {
        let name = format!("{layer}.spare");
        model.put(&name, Tensor::zeros(DType::F32, &[1]));
    }
    let problems = model.write().problems(&toy());
    assert_says(
        &problems,
        &["2 things are wrong", "\"0.spare\"", "\"1.spare\""],
    );
}

#[test]
fn many_tensors_with_one_problem_are_one_line_that_says_which() {
    let mut model = Model::toy(5, 3);
    for layer in [0, 1, 2, 4] {
        model.take(&format!("{layer}.mix"));
        for expert in 0..3 {
            let w1 = Tensor::zeros(DType::F32, &[2, 2]);
            model.put(&format!("{layer}.{expert}.w1"), w1);
            let bias = Tensor::zeros(DType::F32, &[7]);
            model.put(&format!("bias.{layer}.of.{expert}.w1"), bias);
        }
    }
    let problems = model.write().problems(&toy());
    assert_says(
        &problems,
        &[
            "3 things are wrong",
            "missing: \"{layer}.mix\" (mix) × 4 (layers 0-2, 4)",
            "wrong shape: \"{layer}.{expert}.w1\" is [2, 2], expert_gate must be [32, 64] × 12 \
             (layers 0-2, 4; experts 0-2)",
            "unmapped: \"bias.{layer}.of.{expert}.w1\" (f32 [7]) has no role in the toy descriptor \
             × 12 (layers 0-2, 4; experts 0-2)",
        ],
    );
}

#[test]
fn c01_a_name_that_is_nearly_right_is_told_from_both_sides() {
    let mut model = Model::toy(1, 1);
    let mix = model.take("0.mix");
    model.put("0.mixer", mix);
    model.put("vision.blocks.0.patch", Tensor::zeros(DType::F32, &[1]));
    let problems = model.write().problems(&toy());
    assert_says(
        &problems,
        &[
            "missing: \"0.mix\" (mix); unmapped and near it is \"0.mixer\"\n",
            "unmapped: \"0.mixer\" (f32 [64, 64]) has no role in the toy descriptor; \
             a name near it is \"{layer}.mix\" (mix)\n",
        ],
    );
    assert!(
        problems.ends_with("(f32 [1]) has no role in the toy descriptor"),
        "{problems}"
    );
}

#[test]
fn a_tensor_whose_role_no_operator_uses_is_not_near_itself() {
    let text = toy()
        .with(
            "name = \"mixer\"",
            "name = \"mixer\"\nwhen = \"layer < many\"",
        )
        .and("[[key]]\nname = \"many\"\nhf = \"many\"\n");
    let mut model = Model::toy(2, 2);
    model.set("many", 1.into());
    let problems = model.write().problems(&text);
    assert_says(
        &problems,
        &[
            "one thing is wrong",
            "unmapped: \"1.mix\" (f32 [64, 64]) has no role in the toy descriptor; its role, \
             \"{layer}.mix\" (mix), is not used here",
        ],
    );
}

#[test]
fn a_word_that_is_unknown_is_the_only_problem_it_makes() {
    let text = toy()
        .with(
            "name = \"mixer\"",
            "name = \"mixer\"\nwhen = \"kinds[layer] == 'mix'\"",
        )
        .and("[[key]]\nname = \"kinds\"\nhf = \"kinds\"\nwords.hf = { mix = \"mix\" }\n");
    let mut model = Model::toy(2, 2);
    model.set("kinds", vec!["mix", "conv"].into());
    let problems = model.write().problems(&text);
    let says = "config key \"kinds\" is \"conv\", which is none of mix";
    assert_says(&problems, &["one thing is wrong", says]);
}

#[test]
fn unknown_keys_are_told_up_to_a_number() {
    let mut model = Model::toy(1, 1);
    for index in 0..100 {
        model.set(&format!("odd_{index}"), 1.into());
    }
    let lowered = model.write().lower(&toy());
    let odd = lowered.notices.iter().map(ToString::to_string);
    let odd: Vec<String> = odd.filter(|notice| notice.contains("config key")).collect();
    assert_eq!(odd.len(), 41);
    assert_eq!(odd[40], "… and 60 more config keys that are unknown");
}
