//! Reference numbers from safetensors files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

/// The f32 and i32 tensors of a file, by name.
#[derive(Debug)]
pub struct Tensors {
    floats: BTreeMap<String, Vec<f32>>,
    integers: BTreeMap<String, Vec<i32>>,
}

impl Tensors {
    /// Reads all of them.
    ///
    /// # Panics
    ///
    /// If `path` is not a safetensors file.
    pub fn read(path: &Path) -> Tensors {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let mut all = Tensors {
            floats: BTreeMap::new(),
            integers: BTreeMap::new(),
        };
        for (name, tensor) in file.tensors() {
            let (words, _) = tensor.data().as_chunks::<4>();
            match tensor.dtype() {
                Dtype::F32 => {
                    let values = words.iter().map(|word| f32::from_le_bytes(*word));
                    all.floats.insert(name, values.collect());
                }
                Dtype::I32 => {
                    let values = words.iter().map(|word| i32::from_le_bytes(*word));
                    all.integers.insert(name, values.collect());
                }
                other => panic!("{path:?}: {name} is {other:?}"),
            }
        }
        all
    }

    /// The elements of an f32 tensor, if the file has it.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.floats.get(name).map(Vec::as_slice)
    }

    /// The elements of an f32 tensor.
    ///
    /// # Panics
    ///
    /// If the file has none of that name.
    #[track_caller]
    pub fn floats(&self, name: &str) -> &[f32] {
        self.get(name).unwrap_or_else(|| panic!("no f32 {name}"))
    }

    /// The elements of an i32 tensor that holds no negative number.
    ///
    /// # Panics
    ///
    /// If the file has none of that name.
    #[track_caller]
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let values = self.integers.get(name);
        let values = values.unwrap_or_else(|| panic!("no i32 {name}")).iter();
        values.map(|value| value.cast_unsigned()).collect()
    }
}

/// A prompt of a reference.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// What the reference calls it, as `t33`.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// The prompts of a reference, which are its tensors `NAME.tokens`; shortest first.
pub fn prompts(golden: &Tensors) -> Vec<Prompt> {
    let names = golden.integers.keys();
    let names = names.filter_map(|name| name.strip_suffix(".tokens"));
    let mut prompts: Vec<Prompt> = names
        .map(|name| Prompt {
            name: name.to_owned(),
            ids: golden.ids(&format!("{name}.tokens")),
        })
        .collect();
    prompts.sort_by_key(|prompt| prompt.ids.len());
    prompts
}

/// Ids as the programs read them.
pub fn id_list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

/// The largest difference of two elements; infinite where one is not a number, so that
/// it passes no bound.
///
/// # Panics
///
/// If there are not as many of one as of the other, or none.
#[track_caller]
pub fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "elements");
    assert!(!a.is_empty(), "nothing to compare");
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |max, difference| match difference.is_nan() {
        true => f32::INFINITY,
        false => difference.max(max),
    })
}
