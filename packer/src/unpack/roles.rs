//! The tensors of a bundle that came from elsewhere: those that llama.cpp's converter
//! would have made, by the GGUF names that the descriptor has for its roles.

use std::collections::{BTreeMap, BTreeSet};

use estream_compiler::arch::{Encoding, Family, Keys, Per, TensorRole};
use estream_runtime::reader::BundleReader;
use estream_schemas::dtype::DType;
use estream_schemas::manifest::Manifest;
use estream_schemas::program::{Op, Program};

use super::UnpackError;
use super::plan::{self, Part, Piece, Tensor, refusal};

/// Every tensor of the file, of each layer after those that stand before the layers.
pub(super) fn tensors<'a>(
    reader: &BundleReader,
    manifest: &'a Manifest,
    family: &Family,
    keys: &Keys,
) -> Result<Vec<Tensor<'a>>, UnpackError> {
    let mut drafts = Drafts {
        manifest,
        family,
        keys,
        in_order: Vec::new(),
        by_name: BTreeMap::new(),
    };
    let roles = &family.descriptor.tensor;
    let of_layers = |role: &&TensorRole| role.per != Per::Model;
    let first = roles.iter().take_while(|role| !of_layers(role)).count();
    let (before, after) = roles.split_at(first);
    let mut add = |role: &TensorRole, layer| {
        let added = drafts.add(role, layer);
        added.map_err(|(name, why)| refusal(reader, &name, why))
    };
    before.iter().try_for_each(|role| add(role, None))?;
    for layer in 0..manifest.program.layers.len() as u64 {
        let mut roles = after.iter().filter(of_layers);
        roles.try_for_each(|role| add(role, Some(layer)))?;
    }
    let mut after = after.iter().filter(|role| !of_layers(role));
    after.try_for_each(|role| add(role, None))?;

    let full = full_precision(&manifest.program);
    let tensor = |draft: Draft<'a>| {
        let name = draft.name.clone();
        draft
            .finish(&full, manifest)
            .map_err(|why| refusal(reader, &name, why))
    };
    drafts.in_order.into_iter().map(tensor).collect()
}

/// Matrices that llama.cpp wants in f32, by their names in the program.
fn full_precision(program: &Program) -> BTreeSet<&str> {
    let ops = program.layers.iter().flatten();
    ops.filter_map(|op| match op {
        Op::Router { weight, .. } | Op::ShortConv { weight, .. } => Some(weight.as_str()),
        _ => None,
    })
    .collect()
}

/// A tensor in the making.
struct Draft<'a> {
    name: String,
    shape: Vec<u64>,
    /// By the place of their first element in the tensor.
    parts: Vec<(u64, Part<'a>)>,
}

struct Drafts<'a, 'f> {
    manifest: &'a Manifest,
    family: &'f Family,
    keys: &'f Keys,
    in_order: Vec<Draft<'a>>,
    by_name: BTreeMap<String, usize>,
}

impl<'a> Drafts<'a, '_> {
    /// Adds what the bundle holds of `role`. The error has the tensor's name.
    fn add(&mut self, role: &TensorRole, layer: Option<u64>) -> Result<(), (String, String)> {
        let mut encodings = role.gguf.iter();
        let plain = encodings.find(|encoding| !encoding.transposed && encoding.row_step.is_none());
        let weights = self.weights(role, layer);
        let Some(encoding) = plain else {
            return match weights.is_empty() {
                true => Ok(()),
                false => Err((role.role.clone(), "GGUF has no name for it".into())),
            };
        };
        if role.per == Per::Expert && encoding.is_stacked() && !weights.is_empty() {
            let name = encoding.spelled(layer.unwrap_or(0), 0);
            let added = self.stack(&name, role, encoding, layer, weights);
            return added.map_err(|why| (name, why));
        }
        for (expert, piece) in (0..).zip(weights) {
            let name = encoding.spelled(layer.unwrap_or(0), expert);
            let added = self.stack(&name, role, encoding, layer, vec![piece]);
            added.map_err(|why| (name, why))?;
        }
        Ok(())
    }

    /// The weights of `role`, by expert; none if the bundle has none, or has them as
    /// another role's.
    fn weights(&self, role: &TensorRole, layer: Option<u64>) -> Vec<Piece<'a>> {
        let resident = |role: &TensorRole| {
            let name = match layer {
                None => role.role.clone(),
                Some(layer) => format!("layers.{layer}.{}", role.role),
            };
            plan::resident(self.manifest, &name)
        };
        match (plan::projection(&role.role), layer) {
            (Some(projection), Some(layer)) => {
                plan::experts(self.manifest, layer, None, projection).unwrap_or_default()
            }
            _ => {
                let roles = &self.family.descriptor.tensor;
                let is = |name: &str| roles.iter().find(|other| other.role == name);
                // A tied table is stored once, as the head, and is the embedding in GGUF.
                let table = role.tied_to.as_deref().and_then(is);
                if table.is_some_and(|table| resident(table).is_none()) {
                    return Vec::new();
                }
                let tied = |other: &&TensorRole| other.tied_to.as_ref() == Some(&role.role);
                let own = resident(role);
                let own = own.or_else(|| resident(roles.iter().find(tied)?));
                own.into_iter().collect()
            }
        }
    }

    /// Adds matrices that follow one another in tensor `name`.
    fn stack(
        &mut self,
        name: &str,
        role: &TensorRole,
        encoding: &Encoding,
        layer: Option<u64>,
        weights: Vec<Piece<'a>>,
    ) -> Result<(), String> {
        let value = |expr| plan::value(expr, self.keys, layer);
        let matrix = encoding.stored.as_ref().unwrap_or(&role.shape);
        let matrix = matrix.iter().map(value).collect::<Result<Vec<u64>, _>>()?;
        let first_row = encoding.first_row.as_ref().map_or(Ok(0), value)?;
        let row_elements = match (role.shape.len(), matrix.last()) {
            (2, Some(&cols)) => cols,
            _ => 1,
        };
        let overflows = || "its shape overflows".to_owned();
        let elements = matrix.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
        let elements = elements.ok_or_else(overflows)?;
        let mut start = first_row.checked_mul(row_elements).ok_or_else(overflows)?;
        let mut shape = matrix;
        if role.per == Per::Expert && encoding.is_stacked() {
            shape.insert(0, weights.len() as u64);
        }
        let index = *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            self.in_order.push(Draft {
                name: name.to_owned(),
                shape: shape.clone(),
                parts: Vec::new(),
            });
            self.in_order.len() - 1
        });
        let draft = &mut self.in_order[index];
        if draft.shape != shape {
            return Err(format!("{:?} and {shape:?} are its shapes", draft.shape));
        }
        for piece in weights {
            let part = plan::part(piece, role, encoding, self.keys, layer)?;
            draft.parts.push((start, part));
            start = start.checked_add(elements).ok_or_else(overflows)?;
        }
        Ok(())
    }
}

impl<'a> Draft<'a> {
    fn finish(mut self, full: &BTreeSet<&str>, manifest: &Manifest) -> Result<Tensor<'a>, String> {
        self.parts.sort_by_key(|(start, _)| *start);
        let mut end = 0;
        for (start, part) in &self.parts {
            if *start != end {
                return Err("its parts in the bundle do not follow one another".into());
            }
            end += part.piece.elements();
        }
        let is_full = self.shape.len() == 1
            || self.parts.iter().any(|(_, part)| match part.piece {
                Piece::Resident { index, .. } => {
                    full.contains(manifest.resident.tensors[index].name.as_str())
                }
                Piece::Expert { .. } => false,
            });
        let parts = self.parts.into_iter().map(|(_, part)| part).collect();
        let mut tensor = plan::tensor(&self.name, self.shape, parts)?;
        if is_full && matches!(tensor.dtype, DType::BF16 | DType::F16) {
            tensor.dtype = DType::F32;
        }
        Ok(tensor)
    }
}
