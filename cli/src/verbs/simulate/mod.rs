//! `estream simulate`: what a device would do with a bundle, without either.

mod picture;
mod text;
mod ways;

use std::path::PathBuf;

use estream_order::{By, Compared, Orders, Setting, arranged, compare, orders};
use estream_planner::{Forecast, Prediction};
use estream_runtime::{RunError, TraceFile};
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_schemas::routes::{Recording, RoutedPrompt};
use serde::Serialize;

use self::ways::{WayArgs, Ways};
use crate::failure::Failure;
use crate::output::NewFile;
use crate::paths;
use crate::profiles;
use crate::scene::{Measured, MeasuredStream, Model, ShapeArg, events, measured};
use crate::tables::grouped;
use crate::ui::Ui;
use crate::verbs::reorder::read_for;

/// Predict times, bytes and reads of a way of streaming on a device
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle; only its manifest is read
    #[arg(required_unless_present = "shape")]
    bundle: Option<PathBuf>,
    /// A model without a bundle: layers, experts, experts a token and bytes of a record
    #[arg(long, value_name = "LxExKxBYTES", conflicts_with = "bundle")]
    shape: Option<ShapeArg>,
    /// The device: a profile with service times, by name or in a file (TOML or JSON)
    #[arg(long, value_name = "PROFILE")]
    device: String,
    /// Which of its times [default: the first of records as large as the model's]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    #[command(flatten)]
    prompts: Prompts,
    #[command(flatten)]
    ways: WayArgs,
    /// Write what would happen when to the first prompt, for ui.perfetto.dev; of one --schedule or --plan
    #[arg(long, value_name = "FILE", conflicts_with = "train")]
    timeline: Option<PathBuf>,
    /// Draw times and bytes by schedule and length of prompt into a new SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "train")]
    svg: Option<PathBuf>,
    /// Draw what would happen when to the first prompt, with each schedule, into a new SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "train")]
    timeline_svg: Option<PathBuf>,
    /// Print the prediction beside what estream run --json --stats printed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "group", "depth", "banks", "train"])]
    measured: Option<PathBuf>,
    #[command(flatten)]
    orders: OrderArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Prompts")]
struct Prompts {
    /// Recorded routes, a request each prompt [default: a prompt of each of --tokens, its routes made up]
    #[arg(long, value_name = "FILE")]
    routes: Option<PathBuf>,
    /// Lengths of prompts; of recorded ones, those that have them [default: 512, or all recorded]
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1 << 20)
    )]
    tokens: Vec<u32>,
    /// How uneven made-up routes are: popularity falls with this power of the rank
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=8))]
    skew: u32,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Storage order")]
struct OrderArgs {
    /// Compare storage orders that these other routes lead to, with 95 % intervals over the prompts
    #[arg(long, value_name = "FILE", requires = "routes")]
    train: Option<PathBuf>,
    /// Experts that coactivation puts together [default: G]
    #[arg(long, value_name = "N", requires = "train", value_parser = clap::value_parser!(u16).range(1..))]
    order_group: Option<u16>,
    /// Compare also the best arrangement of coactivation's groups, all of them tried, where a layer has at
    /// most 8; it knows the prompts
    #[arg(long, requires = "train")]
    exhaustive: bool,
}

#[derive(Serialize)]
struct Report {
    device: String,
    hot: bool,
    service: String,
    prompts: usize,
    tokens: u64,
    pinned: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    schedules: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    orders: Vec<OrderRows>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Row>,
    #[serde(serialize_with = "paths::maybe")]
    svg: Option<PathBuf>,
    #[serde(serialize_with = "paths::maybe")]
    timeline_svg: Option<PathBuf>,
}

/// A way of streaming, the mean over prompts of a length, or over all.
#[derive(Serialize)]
struct Row {
    /// Of a prompt.
    tokens: u64,
    #[serde(flatten)]
    config: StreamConfig,
    ttft_us: u64,
    bubble: f64,
    io_us: u64,
    exec_us: u64,
    read_bytes: u64,
    reads: u64,
    records_read: u64,
}

/// Storage orders with one way of streaming.
#[derive(Serialize)]
struct OrderRows {
    config: StreamConfig,
    orders: Vec<Compared>,
}

/// What is simulated.
struct Scene {
    model: Model,
    setting: Setting,
    /// By length, where lengths are asked for; else all together.
    prompts: Vec<Vec<RoutedPrompt>>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let model = match (&args.bundle, args.shape) {
        (Some(bundle), _) => Model::of_bundle(bundle)?,
        (None, Some(shape)) => Model::of_shape(shape),
        (None, None) => return Err(Failure::usage("name a bundle, or a --shape")),
    };
    let mut profile = profiles::named(&args.device)?;
    if let Some(note) = model.add_capacity(&mut profile) {
        ui.note(note);
    }
    let mut setting = model.on(&profile, args.service.as_deref())?;
    setting.storage = args.ways.storage(&profile)?;
    let measured = args.measured.as_deref().map(measured).transpose()?;
    let svg = args.svg.as_deref().map(NewFile::new).transpose()?;
    let timeline_svg = args.timeline_svg.as_deref();
    let timeline_svg = timeline_svg.map(NewFile::new).transpose()?;
    let prompts = args.prompts.of(&model, measured.as_ref())?;
    let ways = |prompts: &[RoutedPrompt]| match &measured {
        None => {
            let bundle = args.bundle.as_deref();
            args.ways.of(bundle, model.most_records(), prompts, ui)
        }
        Some(measured) => Ok(measured.way()),
    };
    // What is compared of storage orders is compared over all prompts.
    let prompts = match args.orders.train {
        Some(_) => vec![prompts.concat()],
        None => prompts,
    };
    let ways: Vec<Ways> = prompts
        .iter()
        .map(|prompts| ways(prompts))
        .collect::<Result<_, _>>()?;
    if args.timeline.is_some() && ways[0].configs.len() != 1 {
        return Err(Failure::usage(
            "--timeline is of one way of streaming; name it with --schedule or --plan",
        ));
    }
    // A plan has pins for all lengths.
    let pinned = ways[0].pinned;
    setting.pinned = pinned;
    let all = prompts.iter().flatten();
    let mut report = Report {
        device: profile.name.clone(),
        hot: args.ways.hot,
        service: setting.service.name.clone(),
        prompts: all.clone().count(),
        tokens: all.map(|prompt| u64::from(prompt.tokens)).sum(),
        pinned,
        schedules: Vec::new(),
        orders: Vec::new(),
        measured: measured.as_ref().map(Row::measured),
        svg: args.svg.clone(),
        timeline_svg: args.timeline_svg.clone(),
    };
    let scene = Scene {
        model,
        setting,
        prompts,
    };
    if args.orders.train.is_some() {
        report.orders = args
            .orders
            .rows(&scene, &ways[0].configs, &scene.prompts[0])?;
        return ui.answer(&report, text::text);
    }
    let mut firsts = Vec::new();
    for (at, (prompts, ways)) in scene.prompts.iter().zip(&ways).enumerate() {
        for config in &ways.configs {
            let forecasts = scene.forecasts(config, prompts)?;
            report.schedules.push(Row::of(config, prompts, &forecasts));
            if let (0, Some(first)) = (at, forecasts.into_iter().next()) {
                firsts.push((*config, first));
            }
        }
    }
    if let (Some(path), Some((_, first))) = (&args.timeline, firsts.first()) {
        let file = TraceFile::create(path).map_err(RunError::Sink)?;
        file.finish(&events(first)).map_err(RunError::Sink)?;
    }
    let place = picture::place(args, &report);
    if let Some(file) = svg {
        file.write(picture::lengths(&place, &report.schedules).as_bytes())?;
    }
    if let Some(file) = timeline_svg {
        let tokens = scene.prompts[0][0].tokens;
        file.write(picture::timeline(&place, tokens, &firsts).as_bytes())?;
    }
    ui.answer(&report, text::text)
}

impl Prompts {
    /// The prompts that are simulated; what was measured says how long one was.
    ///
    /// None of what is returned is empty.
    fn of(
        &self,
        model: &Model,
        measured: Option<&Measured>,
    ) -> Result<Vec<Vec<RoutedPrompt>>, Failure> {
        let mut lengths = self.tokens.clone();
        lengths.sort_unstable();
        lengths.dedup();
        match (measured, lengths.len()) {
            (Some(measured), 0) => {
                lengths.push(u32::try_from(measured.prompt.len()).unwrap_or(u32::MAX));
            }
            (Some(_), 2..) => {
                let why = "what was measured is one prompt; name its --tokens alone, or none";
                return Err(Failure::usage(why));
            }
            _ => {}
        }
        let Some(path) = &self.routes else {
            let lengths = if lengths.is_empty() {
                vec![512]
            } else {
                lengths
            };
            let prompts = lengths.into_iter();
            let prompts = prompts.map(|tokens| vec![model.expected(tokens, self.skew)]);
            return Ok(prompts.collect());
        };
        let Recording { prompts, .. } = read_for(path, model.experts())?;
        if lengths.is_empty() {
            return Ok(vec![prompts]);
        }
        let of_length = |tokens: u32| -> Result<Vec<RoutedPrompt>, Failure> {
            let found = prompts.iter().filter(|prompt| prompt.tokens == tokens);
            let found: Vec<RoutedPrompt> = found.cloned().collect();
            match found.is_empty() {
                false => Ok(found),
                true => Err(Failure::usage(format!(
                    "{}: no prompt of {tokens} tokens; name another --tokens",
                    path.display()
                ))),
            }
        };
        lengths.into_iter().map(of_length).collect()
    }
}

impl OrderArgs {
    /// What each order costs with each of `configs`.
    fn rows(
        &self,
        scene: &Scene,
        configs: &[StreamConfig],
        prompts: &[RoutedPrompt],
    ) -> Result<Vec<OrderRows>, Failure> {
        let Some(path) = &self.train else {
            return Ok(Vec::new());
        };
        let train = read_for(path, scene.model.experts())?;
        let frequency = orders(&train, By::Frequency);
        let mut rows = Vec::new();
        for config in configs {
            // What is in memory is never read.
            if config.schedule == Schedule::Resident {
                continue;
            }
            let group = self.order_group.map_or(config.group, usize::from);
            let together = orders(&train, By::Coactivation { group });
            let mut named: Vec<(String, Orders)> = vec![
                ("stored".to_owned(), scene.model.stored.clone()),
                ("frequency".to_owned(), frequency.clone()),
                ("coactivation".to_owned(), together),
            ];
            if self.exhaustive {
                let (_, together) = &named[2];
                let arranged = arranged(&scene.setting, config, prompts, together)?;
                named.push(("coactivation, arranged".to_owned(), arranged));
            }
            rows.push(OrderRows {
                config: *config,
                orders: compare(&scene.setting, config, prompts, &named)?,
            });
        }
        Ok(rows)
    }
}

impl Scene {
    fn forecasts(
        &self,
        config: &StreamConfig,
        prompts: &[RoutedPrompt],
    ) -> Result<Vec<Forecast>, Failure> {
        let stored = &self.model.stored;
        Ok(self.setting.forecasts(prompts, stored, config)?)
    }
}

impl Row {
    fn of(config: &StreamConfig, prompts: &[RoutedPrompt], forecasts: &[Forecast]) -> Row {
        let count = forecasts.len().max(1) as u64;
        let mean = |of: fn(&Prediction) -> u64| {
            let sum = forecasts
                .iter()
                .map(|forecast| of(&forecast.prediction))
                .fold(0, u64::saturating_add);
            sum / count
        };
        let total = mean(|prediction| prediction.times.total_ns);
        let io = mean(|prediction| prediction.times.io_ns);
        let exec = mean(|prediction| prediction.times.exec_ns);
        let tokens = prompts.iter().map(|prompt| u64::from(prompt.tokens));
        Row {
            tokens: tokens.sum::<u64>() / count,
            config: *config,
            ttft_us: total / 1000,
            bubble: match total {
                0 => 0.0,
                total => 1.0 - io.max(exec) as f64 / total as f64,
            },
            io_us: io / 1000,
            exec_us: exec / 1000,
            read_bytes: mean(|prediction| prediction.bytes_read),
            reads: mean(|prediction| prediction.reads),
            records_read: mean(|prediction| prediction.records_read),
        }
    }

    /// What a run took.
    fn measured(measured: &Measured) -> Row {
        let stream = measured.stats.stream.as_ref();
        let of = |get: fn(&MeasuredStream) -> u64| stream.map_or(0, get);
        Row {
            tokens: measured.prompt.len() as u64,
            config: measured.config(),
            ttft_us: measured.stats.ttft_us,
            bubble: stream.map_or(0.0, |stream| stream.bubble),
            io_us: of(|stream| stream.io_us),
            exec_us: of(|stream| stream.exec_us),
            read_bytes: of(|stream| stream.read_bytes),
            reads: of(|stream| stream.reads),
            records_read: of(|stream| stream.records_read),
        }
    }

    /// Cells of a table, after the first.
    fn cells(&self) -> [String; 8] {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        [
            grouped(self.tokens),
            ms(self.ttft_us),
            format!("{:.1} %", 100.0 * self.bubble),
            ms(self.io_us),
            ms(self.exec_us),
            grouped(self.read_bytes),
            grouped(self.reads),
            grouped(self.records_read),
        ]
    }
}

impl Measured {
    /// How it was streamed.
    fn config(&self) -> StreamConfig {
        match &self.stats.stream {
            Some(stream) => stream.config(),
            None => StreamConfig::new(Schedule::Resident, 1, 1, 1, self.prompt.len()),
        }
    }

    fn way(&self) -> Ways {
        Ways {
            configs: vec![self.config()],
            pinned: self.stats.stream.as_ref().map_or(0, |stream| stream.pinned),
        }
    }
}
