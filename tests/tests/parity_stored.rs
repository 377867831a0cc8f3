//! A reference of `estream parity` in a file: as good as its model, small, and not trusted.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use estream_tests::{Checkpoint, ParityDesk, SHORT, compile, fixture, number, with};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// A tensor's type, shape and bytes.
type Parts = (Dtype, Vec<usize>, Vec<u8>);

/// A safetensors file taken apart.
#[derive(Clone)]
struct Stored {
    metadata: HashMap<String, String>,
    tensors: BTreeMap<String, Parts>,
}

impl Stored {
    fn read(path: &Path) -> Stored {
        let bytes = fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let parts = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name, parts)
        });
        Stored {
            metadata: header.metadata().clone().unwrap(),
            tensors: tensors.collect(),
        }
    }

    fn write(&self, path: &Path) {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            let view = TensorView::new(*dtype, shape.clone(), bytes);
            (name.as_str(), view.unwrap())
        });
        let bytes = safetensors::serialize(views, Some(self.metadata.clone())).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn bytes(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.tensors.get_mut(name).unwrap().2
    }

    fn experts(&self, layer: usize) -> Vec<Vec<u16>> {
        let (_, shape, bytes) = &self.tensors[&format!("experts.{layer}")];
        let (pairs, _) = bytes.as_chunks::<2>();
        let all: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        all.chunks_exact(shape[1]).map(<[u16]>::to_vec).collect()
    }

    fn margins(&self, layer: usize) -> Vec<f32> {
        let (words, _) = self.tensors[&format!("margins.{layer}")].2.as_chunks::<4>();
        words.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }
}

#[test]
fn a_stored_reference_says_what_its_model_did_within_its_bins() {
    let desk = ParityDesk::new(&["q4_0"]);
    let store = with(&SHORT, &["--save-reference", "ref.safetensors"]);
    let direct = desk.parity("q4_0", &fixture("olmoe"), &store);
    let direct = direct.success().json();
    let stored = desk.parity("q4_0", &desk.at("ref.safetensors"), &[]);
    let bytes = stored.stdout.clone();
    let stored = stored.success().json();
    assert_eq!(stored["reference"]["kind"], "logits");
    assert_eq!(
        stored["reference"]["identity"],
        direct["reference"]["identity"]
    );
    for same in [
        "text",
        "perplexity",
        "experts",
        "same_top_pct",
        "common_top5_pct",
    ] {
        assert_eq!(stored[same], direct[same], "{same}");
    }
    // 65 bins can hide some of what 544 show, and add nothing.
    assert_eq!(stored["kl"]["exact"], false);
    assert_eq!(number(&stored, "/kl/bins"), 65.0);
    let (bins, all) = (number(&stored, "/kl/mean"), number(&direct, "/kl/mean"));
    assert!(bins < all && bins > 0.8 * all, "{bins} of {all}");

    // As many bins as tokens hide nothing.
    let store = with(
        &SHORT,
        &["--top", "544", "--save-reference", "all.safetensors"],
    );
    desk.parity("q4_0", &fixture("olmoe"), &store).success();
    let whole = desk.parity("q4_0", &desk.at("all.safetensors"), &[]);
    let whole = whole.success().json();
    assert_eq!(whole["kl"]["exact"], true);
    assert!((number(&whole, "/kl/mean") - all).abs() < 1e-12);

    // The same input is the same bytes, also when a stored reference is stored again.
    let again = ["--save-reference", "again.safetensors"];
    let again = desk.parity("q4_0", &desk.at("ref.safetensors"), &again);
    assert!(again.success().stdout == bytes);
    let read = |name: &str| fs::read(desk.at(name)).unwrap();
    assert!(read("again.safetensors") == read("ref.safetensors"));
}

#[test]
fn a_stored_reference_that_is_not_sound_is_refused_by_name() {
    let desk = ParityDesk::new(&["q4_0"]);
    let short = [
        "--window=20",
        "--max-tokens=50",
        "--save-reference=ref.safetensors",
    ];
    desk.parity("q4_0", &fixture("olmoe"), &short).success();
    let path = desk.at("ref.safetensors");
    let sound = Stored::read(&path);
    // What other programs write is read too, whatever the order of its tensors.
    sound.write(&desk.at("other.safetensors"));
    desk.parity("q4_0", &desk.at("other.safetensors"), &[])
        .success();

    type Change = fn(&mut Stored);
    let cases: &[(&str, Change)] = &[
        ("tokens: an id", |s| {
            s.bytes("tokens")[0..4].copy_from_slice(&544i32.to_le_bytes());
        }),
        ("tokens: an id", |s| {
            s.bytes("tokens")[0..4].copy_from_slice(&(-1i32).to_le_bytes());
        }),
        ("stated digest", |s| s.bytes("tokens")[0] ^= 1),
        ("top_ids: an id", |s| s.bytes("top_ids")[3] = 0x7f),
        ("position 0", |s| {
            let ids = s.bytes("top_ids");
            ids.copy_within(0..4, 4);
        }),
        ("top_logits: a value", |s| {
            s.bytes("top_logits")[0..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }),
        ("position 1", |s| {
            let logits = s.bytes("top_logits");
            logits[256..260].copy_from_slice(&1e6f32.to_le_bytes());
        }),
        ("log_norms: a value", |s| {
            s.bytes("log_norms")[0..8].copy_from_slice(&f64::NAN.to_le_bytes());
        }),
        ("position 0", |s| {
            s.bytes("log_norms")[0..8].copy_from_slice(&1e300f64.to_le_bytes());
        }),
        ("log_tails: a value", |s| {
            s.bytes("log_tails")[0..8].copy_from_slice(&f64::INFINITY.to_le_bytes());
        }),
        ("position 0", |s| {
            s.bytes("log_tails")[0..8].copy_from_slice(&f64::NEG_INFINITY.to_le_bytes());
        }),
        ("position 0", |s| {
            s.bytes("next_logits")[0..4].copy_from_slice(&1e9f32.to_le_bytes());
        }),
        ("experts.0: an expert that is not below 16", |s| {
            s.bytes("experts.0")[0] = 16;
        }),
        ("experts.1: an expert twice", |s| {
            s.bytes("experts.1").copy_within(0..2, 2);
        }),
        ("margins.2: a negative", |s| {
            s.bytes("margins.2")[0..4].copy_from_slice(&(-1f32).to_le_bytes());
        }),
        ("experts.2: absent", |s| {
            s.tensors.remove("experts.2");
        }),
        ("top_ids: absent", |s| {
            s.tensors.remove("top_ids");
        }),
        ("extra: unknown", |s| {
            s.tensors
                .insert("extra".into(), (Dtype::U8, vec![1], vec![0]));
        }),
        ("log_tails: F32", |s| {
            let (dtype, _, bytes) = s.tensors.get_mut("log_tails").unwrap();
            *dtype = Dtype::F32;
            bytes.truncate(200);
        }),
        ("next_logits: F32 [25, 2]", |s| {
            s.tensors.get_mut("next_logits").unwrap().1 = vec![25, 2];
        }),
        ("tokens: absent, or without", |s| {
            let (_, shape, bytes) = s.tensors.get_mut("tokens").unwrap();
            *shape = vec![0];
            bytes.clear();
        }),
        ("window: \"1\"", |s| {
            s.metadata.insert("window".into(), "1".into());
        }),
        ("window: \"+20\"", |s| {
            s.metadata.insert("window".into(), "+20".into());
        }),
        ("version", |s| {
            s.metadata.insert("version".into(), "2".into());
        }),
        ("identity", |s| {
            s.metadata.insert("identity".into(), "x".into());
        }),
        ("model", |s| {
            s.metadata.insert("model".into(), "[".into());
        }),
        ("metadata", |s| {
            s.metadata.remove("tokens");
        }),
    ];
    let mut wrong = Vec::new();
    let mut check = |path: &Path, part: &str| {
        let done = desk.parity("q4_0", path, &[]);
        let named = done.stderr.contains("bad.safetensors") && done.stderr.contains(part);
        if done.code != 4 || !named {
            wrong.push(format!("{part}: {} {}", done.code, done.stderr));
        }
    };
    let bad = desk.at("bad.safetensors");
    for (part, change) in cases {
        let mut stored = sound.clone();
        change(&mut stored);
        stored.write(&bad);
        check(&bad, part);
    }
    // Cut short: in the data, in the header, in its length.
    let bytes = fs::read(&path).unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2, 3000, 300, 7, 0] {
        fs::write(&bad, &bytes[..length]).unwrap();
        check(&bad, "");
    }
    let longer = [bytes.as_slice(), b"more"].concat();
    fs::write(&bad, longer).unwrap();
    check(&bad, "");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn c91_of_experts_that_tie_the_lower_is_chosen_in_both() {
    let desk = ParityDesk::new(&[]);
    // Experts 3n, 3n + 1 and 3n + 2 get one score, so that ties stand at every place.
    let mut tied = Checkpoint::read(&fixture("olmoe"));
    for layer in 0..3 {
        let name = format!("model.layers.{layer}.mlp.gate.weight");
        let router = tied.tensors.get_mut(&name).unwrap();
        let row = router.bytes.len() / 16;
        for expert in 0..16 {
            let first = expert / 3 * 3;
            router
                .bytes
                .copy_within(first * row..(first + 1) * row, expert * row);
        }
    }
    tied.write(&desk.at("tied"));
    compile(&desk.at("tied"), &desk.at("keep"), &["--recipe", "keep"]);
    compile(&desk.at("tied"), &desk.at("q4_0"), &["--recipe", "q4_0"]);
    let ids: Vec<String> = (0..300).map(|n| (n * 37 % 500 + 20).to_string()).collect();
    fs::write(desk.at("ids"), ids.join(" ")).unwrap();
    for bundle in ["keep", "q4_0"] {
        let store = [
            "--ids-file",
            "ids",
            "--save-reference",
            &format!("{bundle}.ref"),
        ];
        let done = desk.parity(bundle, &desk.at(bundle), &store);
        assert_eq!(
            number(&done.success().json(), "/experts/same_rows_pct"),
            100.0
        );
        let stored = Stored::read(&desk.at(&format!("{bundle}.ref")));
        let mut at_the_edge = 0;
        for layer in 0..3 {
            let margins = stored.margins(layer);
            for (chosen, margin) in stored.experts(layer).iter().zip(margins) {
                for (place, expert) in chosen.iter().enumerate() {
                    let first_of_three = expert % 3 == 0;
                    let before = place.checked_sub(1).map(|place| chosen[place]);
                    assert!(first_of_three || before == Some(expert - 1), "{chosen:?}");
                }
                let last = chosen.last().unwrap();
                let cut = last % 3 != 2 && *last != 15;
                assert_eq!(margin == 0.0, cut, "{chosen:?} by {margin}");
                at_the_edge += usize::from(cut);
            }
        }
        // Four of threes: the fourth ties with its neighbour wherever 15 has no place.
        assert!(at_the_edge > 400, "{at_the_edge}");
    }
    let done = desk.parity("keep", &desk.at("tied"), &["--ids-file", "ids"]);
    let report = done.success().json();
    assert_eq!(number(&report, "/experts/same_rows_pct"), 100.0);
    assert_eq!(number(&report, "/kl/max"), 0.0);
}

#[test]
fn c92_a_stored_reference_is_a_small_part_of_the_logits() {
    let desk = ParityDesk::new(&["keep"]);
    let store = ["--save-reference", "ref.safetensors"];
    let report = desk
        .parity("keep", &fixture("olmoe"), &store)
        .success()
        .json();
    let bytes = fs::metadata(desk.at("ref.safetensors")).unwrap().len();
    let positions = report["text"]["positions"].as_u64().unwrap();
    // 64 ids and logits, five numbers beside them, and 4 experts and a margin of 3 layers.
    let row = 64 * 8 + 4 + 8 + 8 + 4 + 3 * (4 * 2 + 4);
    let header = bytes - positions * row;
    assert!(header < 4096, "{header} bytes of header");
    assert!(bytes < 2 << 20, "{bytes}");
}
