//! Routes: taken down while prompts run, read from files and written to them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use estream_runtime::backend::Routes;
use estream_runtime::reader::BundleReader;
use estream_runtime::{Model, Observer, Request, RunError, Sink};
use estream_schemas::exit::Exit;
use estream_schemas::manifest::Manifest;
use estream_schemas::routes::{
    MAX_ROUTES_BYTES, ROUTES_FORMAT, ROUTES_VERSION, Recording, RoutedLayer, RoutedPrompt, Rows,
    pair, pair_count,
};

use crate::failure::Failure;
use crate::output::NewFile;
use crate::parity::Shape;

/// The layers with experts of a bundle, without pairs.
pub(crate) fn layers(manifest: &Manifest) -> Vec<RoutedLayer> {
    let routers = Shape::of(manifest).routers.into_iter();
    let of = |layer: u64| {
        let mut layers = manifest.experts.layers.iter();
        layers.find(|experts| experts.layer == layer)
    };
    routers
        .filter_map(|router| {
            Some(RoutedLayer {
                layer: router.layer,
                experts: of(router.layer)?.experts,
                top_k: router.top_k,
                pairs: Vec::new(),
            })
        })
        .collect()
}

/// A recording of `reader`'s bundle that has no prompts yet.
pub(crate) fn empty(reader: &BundleReader) -> Recording {
    Recording {
        format: ROUTES_FORMAT.to_owned(),
        version: ROUTES_VERSION,
        bundle: reader.identity(),
        layers: layers(reader.bundle().manifest()),
        prompts: Vec::new(),
    }
}

/// Takes down where tokens go while a prompt runs.
struct Recorder<'a> {
    layers: &'a mut [RoutedLayer],
    rows: Vec<Rows>,
}

impl Observer for Recorder<'_> {
    fn routes(&mut self, layer: usize, routes: &Routes) {
        let at = self
            .layers
            .iter()
            .position(|known| known.layer == layer as u64);
        let Some(at) = at else { return };
        let (pairs, Rows(rows)) = (&mut self.layers[at].pairs, &mut self.rows[at]);
        for chosen in routes.experts.chunks(routes.top_k.max(1)) {
            for (place, expert) in chosen.iter().enumerate() {
                let expert = *expert as usize;
                rows[expert] += 1;
                for other in &chosen[..place] {
                    let pair = pair(rows.len(), expert, *other as usize);
                    if let Some(tokens) = pair.and_then(|pair| pairs.get_mut(pair)) {
                        *tokens = tokens.saturating_add(1);
                    }
                }
            }
        }
    }
}

/// Nobody wants the logits.
struct Nowhere;

impl Sink for Nowhere {
    fn logits(&mut self, _position: usize, _row: &[f32]) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `ids` through `model` and adds where they went to `recording`, under this name.
pub(crate) fn record(
    recording: &mut Recording,
    model: &mut Model,
    name: String,
    ids: &[u32],
    request: &Request,
) -> Result<(), RunError> {
    let experts = |layer: &RoutedLayer| usize::try_from(layer.experts).unwrap_or(0);
    for layer in &mut recording.layers {
        layer.pairs.resize(pair_count(experts(layer)), 0);
    }
    let rows = recording.layers.iter();
    let rows = rows.map(|layer| Rows(vec![0; experts(layer)])).collect();
    let mut recorder = Recorder {
        layers: &mut recording.layers,
        rows,
    };
    model.prefill_observed(ids, request, &mut Nowhere, &mut recorder)?;
    let rows = recorder.rows;
    recording.prompts.push(RoutedPrompt {
        name,
        tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        rows,
    });
    Ok(())
}

/// The routes in a file.
pub(crate) fn read(path: &Path) -> Result<Recording, Failure> {
    let failed = |exit, why: String| {
        let what = format!("{}: {why}", path.display());
        Failure::new(exit, anyhow::Error::msg(what))
    };
    let text = bytes(path, MAX_ROUTES_BYTES)?;
    Recording::parse(&text)
        .map_err(|error| failed(Exit::Invalid, format!("{error}; record them again")))
}

/// The content of a file the user named, of at most `max` bytes and one more, which shows whoever
/// parses it that it is too long.
pub(crate) fn bytes(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let read = || -> io::Result<Vec<u8>> {
        // Opening a pipe would wait for a writer, so the kind comes first.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error| Failure::usage(format!("{}: cannot be read: {error}", path.display())))
}

/// Writes `recording` to a new file; returns its bytes.
pub(crate) fn write(recording: &Recording, file: NewFile<'_>) -> Result<u64, Failure> {
    // Numbers on lines of their own would take five times as much.
    let mut text = serde_json::to_vec(recording).map_err(|e| Failure::io(e.into()))?;
    text.push(b'\n');
    let bytes = text.len() as u64;
    if bytes > MAX_ROUTES_BYTES {
        return Err(Failure::usage(format!(
            "{}: routes of {bytes} bytes, the most that are read is {MAX_ROUTES_BYTES}; record fewer prompts",
            file.path().display()
        )));
    }
    file.write(&text)?;
    Ok(bytes)
}
