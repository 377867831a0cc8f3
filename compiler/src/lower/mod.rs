//! From a checkpoint and its family to a program and the weights it needs.
//!
//! Lowering looks at names, shapes and configuration alone. It reports everything
//! that is wrong at once, and gives every source tensor a fate.

mod program;
mod resolve;
mod tie;
mod view;

use std::path::PathBuf;

use estream_schemas::limits::{MAX_EXPERTS, MAX_LAYERS};
use estream_schemas::manifest::{LedgerEntry, Model};
use estream_schemas::program::Program;

use crate::arch::{Descriptor, ExprError, Family, Keys, Per, TensorRole};
use crate::ingest::{Checkpoint, IngestError, Notice};
use resolve::Resolver;
pub use view::View;

/// A program, and where each of its weights is in the source.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// For people.
    pub model: Model,
    /// What a runtime does.
    pub program: Program,
    /// Weights outside experts, in the order they are stored.
    pub resident: Vec<ResidentWeight>,
    /// Routed experts, by layer.
    pub experts: Vec<ExpertWeights>,
    /// What became of every source tensor.
    pub ledger: Vec<LedgerEntry>,
    /// What the user should know and need not act on, unless strict.
    pub notices: Vec<Notice>,
}

/// A weight that is always in memory.
#[derive(Clone, Debug)]
pub struct ResidentWeight {
    /// Name in the bundle.
    pub name: String,
    /// What it is for.
    pub role: String,
    /// Canonical shape, one or two dimensions.
    pub shape: Vec<u64>,
    /// Where it is.
    pub view: View,
}

/// The routed experts of one layer.
#[derive(Clone, Debug)]
pub struct ExpertWeights {
    /// The layer.
    pub layer: u64,
    /// Rows of gate and up, columns of down.
    pub ff: u64,
    /// Columns of gate and up, rows of down.
    pub hidden: u64,
    /// `[ff, hidden]`, by expert.
    pub gate: Vec<View>,
    /// `[ff, hidden]`, by expert.
    pub up: Vec<View>,
    /// `[hidden, ff]`, by expert.
    pub down: Vec<View>,
}

/// A checkpoint that is not what its family's descriptor says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// Everything that is wrong.
    #[error("{}: cannot be compiled as {family}: {}", path.display(), problem_list(problems))]
    Problems {
        /// The checkpoint.
        path: PathBuf,
        /// The family.
        family: String,
        /// One line each.
        problems: Vec<String>,
    },
    /// The source could not be read.
    #[error(transparent)]
    Ingest(#[from] IngestError),
}

/// A count and one line each, for an error message.
pub(crate) fn problem_list(problems: &[String]) -> String {
    let things = match problems.len() {
        1 => "one thing is wrong",
        count => &format!("{count} things are wrong"),
    };
    problems
        .iter()
        .fold(things.to_owned(), |list, problem| list + "\n  - " + problem)
}

/// Lowers `checkpoint` as a member of `family`.
pub fn lower(checkpoint: &Checkpoint, family: &Family) -> Result<Lowered, LowerError> {
    let descriptor = &family.descriptor;
    let refuse = |problems: Vec<String>| LowerError::Problems {
        path: checkpoint.path.clone(),
        family: descriptor.family.clone(),
        problems,
    };
    let mut problems = Vec::new();
    let mut keys = Keys::resolve(descriptor, &checkpoint.config, &mut problems);
    rows_of_tensors(checkpoint, descriptor, &mut keys);
    let (not_neutral, surprises) = family.audit(checkpoint);
    problems.extend(not_neutral);
    let layers = bounded(descriptor.program.layers.value(&keys), "layers", MAX_LAYERS);
    let experts = bounded(
        descriptor.program.experts.value(&keys),
        "experts",
        MAX_EXPERTS,
    );
    // Without these two nothing else can be looked for.
    let (layers, experts) = match (layers, experts) {
        (Ok(layers), Ok(experts)) => (layers, experts),
        (layers, experts) => {
            problems.extend(layers.err().into_iter().chain(experts.err()));
            return Err(refuse(problems));
        }
    };
    let mut notices = checkpoint.notices.clone();
    notices.extend(surprises.iter().map(|key| {
        Notice::Surprise(format!(
            "config key {key:?} is unknown to the {} descriptor and was not used",
            descriptor.family
        ))
    }));

    let mut resolver = Resolver::new(checkpoint, descriptor, &keys);
    resolver.problems(problems);
    let tie = tie::find(checkpoint, descriptor, &keys, &mut resolver, &mut notices)?;
    let spared = tie.as_ref().map(|tie| tie.spared.role.as_str());
    let mut resident = Vec::new();
    for role in descriptor
        .tensor
        .iter()
        .filter(|role| role.per == Per::Model)
    {
        let present = match &tie {
            Some(tie) if tie.stored.role == role.role => tie.present,
            _ => role,
        };
        if spared != Some(&role.role) {
            resident.extend(resident_weight(&mut resolver, role, present, None));
        }
    }
    let mut expert_layers = Vec::new();
    for layer in 0..layers {
        let mut roles: Vec<&TensorRole> = Vec::new();
        for role in &descriptor.tensor {
            match role.when.holds(&keys, layer) {
                Ok(true) => roles.push(role),
                Ok(false) => {}
                Err(problem) => resolver.problem(problem),
            }
        }
        for role in roles.iter().filter(|role| role.per == Per::Layer) {
            resident.extend(resident_weight(&mut resolver, role, role, Some(layer)));
        }
        expert_layers.extend(expert_weights(&mut resolver, &roles, layer, experts));
    }
    let mut problems = Vec::new();
    let name = |role: &str, layer: Option<u64>| match &tie {
        Some(tie) if tie.spared.role == role => tie.stored.role.clone(),
        _ => {
            let per_model = |tensor: &TensorRole| tensor.role == role && tensor.per == Per::Model;
            let layer = layer.filter(|_| !descriptor.tensor.iter().any(per_model));
            tensor_name(role, layer)
        }
    };
    let program = program::program(descriptor, &keys, &name, &mut problems);
    resolver.problems(problems);
    let ledger = resolver.finish().map_err(refuse)?;
    let expert_elements: u64 = expert_layers
        .iter()
        .flat_map(|layer| layer.gate.iter().chain(&layer.up).chain(&layer.down))
        .map(View::elements)
        .sum();
    let resident_elements: u64 = resident.iter().map(|weight| weight.view.elements()).sum();
    Ok(Lowered {
        model: Model {
            family: descriptor.family.clone(),
            parameters: expert_elements + resident_elements,
        },
        program,
        resident,
        experts: expert_layers,
        ledger,
        notices,
    })
}

/// Keys that no configuration states and a tensor's shape tells.
fn rows_of_tensors(checkpoint: &Checkpoint, descriptor: &Descriptor, keys: &mut Keys) {
    let unknown: Vec<(String, u64)> = {
        let finder = Resolver::new(checkpoint, descriptor, keys);
        let rows = |role: &String| {
            let role = descriptor
                .tensor
                .iter()
                .find(|tensor| tensor.role == *role)?;
            let (tensor, _) = finder.find(role, 0, 0)?;
            checkpoint.tensors[tensor].shape.first().copied()
        };
        let missing = descriptor.key.iter().filter(|key| !keys.has(&key.name));
        missing
            .filter_map(|key| Some((key.name.clone(), key.rows_of.as_ref().and_then(rows)?)))
            .collect()
    };
    for (key, rows) in unknown {
        keys.set(&key, rows);
    }
}

fn bounded(value: Result<u64, ExprError>, what: &str, max: u64) -> Result<u64, String> {
    match value {
        Ok(value) if (1..=max).contains(&value) => Ok(value),
        Ok(value) => Err(format!("{value} {what}, outside 1 to {max}")),
        Err(error) => Err(error.to_string()),
    }
}

fn resident_weight<'a>(
    resolver: &mut Resolver<'a>,
    role: &'a TensorRole,
    present: &'a TensorRole,
    layer: Option<u64>,
) -> Option<ResidentWeight> {
    let name = tensor_name(&role.role, layer);
    let view = resolver.weight(present, layer.unwrap_or(0), &name)?;
    let shape = match role.shape.len() {
        1 => vec![view.cols],
        _ => vec![view.rows, view.cols],
    };
    Some(ResidentWeight {
        name,
        role: role.role.clone(),
        shape,
        view,
    })
}

fn expert_weights<'a>(
    resolver: &mut Resolver<'a>,
    roles: &[&'a TensorRole],
    layer: u64,
    experts: u64,
) -> Option<ExpertWeights> {
    let mut of = |name: &str| {
        let role = roles
            .iter()
            .find(|role| role.role == name && role.per == Per::Expert)?;
        Some(resolver.expert_weights(role, layer, experts))
    };
    let (gate, up, down) = (of("expert_gate")?, of("expert_up")?, of("expert_down")?);
    // Incomplete lists are problems already, so nothing is built from them.
    let (ff, hidden) = gate.first().map_or((0, 0), |gate| (gate.rows, gate.cols));
    Some(ExpertWeights {
        layer,
        ff,
        hidden,
        gate,
        up,
        down,
    })
}

fn tensor_name(role: &str, layer: Option<u64>) -> String {
    match layer {
        None => role.to_owned(),
        Some(layer) => format!("layers.{layer}.{role}"),
    }
}
