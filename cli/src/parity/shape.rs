//! What a bundle and its reference must have in common to be compared.

use estream_schemas::manifest::Manifest;
use estream_schemas::program::{Op, RouterForm};
use serde::{Deserialize, Serialize};

/// A model, as far as a comparison depends on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    pub(crate) family: String,
    pub(crate) vocab: u64,
    pub(crate) layers: u64,
    /// The layers that choose experts, ascending.
    pub(crate) routers: Vec<Router>,
}

/// The router of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Router {
    pub(crate) layer: u64,
    pub(crate) experts: u64,
    pub(crate) top_k: u64,
    /// How it scores, unless the choice depends on a bias too or takes all experts.
    #[serde(skip)]
    pub(crate) form: Option<RouterForm>,
}

impl Shape {
    /// That of the bundle with this manifest.
    pub(crate) fn of(manifest: &Manifest) -> Shape {
        let rows = |name: &str| {
            let mut tensors = manifest.resident.tensors.iter();
            let tensor = tensors.find(|tensor| tensor.name == name);
            tensor.map_or(0, |tensor| tensor.matrix().0)
        };
        let layers = (0..).zip(&manifest.program.layers);
        let routers = layers.flat_map(|(layer, ops)| {
            ops.iter().filter_map(move |op| match op {
                Op::Router {
                    weight,
                    selection_bias,
                    form,
                    ..
                } => {
                    let experts = rows(weight);
                    let plain = selection_bias.is_none() && form.top_k < experts;
                    Some(Router {
                        layer,
                        experts,
                        top_k: form.top_k,
                        form: plain.then(|| form.clone()),
                    })
                }
                _ => None,
            })
        });
        Shape {
            family: manifest.model.family.clone(),
            vocab: manifest.program.vocab,
            layers: manifest.program.layers.len() as u64,
            routers: routers.collect(),
        }
    }

    /// Which router, counted among [`Shape::routers`], is that of `layer`.
    pub(crate) fn router(&self, layer: usize) -> Option<usize> {
        let layer = layer as u64;
        self.routers.binary_search_by(|r| r.layer.cmp(&layer)).ok()
    }

    /// All that is otherwise in `reference`: nothing, if it is the same model.
    pub(crate) fn differences(&self, reference: &Shape) -> Vec<String> {
        let mut all = Vec::new();
        if self.family != reference.family {
            let (a, b) = (&self.family, &reference.family);
            all.push(format!(
                "the bundle's family is {a:?}, the reference's {b:?}"
            ));
        }
        for (what, a, b) in [
            ("a vocabulary of", self.vocab, reference.vocab),
            ("layers:", self.layers, reference.layers),
        ] {
            if a != b {
                all.push(format!("the bundle has {what} {a}, the reference {b}"));
            }
        }
        let of = |shape: &Shape| -> Vec<(u64, u64, u64)> {
            let routers = shape.routers.iter();
            routers.map(|r| (r.layer, r.top_k, r.experts)).collect()
        };
        let (own, other) = (of(self), of(reference));
        let differing = own.iter().zip(&other).find(|(a, b)| a != b);
        if let Some(((layer, k, n), (other_layer, other_k, other_n))) = differing {
            all.push(format!(
                "the bundle's layer {layer} chooses {k} of {n} experts, the reference's layer {other_layer} {other_k} of {other_n}"
            ));
        } else if own.len() != other.len() {
            let (a, b) = (own.len(), other.len());
            all.push(format!(
                "{a} of the bundle's layers choose experts, {b} of the reference's"
            ));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(family: &str, vocab: u64, routers: &[(u64, u64)]) -> Shape {
        let routers = (0..).zip(routers).map(|(layer, &(experts, top_k))| Router {
            layer,
            experts,
            top_k,
            form: None,
        });
        Shape {
            family: family.to_owned(),
            vocab,
            layers: 2,
            routers: routers.collect(),
        }
    }

    #[test]
    fn everything_that_differs_is_told() {
        let own = shape("olmoe", 544, &[(16, 4), (16, 4)]);
        assert!(own.differences(&own).is_empty());
        let mut other = shape("mixtral", 512, &[(16, 4), (8, 2)]);
        other.layers = 3;
        let all = own.differences(&other).join("\n");
        for part in [
            "olmoe",
            "mixtral",
            "544",
            "512",
            "layers: 2",
            "4 of 16",
            "2 of 8",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
        let fewer = shape("olmoe", 544, &[(16, 4)]);
        assert_eq!(own.differences(&fewer).len(), 1);
    }
}
