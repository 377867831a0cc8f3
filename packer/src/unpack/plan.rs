//! Which weights of a bundle make up each tensor of the file.

use estream_compiler::arch::Family;
use estream_runtime::reader::BundleReader;
use estream_schemas::dtype::DType;
use estream_schemas::layout::{Layout, TILE};
use estream_schemas::manifest::{
    ExpertLayer, Fate, LedgerEntry, Manifest, Projection, SourceFormat,
};

use super::UnpackError;

/// A source tensor and where its rows are in the bundle.
pub(super) struct Tensor<'a> {
    pub(super) entry: &'a LedgerEntry,
    pub(super) dtype: DType,
    /// Matrices whose rows follow one another.
    pub(super) pieces: Vec<Piece<'a>>,
}

/// A matrix of the bundle.
pub(super) enum Piece<'a> {
    Resident {
        index: usize,
        layout: Layout,
        rows: u64,
        cols: u64,
    },
    /// One projection of one expert, all its shards.
    Expert {
        index: usize,
        layer: &'a ExpertLayer,
        position: u64,
        projection: Projection,
    },
}

impl Piece<'_> {
    fn layout(&self) -> Layout {
        match self {
            Piece::Resident { layout, .. } => *layout,
            Piece::Expert {
                layer, projection, ..
            } => projection.region(layer).layout,
        }
    }

    /// Elements of a row of one stored matrix.
    fn stored_cols(&self) -> u64 {
        match self {
            Piece::Resident { cols, .. } => *cols,
            Piece::Expert {
                layer, projection, ..
            } => projection.region(layer).cols,
        }
    }

    fn elements(&self) -> u64 {
        match self {
            Piece::Resident { rows, cols, .. } => rows * cols,
            Piece::Expert {
                layer, projection, ..
            } => {
                let region = projection.region(layer);
                region.rows * region.cols * layer.shards
            }
        }
    }
}

/// Everything that must hold before the first byte is written.
pub(super) fn plan<'a>(
    reader: &BundleReader,
    manifest: &'a Manifest,
) -> Result<Vec<Tensor<'a>>, UnpackError> {
    if manifest.source.format != SourceFormat::Gguf {
        return Err(UnpackError::NotFromGguf {
            path: reader.path().to_owned(),
        });
    }
    let family = Family::parse("descriptor", &manifest.descriptor.text).map_err(|source| {
        UnpackError::Descriptor {
            path: reader.path().to_owned(),
            source,
        }
    })?;
    let mut plan = Vec::new();
    for entry in &manifest.ledger {
        let refuse = |why: String| UnpackError::Tensor {
            path: reader.path().to_owned(),
            tensor: entry.tensor.clone(),
            why,
        };
        let Fate::Became(names) = &entry.fate else {
            continue;
        };
        let pieces = names
            .iter()
            .map(|name| pieces(manifest, &family, name).map_err(refuse))
            .collect::<Result<Vec<_>, _>>()?;
        let pieces: Vec<Piece<'_>> = pieces.into_iter().flatten().collect();
        let dtype = pieces.first().map(|piece| piece.layout().dtype());
        let dtype =
            dtype.ok_or_else(|| refuse("the bundle does not say what became of it".into()))?;
        for piece in &pieces {
            if piece.layout().dtype() != dtype {
                return Err(refuse(
                    "its parts have different types in the bundle".into(),
                ));
            }
            if piece.layout().is_tiled() && !piece.stored_cols().is_multiple_of(TILE) {
                return Err(refuse("its rows were padded with zeros (--pad-k)".into()));
            }
        }
        let elements: u64 = pieces.iter().map(Piece::elements).sum();
        let stated = entry
            .shape
            .iter()
            .try_fold(1u64, |n, &dim| n.checked_mul(dim));
        if stated != Some(elements) {
            return Err(refuse(format!(
                "the bundle holds {elements} elements of it"
            )));
        }
        plan.push(Tensor {
            entry,
            dtype,
            pieces,
        });
    }
    Ok(plan)
}

/// The matrices that the ledger calls `name`.
fn pieces<'a>(
    manifest: &'a Manifest,
    family: &Family,
    name: &str,
) -> Result<Vec<Piece<'a>>, String> {
    let parts: Vec<&str> = name.split('.').collect();
    let role = match parts[..] {
        [role] | ["layers", _, role] | ["layers", _, role, _] => role,
        _ => return Err(format!("{name:?} is no weight's name")),
    };
    if family.reorders_gguf(role) {
        return Err(format!("{role} is stored in another order in GGUF"));
    }
    if let Some(index) = (manifest.resident.tensors.iter()).position(|tensor| tensor.name == name) {
        let tensor = &manifest.resident.tensors[index];
        let (rows, cols) = tensor.matrix();
        return Ok(vec![Piece::Resident {
            index,
            layout: tensor.layout,
            rows,
            cols,
        }]);
    }
    let lost = || format!("the bundle holds no {name:?}");
    let projection = match role {
        "expert_gate" => Projection::Gate,
        "expert_up" => Projection::Up,
        "expert_down" => Projection::Down,
        _ => return Err(lost()),
    };
    let number = |at: usize| parts.get(at).and_then(|part| part.parse::<u64>().ok());
    let layers = &manifest.experts.layers;
    let index = layers
        .iter()
        .position(|layer| Some(layer.layer) == number(1));
    let index = index.ok_or_else(lost)?;
    let layer = &layers[index];
    let experts = match parts.len() {
        3 => 0..layer.experts,
        _ => number(3)
            .map(|expert| expert..expert + 1)
            .ok_or_else(lost)?,
    };
    experts
        .map(|expert| {
            let position = layer.order.iter().position(|stored| *stored == expert);
            Ok(Piece::Expert {
                index,
                layer,
                position: position.ok_or_else(lost)? as u64,
                projection,
            })
        })
        .collect()
}
