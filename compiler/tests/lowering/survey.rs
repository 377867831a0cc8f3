//! What a descriptor explains of a checkpoint that it does not explain as a whole.

use estream_compiler::lower::{Origin, Survey, survey};
use estream_schemas::dtype::DType;
use serde_json::json;

use crate::toy::{HIDDEN, Model, Tensor, Text, toy};

fn of(model: &Model, text: &Text) -> Survey {
    survey(&model.write().checkpoint, &text.family()).unwrap()
}

/// The source tensors of a role, as `NAME × COUNT`.
fn sources(survey: &Survey, role: &str) -> Vec<String> {
    let role = survey
        .roles
        .iter()
        .find(|found| found.role == role)
        .unwrap();
    let sources = role.sources.iter();
    sources
        .map(|kind| format!("{} × {}", kind.name, kind.tensor_count))
        .collect()
}

#[test]
fn what_maps_is_listed_by_role_whatever_else_is_wrong() {
    let mut model = Model::toy(2, 3);
    model.take("1.mix");
    model.put("1.2.w2", Tensor::zeros(DType::BF16, &[HIDDEN, 32]));
    model.put("spare", Tensor::zeros(DType::F32, &[1]));
    let survey = of(&model, &toy());
    assert_eq!(sources(&survey, "mix"), ["0.mix × 1"]);
    assert_eq!(sources(&survey, "expert_gate"), ["{layer}.{expert}.w1 × 6"]);
    assert_eq!(
        sources(&survey, "expert_down"),
        ["1.2.w2 × 1", "{layer}.{expert}.w2 × 5"]
    );
    assert_eq!(survey.problems.len(), 2, "{:?}", survey.problems);
    assert!(
        survey
            .roles
            .iter()
            .all(|role| role.is_needed && role.tied_to.is_none())
    );
}

#[test]
fn keys_say_where_their_values_are_from() {
    let text = toy()
        .and("[[key]]\nname = \"eps\"\nhf = \"eps\"\ndefault = 1e-5\n\n[[key]]\nname = \"none\"");
    let mut model = Model::toy(1, 1);
    model.set("a_new_idea", json!(true));
    let survey = of(&model, &text);
    let from: Vec<(&str, Option<&Origin>)> = survey
        .keys
        .iter()
        .map(|key| (key.key.as_str(), key.from.as_ref()))
        .collect();
    let config = |name: &str| Origin::Config(name.to_owned());
    assert_eq!(
        from,
        [
            ("layers", Some(&config("layers"))),
            ("hidden", Some(&config("hidden"))),
            ("ff", Some(&config("ff"))),
            ("experts", Some(&config("experts"))),
            ("vocab", Some(&Origin::RowsOf("embed".to_owned()))),
            ("eps", Some(&Origin::Default)),
            ("none", None),
        ]
    );
    assert_eq!(survey.keys[4].value, Some(json!(4)));
    assert_eq!(survey.problems, [""; 0]);
    assert_eq!(survey.surprises.len(), 1);
}

#[test]
fn a_tied_role_and_a_dropped_tensor_are_explained() {
    let text = toy()
        .with("hf = [\"head\"]", "hf = [\"head\"]\ntied_to = \"embed\"")
        .and("[[drop]]\nname = \"{layer}.inv_freq\"\nreason = \"computed\"");
    let mut model = Model::toy(2, 1);
    model.take("head");
    for layer in 0..2 {
        model.put(
            &format!("{layer}.inv_freq"),
            Tensor::zeros(DType::F32, &[4]),
        );
    }
    let survey = of(&model, &text);
    assert_eq!(survey.problems, [""; 0]);
    let embed = &survey.roles[0];
    assert_eq!(
        (embed.role.as_str(), embed.tied_to.as_deref()),
        ("embed", Some("head"))
    );
    assert_eq!(sources(&survey, "head"), ["embed × 1"]);
    let [other] = &survey.others[..] else {
        panic!("{:?}", survey.others);
    };
    assert_eq!(
        (
            other.tensors.name.as_str(),
            other.tensors.tensor_count,
            other.fate.as_str()
        ),
        ("{layer}.inv_freq", 2, "not needed: computed")
    );
}

#[test]
fn a_configuration_that_tells_nothing_is_one_problem() {
    let mut model = Model::toy(1, 1);
    model.set("layers", json!("many"));
    let survey = of(&model, &toy());
    assert!(survey.roles.iter().all(|role| role.sources.is_empty()));
    assert_eq!(survey.problems.len(), 1, "{:?}", survey.problems);
}
