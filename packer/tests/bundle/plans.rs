//! Plans of a bundle that is replaced: those for the new one stay, to the byte.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{Synthetic, carried, names, spec, written, written_with};
use estream_packer::{OutputError, PackError, ReplacedPlans, WriteOptions, write};
use estream_runtime::reader::BundleReader;
use estream_schemas::digest::Digest;
use estream_schemas::plan::MAX_PLAN_BYTES;

fn force() -> WriteOptions {
    WriteOptions {
        force: true,
        ..WriteOptions::default()
    }
}

/// Puts plans into the bundle at `out`: two for `identity`, and five that are not.
fn store(out: &Path, identity: Digest) -> [String; 2] {
    let plans = out.join("plans");
    fs::create_dir(&plans).unwrap();
    let kept = [
        format!("{{\"bundle\": \"{identity}\"}}"),
        // What else is in it is for those who follow it to judge.
        format!(" {{\"rows\": [1, 2], \"bundle\": \"{identity}\", \"x\": \"é\"}}\n\n"),
    ];
    fs::write(plans.join("a.json"), &kept[0]).unwrap();
    fs::write(plans.join("b.json"), &kept[1]).unwrap();
    let other = format!("{{\"bundle\": \"{}\"}}", Digest([7; 32]));
    fs::write(plans.join("other.json"), other).unwrap();
    fs::write(plans.join("text.json"), "a plan").unwrap();
    fs::write(plans.join("empty.json"), "").unwrap();
    fs::write(plans.join("deep.json"), "[".repeat(100_000)).unwrap();
    let large = fs::File::create(plans.join("large.json")).unwrap();
    large.set_len(MAX_PLAN_BYTES + 1).unwrap();
    kept
}

#[test]
fn plans_for_the_new_bundle_stay_and_others_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let first = written(&out);
    assert_eq!(first.plans, ReplacedPlans::default());
    let kept = store(&out, first.identity);
    let again = written_with(&out, &force()).unwrap();
    assert_eq!(again.identity, first.identity);
    assert_eq!(again.plans, ReplacedPlans { kept: 2, gone: 5 });
    assert_eq!(names(&out.join("plans")), ["a.json", "b.json"]);
    for (name, text) in ["a", "b"].iter().zip(&kept) {
        let path = out.join(format!("plans/{name}.json"));
        assert_eq!(fs::read_to_string(path).unwrap(), *text);
    }
    let reader = BundleReader::open(&out).unwrap();
    let report = reader.verify_all(&mut |_, _| {}).unwrap();
    assert!(report.is_whole() && report.strays.is_empty(), "{report:?}");
    assert_eq!(names(dir.path()), ["out"]);

    // Those that stayed stay once more, and no folder is made for none.
    let again = written_with(&out, &force()).unwrap();
    assert_eq!(again.plans, ReplacedPlans { kept: 2, gone: 0 });
    let mut other = spec();
    other.license.files.push(carried("NOTICE", b"other"));
    let replaced = write(&other, &Synthetic, &out, &force(), &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert_eq!(replaced.unwrap().plans, ReplacedPlans { kept: 0, gone: 2 });
    assert!(!out.join("plans").exists());
}

#[test]
fn a_link_among_plans_is_not_followed_and_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let identity = written(&out).identity;
    let mine = dir.path().join("mine.json");
    fs::write(&mine, format!("{{\"bundle\": \"{identity}\"}}")).unwrap();
    fs::create_dir(out.join("plans")).unwrap();
    symlink(&mine, out.join("plans/link.json")).unwrap();
    match written_with(&out, &force()) {
        Err(PackError::Output(OutputError::Strays { strays, .. })) => {
            assert_eq!(strays, [Path::new("plans/link.json")]);
        }
        other => panic!("{other:?}"),
    }
}
