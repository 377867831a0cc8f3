//! A plan's file in a bundle: whole or absent, and no other byte is touched.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Error;
use estream_runtime::reader::BundleReader;
use estream_schemas::canonical;
use estream_schemas::exit::Exit;
use estream_schemas::plan::{
    PLAN_FORMAT, PLAN_VERSION, PLANS, Plan, PlanRow, Schedule, StreamConfig,
};

use super::Planned;
use super::question::Setting;
use crate::failure::Failure;

/// Bytes of a plan's name.
const MAX_NAME_BYTES: usize = 100;

/// Where a plan is to go.
#[derive(Debug)]
pub(super) struct NewPlan {
    folder: PathBuf,
    path: PathBuf,
    force: bool,
}

impl NewPlan {
    /// Errors if the name is none, or something is there that may not be replaced.
    pub(super) fn new(reader: &BundleReader, name: &str, force: bool) -> Result<NewPlan, Failure> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let named = !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.starts_with('.');
        if !named || !name.chars().all(plain) {
            return Err(Failure::usage(format!(
                "{name:?} is no name of a plan; use letters, digits, -, _ and ., no . in front"
            )));
        }
        let folder = reader.path().join(PLANS);
        let path = folder.join(format!("{name}.json"));
        let new = NewPlan {
            folder,
            path,
            force,
        };
        new.check()?;
        Ok(new)
    }

    /// Looks at what is there. A link is not followed: a bundle holds none.
    fn check(&self) -> Result<(), Failure> {
        let usage =
            |path: &Path, why: &str| Err(Failure::usage(format!("{}: {why}", path.display())));
        match fs::symlink_metadata(&self.folder) {
            Ok(about) if !about.is_dir() => return usage(&self.folder, "it is no directory"),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&self.folder, error));
            }
            _ => {}
        }
        match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(&self.path, error)),
            Ok(about) if !about.is_file() => usage(&self.path, "it is no file"),
            Ok(_) if self.force => Ok(()),
            Ok(_) => usage(
                &self.path,
                "there is a plan of that name; replace it with --force, or name another",
            ),
        }
    }

    /// Writes the plan.
    ///
    /// # Errors
    /// If the rows do not fit together, or the machine fails: then nothing is there that was not before.
    pub(super) fn write(
        &self,
        setting: &Setting<'_>,
        budget_bytes: u64,
        planned: &[Planned],
    ) -> Result<PathBuf, Failure> {
        let rows: Vec<PlanRow> = planned.iter().map(row).collect();
        let configs = || rows.iter().flat_map(PlanRow::configs);
        let residents = configs().filter(|config| is_resident(config)).count();
        if residents != 0 && residents != configs().count() {
            return Err(Failure::usage(
                "some prompts, or a hot device, are best resident and others streamed, and a model is loaded one \
                 way; name the schedules of one",
            ));
        }
        // The arena is as large as the largest row's, hot or not, its banks as the largest G.
        let (ceiling, buffers) = setting.loaded(rows.clone())?;
        if ceiling > budget_bytes {
            let why = format!(
                "the rows fit one by one, but a model loaded with all of them can take {ceiling} bytes, more than \
                 the budget of {budget_bytes}; plan for fewer lengths of prompts, or with --budget {ceiling}"
            );
            return Err(Failure::new(Exit::CannotRun, Error::msg(why)));
        }
        let most = setting.profile.limits.buffers;
        if let Some(most) = most.filter(|most| buffers > *most) {
            let why = format!(
                "the rows fit one by one, but the arena of all of them is {buffers} buffers, more than the {most} of \
                 the profile; plan for fewer lengths of prompts"
            );
            return Err(Failure::new(Exit::CannotRun, Error::msg(why)));
        }
        // The profile as it was used.
        let mut profile = setting.profile.clone();
        profile.budget_bytes = Some(budget_bytes);
        profile.sources.0.remove("budget_bytes");
        profile.services = vec![setting.service.clone()];
        let plan = Plan {
            format: PLAN_FORMAT.to_owned(),
            version: PLAN_VERSION,
            bundle: setting.reader.identity(),
            profile,
            pinned: 0,
            rows,
        };
        let text = canonical::to_vec(&plan).map_err(|error| failed(&self.path, error.into()))?;
        // Somebody may have been faster.
        self.check()?;
        let is_new = match fs::create_dir(&self.folder) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed(&self.folder, error)),
        };
        self.publish(&text).map_err(|error| {
            if is_new {
                // It stays if something is in it.
                let _ = fs::remove_dir(&self.folder);
            }
            match error.kind() {
                io::ErrorKind::AlreadyExists => Failure::usage(format!(
                    "{}: somebody has just stored a plan of that name",
                    self.path.display()
                )),
                _ => failed(&self.path, error),
            }
        })?;
        Ok(self.path.clone())
    }

    /// Written beside its place and renamed into it.
    fn publish(&self, text: &[u8]) -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".estream-").suffix(".partial");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any file: what the user's mask leaves.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let mut file = builder.tempfile_in(&self.folder)?;
        file.write_all(text)?;
        file.as_file().sync_all()?;
        let persisted = match self.force {
            true => file.persist(&self.path),
            false => file.persist_noclobber(&self.path),
        };
        persisted.map_err(|error| error.error)?;
        // The name, too; a file system that cannot is no reason to fail.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

fn is_resident(config: &StreamConfig) -> bool {
    config.schedule == Schedule::Resident
}

fn row(planned: &Planned) -> PlanRow {
    let hot = planned.hot.as_ref();
    PlanRow {
        max_tokens: planned.tokens,
        stream: planned.choice.chosen.config,
        hot: hot.map(|hot| hot.choice.chosen.config),
        chunk: None,
    }
}

fn failed(path: &Path, error: io::Error) -> Failure {
    let error = Error::new(error).context(format!("{}: the plan cannot be stored", path.display()));
    Failure::new(Exit::Io, error)
}
