//! Which weights of a bundle make up each tensor of the file.

use estream_compiler::arch::{Encoding, Expr, Keys, TensorRole};
use estream_runtime::reader::BundleReader;
use estream_schemas::dtype::DType;
use estream_schemas::layout::{Layout, TILE};
use estream_schemas::manifest::{ExpertLayer, Manifest, Projection};

use super::UnpackError;

/// A tensor of the file and where its rows are in the bundle.
pub(super) struct Tensor<'a> {
    pub(super) name: String,
    /// Type in the file.
    pub(super) dtype: DType,
    /// Slowest dimension first.
    pub(super) shape: Vec<u64>,
    /// Matrices whose rows follow one another.
    pub(super) parts: Vec<Part<'a>>,
}

/// A matrix, and how its rows are ordered in the file.
pub(super) struct Part<'a> {
    pub(super) piece: Piece<'a>,
    /// Rows of one head, if its rows become adjacent rope pairs.
    pub(super) rope_head_rows: Option<u64>,
}

impl<'a> Part<'a> {
    /// `piece` with its rows as they are.
    pub(super) fn plain(piece: Piece<'a>) -> Part<'a> {
        Part {
            piece,
            rope_head_rows: None,
        }
    }
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
    pub(super) fn layout(&self) -> Layout {
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

    pub(super) fn elements(&self) -> u64 {
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

/// A tensor of `parts`, if they make one.
pub(super) fn tensor<'a>(
    name: &str,
    shape: Vec<u64>,
    parts: Vec<Part<'a>>,
) -> Result<Tensor<'a>, String> {
    let first = parts.first().map(|part| part.piece.layout().dtype());
    let dtype = first.ok_or("the bundle does not say what became of it")?;
    for Part { piece, .. } in &parts {
        if piece.layout().dtype() != dtype {
            return Err("its parts have different types in the bundle".into());
        }
        if piece.layout().is_tiled() && !piece.stored_cols().is_multiple_of(TILE) {
            return Err("its rows were padded with zeros (--pad-k)".into());
        }
    }
    let elements: u64 = parts.iter().map(|part| part.piece.elements()).sum();
    let stated = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    if stated != Some(elements) {
        return Err(format!("the bundle holds {elements} elements of it"));
    }
    Ok(Tensor {
        name: name.to_owned(),
        dtype,
        shape,
        parts,
    })
}

/// The error that `tensor` of the file cannot be made.
pub(super) fn refusal(reader: &BundleReader, tensor: &str, why: String) -> UnpackError {
    UnpackError::Tensor {
        path: reader.path().to_owned(),
        tensor: tensor.to_owned(),
        why,
    }
}

/// `piece` in the row order of `encoding`.
pub(super) fn part<'a>(
    piece: Piece<'a>,
    role: &TensorRole,
    encoding: &Encoding,
    keys: &Keys,
    layer: Option<u64>,
) -> Result<Part<'a>, String> {
    if encoding.transposed || encoding.row_step.is_some() {
        return Err(format!("{} is stored in another order in GGUF", role.role));
    }
    let Some(heads) = &encoding.rope_pairs_of_heads else {
        return Ok(Part::plain(piece));
    };
    let heads = value(heads, keys, layer)?;
    let Piece::Resident {
        index,
        layout,
        mut rows,
        mut cols,
    } = piece
    else {
        return Err(format!("{} has no heads", role.role));
    };
    if role.shape.len() == 1 {
        // The elements of a vector are rows of one.
        (rows, cols) = (cols, 1);
    }
    match rows.checked_rem(heads) {
        Some(0) if (rows / heads).is_multiple_of(2) => Ok(Part {
            piece: Piece::Resident {
                index,
                layout,
                rows,
                cols,
            },
            rope_head_rows: Some(rows / heads),
        }),
        _ => Err(format!("its {rows} rows are not {heads} heads of pairs")),
    }
}

/// The value of an expression for a layer.
pub(super) fn value(expr: &Expr, keys: &Keys, layer: Option<u64>) -> Result<u64, String> {
    expr.value(keys, layer).map_err(|error| error.to_string())
}

/// The resident weight called `name`.
pub(super) fn resident<'a>(manifest: &Manifest, name: &str) -> Option<Piece<'a>> {
    let tensors = &manifest.resident.tensors;
    let index = tensors.iter().position(|tensor| tensor.name == name)?;
    let (rows, cols) = tensors[index].matrix();
    Some(Piece::Resident {
        index,
        layout: tensors[index].layout,
        rows,
        cols,
    })
}

/// The projection that an expert's role is.
pub(super) fn projection(role: &str) -> Option<Projection> {
    match role {
        "expert_gate" => Some(Projection::Gate),
        "expert_up" => Some(Projection::Up),
        "expert_down" => Some(Projection::Down),
        _ => None,
    }
}

/// `projection` of the experts of `layer` called so in the program, or of one of them.
pub(super) fn experts<'a>(
    manifest: &'a Manifest,
    layer: u64,
    expert: Option<u64>,
    projection: Projection,
) -> Option<Vec<Piece<'a>>> {
    let layers = &manifest.experts.layers;
    let index = layers.iter().position(|stored| stored.layer == layer)?;
    let layer = &layers[index];
    let wanted = match expert {
        None => 0..layer.experts,
        Some(expert) => expert..expert.checked_add(1)?,
    };
    let piece = |expert| {
        let position = layer.order.iter().position(|stored| *stored == expert)?;
        Some(Piece::Expert {
            index,
            layer,
            position: position as u64,
            projection,
        })
    };
    wanted.map(piece).collect()
}
