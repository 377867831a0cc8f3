//! How far a bundle's logits are from those of a reference implementation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use safetensors::{Dtype, SafeTensors};

/// Arguments of `golden`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bundle to run.
    bundle: PathBuf,
    /// Reference: tensors `NAME.tokens` (i32) and `NAME.logits` (f32) of each prompt.
    golden: PathBuf,
    /// Largest difference of a logit that passes.
    #[arg(long, default_value_t = 2e-3)]
    max: f32,
    /// The estream binary; by default the one built beside this one.
    #[arg(long, value_name = "FILE")]
    estream: Option<PathBuf>,
}

/// Logits of one prompt, a row a position.
struct Logits {
    shape: [usize; 2],
    values: Vec<f32>,
}

/// What two sets of logits have in common.
#[derive(Debug, PartialEq)]
struct Agreement {
    max_diff: f32,
    /// Positions at which both name the same likeliest token.
    top1: usize,
}

/// The elements of tensor `name`, four bytes each, with its shape.
fn words(
    file: &SafeTensors<'_>,
    name: &str,
    dtype: Dtype,
) -> anyhow::Result<(Vec<usize>, Vec<[u8; 4]>)> {
    let tensor = file.tensor(name)?;
    ensure!(
        tensor.dtype() == dtype,
        "tensor {name} is {:?}, expected {dtype:?}",
        tensor.dtype()
    );
    let (words, _) = tensor.data().as_chunks::<4>();
    Ok((tensor.shape().to_vec(), words.to_vec()))
}

fn logits(file: &SafeTensors<'_>, name: &str) -> anyhow::Result<Logits> {
    let (shape, words) = words(file, name, Dtype::F32)?;
    let Ok(shape) = <[usize; 2]>::try_from(shape) else {
        bail!("tensor {name} is not [positions, vocab]");
    };
    let values = words.into_iter().map(f32::from_le_bytes).collect();
    Ok(Logits { shape, values })
}

/// The prompts of a golden file, shortest first: name and token ids.
fn prompts(file: &SafeTensors<'_>) -> anyhow::Result<Vec<(String, Vec<i32>)>> {
    let mut prompts = Vec::new();
    for name in file.names() {
        if let Some(prompt) = name.strip_suffix(".tokens") {
            let (_, words) = words(file, name, Dtype::I32)?;
            let ids = words.into_iter().map(i32::from_le_bytes).collect();
            prompts.push((prompt.to_owned(), ids));
        }
    }
    prompts.sort_by(|a: &(String, Vec<i32>), b| (a.1.len(), &a.0).cmp(&(b.1.len(), &b.0)));
    Ok(prompts)
}

/// Index of the largest element, the first of equals.
fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    best
}

/// Compares two sets of logits of the same shape. A difference that is not a number
/// counts as infinite, so that it cannot pass.
fn compare(expected: &Logits, got: &Logits) -> Agreement {
    let differences = expected.values.iter().zip(&got.values).map(|(a, b)| a - b);
    let max_diff = differences
        .map(|d| if d.is_nan() { f32::INFINITY } else { d.abs() })
        .fold(0.0, f32::max);
    let rows = |logits: &Logits| -> Vec<usize> {
        let vocab = logits.shape[1].max(1);
        logits.values.chunks(vocab).map(argmax).collect()
    };
    let top1 = rows(expected)
        .iter()
        .zip(rows(got))
        .filter(|(a, b)| **a == *b)
        .count();
    Agreement { max_diff, top1 }
}

/// Runs the bundle on one prompt; `scratch` is a folder to write in.
fn run_bundle(
    estream: &Path,
    bundle: &Path,
    scratch: &Path,
    ids: &[i32],
) -> anyhow::Result<Logits> {
    let (ids_file, out) = (scratch.join("ids.txt"), scratch.join("logits.safetensors"));
    let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
    fs::write(&ids_file, text)?;
    if out.exists() {
        fs::remove_file(&out)?;
    }
    let status = Command::new(estream)
        .arg("run")
        .arg(bundle)
        .arg("--ids-file")
        .arg(&ids_file)
        .args(["--quiet", "--all-positions", "--logits"])
        .arg(&out)
        // What it says on stdout is not part of the table.
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("cannot start {estream:?}; build it or pass --estream"))?;
    ensure!(status.success(), "{estream:?} run failed: {status}");
    let bytes = fs::read(&out).with_context(|| format!("{estream:?} run wrote no {out:?}"))?;
    logits(&SafeTensors::deserialize(&bytes)?, "logits")
}

/// Runs every prompt, prints a table, and fails if a logit is further off than allowed.
#[expect(clippy::print_stdout, reason = "the table is the chore's output")]
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let bytes = fs::read(&args.golden).with_context(|| format!("cannot read {:?}", args.golden))?;
    let golden = SafeTensors::deserialize(&bytes)
        .with_context(|| format!("{:?} is not a safetensors file", args.golden))?;
    let estream = match &args.estream {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("estream"),
    };
    let prompts = prompts(&golden)?;
    ensure!(!prompts.is_empty(), "{:?} holds no prompt", args.golden);

    let scratch = tempfile::tempdir()?;
    println!(
        "{:>8} {:>9} {:>14} {:>9}",
        "prompt", "positions", "max |Δlogit|", "top-1"
    );
    let mut worst = 0f32;
    for (name, ids) in &prompts {
        let expected = logits(&golden, &format!("{name}.logits"))?;
        let got = run_bundle(&estream, &args.bundle, scratch.path(), ids)?;
        ensure!(
            got.shape == expected.shape,
            "{name}: logits are {:?}, expected {:?}",
            got.shape,
            expected.shape
        );
        let agreement = compare(&expected, &got);
        let positions = expected.shape[0];
        println!(
            "{name:>8} {positions:>9} {:>14.3e} {:>8.1}%",
            agreement.max_diff,
            100.0 * agreement.top1 as f64 / positions.max(1) as f64
        );
        worst = worst.max(agreement.max_diff);
    }
    ensure!(
        worst <= args.max,
        "a logit is {worst:e} from the reference, more than {:e}",
        args.max
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> Logits {
        Logits {
            shape: [values.len() / 2, 2],
            values: values.to_vec(),
        }
    }

    #[test]
    fn the_largest_difference_and_every_changed_winner_count() {
        let agreement = compare(&of(&[1.0, 2.0, 3.0, 2.0]), &of(&[1.0, 2.5, 1.0, 2.0]));
        assert_eq!(
            agreement,
            Agreement {
                max_diff: 2.0,
                top1: 1
            }
        );
    }

    #[test]
    fn a_logit_that_is_not_a_number_is_infinitely_far() {
        let agreement = compare(&of(&[1.0, 2.0, 3.0, 2.0]), &of(&[f32::NAN, 2.0, 3.0, 2.0]));
        assert_eq!(agreement.max_diff, f32::INFINITY);
    }

    #[test]
    fn the_fixture_holds_three_prompts_that_agree_with_themselves() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/olmoe/golden.safetensors");
        let bytes = fs::read(path).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let prompts = prompts(&golden).unwrap();
        let lengths: Vec<usize> = prompts.iter().map(|p| p.1.len()).collect();
        assert_eq!(lengths, [5, 33, 130]);
        for (name, ids) in &prompts {
            let own = logits(&golden, &format!("{name}.logits")).unwrap();
            assert_eq!(own.shape[0], ids.len());
            let agreement = compare(&own, &own);
            assert_eq!((agreement.max_diff, agreement.top1), (0.0, ids.len()));
        }
    }
}
