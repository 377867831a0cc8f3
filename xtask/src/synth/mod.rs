//! Checkpoints of a model's real shape with random weights: sizes, reads and memory are
//! the model's own, and nothing has to be downloaded.

mod random;
mod shapes;
mod write;

use std::path::PathBuf;

use anyhow::{Context, ensure};

/// Arguments of `synth`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Shape to write; the flags below override parts of it.
    #[arg(long, value_parser = shapes::names())]
    shape: String,
    /// Layers.
    #[arg(long)]
    layers: Option<u64>,
    /// Experts of a layer.
    #[arg(long)]
    experts: Option<u64>,
    /// Experts a token is routed to.
    #[arg(long)]
    top_k: Option<u64>,
    /// Width of the residual stream.
    #[arg(long)]
    hidden: Option<u64>,
    /// Feed-forward width of an expert.
    #[arg(long)]
    ff: Option<u64>,
    /// Attention heads.
    #[arg(long)]
    heads: Option<u64>,
    /// Tokens in the vocabulary.
    #[arg(long)]
    vocab: Option<u64>,
    /// Element type of every tensor.
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: Dtype,
    /// Leave the weights a hole in the file: real headers and sizes, all zeros, no blocks.
    #[arg(long)]
    sparse: bool,
    /// The same seed and shape give the same weights, however they are sharded.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Start another file before one would hold more bytes of weights; by default there is one.
    #[arg(long, value_name = "BYTES")]
    max_shard_size: Option<u64>,
    /// Directory to write; it must not exist or be empty.
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

/// Element type of a synthetic checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

/// Writes the checkpoint and says how large it is.
#[expect(clippy::print_stderr, reason = "a chore says what it did")]
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (parameters, bytes) = synthesise(args)?;
    eprintln!(
        "{}: {parameters} parameters, {bytes} bytes of weights{}",
        args.out.display(),
        if args.sparse { ", a hole" } else { "" }
    );
    Ok(())
}

/// Writes the checkpoint; parameters and bytes of weights.
fn synthesise(args: &Args) -> anyhow::Result<(u64, u64)> {
    let model = shapes::model(args)?;
    if args.out.exists() {
        let mut entries = std::fs::read_dir(&args.out)
            .with_context(|| format!("{:?} is not a directory", args.out))?;
        ensure!(
            entries.next().is_none(),
            "{:?} is not empty; name another directory",
            args.out
        );
    }
    write::checkpoint(&model, args)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use clap::Parser;
    use safetensors::SafeTensors;
    use safetensors::tensor::Metadata;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Runs `synth` with `flags` into a fresh folder of `dir`.
    fn synth(dir: &Path, name: &str, flags: &str) -> PathBuf {
        let out = dir.join(name);
        let words = ["synth", "-o", out.to_str().unwrap()];
        let line = Line::parse_from(words.into_iter().chain(flags.split_whitespace()));
        synthesise(&line.args).unwrap();
        out
    }

    /// Every tensor of every weight file: its bytes by name.
    fn weights(dir: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with("model") && name.ends_with(".safetensors") {
                let bytes = fs::read(entry.path()).unwrap();
                for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                    assert!(all.insert(name, tensor.data().to_vec()).is_none());
                }
            }
        }
        all
    }

    #[test]
    fn the_tiny_checkpoint_has_the_tensors_of_the_fixture() {
        let dir = tempfile::tempdir().unwrap();
        let flags = "--shape olmoe-tiny --layers 3 --experts 16 --top-k 4 --vocab 544";
        let tiny = synth(dir.path(), "tiny", flags);
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/olmoe");
        let sizes = |dir: &Path| -> BTreeMap<String, usize> {
            let sizes = weights(dir).into_iter();
            sizes.map(|(name, bytes)| (name, bytes.len())).collect()
        };
        assert!(sizes(&tiny) == sizes(&fixture), "names or sizes differ");
    }

    #[test]
    fn weights_depend_on_the_seed_and_not_on_the_shards() {
        let dir = tempfile::tempdir().unwrap();
        let one = synth(dir.path(), "one", "--shape olmoe-tiny --seed 7");
        let many = synth(
            dir.path(),
            "many",
            "--shape olmoe-tiny --seed 7 --max-shard-size 100000",
        );
        let other = synth(dir.path(), "other", "--shape olmoe-tiny --seed 8");
        assert!(weights(&one) == weights(&many));
        assert!(weights(&one) != weights(&other));

        let index = fs::read(many.join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let map = index["weight_map"].as_object().unwrap();
        assert_eq!(map.len(), weights(&many).len());
        for (name, file) in map {
            let bytes = fs::read(many.join(file.as_str().unwrap())).unwrap();
            assert!(
                SafeTensors::deserialize(&bytes)
                    .unwrap()
                    .tensor(name)
                    .is_ok()
            );
        }
    }

    #[test]
    fn a_sparse_checkpoint_has_the_real_size_and_no_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let real = synth(dir.path(), "real", "--shape olmoe-tiny");
        let sparse = synth(dir.path(), "sparse", "--shape olmoe-tiny --sparse");
        let [real, sparse] =
            [real, sparse].map(|d| fs::metadata(d.join("model.safetensors")).unwrap());
        assert_eq!(real.len(), sparse.len());
        assert!(
            sparse.blocks() * 512 < real.len() / 4,
            "{}",
            sparse.blocks()
        );
    }

    /// Parameters as the hub counts them.
    #[test]
    fn real_shapes_are_those_of_the_published_models() {
        for (shape, parameters, tensors) in [
            (
                "deepseek2",
                15_706_484_224,
                3 + 27 * 7 + 3 + 26 * (4 + 3 * 64),
            ),
            (
                "lfm2moe",
                8_467_856_832,
                2 + 24 * 2 + 18 * 3 + 6 * 6 + 2 * 3 + 22 * (2 + 3 * 32),
            ),
            ("mixtral", 46_702_792_704, 3 + 32 * (7 + 3 * 8)),
            ("olmoe", 6_919_161_856, 3 + 16 * (9 + 3 * 64)),
            ("qwen3moe", 30_532_122_624, 3 + 48 * (9 + 3 * 128)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let out = synth(dir.path(), shape, &format!("--shape {shape} --sparse"));
            let path = out.join("model.safetensors");
            let mut file = fs::File::open(&path).unwrap();
            let mut count = [0; 8];
            file.read_exact(&mut count).unwrap();
            let mut header = vec![0; usize::try_from(u64::from_le_bytes(count)).unwrap()];
            file.read_exact(&mut header).unwrap();
            let metadata: Metadata = serde_json::from_slice(&header).unwrap();
            assert_eq!(metadata.data_len(), 2 * parameters, "{shape}");
            assert_eq!(
                fs::metadata(&path).unwrap().len(),
                8 + header.len() as u64 + metadata.data_len() as u64
            );
            assert_eq!(metadata.tensors().len(), tensors, "{shape}");
        }
    }

    #[test]
    fn a_shape_that_cannot_be_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        for flags in [
            "--experts 4",
            "--hidden 100",
            "--layers 0",
            "--ff 9223372036854775807",
        ] {
            let words = ["synth", "--shape", "olmoe", "-o", out.to_str().unwrap()];
            let line = Line::parse_from(words.into_iter().chain(flags.split_whitespace()));
            assert!(synthesise(&line.args).is_err(), "{flags}");
            assert!(!out.exists());
        }
    }
}
