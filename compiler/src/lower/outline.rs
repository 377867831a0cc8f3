//! The tensors that a configuration promises, told without a checkpoint.

use std::collections::BTreeMap;

use estream_schemas::limits::{MAX_EXPERTS, MAX_LAYERS};

use super::bounded;
use super::choose::Chosen;
use super::window::Sizes;
use crate::arch::{Family, Keys, OpForm, Per, TensorRole};
use crate::ingest::Config;
use crate::problem::Problems;

/// A tensor that a checkpoint of some configuration has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlineTensor {
    /// What it is for; of several roles, the first in the descriptor.
    pub role: String,
    /// Shape, slowest dimension first.
    pub shape: Vec<u64>,
}

/// The tensors by name of a checkpoint of `family` that is configured by `config`, and
/// has every role in the first encoding of its descriptor.
///
/// Where the descriptor asks whether a checkpoint has a role, it has each whose sizes
/// the configuration states. The error is a list of everything that is wrong.
pub fn outline(
    family: &Family,
    config: &Config,
) -> Result<BTreeMap<String, OutlineTensor>, Vec<String>> {
    let descriptor = &family.descriptor;
    let form = &descriptor.program;
    let mut problems = Problems::default();
    let keys = Keys::resolve(descriptor, config, &mut problems);
    let layers = bounded(form.layers.value(&keys, None), "layers", MAX_LAYERS);
    let layers = problems.or(layers, 0);
    let sizes = |layer| Sizes { keys: &keys, layer };
    let first = |role: &str| {
        let role = descriptor.role(role)?;
        Some((role, role.encodings(config.format).first()?))
    };
    let has = |role: &str, layer| {
        first(role)
            .is_some_and(|(role, encoding)| sizes(Some(layer)).stored(role, encoding).is_ok())
    };
    let chosen = Chosen::new(descriptor, &keys, has, layers, &mut problems);

    let mut tensors = BTreeMap::new();
    let mut add = |role: &TensorRole, layer: Option<u64>| {
        let (role, encoding) = first(&role.role).ok_or_else(|| {
            let role = &role.role;
            format!("descriptor: {role} has no name in this file format")
        })?;
        let mut shape = sizes(layer).stored(role, encoding)?;
        let mut names = 1;
        if role.per == Per::Expert {
            let experts = bounded(form.experts.value(&keys, layer), "experts", MAX_EXPERTS)?;
            match encoding.is_stacked() {
                true => shape.insert(0, experts),
                false => names = experts,
            }
        }
        for expert in 0..names {
            let name = encoding.spelled(layer.unwrap_or(0), expert);
            tensors.entry(name).or_insert_with(|| OutlineTensor {
                role: role.role.clone(),
                shape: shape.clone(),
            });
        }
        Ok::<(), String>(())
    };
    let of_model = chosen.roles();
    for role in &descriptor.tensor {
        let named = |ops: &[OpForm]| {
            ops.iter()
                .flat_map(OpForm::roles)
                .any(|name| name == role.role)
        };
        let tied = role.tied_if.as_deref().map(|key| keys.boolean(key));
        let layers: Vec<Option<u64>> = match role.per {
            Per::Model if tied == Some(Ok(true)) => Vec::new(),
            Per::Model => of_model
                .get(role.role.as_str())
                .map(|_| None)
                .into_iter()
                .collect(),
            Per::Layer | Per::Expert => {
                let layers = (0..).zip(&chosen.layers);
                let layers = layers.filter(|(_, ops)| named(ops));
                layers.map(|(layer, _)| Some(layer)).collect()
            }
        };
        for layer in layers {
            problems.or(add(role, layer), ());
        }
    }
    match problems.is_empty() {
        true => Ok(tensors),
        false => Err(problems.into_list()),
    }
}
