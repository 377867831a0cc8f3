//! `estream kernels`: the constants of a bundle's kernel templates, as C headers.

use std::path::{Path, PathBuf};

use anyhow::Error;
use estream_hexagon::{Arch, Template, VTCM_BYTES, file_name, header};
use estream_packer::write_folder;
use estream_runtime::parse_size;
use estream_runtime::reader::BundleReader;
use estream_schemas::digest::Digest;
use estream_schemas::exit::Exit;
use estream_schemas::layout::Layout;
use serde::Serialize;

use crate::failure::Failure;
use crate::tables::{grouped, ranges, table};
use crate::templates::{Class, classes};
use crate::ui::Ui;

/// What else a kernel library is made of.
const NOT_BUILT: &str = "headers only: compiling the kernels with them takes their C sources and a compiler for Hexagon";

/// Write the constants of the expert kernels that a bundle needs on an NPU, as C headers
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle; only its manifest is read
    #[arg(long, value_name = "BUNDLE")]
    model: PathBuf,
    /// Architectures of the NPU: v73, v75, v79, v81
    #[arg(long, value_name = "ARCH,…", value_delimiter = ',', required = true)]
    arch: Vec<Arch>,
    /// VTCM of the NPU, its memory on the chip [default: 8MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    vtcm: Option<u64>,
    /// The directory to make
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
}

#[derive(Serialize)]
struct Report<'a> {
    bundle: &'a Path,
    identity: Digest,
    directory: &'a Path,
    vtcm_bytes: u64,
    templates: Vec<TemplateReport>,
    not_built: &'static str,
}

/// The template of a shape class.
#[derive(Serialize)]
struct TemplateReport {
    layers: Vec<u64>,
    hidden: u64,
    ff: u64,
    shards: u64,
    layouts: [Layout; 3],
    capacity: u64,
    gate_up_strips: u64,
    down_strips: u64,
    used_bytes: u64,
    regions: Vec<RegionReport>,
    headers: Vec<Header>,
}

#[derive(Serialize)]
struct RegionReport {
    region: String,
    offset: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Header {
    arch: &'static str,
    file: String,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let reader = BundleReader::open(&args.model)?;
    let vtcm_bytes = args.vtcm.unwrap_or(VTCM_BYTES);
    let classes = classes(&reader.bundle().manifest().experts.layers);
    let templates = templates(&classes, vtcm_bytes).map_err(|(exit, problems)| {
        let what = match problems.len() {
            1 => "one thing is in the way".to_owned(),
            count => format!("{count} things are in the way"),
        };
        let (bundle, problems) = (args.model.display(), problems.join("\n  - "));
        let message = format!("{bundle}: {what}:\n  - {problems}");
        Failure::new(exit, Error::msg(message))
    })?;
    let mut archs = args.arch.clone();
    archs.sort_unstable();
    archs.dedup();

    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut reports = Vec::new();
    for (layers, template) in &templates {
        let report = TemplateReport::new(layers, template, &archs);
        for (arch, written) in archs.iter().zip(&report.headers) {
            // Experts that differ in shards alone have the same template.
            if !files.iter().any(|(name, _)| *name == written.file) {
                let text = header(template, *arch).into_bytes();
                files.push((written.file.clone(), text));
            }
        }
        reports.push(report);
    }
    write_folder(&args.output, std::slice::from_ref(&args.model), &files)?;
    ui.note(NOT_BUILT);
    let report = Report {
        bundle: &args.model,
        identity: reader.identity(),
        directory: &args.output,
        vtcm_bytes,
        templates: reports,
        not_built: NOT_BUILT,
    };
    ui.answer(&report, |report| text(report, files.len()))
}

/// The layers of a template, and the template.
type Fitted = (Vec<u64>, Template);

/// The template of every class; or all that stands in the way of some, and its exit code.
fn templates(classes: &[Class], vtcm_bytes: u64) -> Result<Vec<Fitted>, (Exit, Vec<String>)> {
    if classes.is_empty() {
        let nothing = "it has no experts, and templates are for experts".to_owned();
        return Err((Exit::CannotRun, vec![nothing]));
    }
    let (mut templates, mut problems) = (Vec::new(), Vec::new());
    let mut exit = Exit::CannotRun;
    for Class { layers, shape } in classes {
        let shape = shape.as_ref().map_err(Clone::clone);
        match shape.and_then(|shape| Template::new(shape, vtcm_bytes)) {
            Ok(template) => templates.push((layers.clone(), template)),
            Err(refused) => {
                exit = refused.exit();
                problems.push(format!("layers {}: {refused}", ranges(layers)));
            }
        }
    }
    match problems.is_empty() {
        true => Ok(templates),
        false => Err((exit, problems)),
    }
}

impl TemplateReport {
    fn new(layers: &[u64], template: &Template, archs: &[Arch]) -> TemplateReport {
        let shape = template.shape();
        let regions = template.regions().iter().map(|region| RegionReport {
            region: region.buffer.to_string(),
            offset: region.offset,
            bytes: region.bytes,
        });
        let headers = archs.iter().map(|arch| Header {
            arch: arch.name(),
            file: file_name(template, *arch),
        });
        TemplateReport {
            layers: layers.to_vec(),
            hidden: shape.hidden(),
            ff: shape.ff(),
            shards: shape.shards(),
            layouts: shape.stored().map(|stored| stored.layout()),
            capacity: template.capacity(),
            gate_up_strips: template.gate_up_strips(),
            down_strips: template.down_strips(),
            used_bytes: template.used_bytes(),
            regions: regions.collect(),
            headers: headers.collect(),
        }
    }
}

fn text(report: &Report<'_>, files: usize) -> String {
    let mut rows = table(&[
        "layers",
        "hidden",
        "ff",
        "gate, up, down",
        "C",
        "strips a step",
        "VTCM bytes",
        "of",
    ]);
    for template in &report.templates {
        let mut layouts = template.layouts.map(|layout| layout.to_string()).to_vec();
        layouts.dedup();
        rows.add_row([
            ranges(&template.layers),
            template.hidden.to_string(),
            template.ff.to_string(),
            layouts.join(", "),
            template.capacity.to_string(),
            format!("{}, {}", template.gate_up_strips, template.down_strips),
            grouped(template.used_bytes),
            grouped(report.vtcm_bytes),
        ]);
    }
    let directory = report.directory.display();
    format!("{rows}\n{directory}: {files} headers\n")
}
