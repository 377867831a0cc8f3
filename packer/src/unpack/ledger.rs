//! The tensors of a bundle that came from GGUF: those of its source, as the ledger has them.

use estream_compiler::arch::{Family, Keys};
use estream_runtime::reader::BundleReader;
use estream_schemas::manifest::{Fate, LedgerEntry, Manifest};

use super::UnpackError;
use super::plan::{self, Part, Tensor, refusal};

/// Every tensor of the source that the bundle holds.
pub(super) fn tensors<'a>(
    reader: &BundleReader,
    manifest: &'a Manifest,
    family: &Family,
    keys: &Keys,
) -> Result<Vec<Tensor<'a>>, UnpackError> {
    let mut tensors = Vec::new();
    for entry in &manifest.ledger {
        let Fate::Became(names) = &entry.fate else {
            continue;
        };
        let made = tensor(manifest, family, keys, entry, names);
        tensors.push(made.map_err(|why| refusal(reader, &entry.tensor, why))?);
    }
    Ok(tensors)
}

fn tensor<'a>(
    manifest: &'a Manifest,
    family: &Family,
    keys: &Keys,
    entry: &LedgerEntry,
    names: &[String],
) -> Result<Tensor<'a>, String> {
    let mut parts = Vec::new();
    for name in names {
        parts.extend(weight(manifest, family, keys, &entry.tensor, name)?);
    }
    plan::tensor(&entry.tensor, entry.shape.clone(), parts)
}

/// The matrices that the ledger calls `name`, in the order that source tensor `tensor` has.
fn weight<'a>(
    manifest: &'a Manifest,
    family: &Family,
    keys: &Keys,
    tensor: &str,
    name: &str,
) -> Result<Vec<Part<'a>>, String> {
    let parts: Vec<&str> = name.split('.').collect();
    let role = match parts[..] {
        [role] | ["layers", _, role] | ["layers", _, role, _] => role,
        _ => return Err(format!("{name:?} is no weight's name")),
    };
    let lost = || format!("the bundle holds no {name:?}");
    let number = |at: usize| parts.get(at).and_then(|part| part.parse::<u64>().ok());
    let (layer, expert) = (number(1), number(3));
    let pieces = match (
        plan::resident(manifest, name),
        plan::projection(role),
        layer,
    ) {
        (Some(piece), ..) => vec![piece],
        (None, Some(projection), Some(layer)) => {
            plan::experts(manifest, layer, expert, projection).ok_or_else(lost)?
        }
        _ => return Err(lost()),
    };
    let role = family.descriptor.role(role);
    let role = role.ok_or_else(|| format!("the descriptor has no role {role:?}"))?;
    let mut encodings = role.gguf.iter();
    let used = encodings
        .find(|encoding| encoding.spelled(layer.unwrap_or(0), expert.unwrap_or(0)) == tensor);
    match used {
        Some(encoding) => pieces
            .into_iter()
            .map(|piece| plan::part(piece, role, encoding, keys, layer))
            .collect(),
        // The source's names were others; that matters only if orders are.
        None if family.reorders_gguf(&role.role) => Err(format!(
            "{} may be stored in another order in GGUF",
            role.role
        )),
        None => Ok(pieces.into_iter().map(Part::plain).collect()),
    }
}
