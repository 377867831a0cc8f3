//! JSON Schemas of the published files, generated from the types that read them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use estream_schemas::canonical;
use estream_schemas::manifest::Manifest;
use estream_schemas::plan::Plan;
use estream_schemas::profile::Profile;
use estream_schemas::routes::Recording;
use schemars::{Schema, schema_for};

/// Arguments of `schema`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if a committed schema is not what the types say.
    #[arg(long)]
    check: bool,
}

/// A published file format.
struct Target {
    /// File name before `.schema.json`.
    name: &'static str,
    /// Version of the format, part of the schema's identity.
    version: u64,
    title: &'static str,
    schema: fn() -> Schema,
}

const TARGETS: &[Target] = &[
    Target {
        name: "manifest",
        version: estream_schemas::manifest::VERSION,
        title: "Manifest of an estream bundle",
        schema: || schema_for!(Manifest),
    },
    Target {
        name: "plan",
        version: estream_schemas::plan::PLAN_VERSION,
        title: "Plan for streaming the experts of an estream bundle",
        schema: || schema_for!(Plan),
    },
    Target {
        name: "profile",
        version: estream_schemas::profile::PROFILE_VERSION,
        title: "Profile of a device that runs estream bundles",
        schema: || schema_for!(Profile),
    },
    Target {
        name: "routes",
        version: estream_schemas::routes::ROUTES_VERSION,
        title: "Routes of prompts through an estream bundle",
        schema: || schema_for!(Recording),
    },
];

/// The file's text. Keys are sorted, because whether serde_json keeps their order is
/// a feature that any crate of the build can switch on.
fn text(target: &Target) -> anyhow::Result<Vec<u8>> {
    let mut schema = (target.schema)();
    let id = format!("urn:estream:schema:{}:{}", target.name, target.version);
    schema.insert("$id".into(), id.into());
    schema.insert("title".into(), target.title.into());
    let mut value = schema.to_value();
    value.sort_all_objects();
    Ok(canonical::to_vec(&value)?)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/json")
}

/// Names of the files in `folder` that are not what the types say.
fn stale(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut stale = Vec::new();
    for target in TARGETS {
        let file = format!("{}.schema.json", target.name);
        if fs::read(folder.join(&file)).ok() != Some(text(target)?) {
            stale.push(format!("schemas/json/{file}"));
        }
    }
    Ok(stale)
}

/// Writes the schemas into `folder`.
fn write(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    for target in TARGETS {
        let path = folder.join(format!("{}.schema.json", target.name));
        fs::write(&path, text(target)?).with_context(|| format!("cannot write {path:?}"))?;
    }
    Ok(())
}

/// Writes or checks every schema.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !args.check {
        return write(&folder());
    }
    let stale = stale(&folder())?;
    if !stale.is_empty() {
        bail!(
            "not what the types say: {}; run `cargo xtask schema` and commit the result",
            stale.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_fresh_once_written_and_stale_once_touched() {
        let dir = tempfile::tempdir().unwrap();
        let name = |target: &Target| format!("schemas/json/{}.schema.json", target.name);
        let names: Vec<String> = TARGETS.iter().map(name).collect();
        assert_eq!(stale(dir.path()).unwrap(), names);
        write(dir.path()).unwrap();
        assert!(stale(dir.path()).unwrap().is_empty());
        let file = dir.path().join("manifest.schema.json");
        let mut bytes = fs::read(&file).unwrap();
        bytes.push(b'\n');
        fs::write(&file, bytes).unwrap();
        assert_eq!(stale(dir.path()).unwrap(), names[..1]);
    }
}
