//! The key-value pairs of a file whose source had none: those that llama.cpp's converter writes.

use estream_compiler::arch::{Family, Keys, PairValue};
use estream_compiler::ingest::Config;
use estream_compiler::ingest::gguf::{GgufBuilder, Value, ValueType, WriteFault};
use estream_runtime::reader::BundleReader;
use estream_schemas::dtype::DType;
use estream_schemas::manifest::Manifest;

use super::UnpackError;
use super::plan::Tensor;
use super::tokenizer::{Files, Tokenizer};

/// Version of ggml's block formats.
const QUANTIZATION_VERSION: u32 = 2;

/// The pairs, ready to write.
pub(super) struct Pairs {
    general: Vec<(&'static str, PairValue)>,
    of_architecture: Vec<(String, PairValue)>,
    /// Else why there is no vocabulary.
    pub(super) tokenizer: Result<Tokenizer, String>,
}

impl Pairs {
    /// The pairs of a file of `tensors`.
    pub(super) fn new(
        reader: &BundleReader,
        family: &Family,
        config: &Config,
        keys: &Keys,
        tensors: &[Tensor<'_>],
    ) -> Result<Pairs, UnpackError> {
        let manifest = reader.bundle().manifest();
        let layers = manifest.program.layers.len() as u64;
        let said = family.gguf_pairs(keys, layers);
        let said = said.map_err(|problems| UnpackError::Unsayable {
            path: reader.path().to_owned(),
            problems,
        })?;
        let (form, architecture) = (said.form, said.architecture);
        let mut of_architecture = said.pairs;
        let vocab = manifest.program.vocab;
        let tokenizer = match &form.pre {
            Some(pre) => Tokenizer::new(&Files::read(reader)?, form.tokenizer, pre, config, vocab),
            None => Err("the descriptor has no word for how it takes text apart".into()),
        };
        // Where there are no tokens to count, llama.cpp asks for their number.
        let name = format!("{architecture}.vocab_size");
        if tokenizer.is_err() && of_architecture.iter().all(|(other, _)| *other != name) {
            let vocab = u32::try_from(vocab).ok();
            of_architecture.extend(vocab.map(|vocab| (name, PairValue::U32(vocab))));
        }
        Ok(Pairs {
            general: general(manifest, architecture, tensors),
            of_architecture,
            tokenizer,
        })
    }

    /// Adds them to `builder`.
    pub(super) fn write(&self, builder: &mut GgufBuilder) -> Result<(), WriteFault> {
        let general = self.general.iter().map(|(name, value)| (*name, value));
        let own = self.of_architecture.iter();
        for (name, value) in general.chain(own.map(|(name, value)| (name.as_str(), value))) {
            match value {
                PairValue::U32(value) => builder.pair(name, Value::U32(*value))?,
                PairValue::F32(value) => builder.pair(name, Value::F32(*value))?,
                PairValue::Bool(value) => builder.pair(name, Value::Bool(*value))?,
                PairValue::Text(text) => builder.pair(name, Value::String(text.as_bytes()))?,
                PairValue::I32List(list) => {
                    let values = list.iter().copied().map(Value::I32);
                    builder.array(name, ValueType::I32, values)?;
                }
            }
        }
        match &self.tokenizer {
            Ok(tokenizer) => tokenizer.write(builder),
            Err(_) => builder.pair("tokenizer.ggml.model", Value::String(b"no_vocab")),
        }
    }
}

fn general(
    manifest: &Manifest,
    architecture: &str,
    tensors: &[Tensor<'_>],
) -> Vec<(&'static str, PairValue)> {
    let text = |text: &str| PairValue::Text(text.to_owned());
    let license = manifest.license.declared.as_deref();
    let license = license.map(|license| ("general.license", text(license)));
    let mut pairs = vec![
        ("general.architecture", text(architecture)),
        ("general.type", text("model")),
        ("general.name", text(&manifest.model.family)),
    ];
    pairs.extend(license);
    pairs.extend([
        ("general.file_type", PairValue::U32(file_type(tensors))),
        (
            "general.quantization_version",
            PairValue::U32(QUANTIZATION_VERSION),
        ),
    ]);
    pairs
}

/// llama.cpp's number for a file of mostly the type that most elements have.
fn file_type(tensors: &[Tensor<'_>]) -> u32 {
    /// What a file is called that has none of these.
    const GUESSED: u32 = 1024;
    const TYPES: [(DType, u32); 15] = [
        (DType::F32, 0),
        (DType::F16, 1),
        (DType::Q4_0, 2),
        (DType::Q4_1, 3),
        (DType::Q8_0, 7),
        (DType::Q5_0, 8),
        (DType::Q5_1, 9),
        (DType::Q2_K, 10),
        (DType::Q3_K, 12),
        (DType::Q4_K, 15),
        (DType::Q5_K, 17),
        (DType::Q6_K, 18),
        (DType::IQ4_NL, 25),
        (DType::BF16, 32),
        (DType::MXFP4, 38),
    ];
    let elements = |dtype: DType| -> u64 {
        let same = tensors.iter().filter(|tensor| tensor.dtype == dtype);
        same.map(|tensor| tensor.shape.iter().product::<u64>())
            .sum()
    };
    let most = TYPES.iter().max_by_key(|(dtype, _)| elements(*dtype));
    match most.filter(|(dtype, _)| elements(*dtype) > 0) {
        Some((_, number)) => *number,
        None => GUESSED,
    }
}
