//! What is refused, when, and that a model outlives it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use estream_runtime::reader::{BundleReader, ReadError, Verify};
use estream_runtime::{LoadOptions, Model, Place, Positions, Request, RunError, Sink};
use estream_schemas::exit::Exit;
use estream_schemas::program::Op;
use estream_schemas::real::Real;

use crate::rows::{Rows, load};
use crate::toy::{Packing, Toy, VOCAB};

fn try_load(bundle: &Path, verify: Verify) -> Result<Model, RunError> {
    let reader = BundleReader::open(bundle)?;
    let options = LoadOptions {
        verify,
        ..LoadOptions::default()
    };
    Model::load(&reader, &options)
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn a_flipped_byte_is_named_unless_nobody_looks() {
    for (file, named) in [
        ("resident.bin", "tensor \"embed\""),
        ("experts-00001.bin", "record 0 of layer 0 (expert 0)"),
    ] {
        let dir = Toy::new().bundle(&Packing::default());
        flip(&dir.path().join(file), 16);
        for verify in [Verify::Always, Verify::FirstUse] {
            let error = try_load(dir.path(), verify).unwrap_err();
            assert_eq!(error.exit(), Exit::Integrity);
            let message = error.to_string();
            assert!(
                message.contains(file) && message.contains(named),
                "{message}"
            );
        }
        assert!(try_load(dir.path(), Verify::Never).is_ok());
        flip(&dir.path().join(file), 16);
        assert!(try_load(dir.path(), Verify::Always).is_ok());
    }
}

#[test]
fn a_part_that_lost_its_end_is_refused_when_it_is_opened() {
    let dir = Toy::new().bundle(&Packing::default());
    let path = dir.path().join("experts-00001.bin");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(path.metadata().unwrap().len() - 1).unwrap();
    let error = try_load(dir.path(), Verify::Never).unwrap_err();
    assert!(
        matches!(error, RunError::Read(ReadError::Size { .. })),
        "{error}"
    );
    assert_eq!(error.exit(), Exit::Invalid);
}

#[test]
fn a_part_that_loses_its_end_after_it_was_opened_is_an_error() {
    let dir = Toy::new().bundle(&Packing::default());
    let reader = BundleReader::open(dir.path()).unwrap();
    let path = dir.path().join("experts-00001.bin");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(path.metadata().unwrap().len() - 1).unwrap();
    let error = Model::load(&reader, &LoadOptions::default()).unwrap_err();
    assert!(
        matches!(error, RunError::Read(ReadError::Truncated { .. })),
        "{error}"
    );
}

#[test]
fn prompts_and_positions_of_another_model_are_refused() {
    let dir = Toy::new().bundle(&Packing::default());
    let mut model = load(dir.path(), 1);
    let mut refused = |ids: &[u32], positions| {
        let request = Request {
            positions,
            hidden: false,
            ..Request::default()
        };
        let error = model.prefill(ids, &request, &mut Rows::default());
        let error = error.unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        error.to_string()
    };
    let vocab = VOCAB as u32;
    assert!(refused(&[], Positions::Last).contains("empty"));
    let message = refused(&[1, 2, vocab], Positions::Last);
    assert!(message.contains("token 2 of the prompt is 40"), "{message}");
    let message = refused(&[u32::MAX], Positions::Last);
    assert!(message.contains("4294967295"), "{message}");
    let message = refused(&[1; 65], Positions::All);
    assert!(
        message.contains("65 tokens") && message.contains("64 positions"),
        "{message}"
    );
    let message = refused(&[1, 2], Positions::Some(vec![0, 2]));
    assert!(message.contains("no position 2"), "{message}");
}

#[test]
fn a_score_that_is_not_finite_ends_one_request_and_names_its_token() {
    let mut toy = Toy::new();
    let embed = toy.tensors.get_mut("embed").unwrap();
    embed.data[7 * embed.cols] = f32::NAN;
    let dir = toy.bundle(&Packing::default());
    let mut model = load(dir.path(), 2);
    let before = Rows::of(&mut model, &[1, 2, 3], Positions::All).bits();
    let error = model.prefill(&[1, 2, 7, 3], &Request::default(), &mut Rows::default());
    let error = error.unwrap_err();
    let expected = matches!(
        error,
        RunError::RouterNotFinite {
            layer: 0,
            token: 2,
            ..
        }
    );
    assert!(expected, "{error}");
    assert_eq!(error.exit(), Exit::Invalid);
    let after = Rows::of(&mut model, &[1, 2, 3], Positions::All).bits();
    assert_eq!(after, before);
}

#[test]
fn logits_that_are_not_finite_never_reach_the_sink() {
    let mut toy = Toy::new();
    toy.tensors.get_mut("head").unwrap().data[100] = f32::INFINITY;
    let dir = toy.bundle(&Packing::default());
    let mut rows = Rows::default();
    let error = load(dir.path(), 1).prefill(&[1, 2], &Request::default(), &mut rows);
    let error = error.unwrap_err();
    assert!(
        matches!(error, RunError::LogitsNotFinite { position: 1 }),
        "{error}"
    );
    assert!(rows.positions.is_empty());
}

#[test]
fn a_sink_that_refuses_ends_the_request() {
    struct Full;
    impl Sink for Full {
        fn logits(&mut self, _position: usize, _row: &[f32]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }
    let dir = Toy::new().bundle(&Packing::default());
    let error = load(dir.path(), 1).prefill(&[1], &Request::default(), &mut Full);
    let error = error.unwrap_err();
    assert!(matches!(error, RunError::Sink(_)), "{error}");
    assert_eq!(error.exit(), Exit::Io);
}

/// A valid program that this runtime does not run is refused before a weight is read.
fn assert_refused(change: impl FnOnce(&mut Toy), place: Place, op: usize) {
    let mut toy = Toy::new();
    change(&mut toy);
    let dir = toy.bundle(&Packing::default());
    flip(&dir.path().join("resident.bin"), 16);
    let error = try_load(dir.path(), Verify::Always).unwrap_err();
    assert_eq!(error.exit(), Exit::CannotRun);
    match &error {
        RunError::Operator {
            place: at,
            op: index,
            ..
        } => assert_eq!((*at, *index), (place, op), "{error}"),
        other => panic!("{other}"),
    }
}

#[test]
fn attention_over_its_own_input_is_refused() {
    let change = |toy: &mut Toy| match &mut toy.program.layers[1][8] {
        Op::Attention { out, .. } => *out = "q".into(),
        other => panic!("{other:?}"),
    };
    assert_refused(change, Place::Layer(1), 8);
}

#[test]
fn an_epilogue_that_mixes_positions_is_refused() {
    let change = |toy: &mut Toy| {
        let rope = toy.program.layers[0][6].clone();
        toy.program.epilogue.insert(0, rope);
    };
    assert_refused(change, Place::Epilogue, 0);
}

#[test]
fn a_subnormal_base_of_angles_is_refused() {
    let change = |toy: &mut Toy| match &mut toy.program.layers[0][6] {
        Op::Rope { theta, .. } => *theta = Real::new(1e-40).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_refused(change, Place::Layer(0), 6);
}

#[test]
fn a_norm_in_place_is_the_norm_out_of_place() {
    let toy = Toy::new();
    let mut in_place = toy.clone();
    let Op::RmsNorm { input, .. } = &mut in_place.program.epilogue[0] else {
        panic!("the epilogue starts with a norm");
    };
    // The residual stream is normalised where it lies.
    let stream = input.clone();
    match &mut in_place.program.epilogue[..] {
        [Op::RmsNorm { out, .. }, Op::LmHead { input, .. }] => {
            out.clone_from(&stream);
            *input = stream;
        }
        other => panic!("{other:?}"),
    }
    let bits = |toy: &Toy| {
        let dir = toy.bundle(&Packing::default());
        Rows::of(&mut load(dir.path(), 1), &[4, 5, 6], Positions::All).bits()
    };
    assert_eq!(bits(&in_place), bits(&toy));
}

#[test]
fn a_layout_that_no_kernel_reads_is_named_before_a_weight_is_read() {
    for (pointer, named) in [
        ("/resident/tensors/0/layout", "tensor \"embed\""),
        ("/resident/tensors/2/layout", "tensor \"layers.0.attn_k\""),
        (
            "/resident/tensors/3/layout",
            "tensor \"layers.0.attn_k_norm\"",
        ),
        (
            "/experts/layers/1/up/layout",
            "Up of the experts of layer 1",
        ),
    ] {
        let dir = Toy::new().bundle(&Packing {
            tiles: false,
            ..Packing::default()
        });
        let manifest = dir.path().join("manifest.json");
        let text = std::fs::read(&manifest).unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        // As many bytes as the f32 that are there, so nothing else need change.
        *json.pointer_mut(pointer).unwrap() = "i32.rows".into();
        std::fs::write(&manifest, serde_json::to_vec(&json).unwrap()).unwrap();
        flip(&dir.path().join("resident.bin"), 16);
        let error = try_load(dir.path(), Verify::FirstUse).unwrap_err();
        assert_eq!(error.exit(), Exit::CannotRun, "{error}");
        let message = error.to_string();
        assert!(
            message.contains("i32.rows") && message.contains(named),
            "{message}"
        );
    }
}
