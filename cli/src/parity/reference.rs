//! Where a reference comes from: a checkpoint, a bundle, or a file that one was stored in.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use estream_compiler::arch::Family;
use estream_compiler::compile::{CompileError, Compiled, Options};
use estream_packer::report::sizes;
use estream_packer::{WriteOptions, rehearse, spec, write};
use estream_runtime::backend::Routes;
use estream_runtime::reader::BundleReader;
use estream_runtime::{LoadOptions, Model, Observer, Positions, Request, Sink};
use estream_schemas::exit::Exit;
use estream_schemas::manifest::{MANIFEST_FILE, Manifest};
use tempfile::TempDir;

use super::file;
use super::shape::Shape;
use super::stored::{Choices, Rows, Stored};
use super::windows::Windows;
use crate::failure::Failure;
use crate::signals;
use crate::source::{inputs, open};
use crate::tables::grouped;
use crate::ui::Ui;

/// What kind of thing a reference is named by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// A checkpoint, to be compiled first.
    Checkpoint,
    /// A bundle.
    Bundle,
    /// A stored reference.
    Logits,
}

impl Source {
    /// By what is at `path`. What is neither a bundle nor a stored reference is left to
    /// those who read checkpoints, who say best what is wrong with it.
    pub(crate) fn of(path: &Path) -> Source {
        if path.join(MANIFEST_FILE).is_file() {
            return Source::Bundle;
        }
        match file::is_stored(path) {
            true => Source::Logits,
            false => Source::Checkpoint,
        }
    }
}

/// A reference's results, and whole rows of them unless they come from a file.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) stored: Stored,
    pub(crate) spool: Option<Spool>,
}

impl Reference {
    /// Runs `stored`'s text through the bundle of `reader`, and keeps what it computes:
    /// whole rows in `work_dir`. The model is out of memory when this returns.
    pub(crate) fn run(
        mut stored: Stored,
        reader: &BundleReader,
        options: &LoadOptions,
        work_dir: &Path,
        ui: &Ui,
    ) -> Result<Reference, Failure> {
        let mut spool = Spool::create(work_dir).map_err(failure)?;
        let mut model = Model::load(reader, options)?;
        let Stored {
            shape,
            windows,
            rows,
            choices,
            ..
        } = &mut stored;
        let mut rows = RowRecorder {
            windows,
            rows,
            spool: &mut spool,
            index: 0,
        };
        let mut choices = ChoiceRecorder { shape, choices };
        pass(
            &mut model,
            windows,
            &mut rows,
            &mut choices,
            "reference",
            ui,
        )?;
        drop(model);
        spool.rewind().map_err(failure)?;
        Ok(Reference {
            stored,
            spool: Some(spool),
        })
    }
}

/// A checkpoint's bundle, which is removed with this value.
#[derive(Debug)]
pub(crate) struct Unquantised {
    pub(crate) reader: BundleReader,
    _dir: TempDir,
}

impl Unquantised {
    /// Compiles the checkpoint at `source` into a directory of its own in `work_dir`, every
    /// weight as the source has it, if it is the model of the bundle with `manifest`.
    pub(crate) fn compile(
        source: &Path,
        manifest: &Manifest,
        work_dir: &Path,
        ui: &Ui,
    ) -> Result<Unquantised, Failure> {
        let checkpoint = open(source)?;
        let family = family(&manifest.model.family, &manifest.descriptor.text);
        let family = match family.map_err(CompileError::from)? {
            Some(family) => family,
            None => Family::of(&checkpoint).map_err(CompileError::from)?,
        };
        let options = Options {
            recipe: "keep".to_owned(),
            pad_k: true,
            ..Options::default()
        };
        let compiled = Compiled::plan(&checkpoint, &family, &options)?;
        let spec = spec(&compiled, None);
        let dir = tempfile::Builder::new()
            .prefix("estream-parity-")
            .tempdir_in(work_dir)
            .map_err(|error| failure(about(work_dir, &error)))?;
        let out = dir.path().join("reference.estream");
        let options = WriteOptions {
            inputs: inputs(&checkpoint),
            ..WriteOptions::default()
        };
        let planned = rehearse(&spec, &out, &options)?;
        require_same(source, &Shape::of(manifest), &Shape::of(&planned))?;
        let sizes = sizes(&planned);
        ui.note(format!(
            "the reference is compiled into {} ({} bytes), which is removed afterwards",
            dir.path().display(),
            grouped(
                sizes
                    .resident_file_bytes
                    .saturating_add(sizes.expert_file_bytes)
            )
        ));
        ui.until_signal("compiling", |progress| {
            write(&spec, &compiled, &out, &options, progress)
        })??;
        Ok(Unquantised {
            reader: BundleReader::open(&out)?,
            _dir: dir,
        })
    }
}

/// The family that a bundle of an unknown one brings along; none if estream has its own.
fn family(name: &str, text: &str) -> Result<Option<Family>, estream_compiler::arch::ArchError> {
    let known = Family::built_in()?;
    match known.iter().any(|family| family.descriptor.family == name) {
        true => Ok(None),
        false => Family::parse("of the bundle", text).map(Some),
    }
}

/// Refuses a reference that is another model, naming all that differs.
pub(crate) fn require_same(path: &Path, bundle: &Shape, reference: &Shape) -> Result<(), Failure> {
    let differences = bundle.differences(reference);
    match differences.is_empty() {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{}: is another model: {}; name the source of the bundle",
            path.display(),
            differences.join("; ")
        ))),
    }
}

/// Runs every window through `model`, all positions of each, until a signal says stop.
pub(super) fn pass(
    model: &mut Model,
    windows: &Windows,
    sink: &mut dyn Sink,
    observer: &mut dyn Observer,
    doing: &'static str,
    ui: &Ui,
) -> Result<(), Failure> {
    let request = Request {
        positions: Positions::All,
        ..Request::default()
    };
    let row_bytes = model.vocab() as u64 * size_of::<f32>() as u64;
    let total = windows.ids().len() as u64 * row_bytes;
    let mut done = 0;
    let canceller = model.canceller();
    let mut all = |progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>| {
        for window in windows.iter() {
            model.prefill_observed(window, &request, sink, observer)?;
            done += window.len() as u64 * row_bytes;
            if progress(done, total).is_break() {
                let stopped = anyhow::anyhow!("cancelled; nothing was left behind");
                return Err(Failure::new(Exit::No, stopped));
            }
        }
        Ok::<(), Failure>(())
    };
    ui.until_signal(doing, |progress| {
        signals::cancelling(&canceller, || all(progress)).map_err(failure)?
    })?
}

struct RowRecorder<'a> {
    windows: &'a Windows,
    rows: &'a mut Rows,
    spool: &'a mut Spool,
    /// Of the next row, counted over all windows.
    index: usize,
}

impl Sink for RowRecorder<'_> {
    fn logits(&mut self, _position: usize, row: &[f32]) -> io::Result<()> {
        self.rows.push(row, self.windows.next(self.index));
        self.index += 1;
        self.spool.push(row)
    }
}

struct ChoiceRecorder<'a> {
    shape: &'a Shape,
    choices: &'a mut [Choices],
}

impl Observer for ChoiceRecorder<'_> {
    fn routes(&mut self, layer: usize, routes: &Routes) {
        if let Some(index) = self.shape.router(layer) {
            self.choices[index].push(&self.shape.routers[index], routes);
        }
    }
}

/// Rows of logits on disk, in a file without a name: it is gone with the process, however
/// that ends.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    out: BufWriter<File>,
    input: Option<BufReader<File>>,
    bytes: Vec<u8>,
}

impl Spool {
    fn create(dir: &Path) -> io::Result<Spool> {
        let file = tempfile::tempfile_in(dir).map_err(|error| about(dir, &error))?;
        Ok(Spool {
            dir: dir.to_owned(),
            out: BufWriter::with_capacity(1 << 20, file),
            input: None,
            bytes: Vec::new(),
        })
    }

    fn push(&mut self, row: &[f32]) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        let written = self.out.write_all(&self.bytes);
        written.map_err(|error| about(&self.dir, &error))
    }

    /// From here on rows are read, from the first on.
    fn rewind(&mut self) -> io::Result<()> {
        let rewound = self.out.flush().and_then(|()| {
            let mut file = self.out.get_ref().try_clone()?;
            file.rewind()?;
            Ok(file)
        });
        let file = rewound.map_err(|error| about(&self.dir, &error))?;
        self.input = Some(BufReader::with_capacity(1 << 20, file));
        Ok(())
    }

    /// The next row, of `len` logits.
    pub(super) fn next(&mut self, row: &mut Vec<f32>, len: usize) -> io::Result<()> {
        let input = self.input.as_mut();
        let input = input.ok_or_else(|| io::Error::other("rows are read before they are there"))?;
        self.bytes.resize(len * size_of::<f32>(), 0);
        let read = input.read_exact(&mut self.bytes);
        read.map_err(|error| about(&self.dir, &error))?;
        let (words, _) = self.bytes.as_chunks::<4>();
        row.clear();
        row.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        Ok(())
    }
}

/// An error of a temporary file in the directory `dir`.
fn about(dir: &Path, error: &io::Error) -> io::Error {
    let message = format!(
        "{}: cannot hold what is kept of the reference: {error}; name another directory with --work-dir",
        dir.display()
    );
    io::Error::new(error.kind(), message)
}

/// What `error` makes of the run: a directory that is not there was mistyped.
fn failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(error.to_string()),
        _ => Failure::io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_in_their_order_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(dir.path()).unwrap();
        let rows = [[1.5f32, -0.0, 3e-40], [f32::MAX, 7.25, -1.0]];
        for row in &rows {
            spool.push(row).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        spool.rewind().unwrap();
        let mut row = Vec::new();
        for expected in rows {
            spool.next(&mut row, 3).unwrap();
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&row), bits(&expected));
        }
        spool.next(&mut row, 3).unwrap_err();
    }
}
