//! Writing a bundle: complete and at its place, or not at all.

use std::convert::Infallible;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use estream_compiler::ingest::{Carried, CarriedContent};
use estream_runtime::reader::{BundleReader, Problem, Projection};
use estream_schemas::canonical;
use estream_schemas::digest::Digest;
use estream_schemas::manifest::{CarriedFile, MANIFEST_FILE, Manifest, RESIDENT_FILE};
use estream_schemas::valid::{Bundle, align_up};

use crate::plans::{self, ReplacedPlans};
use crate::target::{Staging, Target, sync_dir};
use crate::{BundleSpec, OutputError, PackError, Payload, PlanError, Sink, plan};

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of zeros written at a time.
const ZEROS: [u8; 4096] = [0; 4096];

/// How a bundle is written.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Replace a bundle that is at the target. Nothing but a bundle is ever replaced.
    pub force: bool,
    /// Read all of the finished bundle again and compare digests. Without it the bundle
    /// is opened again, which compares the manifest and all sizes.
    pub verify: bool,
    /// The files and directories the bundle is made from: none of them can be the target.
    pub inputs: Vec<PathBuf>,
}

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The BLAKE3 of its manifest.
    pub identity: Digest,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Where the bundle that was replaced is, if it could not be removed.
    pub leftover: Option<PathBuf>,
    /// What became of its plans.
    pub plans: ReplacedPlans,
}

/// Writes the bundle of `spec` and `payload` to `out`, a directory that must not exist
/// (or, with [`WriteOptions::force`], may be a bundle). Directories above it are made.
///
/// `progress` gets bytes done and bytes in all after each piece; [`ControlFlow::Break`]
/// ends in [`OutputError::Cancelled`]. After any error nothing is left of the output,
/// and a bundle that was to be replaced is as it was. Of the plans of one that was replaced, those that are for the
/// new one stay.
pub fn write<P: Payload>(
    spec: &BundleSpec,
    payload: &P,
    out: &Path,
    options: &WriteOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Written, PackError<P::Error>> {
    let Prepared {
        mut manifest,
        total,
        target,
    } = prepare(spec, out, options)?;
    target.make_parent()?;
    let staging = target.stage()?;
    let mut progress = Progress {
        done: 0,
        total,
        callback: progress,
    };

    write_resident(payload, &mut manifest, &staging, &mut progress)?;
    write_experts(payload, &mut manifest, &staging, &mut progress)?;
    write_carried(spec, &mut manifest, &staging, &mut progress)?;
    let text = manifest_text(&manifest)?;
    let mut output = Output::create(staging.path().join(MANIFEST_FILE))?;
    output.write(&text)?;
    output.close()?;
    sync_dir(staging.path())?;
    if progress.advance(text.len() as u64).is_break() {
        return Err(OutputError::Cancelled.into());
    }

    let identity = Digest(*blake3::hash(&text).as_bytes());
    read_back(&staging, identity, options.verify)?;
    let plans = match target.replaced() {
        Some(old) => plans::carry(old, staging.path(), identity)?,
        None => ReplacedPlans::default(),
    };
    let leftover = target.publish(staging)?;
    Ok(Written {
        identity,
        bytes: total,
        leftover,
        plans,
    })
}

/// Everything [`write()`] checks before it asks for the first weight: what it would write
/// fits together, may go to `out`, and fits there. Changes nothing.
pub fn rehearse(
    spec: &BundleSpec,
    out: &Path,
    options: &WriteOptions,
) -> Result<Manifest, PackError<Infallible>> {
    Ok(prepare(spec, out, options)?.manifest)
}

struct Prepared {
    manifest: Manifest,
    total: u64,
    target: Target,
}

fn prepare<E: std::error::Error>(
    spec: &BundleSpec,
    out: &Path,
    options: &WriteOptions,
) -> Result<Prepared, PackError<E>> {
    let mut manifest = plan(spec)?;
    sizes_of_carried(spec, &mut manifest)?;
    // What readers refuse is refused here before hours of work; digests change no size.
    let draft = manifest_text(&manifest)?;
    let total = total_bytes(&manifest).saturating_add(draft.len() as u64);
    let target = Target::claim(out, &options.inputs, options.force)?;
    require_space(target.existing_parent(), total)?;
    Ok(Prepared {
        manifest,
        total,
        target,
    })
}

fn write_resident<P: Payload>(
    payload: &P,
    manifest: &mut Manifest,
    staging: &Staging,
    progress: &mut Progress<'_>,
) -> Result<(), PackError<P::Error>> {
    let mut output = Output::create(staging.path().join(RESIDENT_FILE))?;
    for (index, tensor) in manifest.resident.tensors.iter_mut().enumerate() {
        let mut hasher = blake3::Hasher::new();
        let mut sink = Sink {
            output: &mut output,
            progress,
            hasher: &mut hasher,
            what: format!("tensor {:?}", tensor.name),
            expected: tensor.bytes,
            pushed: 0,
            failed: None,
        };
        let pushed = payload.resident(index, &mut sink);
        sink.finish(pushed)?;
        tensor.digest = Digest(*hasher.finalize().as_bytes());
        output.pad(tensor.bytes, progress, |_| {})?;
    }
    Ok(output.close()?)
}

fn write_experts<P: Payload>(
    payload: &P,
    manifest: &mut Manifest,
    staging: &Staging,
    progress: &mut Progress<'_>,
) -> Result<(), PackError<P::Error>> {
    let experts = &mut manifest.experts;
    for (part_index, part) in experts.parts.iter().enumerate() {
        let mut output = Output::create(staging.path().join(&part.file))?;
        let layers = experts.layers.iter_mut().enumerate();
        for (index, layer) in layers.filter(|(_, layer)| layer.part == part_index as u64) {
            let records = layer
                .order
                .iter()
                .flat_map(|&expert| (0..layer.shards).map(move |shard| (expert, shard)));
            let mut digests = Vec::with_capacity(layer.digests.len());
            for (expert, shard) in records {
                let mut hasher = blake3::Hasher::new();
                for projection in Projection::ALL {
                    let expected = projection.region(layer).bytes;
                    let mut sink = Sink {
                        output: &mut output,
                        progress,
                        hasher: &mut hasher,
                        what: format!("{projection:?} of expert {expert} of layer {}", layer.layer),
                        expected,
                        pushed: 0,
                        failed: None,
                    };
                    let pushed = payload.region(index, expert, shard, projection, &mut sink);
                    sink.finish(pushed)?;
                    output.pad(expected, progress, |zeros| {
                        hasher.update(zeros);
                    })?;
                }
                digests.push(Digest(*hasher.finalize().as_bytes()));
            }
            layer.digests = digests;
        }
        output.close()?;
    }
    Ok(())
}

fn write_carried(
    spec: &BundleSpec,
    manifest: &mut Manifest,
    staging: &Staging,
    progress: &mut Progress<'_>,
) -> Result<(), OutputError> {
    let tokenizer = staging.path().join("tokenizer");
    if !spec.tokenizer.is_empty() {
        fs::create_dir(&tokenizer).map_err(OutputError::io(&tokenizer, "create the directory"))?;
    }
    for (carried, stated) in carried(spec, manifest) {
        let mut output = Output::create(staging.path().join(&stated.file))?;
        let mut hasher = blake3::Hasher::new();
        let mut take = |piece: &[u8], output: &mut Output| {
            hasher.update(piece);
            output.write(piece)?;
            match progress.advance(piece.len() as u64) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(OutputError::Cancelled),
            }
        };
        match &carried.content {
            CarriedContent::Bytes(bytes) => take(bytes, &mut output)?,
            CarriedContent::File(path) => {
                copy(path, stated.bytes, |piece| take(piece, &mut output))?;
            }
        }
        output.close()?;
        stated.digest = Digest(*hasher.finalize().as_bytes());
    }
    if !spec.tokenizer.is_empty() {
        sync_dir(&tokenizer)?;
    }
    Ok(())
}

/// Gives `take` the `bytes` bytes of the file at `path`, which must have exactly these.
fn copy(
    path: &Path,
    bytes: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), OutputError>,
) -> Result<(), OutputError> {
    // Opening a pipe would wait, and what is here now may not be what was looked at.
    regular_size(path)?;
    let mut file = File::open(path).map_err(OutputError::io(path, "open"))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut left = bytes;
    loop {
        let read = file
            .read(&mut buffer)
            .map_err(OutputError::io(path, "read"))?;
        match left.checked_sub(read as u64) {
            Some(rest) if read > 0 => left = rest,
            Some(0) => return Ok(()),
            _ => {
                return Err(OutputError::Carried {
                    path: path.to_owned(),
                    why: "its size changed while it was copied",
                });
            }
        }
        take(&buffer[..read])?;
    }
}

/// Pairs of what is carried and what the manifest says of it.
fn carried<'a>(
    spec: &'a BundleSpec,
    manifest: &'a mut Manifest,
) -> impl Iterator<Item = (&'a Carried, &'a mut CarriedFile)> {
    let tokenizer = spec.tokenizer.iter().zip(&mut manifest.tokenizer);
    let license = spec.license.files.iter().zip(&mut manifest.license.files);
    let metadata = spec
        .source
        .metadata
        .iter()
        .zip(&mut manifest.source.metadata);
    tokenizer.chain(license).chain(metadata)
}

fn sizes_of_carried(spec: &BundleSpec, manifest: &mut Manifest) -> Result<(), OutputError> {
    for (carried, stated) in carried(spec, manifest) {
        if let CarriedContent::File(path) = &carried.content {
            stated.bytes = regular_size(path)?;
        }
    }
    Ok(())
}

fn regular_size(path: &Path) -> Result<u64, OutputError> {
    let about = fs::metadata(path).map_err(OutputError::io(path, "examine"))?;
    if !about.is_file() {
        return Err(OutputError::Carried {
            path: path.to_owned(),
            why: "it is not a regular file",
        });
    }
    Ok(about.len())
}

/// The text of a manifest that readers accept.
fn manifest_text(manifest: &Manifest) -> Result<Vec<u8>, PlanError> {
    let text =
        canonical::to_vec(manifest).map_err(estream_schemas::valid::InvalidManifest::from)?;
    Bundle::parse(&text)?;
    Ok(text)
}

fn total_bytes(manifest: &Manifest) -> u64 {
    let parts = manifest.experts.parts.iter().map(|part| part.bytes);
    let carried = manifest.carried().map(|file| file.bytes);
    parts
        .chain(carried)
        .fold(manifest.resident.bytes, u64::saturating_add)
}

fn require_space(path: &Path, need_bytes: u64) -> Result<(), OutputError> {
    let about = rustix::fs::statvfs(path)
        .map_err(|errno| OutputError::io(path, "ask for free space")(errno.into()))?;
    let free_bytes = about.f_bavail.saturating_mul(about.f_frsize);
    if need_bytes > free_bytes {
        return Err(OutputError::NoSpace {
            path: path.to_owned(),
            need_bytes,
            free_bytes,
        });
    }
    Ok(())
}

/// Opens what was written as any reader would.
fn read_back(staging: &Staging, identity: Digest, verify: bool) -> Result<(), OutputError> {
    let read_back = |error| OutputError::ReadBack(Box::new(error));
    let reader = BundleReader::open(staging.path()).map_err(read_back)?;
    if reader.identity() != identity {
        return Err(OutputError::Corrupt {
            problem: format!("the identity is {}, not {identity}", reader.identity()),
        });
    }
    if verify {
        let report = reader.verify_all(&mut |_, _| {}).map_err(read_back)?;
        match report.problems.into_iter().next() {
            None => {}
            Some(Problem::Unreadable(error)) => return Err(read_back(error)),
            Some(problem) => {
                return Err(OutputError::Corrupt {
                    problem: problem.to_string(),
                });
            }
        }
    }
    Ok(())
}

/// Counts bytes towards a total.
pub(crate) struct Progress<'p> {
    done: u64,
    total: u64,
    callback: &'p mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

impl Progress<'_> {
    pub(crate) fn advance(&mut self, bytes: u64) -> ControlFlow<()> {
        self.done = self.done.saturating_add(bytes);
        (self.callback)(self.done, self.total)
    }
}

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("done", &self.done)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

/// A new file, written from start to end.
#[derive(Debug)]
pub(crate) struct Output {
    file: BufWriter<File>,
    path: PathBuf,
}

impl Output {
    pub(crate) fn create(path: PathBuf) -> Result<Output, OutputError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(OutputError::io(&path, "create"))?;
        Ok(Output {
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            path,
        })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.file
            .write_all(bytes)
            .map_err(OutputError::io(&self.path, "write"))
    }

    /// Follows `bytes` bytes with zeros up to the next aligned place; `each` sees them.
    fn pad(
        &mut self,
        bytes: u64,
        progress: &mut Progress<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), OutputError> {
        let mut left = align_up(bytes).map_or(0, |end| end - bytes);
        while left > 0 {
            let size = left.min(ZEROS.len() as u64);
            let zeros = usize::try_from(size).map_or(&ZEROS[..], |size| &ZEROS[..size]);
            self.write(zeros)?;
            each(zeros);
            left -= size;
            if progress.advance(size).is_break() {
                return Err(OutputError::Cancelled);
            }
        }
        Ok(())
    }

    /// Waits until all of it is on the disk.
    pub(crate) fn close(self) -> Result<(), OutputError> {
        let Output { file, path } = self;
        file.into_inner()
            .map_err(std::io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .map_err(OutputError::io(path, "write"))
    }
}
