//! The plans of a bundle that is replaced: those that are for the new one stay.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use estream_schemas::digest::Digest;
use estream_schemas::manifest::PLANS_DIR;
use estream_schemas::plan::MAX_PLAN_BYTES;
use rustix::fs::{Mode, OFlags};

use crate::OutputError;
use crate::target::{list, sync_dir};
use crate::writer::Output;

/// What became of the plans of a bundle that was replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReplacedPlans {
    /// Those made for the bundle that is there now, carried over byte for byte.
    pub kept: usize,
    /// Those that are gone with the old one: made for another bundle, or not to be read.
    pub gone: usize,
}

/// Carries the plans of the bundle at `old` that are for `identity` over to the one at `new`, which has none.
pub(crate) fn carry(
    old: &Path,
    new: &Path,
    identity: Digest,
) -> Result<ReplacedPlans, OutputError> {
    let mut plans = ReplacedPlans::default();
    let (from, to) = (old.join(PLANS_DIR), new.join(PLANS_DIR));
    if !fs::symlink_metadata(&from).is_ok_and(|about| about.is_dir()) {
        return Ok(plans);
    }
    for (name, _) in list(&from)? {
        let Some(text) = text_for(&from.join(&name), identity) else {
            plans.gone += 1;
            continue;
        };
        if plans.kept == 0 {
            fs::create_dir(&to).map_err(OutputError::io(&to, "create the directory"))?;
        }
        let mut output = Output::create(to.join(name))?;
        output.write(&text)?;
        output.close()?;
        plans.kept += 1;
    }
    if plans.kept > 0 {
        sync_dir(&to)?;
        sync_dir(new)?;
    }
    Ok(plans)
}

/// The text of a plan, if that can be read and is for `identity`. Anyone may have put it there: it is a regular
/// file of bounded size, or none.
fn text_for(path: &Path, identity: Digest) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_PLAN_BYTES + 1).read_to_end(&mut text).ok()?;
    if text.len() as u64 > MAX_PLAN_BYTES {
        return None;
    }
    let head: Head = serde_json::from_slice(&text).ok()?;
    (head.bundle == identity).then_some(text)
}

/// What a plan says of the bundle it was made for; of the rest, its reader judges.
#[derive(serde::Deserialize)]
struct Head {
    bundle: Digest,
}
