//! `estream unpack`: a bundle as a GGUF file.

use std::path::PathBuf;

use estream_packer::unpack;
use estream_runtime::reader::BundleReader;
use serde::Serialize;

use crate::failure::Failure;
use crate::paths;
use crate::ui::Ui;

/// Write a bundle as a GGUF file, block for block
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The bundle
    bundle: PathBuf,
    /// The GGUF file to write
    #[arg(long, value_name = "FILE")]
    gguf: PathBuf,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(serialize_with = "paths::one")]
    gguf: &'a PathBuf,
    tensor_count: usize,
    dropped_count: usize,
    no_vocabulary: Option<String>,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<(), Failure> {
    let reader = BundleReader::open(&args.bundle)?;
    let done = ui.until_signal("unpacking", |progress| {
        unpack(&reader, &args.gguf, progress)
    })??;
    let report = Report {
        gguf: &args.gguf,
        tensor_count: done.tensor_count,
        dropped_count: done.dropped_count,
        no_vocabulary: done.no_vocabulary,
    };
    if report.dropped_count > 0 {
        ui.note(format!(
            "{} tensors of the source are not in the bundle, because nobody needs them",
            report.dropped_count
        ));
    }
    if let Some(why) = &report.no_vocabulary {
        ui.note(format!(
            "the file has no vocabulary (tokenizer.ggml.model is no_vocab), so llama.cpp takes token ids from it and no text: {why}"
        ));
    }
    ui.answer(&report, |report| {
        format!(
            "{}: {} tensors\n",
            report.gguf.display(),
            report.tensor_count
        )
    })
}
