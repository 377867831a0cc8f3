//! From a checkpoint and its family to a program and the weights it needs.
//!
//! Lowering looks at names, shapes and configuration alone. It reports everything
//! that is wrong at once, and gives every source tensor a fate.

mod choose;
mod counts;
mod names;
mod outline;
mod program;
mod resolve;
mod scales;
mod survey;
mod tie;
mod view;
mod window;

use std::collections::BTreeSet;
use std::path::PathBuf;

use estream_schemas::limits::{MAX_EXPERTS, MAX_LAYERS};
use estream_schemas::manifest::{LedgerEntry, Model};
use estream_schemas::program::Program;

use crate::arch::{
    Descriptor, EXPERT_ROLES, ExprError, Family, Keys, OpForm, Per, QUANTISATION, TensorRole,
};
use crate::ingest::{Checkpoint, IngestError, Notice, Quantised};
use crate::problem::{Problems, cut, problem_list};
use choose::Chosen;
use names::Names;
pub use outline::{OutlineTensor, outline};
use resolve::{Resolver, Wanted};
pub use survey::{Fitting, KeyFound, Origin, Other, RoleFound, Survey, survey};
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
    /// The checkpoint is what the descriptor says, and the program made of it cannot run.
    #[error("descriptor {family}: its program for {} cannot run: {}", path.display(), problem_list(problems))]
    Descriptor {
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

/// Lowers `checkpoint` as a member of `family`.
pub fn lower(checkpoint: &Checkpoint, family: &Family) -> Result<Lowered, LowerError> {
    let attempt = attempt(checkpoint, family)?;
    let (path, name) = (checkpoint.path.clone(), family.descriptor.family.clone());
    match attempt.lowered {
        Some(lowered) if attempt.problems.is_empty() => match attempt.misfits {
            misfits if misfits.is_empty() => Ok(lowered),
            misfits => Err(LowerError::Descriptor {
                path,
                family: name,
                problems: misfits,
            }),
        },
        _ => Err(LowerError::Problems {
            path,
            family: name,
            problems: attempt.problems,
        }),
    }
}

/// As much as could be lowered, and everything that is wrong.
struct Attempt {
    keys: Keys,
    /// Roles that some operator names.
    needed: BTreeSet<String>,
    /// A role that another's tensor serves for, and that one.
    tied: Option<[String; 2]>,
    /// All of the model only if there is no problem; nothing, if nothing could be looked for.
    lowered: Option<Lowered>,
    problems: Vec<String>,
    /// Why the program cannot run, which is the descriptor's fault if there is no problem.
    misfits: Vec<String>,
}

impl Attempt {
    /// Nothing could be looked for.
    fn none(keys: Keys, problems: Vec<String>) -> Attempt {
        Attempt {
            keys,
            needed: BTreeSet::new(),
            tied: None,
            lowered: None,
            problems,
            misfits: Vec::new(),
        }
    }
}

fn attempt(checkpoint: &Checkpoint, family: &Family) -> Result<Attempt, IngestError> {
    let descriptor = &family.descriptor;
    let rules = descriptor.rules(checkpoint.format);
    let places = rules.places(&[QUANTISATION]);
    let quantised = match Quantised::of(checkpoint, &places) {
        Ok(quantised) => quantised,
        Err(why) => return Ok(Attempt::none(Keys::default(), vec![why])),
    };
    if quantised.is_fp8 && rules.scales.is_empty() {
        let why = "it has FP8 elements, and the descriptor does not say where their scales are";
        return Ok(Attempt::none(Keys::default(), vec![why.to_owned()]));
    }
    let mut problems = Problems::default();
    let names = Names::new(checkpoint, descriptor, &mut problems);
    let mut keys = Keys::resolve(descriptor, &checkpoint.config, &mut problems);
    counts::of_model(checkpoint, descriptor, &names, &mut keys);
    let (not_neutral, surprises) = family.audit(checkpoint);
    problems.extend(not_neutral);
    let layers = descriptor.program.layers.value(&keys, None);
    let layers = match bounded(layers, "layers", MAX_LAYERS) {
        Ok(layers) => layers,
        // Without their number nothing else can be looked for.
        Err(problem) => {
            problems.push(problem);
            return Ok(Attempt::none(keys, problems.into_list()));
        }
    };
    keys.set_layers(layers);
    let mut notices = checkpoint.notices.clone();
    notices.extend(unknown_keys(&descriptor.family, &surprises));

    counts::of_layers(
        checkpoint,
        descriptor,
        &names,
        layers,
        &mut keys,
        &mut notices,
    );
    let has = |role: &str, layer| {
        let role = descriptor.role(role);
        role.is_some_and(|role| names.find(role, layer, 0).is_some())
    };
    let chosen = Chosen::new(descriptor, &keys, has, layers, &mut problems);
    if !chosen.is_decided {
        return Ok(Attempt::none(keys, problems.into_list()));
    }
    let mut resolver = Resolver::new(checkpoint, descriptor, &keys, &names, quantised, problems);
    let tie = tie::find(checkpoint, descriptor, &keys, &mut resolver, &mut notices)?;
    let mut resident = Vec::new();
    let of_model = chosen.roles();
    for role in roles(descriptor, Per::Model, &of_model) {
        let present = match &tie {
            Some(tie) if tie.spared.role == role.role => continue,
            Some(tie) if tie.stored.role == role.role => tie.present,
            _ => role,
        };
        resident.extend(resident_weight(&mut resolver, role, present, None));
    }
    let mut experts = Vec::new();
    for (layer, ops) in (0..).zip(&chosen.layers) {
        let named = ops.iter().flat_map(OpForm::roles).collect();
        for role in roles(descriptor, Per::Layer, &named) {
            resident.extend(resident_weight(&mut resolver, role, role, Some(layer)));
        }
        if EXPERT_ROLES.iter().all(|role| named.contains(role)) {
            experts.extend(expert_weights(&mut resolver, descriptor, &keys, layer));
        }
    }
    let name = |role: &str, layer: Option<u64>| match &tie {
        Some(tie) if tie.spared.role == role => tie.stored.role.clone(),
        _ => {
            let per = descriptor.role(role).map(|role| role.per);
            tensor_name(role, layer.filter(|_| per != Some(Per::Model)))
        }
    };
    let program = program::program(descriptor, &keys, &chosen, &name, &mut resolver.problems);
    let needed = chosen.roles().into_iter().map(str::to_owned).collect();
    let tied = tie.map(|tie| [tie.spared, tie.stored].map(|role| role.role.clone()));
    let (ledger, problems) = resolver.finish();
    let of_experts = experts
        .iter()
        .flat_map(|layer| layer.gate.iter().chain(&layer.up).chain(&layer.down));
    let of_resident = resident.iter().map(|weight| &weight.view);
    // A tensor that two weights share is a problem by now, but is counted twice here.
    let parameters = of_experts
        .chain(of_resident)
        .map(View::elements)
        .fold(0, u64::saturating_add);
    let lowered = Lowered {
        model: Model {
            family: descriptor.family.clone(),
            parameters,
        },
        program,
        resident,
        experts,
        ledger,
        notices,
    };
    Ok(Attempt {
        keys,
        needed,
        tied,
        lowered: Some(lowered),
        problems,
        misfits: chosen.misfits(),
    })
}

/// Notices about keys of a configuration that the descriptor of `family` does not know: of
/// many, the first ones.
fn unknown_keys(family: &str, keys: &[String]) -> Vec<Notice> {
    const MAX_KEYS: usize = 40;
    const MAX_CHARS: usize = 200;
    let shown = keys.iter().take(MAX_KEYS).map(|key| {
        let key = cut(key, MAX_CHARS);
        format!("config key {key:?} is unknown to the {family} descriptor and was not used")
    });
    let more = keys.len().saturating_sub(MAX_KEYS);
    let more = (more > 0).then(|| format!("… and {more} more config keys that are unknown"));
    shown.chain(more).map(Notice::Surprise).collect()
}

/// The `named` roles that have one tensor `per` something, in the descriptor's order.
fn roles<'a>(
    descriptor: &'a Descriptor,
    per: Per,
    named: &BTreeSet<&str>,
) -> impl Iterator<Item = &'a TensorRole> {
    let roles = descriptor.tensor.iter();
    roles.filter(move |role| role.per == per && named.contains(role.role.as_str()))
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
    let view = resolver.weight(Wanted {
        role: present,
        layer,
        name: &name,
    })?;
    let shape = match role.shape.len() {
        1 => vec![view.elements()],
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
    descriptor: &'a Descriptor,
    keys: &Keys,
    layer: u64,
) -> Option<ExpertWeights> {
    let experts = descriptor.program.experts.value(keys, Some(layer));
    let experts = match bounded(experts, "experts", MAX_EXPERTS) {
        Ok(experts) => experts,
        Err(problem) => {
            resolver.problems.push(problem);
            return None;
        }
    };
    let [gate, up, down] = EXPERT_ROLES.map(|role| {
        let name = tensor_name(role, Some(layer));
        let wanted = descriptor.role(role).map(|role| Wanted {
            role,
            layer: Some(layer),
            name: &name,
        });
        wanted.map_or_else(Vec::new, |wanted| resolver.expert_weights(wanted, experts))
    });
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
