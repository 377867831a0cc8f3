//! Choosing a type and a layout for every weight.

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Layout, TILE};
use estream_schemas::limits::MAX_SHARDS;
use estream_schemas::manifest::RecipeUsed;

use super::{CompileError, Compiled, Experts, Options, Resident};
use crate::arch::Family;
use crate::ingest::{Carried, Checkpoint, Notice};
use crate::lower::{ExpertWeights, Lowered, ResidentWeight, View, lower};
use crate::quant::{can_decode, can_encode};
use crate::recipe::{Choice, Fit, Place, Recipe};

impl<'a> Compiled<'a> {
    /// Plans `checkpoint` as a member of `family`. Reads headers and, where a table may
    /// be tied, that table; no other weight.
    pub fn plan(
        checkpoint: &'a Checkpoint,
        family: &Family,
        options: &Options,
    ) -> Result<Compiled<'a>, CompileError> {
        let lowered = lower(checkpoint, family)?;
        let recipe = recipe(&lowered, options)?;
        let mut planner = Planner {
            checkpoint,
            family: &family.descriptor.family,
            recipe: &recipe,
            options,
            problems: Vec::new(),
        };
        let resident: Vec<Resident> = lowered
            .resident
            .into_iter()
            .filter_map(|weight| planner.resident(weight))
            .collect();
        let experts: Vec<Experts> = lowered
            .experts
            .into_iter()
            .filter_map(|weights| planner.experts(weights))
            .collect();
        let path = checkpoint.path.clone();
        if !planner.problems.is_empty() {
            return Err(CompileError::Types {
                path,
                problems: planner.problems,
                recipe: recipe.name,
            });
        }
        if options.strict {
            let surprises = lowered
                .notices
                .iter()
                .filter(|notice| notice.is_refused_when_strict());
            let notices: Vec<String> = surprises.map(ToString::to_string).collect();
            if !notices.is_empty() {
                return Err(CompileError::Strict { path, notices });
            }
        }
        let mut notices = lowered.notices;
        // Told before hours of work, not by the first who brings words.
        let tokenizer = |carried: &Carried| carried.name == "tokenizer.json";
        if !checkpoint.tokenizer.iter().any(tokenizer) {
            notices.push(Notice::Other(
                "there is no tokenizer.json: the bundle will take token ids, and no words"
                    .to_owned(),
            ));
        }
        Ok(Compiled {
            checkpoint,
            model: lowered.model,
            program: lowered.program,
            resident,
            experts,
            recipe: RecipeUsed {
                rules: recipe.rule.iter().map(ToString::to_string).collect(),
                name: recipe.name,
                requantize: options.requantize,
                pad_k: options.pad_k,
            },
            descriptor: family.text().to_owned(),
            ledger: lowered.ledger,
            notices,
        })
    }
}

/// The recipe asked for. `auto` keeps quantised experts, and quantises float ones; if they
/// may be quantised again, also those that have no tiles.
fn recipe(lowered: &Lowered, options: &Options) -> Result<Recipe, CompileError> {
    if let Some(text) = &options.recipe_text {
        return Ok(Recipe::parse(&options.recipe, text)?);
    }
    let views = || {
        let layers = lowered.experts.iter();
        layers.flat_map(|layer| layer.gate.iter().chain(&layer.up).chain(&layer.down))
    };
    let is_tiled = |view: &View| Layout::tiled(view.dtype, options.order).is_some();
    let name = match options.recipe.as_str() {
        "auto" if options.requantize && !views().all(is_tiled) => "q4_0",
        "auto" if views().any(|view| view.dtype.is_quantised()) => "keep",
        "auto" => "q4_0",
        name => name,
    };
    Ok(Recipe::built_in(name)?)
}

struct Planner<'a> {
    checkpoint: &'a Checkpoint,
    family: &'a str,
    recipe: &'a Recipe,
    options: &'a Options,
    problems: Vec<String>,
}

impl Planner<'_> {
    fn resident(&mut self, weight: ResidentWeight) -> Option<Resident> {
        let ResidentWeight {
            name,
            role,
            shape,
            view,
        } = weight;
        let place = match shape.len() {
            1 => Place::Vector,
            _ => Place::Matrix,
        };
        let layout = self.layout(place, &role, &name, &view, view.cols)?;
        Some(Resident {
            name,
            shape,
            layout,
            view,
        })
    }

    fn experts(&mut self, weights: ExpertWeights) -> Option<Experts> {
        let shards = self.options.shards;
        let ExpertWeights {
            layer, ff, hidden, ..
        } = weights;
        let whole_tiles = ff.is_multiple_of(TILE) && (ff / TILE).checked_rem(shards) == Some(0);
        if shards != 1 && !(whole_tiles && shards <= MAX_SHARDS) {
            self.problem(format!(
                "layer {layer}: an expert of ff {ff} cannot be cut into {shards} shards: each must be a \
                 whole number of tiles of {TILE}, so shards must divide {}",
                ff / TILE
            ));
            return None;
        }
        let ff = ff / shards;
        let experts = weights.gate.len() as u64;
        let views = [weights.gate, weights.up, weights.down];
        let roles = ["expert_gate", "expert_up", "expert_down"];
        let mut layouts = Vec::new();
        for ((role, views), cols) in roles.iter().zip(&views).zip([hidden, hidden, ff]) {
            let name = format!("layers.{layer}.{role}");
            let first = views.first()?;
            if self.one_class(&name, views, first).is_some() {
                layouts.extend(self.layout(Place::Expert, role, &name, first, cols));
            }
        }
        // One that is missing is a problem by now.
        Some(Experts {
            layer,
            experts,
            shards,
            ff,
            hidden,
            layouts: layouts.try_into().ok()?,
            views,
        })
    }

    /// One graph serves all experts of a layer, so all must have one type.
    fn one_class(&mut self, name: &str, views: &[View], first: &View) -> Option<()> {
        let odd: Vec<String> = views
            .iter()
            .filter(|view| view.dtype != first.dtype)
            .map(|view| format!("{:?} is {}", self.source(view), view.dtype))
            .collect();
        if odd.is_empty() {
            return Some(());
        }
        self.problem(format!(
            "{name}: {:?} is {}, but {}; all experts of a layer must have one type",
            self.source(first),
            first.dtype,
            odd.join(", ")
        ));
        None
    }

    fn layout(
        &mut self,
        place: Place,
        role: &str,
        name: &str,
        view: &View,
        cols: u64,
    ) -> Option<Layout> {
        let fit = Fit {
            order: self.options.order,
            pad_k: self.options.pad_k,
        };
        let layout = self
            .dtype(role, name, view)
            .and_then(|dtype| fit.layout(place, dtype, cols));
        match layout {
            Ok(layout) => Some(layout),
            Err(why) => {
                self.problem(format!("{name} (from {:?}): {why}", self.source(view)));
                None
            }
        }
    }

    /// The type the recipe gives a weight, if its source can give it.
    fn dtype(&self, role: &str, name: &str, view: &View) -> Result<DType, String> {
        let stored = view.dtype;
        let readable = stored.is_quantised()
            || view.has_scales()
            || matches!(stored, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
        if !readable {
            return Err(format!("{stored} elements are not weights by themselves"));
        }
        let choice = self
            .recipe
            .choose(self.family, role, name)
            .ok_or("no rule of the recipe is for it; end the recipe with a rule for role \"*\"")?;
        match choice {
            Choice::Keep if view.has_scales() => Err(format!(
                "it is {stored} with scales in another tensor, which no layout holds; \
                 choose q4_0, q8_0 or f16 in a recipe"
            )),
            Choice::Keep => Ok(stored),
            Choice::As(dtype) if dtype == stored => Ok(dtype),
            Choice::As(dtype) if !can_encode(dtype) => Err(format!(
                "the recipe wants {dtype}, which is only kept where the source has it; weights can be made {}",
                list(DType::all().filter(|dtype| can_encode(*dtype)))
            )),
            Choice::As(dtype) if !can_decode(stored) => Err(format!(
                "it is {stored}, which cannot be read to be made {dtype}; use --recipe keep, or a source in {}",
                list(DType::all().filter(|dtype| can_decode(*dtype)))
            )),
            Choice::As(dtype) if !stored.is_quantised() || self.options.requantize => Ok(dtype),
            Choice::As(dtype) => Err(format!(
                "it is {stored} and the recipe wants {dtype}: a quantised weight is moved, not quantised again, \
                 which loses twice; use --recipe keep, or --requantize to accept the loss"
            )),
        }
    }

    fn source(&self, view: &View) -> &str {
        &self.checkpoint.tensors[view.tensor].name
    }

    fn problem(&mut self, problem: String) {
        self.problems.push(problem);
    }
}

fn list(types: impl Iterator<Item = DType>) -> String {
    let names: Vec<&str> = types.map(DType::name).collect();
    names.join(", ")
}
