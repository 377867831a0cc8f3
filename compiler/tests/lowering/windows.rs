//! Which part of a stored tensor a weight is, and in what order.

use estream_schemas::dtype::DType;
use serde_json::json;

use crate::toy::{HIDDEN, Model, Tensor, Text, assert_says, count_from, toy, weight};

const H: usize = HIDDEN as usize;

/// A toy whose layers also have the roles `q`, `[8, hidden]`, and `k`, `[4, hidden]`.
fn with_q_and_k(q: &str, k: &str) -> Text {
    let ops = "ops = [{ op = \"linear\", input = \"h\", out = \"x\", weight = \"mix\" }";
    let more = ", { op = \"linear\", input = \"h\", out = \"x\", weight = \"q\" }\
                , { op = \"linear\", input = \"h\", out = \"x\", weight = \"k\" }";
    toy().with(ops, &format!("{ops}{more}")).and(&format!(
        "[[tensor]]\nrole = \"q\"\nper = \"layer\"\nshape = [8, \"hidden\"]\nhf = [{q}]\ngguf = [{q}]\n\
         [[tensor]]\nrole = \"k\"\nper = \"layer\"\nshape = [4, \"hidden\"]\nhf = [{k}]\ngguf = [{k}]"
    ))
}

/// A toy whose mixer has a bias of `hidden` elements, encoded so.
fn with_bias(encoding: &str) -> Text {
    let op = "weight = \"mix\" }";
    toy()
        .with(op, "weight = \"mix\", bias = \"mix_bias\" }")
        .and(&format!(
            "[[tensor]]\nrole = \"mix_bias\"\nper = \"layer\"\nshape = [\"hidden\"]\nhf = [{encoding}]"
        ))
}

/// One layer, and tensor `name` of `shape`, which counts from 0.
fn toy_with(name: &str, shape: &[u64]) -> (Model, Vec<f32>) {
    let mut model = Model::toy(1, 1);
    let values = count_from(0, shape.iter().product());
    model.put(name, Tensor::f32(shape, &values));
    (model, values)
}

#[test]
fn rows_of_a_fused_tensor_go_to_the_roles_that_name_them() {
    let (model, values) = toy_with("0.qk", &[12, HIDDEN]);
    let text = with_q_and_k(
        r#"{ name = "{layer}.qk", stored = [12, "hidden"] }"#,
        r#"{ name = "{layer}.qk", stored = [12, "hidden"], first_row = 8 }"#,
    );
    let written = model.write();
    let compiled = written.keep(&text);
    assert_eq!(weight(&compiled, "layers.0.q"), values[..8 * H]);
    assert_eq!(weight(&compiled, "layers.0.k"), values[8 * H..]);
    let qk = compiled.ledger.iter().find(|entry| entry.tensor == "0.qk");
    assert_eq!(
        serde_json::to_value(&qk.unwrap().fate).unwrap(),
        json!({ "became": ["layers.0.q", "layers.0.k"] })
    );
}

#[test]
fn roles_that_take_the_same_rows_are_refused_though_their_sizes_add_up() {
    let (model, _) = toy_with("0.qk", &[8, HIDDEN]);
    let first_half = r#"{ name = "{layer}.qk", stored = [8, "hidden"] }"#;
    let both = with_q_and_k(first_half, first_half);
    let both = both.with("shape = [8, \"hidden\"]", "shape = [4, \"hidden\"]");
    let problems = model.write().problems(&both);
    assert_says(
        &problems,
        &["layers.0.q and layers.0.k share elements of \"0.qk\""],
    );
}

#[test]
fn a_part_of_a_tensor_that_nobody_uses_is_a_problem() {
    let (model, _) = toy_with("0.qk", &[13, HIDDEN]);
    let text = with_q_and_k(
        r#"{ name = "{layer}.qk", stored = [13, "hidden"] }"#,
        r#"{ name = "{layer}.qk", stored = [13, "hidden"], first_row = 8 }"#,
    );
    let problems = model.write().problems(&text);
    assert_says(
        &problems,
        &["\"0.qk\" has 832 elements, of which 768 are used"],
    );
    assert_says(&problems, &["one thing is wrong"]);
}

#[test]
fn a_window_beyond_the_stored_rows_is_refused() {
    let (model, _) = toy_with("0.qk", &[12, HIDDEN]);
    let text = with_q_and_k(
        r#"{ name = "{layer}.qk", stored = [12, "hidden"] }"#,
        r#"{ name = "{layer}.qk", stored = [12, "hidden"], first_row = 9 }"#,
    );
    assert_says(
        &model.write().problems(&text),
        &["k is 4 rows of 64 from row 9 in steps of 1, \"0.qk\" has 12 of 64"],
    );
}

#[test]
fn a_transposed_matrix_is_turned() {
    let mut model = Model::toy(1, 1);
    let values = count_from(0, HIDDEN * HIDDEN);
    model.put("0.mix", Tensor::f32(&[HIDDEN, HIDDEN], &values));
    let text = toy().with(
        r#"hf = ["{layer}.mix"]"#,
        r#"hf = [{ name = "{layer}.mix", transposed = true }]"#,
    );
    let written = model.write();
    let turned = weight(&written.keep(&text), "layers.0.mix");
    let expected: Vec<f32> = (0..H * H).map(|at| values[at % H * H + at / H]).collect();
    assert_eq!(turned, expected);
    let straight = weight(&written.keep(&toy()), "layers.0.mix");
    assert_eq!(straight, values);
}

#[test]
fn columns_of_a_transposed_tensor_are_rows_of_the_roles_that_name_them() {
    let (model, values) = toy_with("0.qk", &[HIDDEN, 12]);
    let text = with_q_and_k(
        r#"{ name = "{layer}.qk", stored = ["hidden", 12], transposed = true, row_step = 1 }"#,
        r#"{ name = "{layer}.qk", stored = ["hidden", 12], transposed = true, first_row = 8 }"#,
    );
    let written = model.write();
    let compiled = written.keep(&text);
    let rows = |from: usize, to: usize| -> Vec<f32> {
        let at = (from..to).flat_map(|row| (0..H).map(move |col| col * 12 + row));
        at.map(|at| values[at]).collect()
    };
    assert_eq!(weight(&compiled, "layers.0.q"), rows(0, 8));
    assert_eq!(weight(&compiled, "layers.0.k"), rows(8, 12));
}

/// Where row `row` of heads of `head_rows` rows is stored as adjacent pairs: a row
/// of the first half at 2i, its partner right after it.
fn pair_row(row: usize, head_rows: usize) -> usize {
    let (head, within, half) = (row / head_rows, row % head_rows, head_rows / 2);
    let place = match within < half {
        true => 2 * within,
        false => 2 * (within - half) + 1,
    };
    head * head_rows + place
}

#[test]
fn adjacent_rope_pairs_become_halves_also_within_a_fused_tensor() {
    let (model, values) = toy_with("0.qk", &[12, HIDDEN]);
    let text = with_q_and_k(
        r#"{ name = "{layer}.qk", stored = [12, "hidden"], rope_pairs_of_heads = 2 }"#,
        r#"{ name = "{layer}.qk", stored = [12, "hidden"], first_row = 8, rope_pairs_of_heads = 1 }"#,
    );
    let written = model.write();
    let compiled = written.keep(&text);
    let rows = |first: usize, count: usize| -> Vec<f32> {
        let stored = (0..count).map(|row| first + pair_row(row, 4));
        stored
            .flat_map(|row| values[row * H..][..H].to_vec())
            .collect()
    };
    assert_eq!(weight(&compiled, "layers.0.q"), rows(0, 8));
    assert_eq!(weight(&compiled, "layers.0.k"), rows(8, 4));
    assert_ne!(rows(0, 8), values[..8 * H]);
    let odd = text.with("rope_pairs_of_heads = 2", "rope_pairs_of_heads = 3");
    assert_says(
        &written.problems(&odd),
        &["q has 8 rows, not 3 heads of pairs"],
    );
}

#[test]
fn rows_of_quantised_blocks_move_as_they_are() {
    let mut model = Model::gguf_toy();
    let mut q = Tensor::zeros(DType::Q4_0, &[8, HIDDEN]);
    // Row r has the scale 1 and the code r throughout.
    for (row, block) in q.bytes.chunks_mut(18).enumerate() {
        block[..2].copy_from_slice(&0x3c00_u16.to_le_bytes());
        block[2..].fill(u8::try_from(row / 2 * 0x11).unwrap());
    }
    model.put("q.0", q);
    model.put("k.0", Tensor::zeros(DType::F32, &[4, HIDDEN]));
    let text = with_q_and_k(
        r#"{ name = "q.{layer}", rope_pairs_of_heads = 2 }"#,
        r#""k.{layer}""#,
    );
    let written = model.write();
    let rows = weight(&written.keep(&text), "layers.0.q");
    let codes: Vec<f32> = rows.chunks(H).map(|row| row[0] + 8.0).collect();
    assert_eq!(codes, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
}

#[test]
fn quantised_blocks_cannot_be_turned() {
    let mut model = Model::gguf_toy();
    model.put(
        "blk.0.mix.weight",
        Tensor::zeros(DType::Q4_0, &[HIDDEN, HIDDEN]),
    );
    let text = toy().with(
        r#"gguf = ["blk.{layer}.mix.weight"]"#,
        r#"gguf = [{ name = "blk.{layer}.mix.weight", transposed = true }]"#,
    );
    assert_says(
        &model.write().problems(&text),
        &["\"blk.0.mix.weight\" is q4_0 in another order than mix"],
    );
}

#[test]
fn all_dimensions_but_the_last_are_rows() {
    let (mut model, values) = toy_with("0.q", &[8, 1, HIDDEN]);
    model.put("0.k", Tensor::f32(&[2, 2, HIDDEN], &values[..4 * H]));
    let text = with_q_and_k(
        r#"{ name = "{layer}.q", stored = [8, 1, "hidden"] }"#,
        r#"{ name = "{layer}.k", stored = [2, 2, "hidden"] }"#,
    );
    let written = model.write();
    let compiled = written.keep(&text);
    assert_eq!(weight(&compiled, "layers.0.q"), values);
    assert_eq!(weight(&compiled, "layers.0.k"), values[..4 * H]);
    // The stored shape is what it is: no shape with as many elements does.
    let other = text.with("stored = [8, 1, \"hidden\"]", "stored = [8, \"hidden\"]");
    assert_says(
        &written.problems(&other),
        &["wrong shape: \"0.q\" is [8, 1, 64], q must be [8, 64]"],
    );
}

#[test]
fn elements_of_a_vector_move_like_rows() {
    let (model, values) = toy_with("0.bias", &[HIDDEN]);
    let text = with_bias(r#"{ name = "{layer}.bias", rope_pairs_of_heads = 4 }"#);
    let written = model.write();
    let expected: Vec<f32> = (0..H).map(|at| values[pair_row(at, H / 4)]).collect();
    assert_eq!(weight(&written.keep(&text), "layers.0.mix_bias"), expected);

    let row = with_bias(r#"{ name = "{layer}.bias", stored = [1, "hidden"] }"#);
    let (model, values) = toy_with("0.bias", &[1, HIDDEN]);
    assert_eq!(
        weight(&model.write().keep(&row), "layers.0.mix_bias"),
        values
    );
}

#[test]
fn a_vector_may_be_a_slice_of_a_stored_one() {
    let text =
        with_bias(r#"{ name = "{layer}.bias", stored = ["3 * hidden"], first_row = "hidden" }"#);
    let (model, _) = toy_with("0.bias", &[3 * HIDDEN]);
    // The other two thirds have no role, which is the only thing wrong.
    let problems = model.write().problems(&text);
    assert_says(
        &problems,
        &["one thing", "192 elements, of which 64 are used"],
    );

    let op = "weight = \"mix\", bias = \"mix_bias\" }";
    let linear = "{ op = \"linear\", input = \"h\", out = \"x\", weight = \"mix\", bias = ";
    let text = text
        .with(
            op,
            &format!("{op}, {linear}\"low\" }}, {linear}\"high\" }}"),
        )
        .and(
            r#"[[tensor]]
role = "low"
per = "layer"
shape = ["hidden"]
hf = [{ name = "{layer}.bias", stored = ["3 * hidden"] }]
[[tensor]]
role = "high"
per = "layer"
shape = ["hidden"]
hf = [{ name = "{layer}.bias", stored = ["3 * hidden"], first_row = "2 * hidden" }]"#,
        );
    let (model, values) = toy_with("0.bias", &[3 * HIDDEN]);
    let written = model.write();
    let compiled = written.keep(&text);
    let thirds = ["low", "mix_bias", "high"];
    for (role, third) in thirds.iter().zip(values.chunks(H)) {
        assert_eq!(
            weight(&compiled, &format!("layers.0.{role}")),
            third,
            "{role}"
        );
    }
    let shape = |name: &str| {
        let mut resident = compiled.resident.iter();
        resident
            .find(|weight| weight.name == name)
            .unwrap()
            .shape
            .clone()
    };
    assert_eq!(shape("layers.0.mix_bias"), [HIDDEN]);
}
