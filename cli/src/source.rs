//! The options that decide what is built from a checkpoint.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use estream_compiler::arch::{Family, MAX_DESCRIPTOR_BYTES};
use estream_compiler::compile::{CompileError, Compiled, Options};
use estream_compiler::ingest::Checkpoint;
use estream_compiler::recipe::MAX_RECIPE_BYTES;
use estream_runtime::parse_size;
use estream_schemas::layout::NibbleOrder;

use crate::failure::Failure;

/// Order of nibbles in 4-bit tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LayoutArg {
    /// One table look-up decodes into the matrix unit's order
    Direct,
    /// Neighbours in k share a byte
    Pair,
}

impl LayoutArg {
    pub(crate) fn order(self) -> NibbleOrder {
        match self {
            LayoutArg::Direct => NibbleOrder::Direct,
            LayoutArg::Pair => NibbleOrder::Pair,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is built")]
pub(crate) struct BuildArgs {
    /// The descriptor of the source's family, for one that estream does not come with
    #[arg(long, value_name = "FILE")]
    pub(crate) arch: Option<PathBuf>,
    /// auto, q4_0, keep, paper, or a recipe file (.toml)
    #[arg(long, default_value = "auto", value_name = "RECIPE")]
    pub(crate) recipe: String,
    /// Order of nibbles in 4-bit tiles
    #[arg(long, default_value = "direct", value_name = "LAYOUT")]
    pub(crate) layout: LayoutArg,
    /// Records an expert is cut into along its feed-forward width
    #[arg(long, default_value_t = 1, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) shards: u64,
    /// Split the experts into files of at most this size (as 2GiB or 500MB), between layers
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_part_size: Option<u64>,
    /// Pad rows with zeros where their length is not a multiple of 32
    #[arg(long)]
    pub(crate) pad_k: bool,
    /// Quantise weights again that the source has quantised, accepting the loss
    #[arg(long)]
    pub(crate) requantize: bool,
    /// Refuse a source with anything surprising in it
    #[arg(long)]
    pub(crate) strict: bool,
}

impl BuildArgs {
    /// Plans what these options make of `checkpoint`.
    pub(crate) fn plan<'a>(&self, checkpoint: &'a Checkpoint) -> Result<Compiled<'a>, Failure> {
        let family = match &self.arch {
            None => Family::of(checkpoint).map_err(CompileError::from)?,
            Some(file) => {
                let family = read_family(file)?;
                let name = file.display().to_string();
                let fits = family.require(&name, checkpoint);
                fits.map_err(CompileError::from)?;
                family
            }
        };
        Ok(Compiled::plan(checkpoint, &family, &self.options()?)?)
    }

    fn options(&self) -> Result<Options, Failure> {
        let is_file = Path::new(&self.recipe)
            .extension()
            .is_some_and(|e| e == "toml");
        let recipe_text = match is_file {
            false => None,
            true => {
                let path = Path::new(&self.recipe);
                Some(read_text("recipe", path, MAX_RECIPE_BYTES)?)
            }
        };
        Ok(Options {
            recipe: self.recipe.clone(),
            recipe_text,
            order: self.layout.order(),
            shards: self.shards,
            pad_k: self.pad_k,
            requantize: self.requantize,
            strict: self.strict,
        })
    }
}

/// The family that the descriptor in `file` describes.
pub(crate) fn read_family(file: &Path) -> Result<Family, Failure> {
    let text = read_text("descriptor", file, MAX_DESCRIPTOR_BYTES)?;
    let family = Family::parse(&file.display().to_string(), &text);
    Ok(family.map_err(CompileError::from)?)
}

/// The text of a file that the user named as a `what`, read no further than any goes.
fn read_text(what: &str, path: &Path, max_bytes: usize) -> Result<String, Failure> {
    let read = || -> io::Result<String> {
        // Opening a pipe would wait for a writer, so the kind comes first.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        // One byte more shows whoever parses it that it is too long.
        io::read_to_string(File::open(path)?.take(max_bytes as u64 + 1))
    };
    read().map_err(|error| {
        Failure::usage(format!(
            "{what} {}: cannot be read: {error}",
            path.display()
        ))
    })
}

/// Opens a checkpoint and prints its notices.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, Failure> {
    Ok(Checkpoint::open(path)?)
}

/// Every file of `checkpoint`, none of which may be an output.
pub(crate) fn inputs(checkpoint: &Checkpoint) -> Vec<PathBuf> {
    let files = checkpoint.files.iter().map(|file| file.path.clone());
    files.chain([checkpoint.path.clone()]).collect()
}
