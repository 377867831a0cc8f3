//! `estream inspect`: what a bundle is, or what would become of a checkpoint.

use std::path::{Path, PathBuf};

use estream_compiler::compile::Compiled;
use estream_compiler::ingest::Checkpoint;
use estream_packer::report::{Sizes, sizes};
use estream_packer::{plan, spec};
use estream_runtime::reader::BundleReader;
use estream_schemas::digest::Digest;
use estream_schemas::dtype::DType;
use estream_schemas::manifest::{Fate, LedgerEntry, MANIFEST_FILE, Manifest, SourceFormat};
use estream_schemas::program::{Op, Program};
use serde::Serialize;

use crate::failure::Failure;
use crate::paths;
use crate::plans::{self, StoredPlan};
use crate::source::{BuildArgs, open};
use crate::tables::{grouped, sizes as size_tables, table};
use crate::ui::Ui;

/// Show what a bundle is, or what would be built from a checkpoint
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A bundle, a Hugging Face directory or a GGUF file
    path: PathBuf,
    /// List the program's operators, or every tensor of a checkpoint
    #[arg(long)]
    long: bool,
    #[command(flatten)]
    build: BuildArgs,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    if args.path.join(MANIFEST_FILE).is_file() {
        bundle(&args.path, args.long, ui)
    } else {
        let checkpoint = open(&args.path)?;
        let compiled = args.build.plan(&checkpoint)?;
        source(&checkpoint, &compiled, args, ui)
    }
}

/// What both kinds have: a model.
#[derive(Serialize)]
struct Model<'a> {
    family: &'a str,
    layers: usize,
    vocab: u64,
    context: u64,
    program: &'a Program,
}

impl<'a> Model<'a> {
    fn of(manifest: &'a Manifest) -> Model<'a> {
        Model {
            family: &manifest.model.family,
            layers: manifest.program.layers.len(),
            vocab: manifest.program.vocab,
            context: manifest.program.context,
            program: &manifest.program,
        }
    }

    fn text(&self, parameters: u64) -> String {
        format!(
            "family {}, {} parameters, {} layers, vocabulary {}, made for {} positions\n",
            self.family,
            grouped(parameters),
            self.layers,
            grouped(self.vocab),
            grouped(self.context)
        )
    }
}

#[derive(Serialize)]
struct BundleReport<'a> {
    #[serde(serialize_with = "paths::one")]
    bundle: &'a Path,
    identity: Digest,
    kernel_abi: u64,
    model: Model<'a>,
    sizes: Sizes,
    recipe: &'a str,
    source: SourceFormat,
    storage_order: &'static str,
    parts: usize,
    tokenizer: Vec<&'a str>,
    license: Option<&'a str>,
    plans: Vec<StoredPlan>,
}

fn bundle(path: &Path, long: bool, ui: &Ui) -> Result<(), Failure> {
    let reader = BundleReader::open(path)?;
    let manifest = reader.bundle().manifest();
    let report = BundleReport {
        bundle: path,
        identity: reader.identity(),
        kernel_abi: manifest.kernel_abi,
        model: Model::of(manifest),
        sizes: sizes(manifest),
        recipe: &manifest.recipe.name,
        source: manifest.source.format,
        storage_order: storage_order(manifest),
        parts: manifest.experts.parts.len(),
        tokenizer: manifest
            .tokenizer
            .iter()
            .map(|file| file.file.as_str())
            .collect(),
        license: manifest.license.declared.as_deref(),
        plans: plans::stored(&reader)?,
    };
    ui.answer(&report, |report| {
        let mut text = report.model.text(report.sizes.parameters);
        text += &size_tables(&report.sizes);
        if long {
            text += &program(report.model.program);
        }
        text += &format!(
            "recipe {}, kernel ABI {}, storage order {}, {} experts file(s)\ntokenizer: {}\nlicence: {}\n{} {}\n",
            report.recipe,
            report.kernel_abi,
            report.storage_order,
            report.parts,
            match report.tokenizer.is_empty() {
                true => "none".to_owned(),
                false => report.tokenizer.join(", "),
            },
            report.license.unwrap_or("not declared"),
            report.bundle.display(),
            report.identity
        );
        text + &plans::table(&report.plans)
    })
}

fn storage_order(manifest: &Manifest) -> &'static str {
    let mut layers = manifest.experts.layers.iter();
    match layers.all(|layer| layer.order.is_sorted()) {
        true => "identity",
        false => "permuted",
    }
}

#[derive(Serialize)]
struct SourceReport<'a> {
    #[serde(serialize_with = "paths::one")]
    checkpoint: &'a Path,
    format: SourceFormat,
    model: Model<'a>,
    sizes: Sizes,
    recipe: &'a str,
    types: Vec<SourceType>,
    tensors: Vec<&'a LedgerEntry>,
    notices: Vec<String>,
}

/// All source tensors of one type.
#[derive(Serialize)]
struct SourceType {
    #[serde(rename = "type")]
    dtype: DType,
    tensor_count: usize,
    elements: u64,
}

fn source(
    checkpoint: &Checkpoint,
    compiled: &Compiled<'_>,
    args: &Args,
    ui: &Ui,
) -> Result<(), Failure> {
    let manifest = plan(&spec(compiled, args.build.max_part_size))?;
    let report = SourceReport {
        checkpoint: &args.path,
        format: checkpoint.format,
        model: Model::of(&manifest),
        sizes: sizes(&manifest),
        recipe: &manifest.recipe.name,
        types: source_types(checkpoint),
        tensors: manifest.ledger.iter().collect(),
        notices: compiled.notices.iter().map(ToString::to_string).collect(),
    };
    for notice in &report.notices {
        ui.note(notice);
    }
    ui.answer(&report, |report| {
        let mut types = table(&["source type", "tensors", "elements"]);
        for row in &report.types {
            types.add_row([
                row.dtype.to_string(),
                row.tensor_count.to_string(),
                grouped(row.elements),
            ]);
        }
        let mut text = report.model.text(report.sizes.parameters) + &format!("{types}\n");
        if args.long {
            text += &ledger(&report.tensors);
        }
        text += &format!("\nwith recipe {} this would be built:\n", report.recipe);
        text + &size_tables(&report.sizes)
    })
}

fn source_types(checkpoint: &Checkpoint) -> Vec<SourceType> {
    let of = |dtype: DType| {
        let tensors = checkpoint
            .tensors
            .iter()
            .filter(|tensor| tensor.dtype == dtype);
        SourceType {
            dtype,
            tensor_count: tensors.clone().count(),
            elements: tensors
                .map(|tensor| tensor.shape.iter().product::<u64>())
                .sum(),
        }
    };
    DType::all()
        .map(of)
        .filter(|row| row.tensor_count > 0)
        .collect()
}

fn ledger(tensors: &[&LedgerEntry]) -> String {
    let lines = tensors.iter().map(|entry| {
        let fate = match &entry.fate {
            Fate::Became(names) => names.join(", "),
            Fate::AliasOf(other) => format!("equals {other:?}"),
            Fate::ScalesOf(other) => format!("scales of {other:?}"),
            Fate::Dropped(reason) => format!("dropped: {reason}"),
        };
        let name = entry.tensor.escape_debug();
        format!("{name} {} {:?} -> {fate}\n", entry.dtype, entry.shape)
    });
    lines.collect()
}

/// The operators, a line each; layers with the same operators are listed once.
fn program(program: &Program) -> String {
    let names = |ops: &[Op]| -> Vec<String> { ops.iter().map(operator).collect() };
    let mut text = format!("prologue: {}\n", names(&program.prologue).join(", "));
    let mut before: Option<Vec<String>> = None;
    for (index, ops) in program.layers.iter().enumerate() {
        let names = names(ops);
        if before.as_ref() != Some(&names) {
            text += &format!("from layer {index} on: {}\n", names.join(", "));
            before = Some(names);
        }
    }
    text + &format!("epilogue: {}\n", names(&program.epilogue).join(", "))
}

/// An operator's name as the manifest spells it: the one field of its object.
fn operator(op: &Op) -> String {
    let value = serde_json::to_value(op).unwrap_or_default();
    let member = value.as_object().and_then(|object| object.keys().next());
    member.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use estream_schemas::program::Op;

    use super::operator;

    #[test]
    fn an_operator_is_called_what_the_manifest_calls_it() {
        let text = r#"{"add": {"input": "h", "out": "x", "scale": "1"}}"#;
        let op: Op = serde_json::from_str(text).unwrap();
        assert_eq!(operator(&op), "add");
    }
}
