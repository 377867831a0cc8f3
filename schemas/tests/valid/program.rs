//! Rules of the program.

use serde_json::{Value, json};

use crate::cases::{change, check, parse};
use crate::sample::sample;

/// Where an operand of an operator of the first layer is.
fn op(index: usize, kind: &str, field: &str) -> String {
    format!("/program/layers/0/{index}/{kind}/{field}")
}

#[test]
fn program_registers_and_places() {
    let embed = sample()["program"]["prologue"][0].clone();
    let head = sample()["program"]["epilogue"][0].clone();
    let add = json!({ "add": { "input": "y", "out": "x", "scale": "1" } });
    let expert_op = json!({ "experts": { "input": "y", "out": "x" } });
    check(&[
        ("/program/vocab", json!(0), &["at program", "vocab is 0"]),
        (
            "/program/vocab",
            json!(41),
            &["prologue, operator 0", "not [41, 64]"],
        ),
        (
            "/program/context",
            json!(0),
            &["at program", "context is 0"],
        ),
        (
            "/program/context",
            json!(1_u64 << 32),
            &["context is 4294967296"],
        ),
        (
            "/program/registers/0/name",
            json!("x y"),
            &["registers", "not a name"],
        ),
        (
            "/program/registers/1/name",
            json!("x"),
            &["registers", "\"x\" is stated twice"],
        ),
        (
            "/program/registers/0/width",
            json!(0),
            &["registers", "a width is 0"],
        ),
        (
            "/program/registers/0/width",
            json!(1_048_577),
            &["registers", "1048577"],
        ),
        (
            "/program/prologue",
            json!([]),
            &["prologue", "out of place"],
        ),
        (
            "/program/prologue/-",
            embed.clone(),
            &["prologue", "out of place"],
        ),
        (
            "/program/prologue",
            json!([add, embed]),
            &["prologue", "not first"],
        ),
        (
            "/program/prologue/-",
            head.clone(),
            &["prologue", "out of place"],
        ),
        (
            "/program/epilogue",
            json!([]),
            &["epilogue", "out of place"],
        ),
        (
            "/program/epilogue",
            json!([head, add]),
            &["epilogue", "not last"],
        ),
        (
            "/program/epilogue/-",
            expert_op.clone(),
            &["epilogue", "out of place"],
        ),
        (
            "/program/layers/2/-",
            expert_op.clone(),
            &["layer 2", "out of place"],
        ),
        (
            "/program/layers/0/-",
            expert_op,
            &["layer 0", "out of place"],
        ),
        (
            "/program/layers/0/9",
            Value::Null,
            &["layer 0", "out of place"],
        ),
        (
            "/program/layers/0/8",
            Value::Null,
            &["layer 0", "out of place"],
        ),
        ("/program/layers/0/-", embed, &["layer 0", "out of place"]),
        ("/program/layers/0/-", head, &["layer 0", "out of place"]),
        ("/program/layers", json!([]), &["layer 0"]),
        (
            "/program/layers",
            json!(vec![json!([]); 1025]),
            &["cannot be parsed", "1024 elements"],
        ),
        (
            "/program/layers/2",
            json!(vec![add.clone(); 129]),
            &["layer 2", "more than 128"],
        ),
        (
            "/program/registers",
            json!(
                (0..65)
                    .map(|i| json!({ "name": format!("r{i}"), "width": 1 }))
                    .collect::<Vec<_>>()
            ),
            &["more than 64 registers"],
        ),
    ]);
    let mut manifest = sample();
    manifest["program"]["layers"][0]
        .as_array_mut()
        .unwrap()
        .swap(8, 9);
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(
        error.contains("layer 0") && error.contains("out of place"),
        "{error}"
    );
}

#[test]
fn operands_of_operators() {
    let cases: &[(String, Value, &[&str])] = &[
        (
            op(0, "rms_norm", "input"),
            json!("nope"),
            &["layer 0, operator 0", "\"nope\"", "not stated"],
        ),
        (
            op(0, "rms_norm", "out"),
            json!("k"),
            &["operator 0", "width"],
        ),
        (
            op(0, "rms_norm", "weight"),
            json!("nope"),
            &["tensor \"nope\"", "not stated"],
        ),
        (
            op(0, "rms_norm", "weight"),
            json!("head_norm"),
            &["shape [16], not [64]"],
        ),
        (
            op(1, "linear", "out"),
            json!("y"),
            &["operator 1, linear", "in place"],
        ),
        (
            op(1, "linear", "weight"),
            json!("wk"),
            &["shape [32, 64], not [64, 64]"],
        ),
        (
            op(1, "linear", "bias"),
            json!("head_norm"),
            &["shape [16], not [64]"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(0),
            &["operator 4", "0 heads"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(3),
            &["operator 4", "3 heads"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(128),
            &["operator 4", "128 heads"],
        ),
        (
            op(4, "qk_norm", "heads"),
            json!(2),
            &["shape [16], not [32]"],
        ),
        (
            op(4, "qk_norm", "over"),
            json!("full"),
            &["shape [16], not [64]"],
        ),
        (op(5, "rope", "heads"), json!(0), &["operator 5", "0 heads"]),
        (
            op(5, "rope", "dims"),
            json!(18),
            &["operator 5, rope", "18 of 16"],
        ),
        (
            op(5, "rope", "dims"),
            json!(15),
            &["operator 5, rope", "15 of 16"],
        ),
        (
            op(5, "rope", "dims"),
            json!(0),
            &["operator 5, rope", "0 of 16"],
        ),
        (
            op(5, "rope", "theta"),
            json!("0"),
            &["operator 5, rope", "theta is not above 0"],
        ),
        (
            op(0, "rms_norm", "eps"),
            json!("-0.00001"),
            &["operator 0, rms_norm", "eps is below 0"],
        ),
        (
            op(4, "qk_norm", "eps"),
            json!("-1"),
            &["operator 4, qk_norm", "eps is below 0"],
        ),
        (
            op(6, "attention", "heads"),
            json!(5),
            &["operator 6", "5 heads"],
        ),
        (
            op(6, "attention", "kv_heads"),
            json!(0),
            &["operator 6, attention", "over 0"],
        ),
        (
            op(6, "attention", "kv_heads"),
            json!(3),
            &["operator 6, attention", "over 3"],
        ),
        (
            op(6, "attention", "kv_heads"),
            json!(4),
            &["operator 6, k", "4 × 16"],
        ),
        (
            op(6, "attention", "v"),
            json!("q"),
            &["operator 6, q", "not 2 × 16"],
        ),
        (
            op(6, "attention", "out"),
            json!("k"),
            &["operator 6", "width"],
        ),
        (
            op(7, "add", "out"),
            json!("y"),
            &["operator 7, add", "in place"],
        ),
        (op(7, "add", "input"), json!("k"), &["operator 7", "width"]),
        (
            op(8, "router", "weight"),
            json!("wq"),
            &["operator 8", "not [4, 64]"],
        ),
        (
            op(8, "router", "selection_bias"),
            json!("bias"),
            &["operator 8", "not [4]"],
        ),
        (
            op(8, "router", "form/top_k"),
            json!(0),
            &["operator 8, router", "top_k is 0"],
        ),
        (
            op(8, "router", "form/top_k"),
            json!(5),
            &["operator 8, router", "top_k is 5"],
        ),
        (
            op(9, "experts", "out"),
            json!("y"),
            &["operator 9, experts", "in place"],
        ),
        (
            op(9, "experts", "input"),
            json!("k"),
            &["operator 9", "width"],
        ),
        (
            "/program/epilogue/0/lm_head/weight".into(),
            json!("wq"),
            &["epilogue, operator 0", "not [40, 64]"],
        ),
        (
            "/program/prologue/0/embed/out".into(),
            json!("k"),
            &["prologue, operator 0", "not [40, 32]"],
        ),
    ];
    for (pointer, value, pieces) in cases {
        check(&[(pointer, value.clone(), pieces)]);
    }
    // Both registers of another width than the experts.
    let mut manifest = sample();
    for (field, register) in [("input", "k"), ("out", "v")] {
        change(&mut manifest, &op(9, "experts", field), json!(register));
    }
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(
        error.contains("registers are 32 wide, experts 64"),
        "{error}"
    );
}

#[test]
fn c38_nothing_of_a_router_has_a_silent_default() {
    for field in ["scoring", "score", "top_k", "renormalise", "scale"] {
        let mut manifest = sample();
        let form = manifest
            .pointer_mut("/program/layers/0/8/router/form")
            .unwrap();
        assert!(form.as_object_mut().unwrap().remove(field).is_some());
        let error = parse(&manifest).unwrap_err().to_string();
        let missing = format!("missing field `{field}`");
        assert!(error.contains(&missing), "{error}");
    }
}

#[test]
fn a_register_that_nothing_has_written_is_not_read() {
    let unwritten = |register: &str| format!("register \"{register}\": is read, and nothing");
    // Without the operator that writes it first: k of layer 0, and what the attention makes.
    check(&[
        (
            "/program/layers/0/2",
            Value::Null,
            &["layer 0, operator 5", &unwritten("k")],
        ),
        (
            "/program/layers/0/0",
            Value::Null,
            &["layer 0, operator 0", &unwritten("y")],
        ),
        (
            "/program/epilogue/0/lm_head/input",
            json!("spare"),
            &["epilogue, operator 0", &unwritten("spare")],
        ),
    ]);
    // What an earlier layer wrote is there for the next.
    let mut manifest = sample();
    change(&mut manifest, "/program/layers/1/2", Value::Null);
    parse(&manifest).unwrap();
    // An accumulator is read.
    let add = json!({ "add": { "input": "x", "out": "y", "scale": "1" } });
    change(&mut manifest, "/program/prologue/-", add);
    let error = parse(&manifest).unwrap_err().to_string();
    assert!(error.contains(&unwritten("y")), "{error}");
}
