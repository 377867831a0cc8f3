//! `estream arch`: the families estream knows, and whether a descriptor fits a checkpoint.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use estream_compiler::arch::{ArchError, Family};
use estream_compiler::compile::CompileError;
use estream_compiler::lower::{Fitting, Origin, Survey, survey};
use estream_schemas::exit::Exit;
use estream_schemas::manifest::SourceFormat;
use serde::Serialize;

use crate::failure::Failure;
use crate::paths;
use crate::source::{open, read_family};
use crate::tables::left_table;
use crate::ui::Ui;

/// Families: list them, show their descriptors, check one against a checkpoint
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the families estream comes with
    List,
    /// Print a family's descriptor: a start for one of your own
    Show {
        /// Name of the family
        family: String,
    },
    Check(CheckArgs),
}

/// Say what of a checkpoint a descriptor explains, and all that is missing
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// A descriptor (.toml), or the name of a family estream comes with
    descriptor: String,
    /// Hugging Face directory, or GGUF file
    checkpoint: PathBuf,
}

pub(crate) fn run(verb: &Verb, ui: &Ui) -> Result<(), Failure> {
    match verb {
        Verb::List => list(ui),
        Verb::Show { family } => show(family, ui),
        Verb::Check(args) => check(args, ui),
    }
}

#[derive(Serialize)]
struct Listed {
    families: Vec<Known>,
}

/// A family that estream comes with.
#[derive(Serialize)]
struct Known {
    family: String,
    about: String,
    model_types: Vec<String>,
    gguf_architectures: Vec<String>,
}

fn list(ui: &Ui) -> Result<(), Failure> {
    let families = Family::built_in().map_err(CompileError::from)?;
    let known = families.into_iter().map(|family| Known {
        family: family.descriptor.family,
        about: family.descriptor.about,
        model_types: family.descriptor.matches.hf,
        gguf_architectures: family.descriptor.matches.gguf,
    });
    let listed = Listed {
        families: known.collect(),
    };
    ui.answer(&listed, |listed| {
        let mut table = left_table(&["family", "model_type", "GGUF", "about"]);
        for known in &listed.families {
            table.add_row([
                known.family.clone(),
                known.model_types.join(", "),
                known.gguf_architectures.join(", "),
                known.about.clone(),
            ]);
        }
        format!("{table}\n")
    })
}

#[derive(Serialize)]
struct Shown<'a> {
    family: &'a str,
    descriptor: &'a str,
}

fn show(family: &str, ui: &Ui) -> Result<(), Failure> {
    let found = named(family)?;
    let shown = Shown {
        family,
        descriptor: found.text(),
    };
    ui.answer(&shown, |shown| shown.descriptor.to_owned())
}

fn named(name: &str) -> Result<Family, Failure> {
    let families = Family::built_in().map_err(CompileError::from)?;
    let known: Vec<String> = families
        .iter()
        .map(|family| family.descriptor.family.clone())
        .collect();
    let mut families = families.into_iter();
    let found = families.find(|family| family.descriptor.family == name);
    found.ok_or_else(|| {
        let known = known.join(", ");
        Failure::usage(format!(
            "there is no family {name:?}; known are {known}, and a file is named with its .toml"
        ))
    })
}

#[derive(Serialize)]
struct Report<'a> {
    descriptor: &'a str,
    #[serde(serialize_with = "paths::one")]
    checkpoint: &'a Path,
    format: SourceFormat,
    maps: bool,
    #[serde(flatten)]
    survey: Survey,
}

fn check(args: &CheckArgs, ui: &Ui) -> Result<(), Failure> {
    let path = Path::new(&args.descriptor);
    let family = match path.extension().is_some_and(|e| e == "toml") {
        true => read_family(path)?,
        false => named(&args.descriptor)?,
    };
    let checkpoint = open(&args.checkpoint)?;
    let mut survey = survey(&checkpoint, &family)?;
    if let Err(error @ ArchError::OtherFamily { .. }) =
        family.require(&args.descriptor, &checkpoint)
    {
        survey.problems.insert(0, error.to_string());
    }
    let report = Report {
        descriptor: &args.descriptor,
        checkpoint: &args.checkpoint,
        format: checkpoint.format,
        maps: survey.problems.is_empty(),
        survey,
    };
    ui.answer(&report, text)?;
    match report.maps {
        true => Ok(()),
        false => Err(Failure::silent(Exit::No)),
    }
}

fn text(report: &Report<'_>) -> String {
    let survey = &report.survey;
    let mut text = format!("{}\n{}", keys(survey), roles(survey));
    for other in &survey.others {
        text += &format!("{}: {}\n", source(&other.tensors), other.fate);
    }
    for surprise in &survey.surprises {
        text += &format!("surprise: {surprise}\n");
    }
    text += &match survey.problems.len() {
        0 => format!("everything maps: family {}\n", survey.family),
        1 => "one thing is wrong:\n".to_owned(),
        count => format!("{count} things are wrong:\n"),
    };
    for problem in &survey.problems {
        text += &format!("  - {problem}\n");
    }
    text
}

fn keys(survey: &Survey) -> String {
    let mut table = left_table(&["key", "value", "from"]);
    for key in &survey.keys {
        let value = key.value.as_ref().map(ToString::to_string);
        let from = match &key.from {
            None => String::new(),
            Some(Origin::Config(name)) => name.clone(),
            Some(Origin::Default) => "default".to_owned(),
            Some(Origin::RowsOf(role)) => format!("rows of {role}"),
        };
        table.add_row([
            key.key.clone(),
            value.unwrap_or_else(|| "-".to_owned()),
            from,
        ]);
    }
    format!("{table}\n")
}

fn roles(survey: &Survey) -> String {
    let mut table = left_table(&["role", "source tensors", "type", "shape"]);
    for role in &survey.roles {
        let mut name = role.role.as_str();
        for kind in &role.sources {
            let dtype = kind.dtype.to_string();
            table.add_row([
                name.to_owned(),
                source(kind),
                dtype,
                format!("{:?}", kind.shape),
            ]);
            name = "";
        }
        if role.sources.is_empty() {
            let why = match &role.tied_to {
                Some(other) => format!("tied to {other}"),
                None if role.is_needed => "nothing maps to it".to_owned(),
                None => "not needed here".to_owned(),
            };
            table.add_row([name, &why, "", ""]);
        }
    }
    format!("{table}\n")
}

/// A tensor's name, or of several what names all of them, and how many they are.
fn source(kind: &Fitting) -> String {
    match kind.tensor_count {
        1 => kind.name.clone(),
        count => format!("{} × {count}", kind.name),
    }
}
