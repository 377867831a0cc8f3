//! A compiled checkpoint as a specification and a payload.

use std::io;

use estream_compiler::compile::{CompileError, Compiled, Experts, Resident};
use estream_schemas::manifest::{Projection, SourceFile};

use crate::{BundleSpec, LayerSpec, LicenseSpec, Payload, Sink, SourceSpec, Stopped, TensorSpec};

/// The bundle that `compiled` becomes: experts in storage order by id, in parts of at
/// most `max_part_bytes`.
pub fn spec(compiled: &Compiled<'_>, max_part_bytes: Option<u64>) -> BundleSpec {
    let checkpoint = compiled.checkpoint;
    let files = checkpoint.files.iter().map(|file| SourceFile {
        name: file.name.clone(),
        bytes: file.bytes,
    });
    BundleSpec {
        model: compiled.model.clone(),
        program: compiled.program.clone(),
        resident: compiled.resident.iter().map(tensor).collect(),
        layers: compiled.experts.iter().map(layer).collect(),
        recipe: compiled.recipe.clone(),
        descriptor: compiled.descriptor.clone(),
        ledger: compiled.ledger.clone(),
        source: SourceSpec {
            format: checkpoint.format,
            files: files.collect(),
            metadata: checkpoint.metadata.clone(),
        },
        tokenizer: checkpoint.tokenizer.clone(),
        license: LicenseSpec {
            declared: checkpoint.license.clone(),
            files: checkpoint.license_files.clone(),
        },
        max_part_bytes,
    }
}

fn tensor(resident: &Resident) -> TensorSpec {
    TensorSpec {
        name: resident.name.clone(),
        layout: resident.layout,
        shape: resident.shape.clone(),
    }
}

fn layer(experts: &Experts) -> LayerSpec {
    let [gate, up, down] = experts.layouts;
    LayerSpec {
        layer: experts.layer,
        experts: experts.experts,
        shards: experts.shards,
        order: (0..experts.experts).collect(),
        hidden: experts.hidden,
        ff: experts.ff * experts.shards,
        gate,
        up,
        down,
    }
}

impl From<Stopped> for CompileError {
    fn from(stopped: Stopped) -> CompileError {
        CompileError::Sink(io::Error::other(stopped))
    }
}

impl Payload for Compiled<'_> {
    type Error = CompileError;

    fn resident(&self, index: usize, sink: &mut Sink<'_, '_>) -> Result<(), CompileError> {
        self.write_resident(index, &mut |bytes| {
            sink.push(bytes).map_err(io::Error::other)
        })
    }

    fn region(
        &self,
        layer: usize,
        expert: u64,
        shard: u64,
        projection: Projection,
        sink: &mut Sink<'_, '_>,
    ) -> Result<(), CompileError> {
        let mut push = |bytes: &[u8]| sink.push(bytes).map_err(io::Error::other);
        self.write_region(layer, expert, shard, projection, &mut push)
    }
}
