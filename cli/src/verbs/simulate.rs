//! `estream simulate`: what a device would do with a bundle, without either.

use std::path::PathBuf;

use estream_order::{By, Compared, Interval, Orders, Setting, arranged, compare, orders};
use estream_planner::{Forecast, Prediction};
use estream_runtime::{RunError, TraceFile};
use estream_schemas::plan::{Schedule, StreamConfig};
use estream_schemas::routes::{Recording, RoutedPrompt};
use serde::Serialize;

use crate::failure::Failure;
use crate::profiles;
use crate::scene::{Measured, Model, ShapeArg, events, measured};
use crate::stream::ScheduleArg;
use crate::tables::{grouped, table};
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
    config: ConfigArgs,
    /// Write what would happen when to the first prompt, for ui.perfetto.dev; of one --schedule
    #[arg(long, value_name = "FILE", requires = "schedule")]
    timeline: Option<PathBuf>,
    /// Print the prediction beside what estream run --json --stats printed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "group", "depth", "banks", "train"])]
    measured: Option<PathBuf>,
    #[command(flatten)]
    orders: OrderArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Prompts")]
struct Prompts {
    /// Recorded routes, a request each prompt [default: one prompt of --tokens, its routes made up]
    #[arg(long, value_name = "FILE")]
    routes: Option<PathBuf>,
    /// Tokens of a prompt; of recorded ones, those of this length [default: 512, or all recorded]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    tokens: Option<u32>,
    /// How uneven made-up routes are: popularity falls with this power of the rank
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=8))]
    skew: u32,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Streaming")]
struct ConfigArgs {
    /// This schedule alone [default: all of them]
    #[arg(long, value_name = "NAME")]
    schedule: Option<ScheduleArg>,
    /// Records that are read and executed together [default: a quarter of a layer, at most 8]
    #[arg(short = 'G', value_name = "N")]
    group: Option<usize>,
    /// Reads at a time [default: 2]
    #[arg(short = 'Q', value_name = "N")]
    depth: Option<usize>,
    /// Groups that fit into memory [default: 3]
    #[arg(short = 'B', value_name = "N")]
    banks: Option<usize>,
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
    service: String,
    prompts: usize,
    tokens: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    schedules: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    orders: Vec<OrderRows>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Row>,
}

/// A way of streaming, the mean over all prompts.
#[derive(Serialize)]
struct Row {
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
    prompts: Vec<RoutedPrompt>,
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
    let setting = model.on(&profile, args.service.as_deref())?;
    let measured = args.measured.as_deref().map(measured).transpose()?;
    let prompts = args.prompts.of(&model, measured.as_ref())?;
    let tokens = prompts.iter().map(|prompt| u64::from(prompt.tokens));
    let mut report = Report {
        device: profile.name.clone(),
        service: setting.service.name.clone(),
        prompts: prompts.len(),
        tokens: tokens.sum(),
        schedules: Vec::new(),
        orders: Vec::new(),
        measured: None,
    };
    let scene = Scene {
        model,
        setting,
        prompts,
    };
    let configs = match &measured {
        None => args.config.of(&scene),
        Some(measured) => {
            let (config, row) = measured_row(measured, ui);
            report.measured = Some(row);
            vec![config]
        }
    };
    match &args.orders.train {
        Some(_) => report.orders = args.orders.rows(&scene, &configs)?,
        None => {
            for config in &configs {
                let forecasts = scene.forecasts(config)?;
                report.schedules.push(Row::of(config, &forecasts));
                if let (Some(path), Some(first)) = (&args.timeline, forecasts.first()) {
                    let file = TraceFile::create(path).map_err(RunError::Sink)?;
                    file.finish(&events(first)).map_err(RunError::Sink)?;
                }
            }
        }
    }
    ui.answer(&report, text)
}

impl Prompts {
    /// The prompts that are simulated; what was measured says how long one was.
    fn of(&self, model: &Model, measured: Option<&Measured>) -> Result<Vec<RoutedPrompt>, Failure> {
        let measured = measured.map(|measured| measured.prompt.len());
        let measured = measured.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        let wanted = self.tokens.or(measured);
        let Some(path) = &self.routes else {
            return Ok(vec![model.expected(wanted.unwrap_or(512), self.skew)]);
        };
        let Recording { mut prompts, .. } = read_for(path, model.experts())?;
        prompts.retain(|prompt| wanted.is_none_or(|tokens| prompt.tokens == tokens));
        match prompts.is_empty() {
            false => Ok(prompts),
            true => Err(Failure::usage(format!(
                "{}: no prompt of {} tokens; name another --tokens",
                path.display(),
                wanted.unwrap_or(0)
            ))),
        }
    }
}

impl ConfigArgs {
    /// The ways of streaming that are simulated.
    fn of(&self, scene: &Scene) -> Vec<StreamConfig> {
        let longest = scene.prompts.iter().map(|prompt| prompt.tokens).max();
        let tokens = usize::try_from(longest.unwrap_or(0)).unwrap_or(usize::MAX);
        let default = StreamConfig::default_for(scene.model.most_records(), tokens);
        let group = self.group.unwrap_or(default.group);
        let depth = self.depth.unwrap_or(default.depth);
        let banks = self.banks.unwrap_or(default.banks.max(depth));
        let schedules: Vec<Schedule> = match self.schedule {
            Some(schedule) => vec![schedule.into()],
            None => Schedule::ALL.into(),
        };
        let config = |schedule| StreamConfig::new(schedule, group, depth, banks, tokens);
        schedules.into_iter().map(config).collect()
    }
}

impl OrderArgs {
    /// What each order costs with each of `configs`.
    fn rows(&self, scene: &Scene, configs: &[StreamConfig]) -> Result<Vec<OrderRows>, Failure> {
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
                let arranged = arranged(&scene.setting, config, &scene.prompts, together)?;
                named.push(("coactivation, arranged".to_owned(), arranged));
            }
            rows.push(OrderRows {
                config: *config,
                orders: compare(&scene.setting, config, &scene.prompts, &named)?,
            });
        }
        Ok(rows)
    }
}

impl Scene {
    fn forecasts(&self, config: &StreamConfig) -> Result<Vec<Forecast>, Failure> {
        let stored = &self.model.stored;
        Ok(self.setting.forecasts(&self.prompts, stored, config)?)
    }
}

impl Row {
    fn of(config: &StreamConfig, forecasts: &[Forecast]) -> Row {
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
        Row {
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

    /// Cells of a table, after the first.
    fn cells(&self) -> [String; 7] {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        [
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

/// How a run was streamed, and what it took.
fn measured_row(measured: &Measured, ui: &Ui) -> (StreamConfig, Row) {
    let stats = &measured.stats;
    let config = match &stats.stream {
        Some(stream) => stream.config(),
        None => StreamConfig::new(Schedule::Resident, 1, 1, 1, measured.prompt.len()),
    };
    let stream = stats.stream.as_ref();
    if stream.is_some_and(|stream| stream.pinned > 0) {
        ui.note("the run kept records in memory, of which the prediction knows nothing");
    }
    let of = |get: fn(&crate::scene::MeasuredStream) -> u64| stream.map_or(0, get);
    let row = Row {
        config,
        ttft_us: stats.ttft_us,
        bubble: stream.map_or(0.0, |stream| stream.bubble),
        io_us: of(|stream| stream.io_us),
        exec_us: of(|stream| stream.exec_us),
        read_bytes: of(|stream| stream.read_bytes),
        reads: of(|stream| stream.reads),
        records_read: of(|stream| stream.records_read),
    };
    (config, row)
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    if !report.schedules.is_empty() {
        let mut rows = table(&[
            "",
            "TTFT ms",
            "bubble",
            "T_io ms",
            "T_exec ms",
            "bytes",
            "reads",
            "records",
        ]);
        for row in &report.schedules {
            let name = match &report.measured {
                None => row.config.schedule.name(),
                Some(_) => "predicted",
            };
            rows.add_row([name.to_owned()].into_iter().chain(row.cells()));
        }
        if let Some(row) = &report.measured {
            rows.add_row(["measured".to_owned()].into_iter().chain(row.cells()));
        }
        out += &format!("{rows}\n");
    }
    for rows in &report.orders {
        let mut orders = table(&[
            rows.config.schedule.name(),
            "bytes",
            "reads",
            "TTFT ms",
            "first group ms",
            "bytes, change",
            "TTFT, change",
        ]);
        for order in &rows.orders {
            orders.add_row([
                order.name.clone(),
                grouped(order.read_bytes),
                format!("{:.1}", order.reads),
                format!("{:.1}", order.ttft_us as f64 / 1e3),
                format!("{:.1}", order.first_group_us as f64 / 1e3),
                change(order.read_change.as_ref()),
                change(order.ttft_change.as_ref()),
            ]);
        }
        out += &format!("{orders}\n\n");
    }
    let configs = report.schedules.iter().map(|row| &row.config);
    let config = configs
        .chain(report.orders.iter().map(|rows| &rows.config))
        .next();
    if let Some(StreamConfig {
        group,
        depth,
        banks,
        ..
    }) = config
    {
        let prompts = match report.prompts {
            1 => format!("one prompt of {} tokens", report.tokens),
            count => format!("{count} prompts, {} tokens in all; means", report.tokens),
        };
        out += &format!(
            "G = {group}, Q = {depth}, B = {banks}; {prompts}; times of {} on {}\n",
            report.service, report.device
        );
    }
    out
}

/// A change with its interval, and whether it is one.
fn change(change: Option<&Interval>) -> String {
    let Some(interval) = change else {
        return String::new();
    };
    let Interval { mean, low, high } = interval;
    let percent = |share: &f64| format!("{:+.2}", 100.0 * share);
    let verdict = match interval.is_clear() {
        true => "",
        false => " (none)",
    };
    format!(
        "{} % [{}, {}]{verdict}",
        percent(mean),
        percent(low),
        percent(high)
    )
}
