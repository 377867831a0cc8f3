//! Keys that count rows: what the shapes of tensors say of them.

use super::names::Names;
use crate::arch::{Descriptor, Keys, Per, TensorRole};
use crate::ingest::{Checkpoint, Notice};

/// Gives keys that count the rows of a role of the model, and that nothing states, the
/// number its tensor has.
pub(super) fn of_model(
    checkpoint: &Checkpoint,
    descriptor: &Descriptor,
    names: &Names<'_>,
    keys: &mut Keys,
) {
    for (key, role) in counted(descriptor, |per| per == Per::Model) {
        if keys.has(key) {
            continue;
        }
        // A tied table may be there under the name of the other role only.
        let serves =
            |other: &&TensorRole| other.role == *role || other.tied_to.as_ref() == Some(role);
        let mut roles = descriptor.tensor.iter().filter(serves);
        if let Some(rows) = roles.find_map(|role| rows(checkpoint, names, role, 0)) {
            keys.set(key, rows);
        }
    }
}

/// Gives keys that count the rows of a role of layers the numbers its tensors have, where
/// they are others than the one number that is stated. A pruned model has such layers.
pub(super) fn of_layers(
    checkpoint: &Checkpoint,
    descriptor: &Descriptor,
    names: &Names<'_>,
    layers: u64,
    keys: &mut Keys,
    notices: &mut Vec<Notice>,
) {
    for (key, name) in counted(descriptor, |per| per != Per::Model) {
        let (Ok(stated), Some(role)) = (keys.integer(key), descriptor.role(name)) else {
            continue;
        };
        let found: Vec<Option<u64>> = (0..layers)
            .map(|layer| rows(checkpoint, names, role, layer))
            .collect();
        let is_other = |rows: &Option<u64>| rows.is_some_and(|rows| rows != stated);
        let Some(first) = found.iter().position(is_other) else {
            continue;
        };
        let more = match found.iter().filter(|rows| is_other(rows)).count() {
            1 => String::new(),
            count => format!(", and others in {} more layers", count - 1),
        };
        let counts: Vec<u64> = found.iter().map(|rows| rows.unwrap_or(stated)).collect();
        notices.push(Notice::Surprise(format!(
            "{} is {stated}, but {name} has {} rows in layer {first}{more}: the tensors count",
            keys.name(key),
            counts[first],
        )));
        keys.set(key, counts);
    }
}

/// Keys and the roles whose rows they count, of roles that there are `per` something.
fn counted(
    descriptor: &Descriptor,
    per: impl Fn(Per) -> bool,
) -> impl Iterator<Item = (&String, &String)> {
    let keys = descriptor.key.iter();
    let counted = keys.filter_map(|key| Some((&key.name, key.rows_of.as_ref()?)));
    counted.filter(move |(_, role)| descriptor.role(role).is_some_and(|role| per(role.per)))
}

fn rows(checkpoint: &Checkpoint, names: &Names<'_>, role: &TensorRole, layer: u64) -> Option<u64> {
    let (tensor, _) = names.find(role, layer, 0)?;
    checkpoint.tensors[tensor].shape.first().copied()
}
