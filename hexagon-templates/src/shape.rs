//! What an expert is to a kernel: its dimensions, and how its tiles are stored.

use std::fmt;

use estream_schemas::dtype::DType;
use estream_schemas::layout::{Layout, NibbleOrder, TILE};
use estream_schemas::limits::{MAX_DIM, MAX_SHARDS};
use estream_schemas::manifest::ExpertLayer;

use crate::Refused;
use crate::abi::LayoutCode;

/// What a weight's address in VTCM is a multiple of.
pub(crate) const WEIGHT_ALIGN: u64 = 128;

/// A layout whose tiles kernels decode into operands of the matrix unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    layout: Layout,
    code: LayoutCode,
    tile_bytes: u64,
}

impl Stored {
    /// None if no kernel decodes it.
    pub fn new(layout: Layout) -> Option<Stored> {
        Some(Stored {
            layout,
            code: LayoutCode::of(layout)?,
            tile_bytes: layout.tile_bytes()?,
        })
    }

    /// All of them.
    pub fn known() -> impl Iterator<Item = Stored> {
        DType::all().flat_map(|dtype| {
            let orders = [NibbleOrder::Direct, NibbleOrder::Pair];
            let mut layouts = orders.map(|order| Layout::tiled(dtype, order)).to_vec();
            // Whole bytes have one order.
            layouts.dedup();
            layouts.into_iter().flatten().filter_map(Stored::new)
        })
    }

    /// The layout.
    pub fn layout(self) -> Layout {
        self.layout
    }

    /// What messages to the kernels call it.
    pub fn code(self) -> LayoutCode {
        self.code
    }

    /// Bytes of a tile in a bundle.
    pub fn tile_bytes(self) -> u64 {
        self.tile_bytes
    }

    /// Bytes between tiles in VTCM, each of which begins where vectors can be loaded.
    pub fn vtcm_tile_bytes(self) -> u64 {
        self.tile_bytes.next_multiple_of(WEIGHT_ALIGN)
    }
}

/// An expert's shape class: all that a template depends on besides the device.
///
/// Holding one proves that its dimensions are those of some bundle and that kernels decode its layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    hidden: u64,
    ff: u64,
    shards: u64,
    stored: [Stored; 3],
}

impl ExpertShape {
    /// A record of feed-forward width `ff`, one of `shards` of an expert; layouts are those of gate, up and
    /// down.
    ///
    /// # Errors
    /// If no expert is like that, or no kernel decodes one of its matrices.
    pub fn new(
        hidden: u64,
        ff: u64,
        shards: u64,
        layouts: [Layout; 3],
    ) -> Result<ExpertShape, Refused> {
        let why = match () {
            () if !(1..=MAX_DIM).contains(&hidden) || !(1..=MAX_DIM).contains(&ff) => {
                Some("a dimension is 0 or beyond what bundles have")
            }
            () if !(1..=MAX_SHARDS).contains(&shards) => {
                Some("there are no shards, or more than bundles have")
            }
            () if shards > 1 && !ff.is_multiple_of(TILE) => {
                Some("a shard is no whole number of tiles")
            }
            () => None,
        };
        if let Some(why) = why {
            return Err(Refused::Shape {
                hidden,
                ff,
                shards,
                why,
            });
        }
        let [gate, up, down] = layouts;
        let stored =
            |projection, layout| Stored::new(layout).ok_or(Refused::Layout { projection, layout });
        Ok(ExpertShape {
            hidden,
            ff,
            shards,
            stored: [
                stored("gate", gate)?,
                stored("up", up)?,
                stored("down", down)?,
            ],
        })
    }

    /// That of the records of a layer.
    ///
    /// # Errors
    /// As [`ExpertShape::new`].
    pub fn of(layer: &ExpertLayer) -> Result<ExpertShape, Refused> {
        let layouts = layer.regions().map(|region| region.layout);
        ExpertShape::new(layer.gate.cols, layer.gate.rows, layer.shards, layouts)
    }

    /// The same experts in another number of records.
    pub(crate) fn cut(&self, shards: u64) -> Option<ExpertShape> {
        let tiles = self.ff_tiles() * self.shards;
        let fits = (1..=MAX_SHARDS).contains(&shards)
            && self.ff.is_multiple_of(TILE)
            && tiles.is_multiple_of(shards);
        fits.then(|| ExpertShape {
            ff: tiles / shards * TILE,
            shards,
            ..*self
        })
    }

    /// d: width of the model.
    pub fn hidden(&self) -> u64 {
        self.hidden
    }

    /// Feed-forward width of a record.
    pub fn ff(&self) -> u64 {
        self.ff
    }

    /// Records of an expert.
    pub fn shards(&self) -> u64 {
        self.shards
    }

    /// How gate, up and down are stored.
    pub fn stored(&self) -> [Stored; 3] {
        self.stored
    }

    /// Tiles across the width of the model.
    pub fn hidden_tiles(&self) -> u64 {
        self.hidden.div_ceil(TILE)
    }

    /// Tiles across the feed-forward width.
    pub fn ff_tiles(&self) -> u64 {
        self.ff.div_ceil(TILE)
    }
}

impl fmt::Display for ExpertShape {
    /// As `2048x1024-q4_0.t32.direct`; all three layouts, where they differ. Shards are no part of a class.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.hidden, self.ff)?;
        let [gate, up, down] = self.stored.map(Stored::layout);
        match gate == up && up == down {
            true => write!(f, "-{gate}"),
            false => write!(f, "-{gate}-{up}-{down}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name: &str) -> Layout {
        name.parse().unwrap()
    }

    #[test]
    fn tiles_in_vtcm_begin_where_vectors_can_be_loaded() {
        let sizes: Vec<(String, u64, u64)> = Stored::known()
            .map(|stored| {
                let name = stored.layout().to_string();
                (name, stored.tile_bytes(), stored.vtcm_tile_bytes())
            })
            .collect();
        let expected = [
            ("f32.t32", 4096, 4096),
            ("f16.t32", 2048, 2048),
            ("bf16.t32", 2048, 2048),
            ("q4_0.t32.direct", 576, 640),
            ("q4_0.t32.pair", 576, 640),
            ("q4_1.t32.direct", 640, 640),
            ("q4_1.t32.pair", 640, 640),
            ("q8_0.t32", 1088, 1152),
            ("iq4_nl.t32.direct", 576, 640),
            ("iq4_nl.t32.pair", 576, 640),
            ("mxfp4.t32.direct", 544, 640),
            ("mxfp4.t32.pair", 544, 640),
        ];
        let expected = expected.map(|(name, tile, vtcm)| (name.to_owned(), tile, vtcm));
        assert_eq!(sizes, expected);
    }

    #[test]
    fn what_no_kernel_decodes_is_refused_with_what_they_do() {
        let [q4_0, q6_k] = ["q4_0.t32.direct", "q6_k.rows"].map(layout);
        let error = ExpertShape::new(64, 64, 1, [q4_0, q4_0, q6_k]).unwrap_err();
        assert_eq!(error.exit().code(), 3);
        let text = error.to_string();
        for part in ["q6_k.rows (down)", "q4_0.t32.pair", "q8_0.t32", "recipe"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(Stored::new(layout("q4_0.rows")).is_none());
    }

    #[test]
    fn dimensions_that_no_bundle_has_are_refused() {
        let layouts = [layout("q8_0.t32"); 3];
        for (hidden, ff, shards) in [
            (0, 1, 1),
            (1, 0, 1),
            (MAX_DIM + 1, 1, 1),
            (32, 32, 0),
            (32, 32, MAX_SHARDS + 1),
            (32, 48, 2),
        ] {
            let error = ExpertShape::new(hidden, ff, shards, layouts).unwrap_err();
            assert_eq!(error.exit().code(), 4, "{error}");
        }
        assert!(ExpertShape::new(MAX_DIM, MAX_DIM, MAX_SHARDS, layouts).is_ok());
    }

    #[test]
    fn a_class_is_called_by_its_dimensions_and_layouts() {
        let [q4_0, q4_1] = ["q4_0.t32.direct", "q4_1.t32.direct"].map(layout);
        let name = |layouts| ExpertShape::new(2048, 768, 1, layouts).unwrap().to_string();
        assert_eq!(name([q4_0; 3]), "2048x768-q4_0.t32.direct");
        assert_eq!(
            name([q4_0, q4_0, q4_1]),
            "2048x768-q4_0.t32.direct-q4_0.t32.direct-q4_1.t32.direct"
        );
    }
}
