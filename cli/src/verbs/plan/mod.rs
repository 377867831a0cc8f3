//! `estream plan`: which way of streaming is fastest on a device, within a budget.

mod ask;
mod picture;
mod question;
mod report;
mod store;
mod text;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use estream_planner::{
    Choice, Explained, Infeasible, Problem, Search, Survey, explain, plan, survey,
};
use estream_runtime::reader::BundleReader;
use estream_schemas::exit::Exit;
use estream_schemas::plan::Schedule;
use rayon::prelude::*;

use self::ask::{budget, numbers};
use self::question::{Asked, Setting};
use self::report::{BudgetReport, Extras, Report};
use self::store::NewPlan;
use crate::failure::Failure;
use crate::output::NewFile;
use crate::profiles;
use crate::stream::ScheduleArg;
use crate::templates::{add_capacity, classes};
use crate::ui::Ui;

/// Plan how the experts of a bundle are streamed on a device
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle
    bundle: PathBuf,
    /// The device: a profile that comes with estream, or a file (TOML or JSON)
    #[arg(long, value_name = "PROFILE")]
    device: String,
    /// The most memory, as 1.5GiB or 800MB; each of several is planned for [default: the profile's]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = budget)]
    budget: Vec<u64>,
    /// Lengths of prompts [default: those of 16, 128, 1024 and 4096 that the model was made for]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    tokens: Vec<u64>,
    /// Schedules to choose from [default: early,compact,ahead]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    schedule: Vec<ScheduleArg>,
    /// Which of the profile's times, by name [default: those of records as large as the bundle's]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Look at one number of reads alone, the least that has the bandwidth: the paper's search
    #[arg(long)]
    nested: bool,
    /// Threads the device computes with: each takes memory
    #[arg(long, value_name = "N", default_value = "8")]
    threads: NonZeroUsize,
    /// Print what more or less memory would do
    #[arg(long)]
    pareto: bool,
    /// Draw memory and time of every configuration, and what is chosen, into a new SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Say why these numbers were not chosen
    #[arg(long, value_name = "G,Q,B", value_parser = numbers)]
    explain: Option<[usize; 3]>,
    /// Store the plan in the bundle [default name: the profile's]
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    store: Option<String>,
    /// Replace the stored plan of that name
    #[arg(long, requires = "store")]
    force: bool,
}

/// A prompt's length with what is best for it.
#[derive(Debug)]
struct Planned {
    tokens: u64,
    problem: Problem,
    choice: Choice,
    hot: Option<Hot>,
}

/// The same on the device when it is hot.
#[derive(Debug)]
struct Hot {
    choice: Choice,
    /// What becomes of the plan for a device that is not.
    cold: Explained,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let reader = BundleReader::open(&args.bundle)?;
    let text = profiles::text_of(&args.device)?;
    let mut profile = text.profile()?;
    let experts = &reader.bundle().manifest().experts;
    let note = add_capacity(&mut profile, experts.slot_bytes, &classes(&experts.layers));
    let budgets = budgets(args, profile.budget_bytes)?;
    let store = match &args.store {
        None => None,
        Some(_) if budgets.len() > 1 => {
            let why = "one plan is stored, for one --budget; name one of them";
            return Err(Failure::usage(why));
        }
        Some(name) => {
            let name = if name.is_empty() { &text.name } else { name };
            Some(NewPlan::new(&reader, name, args.force)?)
        }
    };
    let svg = args.svg.as_deref().map(NewFile::new).transpose()?;
    let asked = Asked {
        tokens: args.tokens.clone(),
        schedules: args.schedules(),
        search: match args.nested {
            true => Search::Nested,
            false => Search::Full,
        },
        service: args.service.as_deref(),
        threads: args.threads,
    };
    let setting = Setting::new(&reader, &profile, &asked)?;
    note.iter().for_each(|note| ui.note(note));
    setting.notes().iter().for_each(|note| ui.note(note));

    let start = Instant::now();
    let tables = budgets.iter().map(|budget| table(&setting, *budget));
    let tables: Vec<_> = tables.collect::<Result<_, Failure>>()?;
    let rows = budgets.len() * setting.tokens.len();
    let elapsed = 1e3 * start.elapsed().as_secs_f64();
    ui.note(format!("planned {rows} prompts in {elapsed:.1} ms"));

    let surveys = match args.pareto || svg.is_some() {
        true => surveys(&setting)?,
        false => Vec::new(),
    };
    if let Some(svg) = svg {
        let picture = picture::picture(&setting, &surveys, &budgets, &tables);
        svg.write(picture.as_bytes())?;
    }
    let stored = match (store, tables.first()) {
        (Some(store), Some(Ok(rows))) => Some(store.write(&setting, budgets[0], rows)?),
        _ => None,
    };
    let plans = budgets.iter().zip(&tables).map(|(budget, table)| {
        let extras = |planned: &Planned| Extras {
            survey: args.survey_of(planned, &setting, &surveys),
            explained: args.explained(planned),
        };
        BudgetReport::new(*budget, table, &extras)
    });
    let report = Report {
        bundle: &args.bundle,
        identity: reader.identity(),
        device: &profile.name,
        service: &setting.service.name,
        routes: question::ROUTES,
        assumed: profile.sources.assumed().collect(),
        plans: plans.collect(),
        stored,
        svg: args.svg.as_deref(),
    };
    ui.answer(&report, text::text)?;
    match tables.iter().all(Result::is_ok) {
        true => Ok(()),
        false => Err(Failure::silent(Exit::CannotRun)),
    }
}

/// The best for each length of prompt within a budget, or why there is nothing.
type Table = Result<Vec<Planned>, Infeasible>;

fn table(setting: &Setting<'_>, budget: u64) -> Result<Table, Failure> {
    let rows = setting.tokens.iter().map(|tokens| {
        let hot = setting.is_known_hot();
        let hot = hot.then(|| setting.problem(*tokens, budget, true));
        let problem = setting.problem(*tokens, budget, false)?;
        Ok((*tokens, problem, hot.transpose()?))
    });
    let rows: Vec<_> = rows.collect::<Result<_, Failure>>()?;
    let rows = rows.into_par_iter();
    let rows = rows.map(|(tokens, problem, hot)| Planned::new(tokens, problem, hot.as_ref()));
    // Memory is that of the longest prompt, so what does not fit for one does not for any.
    Ok(rows.collect::<Vec<_>>().into_iter().collect())
}

/// What there is for each length of prompt, whatever the budget.
fn surveys(setting: &Setting<'_>) -> Result<Vec<Survey>, Failure> {
    let problems = setting.tokens.iter();
    let problems = problems.map(|tokens| setting.problem(*tokens, u64::MAX, false));
    let problems: Vec<Problem> = problems.collect::<Result<_, Failure>>()?;
    Ok(problems.par_iter().map(survey).collect())
}

impl Planned {
    fn new(tokens: u64, problem: Problem, hot: Option<&Problem>) -> Result<Planned, Infeasible> {
        let choice = plan(&problem)?;
        let config = choice.chosen.config;
        let numbers = (config.group, config.depth, config.banks);
        let hot = hot.map(|problem| {
            let best = plan(problem)?;
            let cold = explain(problem, &best, config.schedule, numbers);
            Ok::<_, Infeasible>(Hot { choice: best, cold })
        });
        Ok(Planned {
            tokens,
            problem,
            choice,
            hot: hot.transpose()?,
        })
    }
}

fn budgets(args: &Args, stated: Option<u64>) -> Result<Vec<u64>, Failure> {
    let mut budgets = match (args.budget.as_slice(), stated) {
        ([], Some(budget)) => vec![budget],
        ([], None) => {
            let why = "the profile has no budget_bytes; say how much memory there is with --budget";
            return Err(Failure::usage(why));
        }
        (asked, _) => asked.to_vec(),
    };
    budgets.sort_unstable();
    budgets.dedup();
    Ok(budgets)
}

impl Args {
    fn schedules(&self) -> Vec<Schedule> {
        let mut schedules: Vec<Schedule> = Vec::new();
        for schedule in self.schedule.iter().map(|arg| Schedule::from(*arg)) {
            if !schedules.contains(&schedule) {
                schedules.push(schedule);
            }
        }
        match schedules.is_empty() {
            true => vec![Schedule::Early, Schedule::Compact, Schedule::Ahead],
            false => schedules,
        }
    }

    /// What is printed of a length's survey.
    fn survey_of<'a>(
        &self,
        planned: &Planned,
        setting: &Setting<'_>,
        surveys: &'a [Survey],
    ) -> Option<&'a Survey> {
        let mut lengths = setting.tokens.iter().zip(surveys);
        let (_, survey) = lengths.find(|(tokens, _)| **tokens == planned.tokens)?;
        self.pareto.then_some(survey)
    }

    /// Of every schedule, what keeps the numbers that were asked about from being the choice.
    fn explained(&self, planned: &Planned) -> Vec<Explained> {
        let Some([group, depth, banks]) = self.explain else {
            return Vec::new();
        };
        let Planned {
            problem, choice, ..
        } = planned;
        let schedules = problem.question().schedules.iter();
        let streamed = schedules.filter(|schedule| **schedule != Schedule::Resident);
        streamed
            .map(|schedule| explain(problem, choice, *schedule, (group, depth, banks)))
            .collect()
    }
}
