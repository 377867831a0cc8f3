//! A GGUF file from a bundle.
//!
//! A bundle that came from GGUF gives back the tensors of its source: the ledger says which
//! of them held which weights, and the key-value pairs were carried. One that came from
//! elsewhere becomes the file that llama.cpp's converter would have made: the descriptor
//! has GGUF's names for its roles and says what the pairs are.
//!
//! Blocks are moved, whole rows at a time, and never decoded. Only what GGUF wants in f32
//! and the bundle has in half precision is widened, which is exact.

mod error;
mod ledger;
mod pairs;
mod plan;
mod roles;
mod sentencepiece;
mod tokenizer;
mod tokenizer_json;
mod vocabulary;
mod write;

use std::io::{self, BufWriter};
use std::ops::ControlFlow;
use std::path::Path;

use estream_compiler::arch::Family;
use estream_compiler::ingest::gguf::{Gguf, GgufBuilder};
use estream_compiler::ingest::{Config, IngestError};
use estream_runtime::partial::PartialFile;
use estream_runtime::reader::BundleReader;
use estream_schemas::manifest::{Fate, SourceFormat};

pub use error::UnpackError;
use pairs::Pairs;
use write::Job;

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Tensors of the file.
    pub tensor_count: usize,
    /// Tensors of the source that the bundle does not hold, because nobody needs them.
    pub dropped_count: usize,
    /// Why the file has no vocabulary, if it has none.
    pub no_vocabulary: Option<String>,
}

/// Writes the weights of `reader`'s bundle to `out`, a file that must not exist.
pub fn unpack(
    reader: &BundleReader,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Unpacked, UnpackError> {
    let manifest = reader.bundle().manifest();
    let family = Family::parse("descriptor", &manifest.descriptor.text);
    let family = family.map_err(|source| UnpackError::Descriptor {
        path: reader.path().to_owned(),
        source,
    })?;
    let carried = manifest.source.metadata.as_ref();
    let carried = carried.ok_or_else(|| UnpackError::NoMetadata {
        path: reader.path().to_owned(),
    })?;
    reader.check_file(carried)?;
    let metadata = reader.path().join(&carried.file);
    let config = Config::carried(&metadata, manifest.source.format)?;
    let keys = family.keys(&config);
    let keys = keys.map_err(|problems| UnpackError::Keys {
        path: reader.path().to_owned(),
        problems,
    })?;

    let write = |source| UnpackError::Write {
        path: out.to_owned(),
        source,
    };
    let mut builder = GgufBuilder::new();
    let mut no_vocabulary = None;
    let plan = match manifest.source.format {
        SourceFormat::Gguf => {
            let pairs = Gguf::open(&metadata).map_err(IngestError::from)?;
            builder.pairs_of(&pairs).map_err(write)?;
            ledger::tensors(reader, manifest, &family, &keys)?
        }
        SourceFormat::Safetensors => {
            let plan = roles::tensors(reader, manifest, &family, &keys)?;
            let pairs = Pairs::new(reader, &family, &config, &keys, &plan)?;
            pairs.write(&mut builder).map_err(write)?;
            no_vocabulary = pairs.tokenizer.err();
            plan
        }
    };
    for tensor in &plan {
        let added = builder.tensor(&tensor.name, tensor.dtype, &tensor.shape);
        added.map_err(write)?;
    }
    let (partial, file) = PartialFile::beside(out).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => UnpackError::Exists {
            path: out.to_owned(),
        },
        _ => write(error.into()),
    })?;
    // A strip at a time has no digest, so all of the bundle is checked before.
    let checked = reader.verify_all(&mut |_, _| {})?;
    if let Some(problem) = checked.problems.first() {
        return Err(UnpackError::Damaged {
            problem: problem.to_string(),
            exit: checked.exit(),
        });
    }
    let parts = manifest.experts.parts.iter().map(|part| part.bytes);
    let mut job = Job {
        reader,
        out,
        writer: builder.begin(BufWriter::new(file)).map_err(write)?,
        done: 0,
        total: manifest.resident.bytes + parts.sum::<u64>(),
        progress,
    };
    for tensor in &plan {
        job.tensor(tensor)?;
    }
    let file = job.writer.finish().map_err(write)?;
    let file = file
        .into_inner()
        .map_err(|e| write(e.into_error().into()))?;
    file.sync_all().map_err(|e| write(e.into()))?;
    partial.publish().map_err(|e| write(e.into()))?;
    let dropped = |fate: &Fate| matches!(fate, Fate::Dropped(_) | Fate::AliasOf(_));
    Ok(Unpacked {
        tensor_count: plan.len(),
        dropped_count: (manifest.ledger.iter())
            .filter(|entry| dropped(&entry.fate))
            .count(),
        no_vocabulary,
    })
}
